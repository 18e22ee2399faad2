"""The gated feed-forward block."""

from collections.abc import Callable

import mlx.core as mx
import mlx.nn as nn

from vllm_dspark.nn.linear import Linear


def plain_silu(x: mx.array) -> mx.array:
    """x * sigmoid(x), any shape."""
    return x * mx.sigmoid(x)


class GatedMLP(nn.Module):
    """down(silu(gate x) * up x), with gate and up as one matrix of 2 I rows, gate first.

    Attributes:
        silu: the activation; another implementation may be put in its place.
    """

    def __init__(self, gate_up_proj: Linear, down_proj: Linear) -> None:
        super().__init__()
        self.gate_up_proj = gate_up_proj
        self.down_proj = down_proj
        self.silu: Callable[[mx.array], mx.array] = plain_silu

    def __call__(self, x: mx.array) -> mx.array:
        """Apply to x [..., H] -> [..., H]."""
        gate, up = mx.split(self.gate_up_proj(x), 2, axis=-1)
        return self.down_proj(self.silu(gate) * up)
