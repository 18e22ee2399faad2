"""Root-mean-square normalisation."""

import mlx.core as mx
import mlx.nn as nn


class RMSNorm(nn.Module):
    """w * x / sqrt(mean(x^2) + eps) over the last axis, accumulated in float32."""

    def __init__(self, weight: mx.array, eps: float) -> None:
        super().__init__()
        self.weight = weight
        self.eps = eps

    def __call__(self, x: mx.array) -> mx.array:
        """Normalise x [..., size] -> [..., size]."""
        return mx.fast.rms_norm(x, self.weight, self.eps)
