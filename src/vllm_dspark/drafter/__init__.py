"""The DSpark block drafter: taps of the target in, drafts and confidences out."""
