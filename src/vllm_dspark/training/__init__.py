"""Train a block draft for a target: make data, fit, calibrate."""
