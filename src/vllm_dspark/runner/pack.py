"""Requests and a schedule -> the packed rows of one step; host arithmetic only."""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from vllm_dspark.cache.layout import PageSpan
from vllm_dspark.errors import StateError
from vllm_dspark.runner.requests import Request, RequestTable
from vllm_dspark.runner.schedule import Turn


@dataclass(frozen=True, slots=True)
class Span:
    """One request's rows in a step: known tokens from ``start``, then drafts to verify.

    Attributes:
        first_row: index of its first packed row.
        is_final: the rows reach the newest known token, so the request emits.
    """

    request: Request
    start: int
    num_known: int
    drafts: tuple[int, ...]
    first_row: int
    is_final: bool

    @property
    def num_rows(self) -> int:
        return self.num_known + len(self.drafts)

    @property
    def token_ids(self) -> list[int]:
        return [
            *self.request.token_ids[self.start : self.start + self.num_known], *self.drafts
        ]

    @property
    def logit_rows(self) -> range:
        """Packed rows whose logits decide what is emitted: the last known token's, and drafts'."""
        if not self.is_final:
            return range(0)
        stop = self.first_row + self.num_rows
        return range(stop - len(self.drafts) - 1, stop)

    def pages(self, group: int) -> PageSpan:
        """This span in the block table of one KV cache group."""
        return PageSpan(self.request.blocks[group], self.start, self.num_rows)


@dataclass(frozen=True, slots=True)
class Batch:
    """All rows of a step, requests with equally many rows next to each other.

    Attributes:
        token_ids, positions: [N] int32.
    """

    spans: tuple[Span, ...]
    token_ids: mx.array
    positions: mx.array

    @property
    def num_rows(self) -> int:
        return self.spans[-1].first_row + self.spans[-1].num_rows

    @property
    def logit_rows(self) -> list[int]:
        return [row for span in self.spans for row in span.logit_rows]


def make_span(request: Request, turn: Turn) -> Span:
    """Decide a request's rows; ``first_row`` is set when spans are packed.

    The scheduler grants a last prompt token 1 + K rows with placeholder drafts, and in async mode
    it does not know how many drafts there are: rows are counted from what the request holds.

    Raises:
        StateError: when the turn does not fit the request.
    """
    start, known = request.num_computed, len(request.token_ids)
    num_known = min(turn.num_tokens, known - start)
    if num_known < 1:
        raise StateError(
            f"request {request.request_id} has {known} tokens of which {start} are computed, but "
            f"{turn.num_tokens} more are scheduled; this is a bug"
        )
    is_final = start + num_known == known
    drafts: tuple[int, ...] = ()
    if is_final and turn.num_drafts:
        drafts = request.drafts if turn.drafts is None else turn.drafts
        drafts = drafts[: turn.num_tokens - num_known]
    return Span(request, start, num_known, drafts, 0, is_final)


def pack(table: RequestTable, turns: Sequence[Turn]) -> Batch:
    """Pack the turns of one step, shortest spans first."""
    loose = [make_span(table[turn.request_id], turn) for turn in turns]
    spans, first_row = [], 0
    for span in sorted(loose, key=lambda span: span.num_rows):
        spans.append(
            Span(span.request, span.start, span.num_known, span.drafts, first_row, span.is_final)
        )
        first_row += span.num_rows
    token_ids = np.concatenate([np.asarray(span.token_ids, np.int32) for span in spans])
    positions = np.concatenate(
        [np.arange(span.start, span.start + span.num_rows, dtype=np.int32) for span in spans]
    )
    return Batch(tuple(spans), mx.array(token_ids), mx.array(positions))
