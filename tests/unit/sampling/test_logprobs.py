"""Scores of chosen, most likely and named tokens."""

import math

import mlx.core as mx
import numpy as np

from vllm_dspark.sampling.logprobs import TOP_TOKEN, score_tokens, top_ids

LOGITS = mx.log(mx.array([[0.25, 0.1, 0.5, 0.15], [0.1, 0.2, 0.3, 0.4]])) + 3.0
CHOSEN = mx.array([0, 0])


def test_the_chosen_token_comes_first_with_its_rank() -> None:
    found = score_tokens(LOGITS, CHOSEN, num_top=2)
    assert found.token_ids.tolist() == [[0, 2, 0], [0, 3, 2]]
    assert found.ranks.tolist() == [2, 4]
    expected = np.log([[0.25, 0.5, 0.25], [0.1, 0.4, 0.3]])
    assert np.abs(np.array(found.scores) - expected).max() < 1e-6


def test_zero_alternatives_report_the_chosen_token_alone() -> None:
    found = score_tokens(LOGITS, CHOSEN)
    assert found.token_ids.shape == (2, 1)
    assert abs(found.scores[0, 0].item() - math.log(0.25)) < 1e-6


def test_all_tokens_are_reported_for_minus_one() -> None:
    found = score_tokens(LOGITS, CHOSEN, num_top=-1)
    assert found.token_ids.tolist() == [[0, 2, 0, 3, 1], [0, 3, 2, 1, 0]]


def test_logits_are_reported_as_they_are() -> None:
    found = score_tokens(LOGITS, CHOSEN, num_top=1, is_logits=True)
    assert abs(found.scores[0, 1].item() - (math.log(0.5) + 3.0)) < 1e-6


def test_named_ids_stand_beside_rows_that_want_the_best() -> None:
    extra = mx.array([[1, 3], [TOP_TOKEN, TOP_TOKEN]], mx.int32)
    found = score_tokens(LOGITS, CHOSEN, num_top=1, extra_ids=extra)
    assert found.token_ids.tolist() == [[0, 1, 3], [0, 3, 2]]


def test_named_ids_are_padded_to_the_widest_row() -> None:
    extra = mx.array([[1], [TOP_TOKEN]], mx.int32)
    found = score_tokens(LOGITS, CHOSEN, num_top=3, extra_ids=extra)
    assert found.token_ids.tolist() == [[0, 1, 1, 1], [0, 3, 2, 1]]


def test_top_ids_are_ordered_for_every_count() -> None:
    scores = mx.random.normal((3, 50))
    expected = np.argsort(-np.array(scores), axis=1)
    for count in (1, 7, 50):
        assert np.array_equal(np.array(top_ids(scores, count)), expected[:, :count])
