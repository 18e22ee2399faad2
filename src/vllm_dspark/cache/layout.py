"""Where the rows of one step lie in the pages: host arithmetic only, shared by all layers."""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from vllm_dspark.cache.pool import Slots

MAX_GROUPED_ROWS = 32
"""Requests with more rows than this are attended one by one (prefill chunks)."""


@dataclass(frozen=True, slots=True)
class PageSpan:
    """Rows of one request: positions start .. start + num_rows - 1.

    Attributes:
        blocks: [B] int32, the request's block table, covering every position of the span.
    """

    blocks: np.ndarray
    start: int
    num_rows: int

    @property
    def stop(self) -> int:
        return self.start + self.num_rows


@dataclass(frozen=True, slots=True)
class Segment:
    """Adjacent requests with equally many rows, attended together.

    Attributes:
        first_row: index of the first packed row.
        num_requests, num_rows: requests, and rows of each.
        length: keys looked at.
        view_start: first slot when the context is consecutive (then ``blocks`` is None).
        blocks: [R, B] int32 block tables otherwise, padded with block 0.
        mask: as ``ops.select.Mix`` takes it.
    """

    first_row: int
    num_requests: int
    num_rows: int
    length: int
    view_start: int | None
    blocks: mx.array | None
    mask: mx.array | str | None

    @property
    def stop_row(self) -> int:
        return self.first_row + self.num_requests * self.num_rows


@dataclass(frozen=True, slots=True)
class PageLayout:
    """Slots of all packed rows, and the segments they are attended in."""

    slots: Slots
    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class ContextLayout:
    """Where the contexts of R requests lie, for rows whose positions are still on the device.

    Attributes:
        length: upper bound of the longest context, counted from ``firsts``.
        firsts: position of each request's first key, a multiple of the block size.
        view_start: first slot when there is one request and its blocks follow each other.
        blocks: [R, width] int32 block tables otherwise, from the block of ``firsts`` on.
    """

    length: int
    width: int
    firsts: tuple[int, ...]
    view_start: int
    blocks: mx.array | None


def make_context_layout(
    tables: Sequence[np.ndarray],
    bounds: Sequence[int],
    block_size: int,
    reach: int | None = None,
) -> ContextLayout:
    """Lay out contexts of at most ``bounds`` positions, one per block table.

    Positions past a table lie in the null block 0. With ``reach``, only that many positions before
    each bound are laid out (rounded up to blocks).
    """
    skipped = [0 if reach is None else max(bound - reach, 0) // block_size for bound in bounds]
    firsts = tuple(count * block_size for count in skipped)
    length = max(bound - first for bound, first in zip(bounds, firsts, strict=True))
    width = num_pages(length, block_size)
    cut = [table[count:] for table, count in zip(tables, skipped, strict=True)]
    if len(cut) == 1 and len(cut[0]) >= width:
        start = first_slot(cut[0][:width], block_size)
        if start is not None:
            return ContextLayout(length, width, firsts, start, None)
    return ContextLayout(length, width, firsts, 0, mx.array(stack_blocks(cut, width)))


def num_pages(num_tokens: int, block_size: int) -> int:
    """Blocks that num_tokens positions occupy."""
    return -(-num_tokens // block_size)


def first_slot(blocks: np.ndarray, block_size: int) -> int | None:
    """First slot when the blocks follow each other in the pool, else None."""
    if len(blocks) > 1 and np.any(np.diff(blocks) != 1):
        return None
    return int(blocks[0]) * block_size


def span_slots(span: PageSpan, block_size: int) -> np.ndarray:
    """Slot of every row of a span, [num_rows] int32."""
    positions = np.arange(span.start, span.stop)
    return span.blocks[positions // block_size] * block_size + positions % block_size


def stack_blocks(tables: Sequence[np.ndarray], width: int) -> np.ndarray:
    """Block tables cut or padded with block 0 to [R, width] int32."""
    stacked = np.zeros((len(tables), width), np.int32)
    for row, table in zip(stacked, tables, strict=True):
        row[: min(width, len(table))] = table[:width]
    return stacked


def make_layout(
    spans: Sequence[PageSpan], block_size: int, max_gathered: int | None = None
) -> PageLayout:
    """Lay out packed spans; adjacent spans with equally many rows share a segment.

    Args:
        spans: in packed order.
        max_gathered: requests with more keys than this have a segment each. Sharing one copies
            the keys of all; None is no limit.
    """
    segments = []
    first_row = index = 0
    while index < len(spans):
        num_rows = spans[index].num_rows
        stop = index + 1
        if _may_share(spans[index], max_gathered):
            while stop < len(spans) and _fits(spans[stop], num_rows, max_gathered):
                stop += 1
        group = spans[index:stop]
        segments.append(_make_segment(group, first_row, block_size))
        first_row += len(group) * num_rows
        index = stop
    return PageLayout(_make_slots(spans, block_size), tuple(segments))


def _may_share(span: PageSpan, max_gathered: int | None) -> bool:
    return span.num_rows <= MAX_GROUPED_ROWS and (max_gathered is None or span.stop <= max_gathered)


def _fits(span: PageSpan, num_rows: int, max_gathered: int | None) -> bool:
    return span.num_rows == num_rows and _may_share(span, max_gathered)


def _make_slots(spans: Sequence[PageSpan], block_size: int) -> Slots:
    slots = np.concatenate([span_slots(span, block_size) for span in spans])
    if np.all(np.diff(slots) == 1):
        return slice(int(slots[0]), int(slots[0]) + len(slots))
    return mx.array(slots.astype(np.int32))


def _make_segment(group: Sequence[PageSpan], first_row: int, block_size: int) -> Segment:
    num_rows = group[0].num_rows
    length = max(span.stop for span in group)
    width = num_pages(length, block_size)
    if len(group) == 1:
        start = first_slot(group[0].blocks[:width], block_size)
        if start is not None:
            mask = "causal" if num_rows > 1 else None
            return Segment(first_row, 1, num_rows, length, start, None, mask)
    tables = mx.array(stack_blocks([span.blocks for span in group], width))
    length = width * block_size
    columns = np.arange(length)
    last = np.array([span.start for span in group])[:, None] + np.arange(num_rows)
    mask = mx.array(columns <= last[:, :, None])[:, None]
    return Segment(first_row, len(group), num_rows, length, None, tables, mask)
