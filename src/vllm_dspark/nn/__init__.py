"""Layers shared by the target families and the drafter."""
