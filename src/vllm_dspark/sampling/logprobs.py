"""Log-probabilities of chosen and most likely tokens."""

from dataclasses import dataclass

import mlx.core as mx

TOP_TOKEN = -1
"""Stands for "the most likely token of this rank" among ids that were asked for."""


@dataclass(frozen=True, slots=True)
class TokenScores:
    """Scores of some rows.

    Attributes:
        token_ids: [S, 1 + C] int32, the chosen token, then the alternatives.
        scores: [S, 1 + C] float32, log-probabilities (or logits).
        ranks: [S] int32, 1 for the most likely token.
    """

    token_ids: mx.array
    scores: mx.array
    ranks: mx.array

    @property
    def arrays(self) -> list[mx.array]:
        return [self.token_ids, self.scores, self.ranks]


def score_tokens(
    logits: mx.array,
    chosen: mx.array,
    *,
    num_top: int = 0,
    extra_ids: mx.array | None = None,
    is_logits: bool = False,
) -> TokenScores:
    """Score the chosen token and alternatives of each row.

    Args:
        logits: [S, V] float32.
        chosen: [S] int32.
        num_top: most likely tokens to report; -1 reports all V.
        extra_ids: [S, C] int32 to report instead of the most likely ones; a row of TOP_TOKEN
            keeps the most likely ones. The table is as wide as the larger of C and ``num_top``.
        is_logits: report logits as they are, not log-probabilities.
    """
    scores = logits
    if not is_logits:
        scores = logits - mx.logsumexp(logits, axis=1, keepdims=True)
    own = mx.take_along_axis(scores, chosen[:, None], axis=1)
    ranks = (scores > own).sum(axis=1).astype(mx.int32) + 1
    columns = [chosen[:, None].astype(mx.int32)]
    count = scores.shape[1] if num_top < 0 else num_top
    if extra_ids is not None:
        columns.append(_merge_ids(extra_ids, scores, count))
    elif count:
        columns.append(top_ids(scores, count))
    ids = mx.concatenate(columns, axis=1)
    return TokenScores(ids, mx.take_along_axis(scores, ids, axis=1), ranks)


def _merge_ids(extra_ids: mx.array, scores: mx.array, num_top: int) -> mx.array:
    """Replace TOP_TOKEN by the most likely ids, and pad to num_top columns."""
    width = max(extra_ids.shape[1], num_top)
    padding = mx.repeat(extra_ids[:, :1], width - extra_ids.shape[1], axis=1)
    wanted = mx.concatenate([extra_ids, padding], axis=1)
    return mx.where(wanted == TOP_TOKEN, top_ids(scores, width), wanted)


def top_ids(scores: mx.array, count: int) -> mx.array:
    """Ids of the count largest scores per row [S, V], best first: [S, count] int32."""
    if count >= scores.shape[1]:
        return mx.argsort(-scores, axis=1).astype(mx.int32)
    picked = mx.argpartition(-scores, count - 1, axis=1)[:, :count]
    order = mx.argsort(-mx.take_along_axis(scores, picked, axis=1), axis=1)
    return mx.take_along_axis(picked, order, axis=1).astype(mx.int32)
