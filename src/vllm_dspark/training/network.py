"""The draft over a batch of rows: from tokens to losses, and from tokens to drafts."""

from collections.abc import Mapping
from dataclasses import dataclass

import mlx.core as mx
from mlx.utils import tree_flatten, tree_unflatten

from vllm_dspark.drafter.drafter import Drafter
from vllm_dspark.training.attention import BlocksAttend
from vllm_dspark.training.blocks import Blocks, make_blocks
from vllm_dspark.training.frozen import FrozenTarget
from vllm_dspark.training.losses import Losses, Slots, block_losses, slot_weights
from vllm_dspark.training.settings import LossWeights
from vllm_dspark.types import Seen

Arrays = dict[str, mx.array]


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows and their blocks' places, as arrays.

    Attributes:
        tokens: [B, T] int32; mask: [B, T] uint8, above 0 where supervised.
        anchors: [B, A] int32; is_real: [B, A] bool.
    """

    tokens: mx.array
    mask: mx.array
    anchors: mx.array
    is_real: mx.array


def parameters_of(drafter: Drafter) -> Arrays:
    """The drafter's weights by dotted name, as they are."""
    return dict(tree_flatten(drafter.parameters()))


def set_parameters(drafter: Drafter, params: Mapping[str, mx.array], dtype: mx.Dtype) -> None:
    """Give the drafter weights by dotted name, cast; the confidence head stays in float32."""
    cast = [
        (name, array if name.startswith("confidence_head.") else array.astype(dtype))
        for name, array in params.items()
    ]
    drafter.update(tree_unflatten(cast))


def hidden_rows(
    drafter: Drafter, target: FrozenTarget, batch: Batch, blocks: Blocks, seen: Seen
) -> mx.array:
    """Run every block of a batch: g [B, A, K, d], the rows that give drafts."""
    num_rows, length = batch.tokens.shape
    positions = mx.tile(mx.arange(length, dtype=mx.int32), (num_rows,))
    context = drafter.context_kv(drafter.fuse(seen.taps), positions)
    attend = BlocksAttend(context, blocks.anchors)
    hidden = drafter.block(
        target.network.embed,
        blocks.previous[..., 0].reshape(-1),
        blocks.anchors.reshape(-1),
        attend,
    )
    return drafter.draft_rows(hidden).reshape(*blocks.previous.shape, -1)


def losses_of(
    drafter: Drafter,
    target: FrozenTarget,
    batch: Batch,
    seen: Seen,
    terms: LossWeights,
    piece_rows: int,
) -> tuple[Losses, Blocks]:
    """What a batch costs with the drafter's present weights.

    Args:
        seen: the target's states over the batch, from :meth:`FrozenTarget.see`.
        piece_rows: slots whose logits are in memory at once.
    """
    num_slots = drafter.config.num_slots
    blocks = make_blocks(batch.tokens, batch.mask, batch.anchors, batch.is_real, num_slots)
    rows = hidden_rows(drafter, target, batch, blocks, seen)
    confidence = drafter.confidences(rows, blocks.previous)
    low_rank, table = None, None
    if drafter.markov_head is not None:
        head = drafter.markov_head
        low_rank = flat(head.all_slots(head.embed(blocks.previous), rows))
        table = head.markov_w2.weight
    num_rows, length = batch.tokens.shape
    sources = blocks.sources.reshape(num_rows, -1)
    offsets = mx.arange(num_rows, dtype=mx.int32)[:, None] * length
    slots = Slots(
        rows=flat(rows),
        low_rank=low_rank,
        table=table,
        head=target.head.astype(rows.dtype),
        target_rows=seen.hidden[(sources + offsets).reshape(-1)].astype(rows.dtype),
        labels=blocks.labels.reshape(-1),
        weights=slot_weights(blocks.mask, terms.decay_slots).reshape(-1),
    )
    flat_confidence = None if confidence is None else confidence.reshape(-1)
    return block_losses(slots, flat_confidence, terms, piece_rows), blocks


def flat(x: mx.array) -> mx.array:
    """Merge all axes but the last."""
    return x.reshape(-1, x.shape[-1])
