"""Penalties, biases, bans and grammars, computed by hand."""

import mlx.core as mx
import numpy as np
import pytest

from vllm_dspark.sampling.params import Sampling
from vllm_dspark.sampling.rules import (
    apply_edits,
    apply_grammar,
    banned_by_bad_words,
    make_edit,
)

INF = float("inf")


def edited(sampling: Sampling, prompt: list[int], output: list[int], row: list[float]) -> list:
    edit = make_edit(sampling, prompt, output, len(row))
    return apply_edits(mx.array([row]), [0], [edit])[0].tolist()


def test_penalties_by_hand() -> None:
    sampling = Sampling(presence_penalty=1.0, frequency_penalty=0.5, repetition_penalty=2.0)
    # Token 0 is in the prompt, 1 came twice, 2 came once, 3 is new.
    row = edited(sampling, [0], [1, 1, 2], [4.0, 4.0, -4.0, 4.0])
    assert row == [2.0, 2.0 - 1.0 - 1.0, -8.0 - 1.0 - 0.5, 4.0]


def test_presence_and_frequency_do_not_look_at_the_prompt() -> None:
    row = edited(Sampling(presence_penalty=1.0), [0, 0], [], [4.0, 4.0])
    assert row == [4.0, 4.0]


def test_bias_is_added_before_the_repetition_penalty() -> None:
    sampling = Sampling(logit_bias={0: 3.0}, repetition_penalty=2.0)
    assert edited(sampling, [0], [], [-1.0, 1.0]) == [1.0, 1.0]


def test_allowed_ids_forbid_the_rest_and_keep_their_bias() -> None:
    sampling = Sampling(allowed_ids=(1, 2), logit_bias={2: 1.0, 3: 9.0})
    assert edited(sampling, [], [], [1.0, 1.0, 1.0, 1.0]) == [-INF, 1.0, 2.0, -INF]


@pytest.mark.parametrize(("count", "is_banned"), [(0, True), (2, True), (3, False)])
def test_stop_ids_are_banned_until_min_tokens(count: int, is_banned: bool) -> None:
    sampling = Sampling(min_tokens=3, stop_ids=frozenset({1}))
    assert (edited(sampling, [], [0] * count, [1.0, 1.0])[1] == -INF) == is_banned


@pytest.mark.parametrize(
    ("output", "expected"),
    [([], [9]), ([4], [9]), ([4, 5], [9, 6]), ([5], [9]), ([4, 5, 6], [9]), ([5, 4, 5], [9, 6])],
)
def test_bad_words_ban_their_last_token(output: list[int], expected: list[int]) -> None:
    assert banned_by_bad_words([[9], [4, 5, 6]], output) == expected


def test_only_named_rows_are_edited() -> None:
    edit = make_edit(Sampling(logit_bias={0: 1.0}), [], [], 2)
    logits = apply_edits(mx.zeros((3, 2)), [1], [edit])
    assert logits.tolist() == [[0.0, 0.0], [1.0, 0.0], [0.0, 0.0]]


def bitmask(rows: list[set[int]], vocab_size: int) -> np.ndarray:
    words = np.zeros((len(rows), -(-vocab_size // 32)), np.int32)
    for words_row, allowed in zip(words, rows, strict=True):
        for token in allowed:
            words_row[token // 32] |= np.int32(np.uint32(1 << (token % 32)).view(np.int32))
    return words


def test_a_grammar_forbids_all_but_its_tokens_across_words() -> None:
    allowed = {0, 31, 32, 63, 69}
    logits = apply_grammar(mx.zeros((2, 70)), [1], bitmask([allowed], 70))
    assert np.isfinite(np.array(logits[0])).all()
    assert set(np.nonzero(np.isfinite(np.array(logits[1])))[0].tolist()) == allowed


def test_a_grammar_wins_over_rules_that_leave_it_nothing() -> None:
    row = mx.array([[-INF, -INF, 5.0]])
    logits = apply_grammar(row, [0], bitmask([{0, 1}], 3))
    assert logits.tolist() == [[0.0, 0.0, -INF]]
