"""Attention of one new row per request, at a position that is still on the device."""

import mlx.core as mx

from vllm_dspark.cache.layout import ContextLayout
from vllm_dspark.cache.pool import KVPool
from vllm_dspark.ops.select import Mix


class RowAttend:
    """The ``Attend`` of a causal model that runs one row of each request.

    Args:
        pool: arrays of the model's layers.
        layout: where each request's context and its new rows lie.
        positions: [R] int32, of the rows; below ``layout.length``.
    """

    def __init__(
        self, pool: KVPool, layout: ContextLayout, mix: Mix, *, positions: mx.array
    ) -> None:
        self._pool = pool
        self._layout = layout
        self._mix = mix
        self._scale = pool.shape.head_dim**-0.5
        self._slots = row_slots(layout, positions, pool.block_size)
        length = layout.length if layout.blocks is None else layout.width * pool.block_size
        self._mask = (mx.arange(length) <= positions[:, None])[:, None, None]

    def __call__(self, layer: int, q: mx.array, k: mx.array, v: mx.array) -> mx.array:
        """Store k, v [R, KV, D] and attend q [R, H, D] -> [R, H, D]."""
        self._pool.write(layer, self._slots, k, v)
        if self._layout.blocks is None:
            keys, values = self._pool.view(layer, self._layout.view_start, self._layout.length)
        else:
            keys, values = self._pool.gather(layer, self._layout.blocks)
        mixed = self._mix(q[:, :, None], keys, values, mask=self._mask, scale=self._scale)
        return mixed[:, :, 0]


def row_slots(layout: ContextLayout, positions: mx.array, block_size: int) -> mx.array:
    """Slot of one position per request, [R] int32.

    A position past its request's block table gives a slot of the null block 0, which nobody reads.
    """
    if layout.blocks is None:
        return layout.view_start + positions
    pages = (positions // block_size)[:, None]
    blocks = mx.take_along_axis(layout.blocks, pages, axis=1)[:, 0]
    return blocks * block_size + positions % block_size
