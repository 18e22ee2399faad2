"""Attention of many blocks over their row's context, without a mask over pairs of blocks."""

from collections.abc import Sequence

import mlx.core as mx

from vllm_dspark.drafter.backbone import KeysValues


class BlocksAttend:
    """A block's slots see the row's tokens before the anchor, and each other.

    The scores are made in two dense parts, context and own block, with one softmax over both.

    Args:
        context: per layer keys and values [B T, KV, D].
        anchors: [B, A] int32, positions of the anchors.
    """

    def __init__(self, context: Sequence[KeysValues], anchors: mx.array) -> None:
        num_rows, self._num_blocks = anchors.shape
        self._context = [
            tuple(x.reshape(num_rows, -1, *x.shape[1:]).swapaxes(1, 2) for x in pair)
            for pair in context
        ]
        length = self._context[0][0].shape[2]
        before = mx.arange(length, dtype=mx.int32) < anchors[..., None]  # [B, A, T]
        self._hidden = ~before[:, None, None, :, None]  # [B, 1, 1, A, 1, T]

    def __call__(self, layer: int, q: mx.array, k: mx.array, v: mx.array) -> mx.array:
        """As :data:`vllm_dspark.drafter.backbone.BlockAttend`, with R = B A blocks."""
        keys, values = self._context[layer]  # [B, KV, T, D]
        num_rows, kv_heads, length, size = keys.shape
        slots = q.shape[1]
        blocks, groups = self._num_blocks, q.shape[2] // kv_heads
        q = q.reshape(num_rows, blocks, slots, kv_heads, groups, size) * size**-0.5
        q = q.transpose(0, 3, 4, 1, 2, 5)  # [B, KV, G, A, S, D]
        k, v = (
            x.reshape(num_rows, blocks, slots, kv_heads, size).transpose(0, 3, 1, 2, 4)[:, :, None]
            for x in (k, v)
        )  # [B, KV, 1, A, S, D]
        flat = q.reshape(num_rows, kv_heads, -1, size)
        outer = (flat @ keys.swapaxes(-1, -2)).reshape(*q.shape[:-1], length)
        inner = q @ k.swapaxes(-1, -2)  # [B, KV, G, A, S, S]
        outer_share, inner_share = _softmax(outer, inner, self._hidden)
        wide = outer_share.reshape(num_rows, kv_heads, -1, length) @ values
        mixed = wide.reshape(q.shape) + inner_share @ v
        return mixed.transpose(0, 3, 4, 1, 2, 5).reshape(num_rows * blocks, slots, -1, size)


def _softmax(outer: mx.array, inner: mx.array, hidden: mx.array) -> tuple[mx.array, mx.array]:
    """Softmax over the last axes of both together; ``hidden`` entries of outer get zero."""
    outer = mx.where(hidden, -mx.inf, outer.astype(mx.float32))
    inner_scores = inner.astype(mx.float32)
    top = mx.maximum(outer.max(axis=-1, keepdims=True), inner_scores.max(axis=-1, keepdims=True))
    top = mx.stop_gradient(top)
    outer, inner_scores = mx.exp(outer - top), mx.exp(inner_scores - top)
    total = outer.sum(axis=-1, keepdims=True) + inner_scores.sum(axis=-1, keepdims=True)
    return (outer / total).astype(inner.dtype), (inner_scores / total).astype(inner.dtype)
