"""The vocabulary that crosses module borders.

Letters in shapes: R requests in the step, N packed token rows, K drafts per request, V vocabulary,
H hidden size or query heads (as said), D head size, S cache slots.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import mlx.core as mx

Attend = Callable[[int, "mx.array", "mx.array", "mx.array"], "mx.array"]
"""Attention of one layer over packed rows.

(layer index, q [N, heads, D], k [N, kv heads, D], v [N, kv heads, D]) -> [N, heads, D]. Keys are
already rotated; the callable owns the cache and decides which positions a row may see.
"""


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What a KV cache must know about a stack of attention layers."""

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int

    @property
    def elements_per_token(self) -> int:
        """Numbers stored for one token over all layers, keys and values together."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim


@dataclass(frozen=True, slots=True)
class Seen:
    """What a target forward returns.

    Attributes:
        hidden: [N, H] final-normed state of every packed row.
        taps: one [N, H] per tapped state, in the order asked for.
    """

    hidden: mx.array
    taps: tuple[mx.array, ...]
