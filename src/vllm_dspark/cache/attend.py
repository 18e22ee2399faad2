"""One step's attention over pages: causal rows of a model, and blocks of a drafter."""

from collections.abc import Sequence

import mlx.core as mx

from vllm_dspark.cache.layout import ContextLayout, PageLayout, Segment
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


Visibility = tuple[int | None, bool]
"""What a draft layer's slots see: (context window or None, whether the block is causal)."""


class BlockAttend:
    """Attention of draft blocks over ``[pages of the committed context | the block's rows]``.

    The block's own keys and values never enter a page. How much of a context is committed is an
    array, since the step that decides it has not been waited for; the layout has upper bounds.

    Args:
        pool: arrays of the draft layers.
        layout: where each request's context lies.
        lengths: [R] int32, committed positions; at most ``layout.length``.
        layers: visibility of each draft layer.
        num_slots: width S of the blocks.
    """

    def __init__(
        self,
        pool: KVPool,
        layout: ContextLayout,
        mix: Mix,
        *,
        lengths: mx.array,
        layers: Sequence[Visibility],
        num_slots: int,
    ) -> None:
        self._pool = pool
        self._layout = layout
        self._mix = mix
        self._layers = layers
        self._scale = pool.shape.head_dim**-0.5
        length = layout.width * pool.block_size if layout.blocks is not None else layout.length
        if any(layout.firsts):
            lengths = lengths - mx.array(layout.firsts, mx.int32)
        self._masks = {
            one: block_mask(lengths, length, num_slots, window=one[0], is_causal=one[1])
            for one in set(layers)
        }

    def __call__(self, layer: int, q: mx.array, k: mx.array, v: mx.array) -> mx.array:
        """Attend q [R, S, H, D] over context and block k, v [R, S, KV, D] -> [R, S, H, D]."""
        if self._layout.blocks is None:
            keys, values = self._pool.view(layer, self._layout.view_start, self._layout.length)
        else:
            keys, values = self._pool.gather(layer, self._layout.blocks)
        keys = mx.concatenate([keys, k.swapaxes(1, 2)], axis=2)
        values = mx.concatenate([values, v.swapaxes(1, 2)], axis=2)
        mask = self._masks[self._layers[layer]]
        mixed = self._mix(q.swapaxes(1, 2), keys, values, mask=mask, scale=self._scale)
        return mixed.swapaxes(1, 2)


def block_mask(
    lengths: mx.array, length: int, num_slots: int, *, window: int | None, is_causal: bool
) -> mx.array:
    """Which keys each slot sees: lengths [R] -> [R, 1, S, length + S] bool.

    Every slot sees context positions [lengths - window, lengths), and all slots of its block or,
    when causal, those up to itself.
    """
    columns = mx.arange(length)
    ends = lengths[:, None, None, None]
    context = columns < ends
    if window is not None:
        context = context & (columns >= ends - window)
    num_requests = lengths.shape[0]
    slots = mx.arange(num_slots)
    block = slots <= slots[:, None] if is_causal else mx.ones((num_slots, num_slots), mx.bool_)
    shape = (num_requests, 1, num_slots)
    return mx.concatenate(
        [
            mx.broadcast_to(context, (*shape, length)),
            mx.broadcast_to(block, (*shape, num_slots)),
        ],
        axis=-1,
    )
