"""Slots, segments, and views against gathers."""

import mlx.core as mx
import numpy as np
import pytest

from vllm_dspark.cache.attend import CausalAttend
from vllm_dspark.cache.layout import PageSpan, first_slot, make_layout, num_pages, stack_blocks
from vllm_dspark.cache.pool import KVPool
from vllm_dspark.ops import reference
from vllm_dspark.types import AttentionShape

SHAPE = AttentionShape(num_layers=1, num_heads=4, num_kv_heads=2, head_dim=8)
BLOCK = 4


def span(blocks: list[int], start: int, num_rows: int) -> PageSpan:
    return PageSpan(np.array(blocks, np.int32), start, num_rows)


@pytest.mark.parametrize(("tokens", "pages"), [(1, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_pages_are_rounded_up(tokens: int, pages: int) -> None:
    assert num_pages(tokens, BLOCK) == pages


def test_consecutive_blocks_are_found() -> None:
    assert first_slot(np.array([3]), BLOCK) == 12
    assert first_slot(np.array([3, 4, 5]), BLOCK) == 12
    assert first_slot(np.array([3, 5, 4]), BLOCK) is None
    assert first_slot(np.array([5, 4]), BLOCK) is None


def test_tables_are_padded_with_the_null_block_and_cut() -> None:
    tables = [np.array([3]), np.array([5, 6, 7])]
    assert stack_blocks(tables, 2).tolist() == [[3, 0], [5, 6]]


def test_consecutive_slots_become_a_slice() -> None:
    layout = make_layout([span([3, 4], 2, 4)], BLOCK)
    assert layout.slots == slice(14, 18)
    layout = make_layout([span([3, 9], 2, 4)], BLOCK)
    assert layout.slots.tolist() == [14, 15, 36, 37]


def test_requests_with_equally_many_rows_share_a_segment() -> None:
    spans = [span([1], 2, 1), span([2], 3, 1), span([3, 4], 0, 5), span([5, 6], 1, 5)]
    layout = make_layout(spans, BLOCK)
    shapes = [(one.first_row, one.num_requests, one.num_rows) for one in layout.segments]
    assert shapes == [(0, 2, 1), (2, 2, 5)]


def test_long_chunks_are_attended_one_by_one() -> None:
    spans = [span(list(range(1, 12)), 0, 40), span(list(range(20, 31)), 0, 40)]
    layout = make_layout(spans, BLOCK)
    assert [one.num_requests for one in layout.segments] == [1, 1]
    assert [one.view_start for one in layout.segments] == [4, 80]
    assert layout.segments[0].mask == "causal"


def test_requests_with_many_keys_are_not_gathered() -> None:
    spans = [span([1, 2], 4, 1), span([3, 4, 5], 8, 1), span([6, 7], 5, 1), span([8, 9], 6, 1)]
    shared = make_layout(spans, BLOCK, max_gathered=9)
    assert [one.num_requests for one in shared.segments] == [4]
    split = make_layout(spans, BLOCK, max_gathered=8)
    assert [one.num_requests for one in split.segments] == [1, 1, 2]
    assert [one.view_start for one in split.segments] == [4, 12, None]
    assert [one.first_row for one in split.segments] == [0, 1, 2]


def attend(
    blocks: list[list[int]],
    lengths: list[int],
    rows: list[int],
    max_gathered: int | None = None,
) -> np.ndarray:
    """Write contexts, then the last ``rows`` tokens of each request, and attend those."""
    rng = np.random.default_rng(1)
    contexts = [
        [mx.array(rng.normal(size=(length, heads, 8)), mx.float32) for heads in (4, 2, 2)]
        for length in lengths
    ]
    pool = KVPool(SHAPE, num_blocks=32, block_size=BLOCK, dtype=mx.float32)
    for table, length, count, (_, k, v) in zip(blocks, lengths, rows, contexts, strict=True):
        if length > count:
            layout = make_layout([span(table, 0, length - count)], BLOCK)
            pool.write(0, layout.slots, k[: length - count], v[: length - count])
    spans = [
        span(table, length - count, count)
        for table, length, count in zip(blocks, lengths, rows, strict=True)
    ]
    tail = [
        mx.concatenate([one[part][-count:] for one, count in zip(contexts, rows, strict=True)])
        for part in range(3)
    ]
    layout = make_layout(spans, BLOCK, max_gathered)
    mixed = CausalAttend(pool, layout, reference.mix)(0, *tail)
    return np.array(mixed)


def plain(lengths: list[int], rows: list[int]) -> np.ndarray:
    """The same by MLX's own attention over whole contexts."""
    rng = np.random.default_rng(1)
    found = []
    for length, count in zip(lengths, rows, strict=True):
        q, k, v = (
            mx.array(rng.normal(size=(length, heads, 8)), mx.float32).swapaxes(0, 1)[None]
            for heads in (4, 2, 2)
        )
        whole = mx.fast.scaled_dot_product_attention(q, k, v, scale=8**-0.5, mask="causal")
        found.append(np.array(whole[0].swapaxes(0, 1)[-count:]))
    return np.concatenate(found)


CASES = [
    ("view, decode", [[5, 6, 7]], [10], [1]),
    ("view, chunk", [[5, 6, 7]], [10], [6]),
    ("view, whole prompt", [[5, 6, 7]], [12], [12]),
    ("gather, decode", [[9, 2, 7]], [10], [1]),
    ("gather, chunk", [[9, 2, 7]], [11], [4]),
    ("gather, two requests", [[9, 2, 7], [4, 3]], [10, 5], [1, 1]),
    ("gather, drafts", [[9, 2, 7], [4, 3], [1]], [10, 7, 3], [3, 3, 3]),
    ("mixed", [[9, 2, 7], [4, 3], [10, 11, 12]], [10, 5, 9], [1, 1, 7]),
]


@pytest.mark.parametrize("max_gathered", [None, 7])
@pytest.mark.parametrize(("blocks", "lengths", "rows"), [case[1:] for case in CASES],
                         ids=[case[0] for case in CASES])  # fmt: skip
def test_pages_give_the_attention_of_whole_contexts(
    blocks: list[list[int]], lengths: list[int], rows: list[int], max_gathered: int | None
) -> None:
    found = attend(blocks, lengths, rows, max_gathered)
    difference = np.abs(found - plain(lengths, rows))
    assert difference.max() < 1e-5
