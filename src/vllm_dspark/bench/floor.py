"""What memory bandwidth allows: bytes that a step must read, and bytes per second."""

from dataclasses import dataclass

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from vllm_dspark.bench.timing import time_ms
from vllm_dspark.runner.build import Loaded, LoadedDraft
from vllm_dspark.types import AttentionShape

PROBE_BYTES = 256 << 20


def measure_bandwidth(num_bytes: int = PROBE_BYTES, repeats: int = 12) -> float:
    """Bytes per second that this device reads, the best of a sum and a matrix times a vector."""
    side = int((num_bytes / 4) ** 0.5)
    matrix = mx.ones((side, side))
    vector = mx.ones((side, 1))
    mx.eval(matrix, vector)
    best = min(
        time_ms(lambda: mx.eval(matrix @ vector), repeats=repeats).low,
        time_ms(lambda: mx.eval(mx.sum(matrix)), repeats=repeats).low,
    )
    return matrix.nbytes / best * 1e3


def weight_bytes(module: nn.Module) -> int:
    """Bytes of all parameters."""
    return sum(array.nbytes for _, array in tree_flatten(module.parameters()))


def kv_bytes(shape: AttentionShape, num_tokens: int, dtype: mx.Dtype) -> int:
    """Bytes of keys and values of num_tokens tokens."""
    return shape.elements_per_token * num_tokens * dtype.size


@dataclass(frozen=True, slots=True)
class Floor:
    """Bytes that steps must read, each once, whatever the implementation.

    Attributes:
        target, draft: weights; the draft's include the head that it applies once more.
    """

    target: int
    draft: int
    bandwidth: float

    @classmethod
    def of(cls, loaded: Loaded, bandwidth: float) -> "Floor":
        target = loaded.target
        head = target.lm_head if "lm_head" in target else target.embed_tokens
        read = weight_bytes(target)
        if "lm_head" in target:
            read -= weight_bytes(target.embed_tokens)  # a step looks up a few rows of it
        draft = 0
        if isinstance(loaded.draft, LoadedDraft):
            drafter = loaded.draft.drafter
            draft = weight_bytes(drafter)
            if drafter.lm_head is None:
                draft += weight_bytes(head)
            if drafter.embed_tokens is not None:
                draft -= weight_bytes(drafter.embed_tokens)
        return cls(read, draft, bandwidth)

    def ms(self, loaded: Loaded, num_tokens: int, *, drafts: bool) -> float:
        """Milliseconds that a step over contexts of num_tokens tokens in all needs at least."""
        num_bytes = self.target + kv_bytes(loaded.config.attention, num_tokens, loaded.dtype)
        if drafts and loaded.draft is not None:
            num_bytes += self.draft
            num_bytes += kv_bytes(loaded.draft.attention, num_tokens, loaded.dtype)
        return num_bytes / self.bandwidth * 1e3
