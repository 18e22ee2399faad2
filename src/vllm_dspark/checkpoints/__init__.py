"""Checkpoint folders in, finished networks out."""
