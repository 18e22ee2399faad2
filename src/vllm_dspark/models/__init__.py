"""Target families: one file each, taps and attention are arguments of the forward."""
