"""One step's attention over pages: writes the rows, then lets each see its own past."""

import mlx.core as mx

from vllm_dspark.cache.layout import PageLayout, Segment
from vllm_dspark.cache.pool import KVPool
from vllm_dspark.ops.select import Mix


class CausalAttend:
    """The ``Attend`` of one step of the target.

    Args:
        pool: arrays of the target's layers.
        layout: this step's slots and segments in that pool.
        mix: the attention operation.
    """

    def __init__(self, pool: KVPool, layout: PageLayout, mix: Mix) -> None:
        self._pool = pool
        self._layout = layout
        self._mix = mix
        self._scale = pool.shape.head_dim**-0.5

    def __call__(self, layer: int, q: mx.array, k: mx.array, v: mx.array) -> mx.array:
        """Store k, v [N, KV, D] and attend q [N, H, D] -> [N, H, D]."""
        self._pool.write(layer, self._layout.slots, k, v)
        mixed = [self._attend(layer, q, segment) for segment in self._layout.segments]
        return mixed[0] if len(mixed) == 1 else mx.concatenate(mixed)

    def _attend(self, layer: int, q: mx.array, segment: Segment) -> mx.array:
        rows = q[segment.first_row : segment.stop_row]
        shape = (segment.num_requests, segment.num_rows, *q.shape[1:])
        rows = rows.reshape(shape).swapaxes(1, 2)
        if segment.blocks is None:
            assert segment.view_start is not None
            keys, values = self._pool.view(layer, segment.view_start, segment.length)
        else:
            keys, values = self._pool.gather(layer, segment.blocks)
        mixed = self._mix(rows, keys, values, mask=segment.mask, scale=self._scale)
        return mixed.swapaxes(1, 2).reshape(-1, *q.shape[1:])
