"""The greedy accept rule."""

import itertools

import mlx.core as mx
import pytest

from vllm_dspark.verify.greedy import verify_greedy


def verify(drafts: list[list[int]], lengths: list[int], choices: list[list[int]]) -> list[tuple]:
    accepted, next_tokens = verify_greedy(
        mx.array(drafts, dtype=mx.int32).reshape(len(lengths), -1),
        mx.array(lengths, dtype=mx.int32),
        mx.array(choices, dtype=mx.int32),
    )
    return list(zip(accepted.tolist(), next_tokens.tolist(), strict=True))


def test_drafts_after_the_first_disagreement_do_not_count() -> None:
    choices = [[5, 6, 7, 8], [5, 6, 7, 8], [5, 6, 7, 8]]
    drafts = [[5, 6, 7], [5, 0, 7], [0, 6, 7]]
    assert verify(drafts, [3, 3, 3], choices) == [(3, 8), (1, 6), (0, 5)]


def test_nothing_is_accepted_at_or_after_the_number_drafted() -> None:
    choices = [[5, 6, 7, 8]] * 4
    drafts = [[5, 6, 7]] * 4
    assert verify(drafts, [0, 1, 2, 3], choices) == [(0, 5), (1, 6), (2, 7), (3, 8)]


def test_no_draft_slots_at_all_is_a_plain_step() -> None:
    accepted, next_tokens = verify_greedy(
        mx.zeros((2, 0), dtype=mx.int32), mx.zeros((2,), dtype=mx.int32), mx.array([[4], [9]])
    )
    assert (accepted.tolist(), next_tokens.tolist()) == ([0, 0], [4, 9])


@pytest.mark.parametrize("length", [0, 2, 3])
def test_every_pattern_of_agreement_matches_the_loop(length: int) -> None:
    choices = [1, 1, 1, 2]
    for drafts in itertools.product([0, 1], repeat=3):
        expected = 0
        while expected < length and drafts[expected] == choices[expected]:
            expected += 1
        assert verify([list(drafts)], [length], [choices]) == [(expected, choices[expected])]
