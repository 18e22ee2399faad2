"""Acceptance on held-out rows: exact greedy rounds along the target's own greedy answers."""

from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from vllm_dspark.drafter.drafter import Drafter
from vllm_dspark.training.blocks import make_blocks, valid_anchors
from vllm_dspark.training.frozen import FrozenTarget
from vllm_dspark.training.network import Batch, flat, hidden_rows
from vllm_dspark.training.shards import Rows

ANCHORS_AT_ONCE = 128  # blocks of one row in memory together


@dataclass(frozen=True, slots=True)
class Rounds:
    """Drafting rounds, as serving would have run them.

    Attributes:
        accepted: [N] int32, drafts kept of each.
        proposed: [N] int32, drafts that could be kept, fewer than K at the end of an answer.
        confidence_logits: [N, K] float32, NaN without a confidence head.
    """

    accepted: np.ndarray
    proposed: np.ndarray
    confidence_logits: np.ndarray

    @property
    def length(self) -> float:
        """Mean acceptance length, accepted + 1, over rounds with all K slots to fill."""
        whole = self.proposed == self.confidence_logits.shape[1]
        return float(self.accepted[whole].mean() + 1) if whole.any() else 1.0

    def by_position(self) -> list[float]:
        """P(accepted > k) for k = 0..K-1, over rounds that proposed slot k."""
        return [
            float((self.accepted[self.proposed > k] > k).mean())
            for k in range(self.confidence_logits.shape[1])
            if (self.proposed > k).any()
        ]


def greedy_rounds(drafter: Drafter, target: FrozenTarget, rows: Rows) -> Rounds:
    """Walk every answer of greedy rows in rounds of draft and verification.

    The drafter proposes at every position of an answer; the walk then picks the positions that
    rounds start at, each as far after the last as that accepted. This is what serving does, as
    the target's next tokens are known.

    Args:
        rows: only greedy ones are looked at.
    """
    num_slots = drafter.config.num_slots
    found: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    for index in np.flatnonzero(rows.is_greedy):
        row = rows[index : index + 1]
        starts = np.flatnonzero(valid_anchors(np.minimum(row.mask, 1))[0]).astype(np.int32)
        if not len(starts):
            continue
        drafts, logits = _propose(drafter, target, row, starts)
        accepted, proposed = _accepted(row, starts, drafts)
        picked = _walk(starts, accepted)
        found.append((accepted[picked], proposed[picked], logits[picked]))
    if not found:
        empty = np.zeros(0, np.int32)
        return Rounds(empty, empty, np.zeros((0, num_slots), np.float32))
    return Rounds(*(np.concatenate(parts) for parts in zip(*found, strict=True)))


def _propose(
    drafter: Drafter, target: FrozenTarget, row: Rows, starts: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Drafts [N, K] int32 and confidence logits [N, K] of blocks at positions [N] of one row."""
    tokens, mask = mx.array(row.tokens), mx.array(row.mask)
    seen = target.see(tokens, drafter.config.tap_states)
    drafts, logits = [], []
    for first in range(0, len(starts), ANCHORS_AT_ONCE):
        some = starts[first : first + ANCHORS_AT_ONCE]
        padded = np.zeros(ANCHORS_AT_ONCE, np.int32)
        padded[: len(some)] = some
        anchors = mx.array(padded[None])
        is_real = mx.ones(anchors.shape, dtype=mx.bool_)
        batch = Batch(tokens, mask, anchors, is_real)
        blocks = make_blocks(tokens, mask, anchors, is_real, drafter.config.num_slots)
        hidden = hidden_rows(drafter, target, batch, blocks, seen)[0]
        base = drafter.base_logits(flat(hidden), target.network.unembed)
        base = base.reshape(*hidden.shape[:-1], -1)
        draft = drafter.walk(base, hidden, blocks.previous[0, :, 0])
        confidence = draft.confidence_logits
        if confidence is None:
            confidence = mx.full(draft.tokens.shape, mx.nan)
        mx.eval(draft.tokens, confidence)
        drafts.append(np.array(draft.tokens)[: len(some)])
        logits.append(np.array(confidence.astype(mx.float32))[: len(some)])
    return np.concatenate(drafts), np.concatenate(logits)


def _accepted(row: Rows, starts: np.ndarray, drafts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Leading drafts that equal the answer, and drafts before the answer's end: [N] each."""
    num_slots, length = drafts.shape[1], row.tokens.shape[1]
    places = starts[:, None] + 1 + np.arange(num_slots)
    clipped = np.minimum(places, length - 1)
    inside = (places < length) & (row.mask[0, clipped] > 0)
    inside = np.cumprod(inside, axis=1).astype(bool)
    equal = (drafts == row.tokens[0, clipped]) & inside
    return np.cumprod(equal, axis=1).sum(axis=1), inside.sum(axis=1)


def _walk(starts: np.ndarray, accepted: np.ndarray) -> np.ndarray:
    """Indices of the positions where rounds begin: each accepted + 1 after the one before."""
    picked, free = [], -1
    for index, (start, count) in enumerate(zip(starts, accepted, strict=True)):
        if start >= free:
            picked.append(index)
            free = start + count + 1
    return np.array(picked)
