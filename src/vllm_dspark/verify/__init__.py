"""Rules that decide which drafts stand."""
