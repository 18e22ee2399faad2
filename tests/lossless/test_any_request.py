"""Sampled, penalised, scored requests draft too, and get the target's own tokens and scores."""

import functools
from unittest.mock import patch

import mlx.core as mx
import numpy as np
import pytest
from driver import CONFORMANCE, GREEDY, Engine, Live, cases, make_runner, pair, run_alone

from vllm_dspark.sampling.params import Sampling

SETS = sorted(path.parent.name for path in CONFORMANCE.glob("*/golden.json"))
OPTIONS = {
    "temperature": Sampling(temperature=0.7, seed=11, max_tokens=32),
    "hot": Sampling(temperature=1.5, seed=12, max_tokens=32),
    "top-p": Sampling(temperature=0.9, top_p=0.8, seed=13, max_tokens=32),
    "top-k": Sampling(temperature=1.0, top_k=5, seed=14, max_tokens=32),
    "min-p": Sampling(temperature=1.0, min_p=0.1, seed=15, max_tokens=32),
    "penalties": Sampling(
        temperature=0.0,
        presence_penalty=0.6,
        frequency_penalty=0.4,
        repetition_penalty=1.2,
        max_tokens=32,
    ),
    "sampled penalties": Sampling(
        temperature=0.8, seed=16, frequency_penalty=0.7, repetition_penalty=1.1, max_tokens=32
    ),
    "bad words": Sampling(
        temperature=0.0,
        bad_words=((cases()[0][1][2],), (cases()[0][1][4], cases()[0][1][5])),
        max_tokens=32,
    ),
    "bias": Sampling(temperature=0.0, logit_bias={5: 3.0, 17: -4.0}, max_tokens=32),
    "allowed ids": Sampling(temperature=0.0, allowed_ids=tuple(range(200)), max_tokens=24),
    "logprobs": Sampling(temperature=0.0, num_logprobs=5, max_tokens=32),
    "sampled logprobs": Sampling(temperature=0.9, seed=17, num_logprobs=1, max_tokens=32),
    "logprobs of ids": Sampling(temperature=0.0, logprob_ids=(3, 9, 400), max_tokens=24),
    "prompt logprobs": Sampling(temperature=0.0, num_prompt_logprobs=3, max_tokens=8),
}


@functools.cache
def expected_of(name: str, index: int) -> Live:
    """What the target alone gives a prompt of the set under the named options."""
    return run_alone(cases()[index][0], OPTIONS[name])


def score_table(live: Live) -> list[np.ndarray] | None:
    """Scores of all tokens, cut to the columns that the request asked for."""
    parts = [one.scores for one in live.outcomes if one.scores is not None]
    if not parts:
        return None
    sampling = live.sampling
    width = 1 + (len(sampling.logprob_ids) or sampling.num_logprobs or 0)
    return [
        np.concatenate([part.token_ids[:, :width] for part in parts]),
        np.concatenate([part.scores[:, :width] for part in parts]),
        np.concatenate([part.ranks for part in parts]),
    ]


def assert_same_scores(ours: Live, expected: Live) -> None:
    mine, theirs = score_table(ours), score_table(expected)
    assert (mine is None) == (theirs is None)
    if mine is not None and theirs is not None:
        assert mine[0][:, 0].tolist() == ours.tokens
        np.testing.assert_array_equal(mine[0], theirs[0])
        np.testing.assert_allclose(mine[1], theirs[1], atol=1e-4)
        np.testing.assert_array_equal(mine[2], theirs[2])


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_drafting_request_equals_the_target_alone(options: str) -> None:
    drafted = 0
    for index, (prompt, _) in enumerate(cases()[:2]):
        expected = expected_of(options, index)
        ours = run_alone(prompt, OPTIONS[options], drafting=True)
        assert ours.tokens == expected.tokens
        assert_same_scores(ours, expected)
        drafted += sum(count for _, count in ours.accepted)
    assert drafted > 0


def test_requests_of_all_kinds_in_one_batch_equal_the_target_alone() -> None:
    engine = Engine(make_runner(), chunk=13, seed=2)
    for index, (name, sampling) in enumerate(OPTIONS.items()):
        engine.add(name, cases()[index % 2][0], sampling)
        engine.step()
    engine.run()
    for index, name in enumerate(OPTIONS):
        expected = expected_of(name, index % 2)
        assert engine.done[name].tokens == expected.tokens
        assert_same_scores(engine.done[name], expected)


@pytest.mark.parametrize("name", SETS)
def test_a_batch_of_every_set_gives_the_greedy_text(name: str) -> None:
    engine = Engine(make_runner(pair(name)), chunk=17, seed=3)
    for index, (prompt, _) in enumerate(cases(name)):
        engine.add(str(index), prompt, GREEDY)
        engine.step()
    engine.run()
    for index, (_, output) in enumerate(cases(name)):
        assert engine.done[str(index)].tokens == output
    accepted = sum(count for live in engine.done.values() for count, _ in live.accepted)
    assert accepted > 200


def test_a_step_waits_for_the_device_once() -> None:
    engine = Engine(make_runner())
    for index, (prompt, _) in enumerate(cases()):
        engine.add(str(index), prompt, GREEDY)
    waits: list[int] = []
    real = mx.eval

    def count(*arrays: object) -> None:
        waits[-1] += 1
        real(*arrays)

    with patch.object(mx, "eval", count):
        for _ in range(6):
            waits.append(0)
            engine.step()
    assert waits == [1] * 6
