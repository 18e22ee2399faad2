"""How many drafts are worth verifying: arithmetic on lists of floats, no arrays, no clock."""
