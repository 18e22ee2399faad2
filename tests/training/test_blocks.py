"""Anchors and masks: the worked example of the specification, section 6.2."""

import mlx.core as mx
import numpy as np

from vllm_dspark.training.blocks import LOOPED, draw_anchors, make_blocks, valid_anchors

MASK = np.array([[0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1]], dtype=np.uint8)  # T = 12, answer 5..11
TOKENS = mx.arange(100, 112)[None].astype(mx.int32)


def blocks_at(*anchors: int):  # noqa: ANN201
    """Blocks of four slots."""
    places = mx.array([anchors], dtype=mx.int32)
    return make_blocks(TOKENS, mx.array(MASK), places, mx.ones(places.shape, dtype=mx.bool_), 4)


def test_anchors_are_answer_tokens_with_an_answer_token_after() -> None:
    assert np.flatnonzero(valid_anchors(MASK)[0]).tolist() == [5, 6, 7, 8, 9, 10]


def test_a_looped_token_is_no_anchor_but_still_a_label() -> None:
    mask = MASK.copy()
    mask[0, 8:] = LOOPED
    assert np.flatnonzero(valid_anchors(mask)[0]).tolist() == [5, 6, 7]


def test_slots_past_the_end_are_masked() -> None:
    found = blocks_at(9, 5)
    assert found.mask[0].tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]]
    assert found.labels[0].tolist() == [[110, 111, 0, 0], [106, 107, 108, 109]]
    assert found.previous[0, 0, :2].tolist() == [109, 110]
    assert found.sources[0, 0, :2].tolist() == [9, 10]


def test_supervision_ends_at_the_first_gap() -> None:
    mask = MASK.copy()
    mask[0, 8] = 0
    anchors = mx.array([[5]], dtype=mx.int32)
    found = make_blocks(TOKENS, mx.array(mask), anchors, mx.array([[True]]), 4)
    assert found.mask[0, 0].tolist() == [1, 1, 0, 0]


def test_an_unreal_block_has_no_weight() -> None:
    anchors = mx.array([[5, 0]], dtype=mx.int32)
    found = make_blocks(TOKENS, mx.array(MASK), anchors, mx.array([[True, False]]), 4)
    assert found.mask[0, 1].tolist() == [0, 0, 0, 0]


def test_drawn_anchors_are_distinct_sorted_and_reach_all() -> None:
    rng = np.random.default_rng(0)
    seen = set()
    for _ in range(50):
        anchors, is_real = draw_anchors(valid_anchors(MASK), 3, rng)
        assert is_real.all() and (np.diff(anchors[0]) > 0).all()
        seen |= set(anchors[0].tolist())
    assert seen == {5, 6, 7, 8, 9, 10}


def test_a_row_with_few_anchors_is_padded() -> None:
    anchors, is_real = draw_anchors(valid_anchors(MASK), 9, np.random.default_rng(0))
    assert anchors[0].tolist() == [5, 6, 7, 8, 9, 10, 0, 0, 0]
    assert is_real[0].tolist() == [True] * 6 + [False] * 3
