"""The target as training uses it: frozen, over whole rows, with plain causal attention."""

from collections.abc import Sequence
from pathlib import Path

import mlx.core as mx

from vllm_dspark.checkpoints.target import load_target
from vllm_dspark.models.config import TargetConfig
from vllm_dspark.models.decoder import Decoder
from vllm_dspark.types import Seen


class CausalAttend:
    """Attention of B rows of equal length, each over itself."""

    def __init__(self, num_rows: int, head_dim: int) -> None:
        self._num_rows = num_rows
        self._scale = head_dim**-0.5

    def __call__(self, layer: int, q: mx.array, k: mx.array, v: mx.array) -> mx.array:
        """As :data:`vllm_dspark.types.Attend`: rows [B T, heads, D] -> [B T, heads, D]."""
        mixed = mx.fast.scaled_dot_product_attention(
            self._split(q), self._split(k), self._split(v), scale=self._scale, mask="causal"
        )
        return mixed.swapaxes(1, 2).reshape(q.shape)

    def _split(self, x: mx.array) -> mx.array:
        """[B T, heads, D] -> [B, heads, T, D]."""
        return x.reshape(self._num_rows, -1, *x.shape[1:]).swapaxes(1, 2)


class FrozenTarget:
    """A target whose weights do not change.

    Attributes:
        config: what the target says about itself.
        network: its layers.
        head: [V, d], the dense output matrix, in the compute type.
    """

    def __init__(self, config: TargetConfig, network: Decoder) -> None:
        self.config = config
        self.network = network
        layer = network.lm_head if "lm_head" in network else network.embed_tokens
        weight = layer.weight
        if layer.is_quantized:
            weight = mx.dequantize(
                weight, layer.scales, layer.biases, group_size=layer.group_size, bits=layer.bits
            )
        self.head = weight

    @property
    def dtype(self) -> mx.Dtype:
        """The type that the target computes in."""
        return self.network.norm.weight.dtype

    def see(self, tokens: mx.array, taps: Sequence[int] = ()) -> Seen:
        """Run rows through the target: tokens [B, T] int32 -> states of all B T positions."""
        num_rows, length = tokens.shape
        positions = mx.tile(mx.arange(length, dtype=mx.int32), (num_rows,))
        attend = CausalAttend(num_rows, self.config.head_dim)
        return self.network.forward(tokens.reshape(-1), positions, attend, taps)


def load_frozen(folder: Path, dtype: mx.Dtype) -> FrozenTarget:
    """Read a target; its weights are on the device when this returns.

    Raises:
        CheckpointError: no target of a known family is there.
    """
    target = FrozenTarget(*load_target(folder, dtype))
    mx.eval(target.head)
    return target
