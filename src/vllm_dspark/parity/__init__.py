"""Proof that what is computed here equals the references."""
