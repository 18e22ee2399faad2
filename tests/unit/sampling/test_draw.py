"""Temperature, truncation and draws on vocabularies that a person can check."""

import math

import mlx.core as mx
import numpy as np
import pytest

from vllm_dspark.sampling.draw import draw, draw_key, shape_logits, truncate
from vllm_dspark.sampling.params import Sampling

# Probabilities 0.5, 0.25, 0.15, 0.1 in the order of the ids 2, 0, 3, 1.
LOGITS = mx.log(mx.array([[0.25, 0.1, 0.5, 0.15]]))


def kept(logits: mx.array) -> set[int]:
    return set(np.nonzero(np.isfinite(np.array(logits[0])))[0].tolist())


def cut(top_k: int = 4, top_p: float = 1.0) -> set[int]:
    return kept(truncate(LOGITS, mx.array([top_k]), mx.array([top_p])))


@pytest.mark.parametrize(
    ("top_k", "expected"), [(1, {2}), (2, {2, 0}), (3, {2, 0, 3}), (4, {0, 1, 2, 3})]
)
def test_top_k_keeps_the_k_largest(top_k: int, expected: set[int]) -> None:
    assert cut(top_k=top_k) == expected


@pytest.mark.parametrize(
    ("top_p", "expected"),
    [(0.01, {2}), (0.49, {2}), (0.6, {2, 0}), (0.8, {2, 0, 3}), (0.95, {0, 1, 2, 3})],
)
def test_top_p_keeps_the_smallest_set_with_that_mass(top_p: float, expected: set[int]) -> None:
    assert cut(top_p=top_p) == expected


def test_top_p_counts_mass_after_top_k() -> None:
    # Of the two largest, 0.5 and 0.25, the first has 2/3 of the mass.
    assert cut(top_k=2, top_p=0.66) == {2}
    assert cut(top_k=2, top_p=0.67) == {2, 0}


def test_a_top_p_of_one_cuts_nothing_even_where_sums_round_to_one() -> None:
    logits = mx.array([[30.0, 0.0, -5.0, -9.0]])
    assert kept(truncate(logits, mx.array([3]), mx.array([1.0]))) == {0, 1, 2}


def test_ties_with_the_last_kept_value_are_kept() -> None:
    logits = mx.array([[1.0, 2.0, 1.0, 0.0]])
    assert kept(truncate(logits, mx.array([2]), mx.array([1.0]))) == {0, 1, 2}


@pytest.mark.parametrize("has_greedy", [False, True])
def test_few_kept_tokens_are_the_same_without_sorting_all(has_greedy: bool) -> None:
    logits = mx.random.normal((4, 400), key=mx.random.key(3)) * 2
    options = [Sampling(top_k=k, top_p=p) for k, p in ((1, 1.0), (7, 0.6), (50, 0.9), (50, 1.0))]
    if has_greedy:
        options[0] = Sampling(temperature=0.0)
    top_k = mx.array([one.top_k or 400 for one in options])
    expected = truncate(logits, top_k, mx.array([one.top_p for one in options]))
    assert mx.array_equal(shape_logits(logits, options), expected).item()
    counts = np.isfinite(np.array(expected)).sum(axis=1).tolist()
    assert counts[0] == (400 if has_greedy else 1)
    assert 1 < counts[1] < 7 < counts[2] < counts[3] == 50


def test_min_p_is_relative_to_the_best() -> None:
    shaped = shape_logits(LOGITS, [Sampling(min_p=0.25)])
    assert kept(shaped) == {0, 2, 3}


def test_temperature_divides_before_truncation() -> None:
    # At temperature 0.5 probabilities are squared: 0.725, 0.181, 0.065, 0.029.
    shaped = shape_logits(LOGITS, [Sampling(temperature=0.5, top_p=0.7)])
    assert kept(shaped) == {2}
    assert abs(shaped[0, 2].item() - 2 * math.log(0.5)) < 1e-6


def test_rows_are_shaped_by_their_own_options() -> None:
    options = [Sampling(top_k=1), Sampling(temperature=0.0), Sampling(min_p=0.9), Sampling()]
    shaped = shape_logits(mx.repeat(LOGITS, 4, axis=0), options)
    finite = np.isfinite(np.array(shaped)).sum(axis=1).tolist()
    assert finite == [1, 4, 1, 4]
    assert mx.array_equal(shaped[1], LOGITS[0]).item()


def test_draws_follow_the_probabilities() -> None:
    count = 4000
    logits = mx.repeat(LOGITS, count, axis=0)
    options = [Sampling(seed=3)] * count
    keys = [draw_key(3, position) for position in range(count)]
    tokens = np.array(draw(logits, options, keys))
    share = np.bincount(tokens, minlength=4) / count
    assert np.abs(share - [0.25, 0.1, 0.5, 0.15]).max() < 4 * math.sqrt(0.25 / count)


def test_a_draw_depends_on_seed_and_position_only() -> None:
    logits = mx.repeat(mx.zeros((1, 64)), 3, axis=0)
    options = [Sampling(seed=5), Sampling(seed=6), Sampling(seed=5)]
    keys = [draw_key(5, 9), draw_key(6, 9), draw_key(5, 10)]
    together = draw(logits, options, keys).tolist()
    alone = [draw(logits[:1], [one], [key]).item() for one, key in zip(options, keys, strict=True)]
    assert together == alone
    assert len(set(together)) == 3


def test_greedy_rows_beside_sampled_ones_take_the_largest() -> None:
    logits = mx.repeat(LOGITS, 2, axis=0)
    tokens = draw(logits, [Sampling(temperature=0.0), Sampling()], [draw_key(0, 0)] * 2)
    assert tokens[0].item() == 2


def test_keys_differ_by_seed_position_and_stream() -> None:
    keys = {draw_key(seed, at, stream) for seed in range(9) for at in range(9) for stream in (0, 1)}
    assert len(keys) == 162
    assert draw_key(2**63, 5) != draw_key(0, 5)
    assert all(0 <= word < 2**32 for key in keys for word in key)
