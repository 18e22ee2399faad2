"""Synthetic drafts hit the rates asked for, and presets say where they come from."""

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from vllm_dspark.arms.synthetic import (
    PRESETS,
    SyntheticProposer,
    parse_rates,
    rates_for_length,
)
from vllm_dspark.drafter.drafter import Draft
from vllm_dspark.errors import SettingsError
from vllm_dspark.runner.propose import Anchors
from vllm_dspark.runner.requests import Request
from vllm_dspark.sampling.params import Sampling

NUM_DRAFTS = 3
PROMPT = (7, 8)
ANSWER = [11, 12, 13, 14, 15, 16, 17, 18]


class Network:
    """A proposer that drafts zeros."""

    taps, group, num_drafts, arrays = (1,), 0, NUM_DRAFTS, ()

    def absorb(self, *_: Any) -> None:
        """There is nothing to keep."""

    def propose(self, anchors: Anchors) -> Draft:
        shape = (len(anchors.tables), NUM_DRAFTS)
        return Draft(mx.zeros(shape, mx.int32), mx.zeros(shape))


@dataclass
class Span:
    request: Request


@dataclass
class Step:
    spans: list[Span]


def propose(proposer: SyntheticProposer, requests: list[Request], position: int) -> list[list[int]]:
    proposer.absorb(None, Step([Span(one) for one in requests]), None)
    count = len(requests)
    anchors = Anchors(
        mx.zeros((count,), mx.int32),
        mx.full((count,), position, mx.int32),
        [one.blocks[0] for one in requests],
        [position] * count,
    )
    return proposer.propose(anchors).tokens.tolist()


def request(prompt: tuple[int, ...] = PROMPT) -> Request:
    sampling = Sampling(temperature=0.0)
    return Request("r", list(prompt), len(prompt), 0, sampling, [np.zeros(4, np.int32)])


def make(survival: tuple[float, ...]) -> SyntheticProposer:
    answers = {(0.0, PROMPT): [*PROMPT, *ANSWER]}
    return SyntheticProposer(Network(), survival, answers)


def test_an_oracle_drafts_what_follows_the_anchor() -> None:
    # The anchor at position 3 is the answer's token 12, so 13, 14, 15 follow.
    assert propose(make((1.0, 1.0, 1.0)), [request()], 3) == [[13, 14, 15]]


def test_a_liar_is_wrong_at_every_position() -> None:
    (drafts,) = propose(make((0.0, 0.0, 0.0)), [request()], 3)
    assert all(draft != token for draft, token in zip(drafts, [13, 14, 15], strict=True))


def test_the_rates_are_met_within_a_few_rounds() -> None:
    proposer, survival = make((0.9, 0.5, 0.2)), (0.9, 0.5, 0.2)
    rounds = [row for _ in range(25) for row in propose(proposer, [request(), request()], 3)]
    for count, rate in enumerate(survival, start=1):
        hits = sum(row[:count] == [13, 14, 15][:count] for row in rounds)
        assert abs(hits / len(rounds) - rate) <= 0.03


def test_an_unknown_prompt_keeps_the_networks_drafts() -> None:
    assert propose(make((1.0,)), [request((1, 2))], 3) == [[0, 0, 0]]


@pytest.mark.parametrize("length", [1.0, 3.64, 6.11, 8.0])
def test_rates_for_a_length_add_up_to_it(length: float) -> None:
    assert 1 + sum(rates_for_length(length, 7)) == pytest.approx(length, abs=2e-3)


def test_every_preset_names_its_source_and_is_valid() -> None:
    for name, rates in PRESETS.items():
        assert parse_rates(name) is rates
        assert rates.source
        assert parse_rates(",".join(map(str, rates.survival))).survival == rates.survival


@pytest.mark.parametrize("text", ["nonsense", "0.5,0.6", "1.2"])
def test_bad_rates_are_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(SettingsError):
        parse_rates(text)
