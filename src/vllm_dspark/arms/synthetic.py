"""Drafts that are accepted at given rates: the cost of a real network, the answers known before.

Lets speed be studied for pairs whose weights are not on the machine. Text stays exact: drafts are
verified as ever.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
import numpy as np

from vllm_dspark.arms.spec import Ask
from vllm_dspark.cache.layout import PageLayout
from vllm_dspark.drafter.drafter import Draft
from vllm_dspark.errors import SettingsError
from vllm_dspark.runner.pack import Batch
from vllm_dspark.runner.propose import Anchors, Proposer
from vllm_dspark.runner.requests import Request
from vllm_dspark.types import Seen

GOLDEN = 0.6180339887498949
"""Steps of this size fill 0..1 evenly, so that few rounds already show the rates asked for."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Chance that drafts 1..n are all accepted, per n, and where the numbers come from."""

    survival: tuple[float, ...]
    source: str


def rates_for_length(length: float, num_drafts: int) -> tuple[float, ...]:
    """Rates with one chance for every draft whose mean tokens per round are ``length``."""
    low, high = 0.0, 1.0
    for _ in range(60):
        chance = (low + high) / 2
        if 1 + sum(chance**n for n in range(1, num_drafts + 1)) < length:
            low = chance
        else:
            high = chance
    return tuple(round(low**n, 4) for n in range(1, num_drafts + 1))


PAPER = (
    "acceptance length of the DSpark paper's table (block 7, temperature 1), turned into rates "
    "with one chance for every draft"
)
PRESETS = {
    "qwen3-8b-gsm8k-greedy": Rates(
        (0.94, 0.87, 0.81, 0.74, 0.69, 0.63, 0.59),
        "vllm-ascend's report for Qwen3-8B on GSM8K, greedy: rates per position",
    ),
    "qwen3-4b-gsm8k": Rates(rates_for_length(6.11, 7), PAPER),
    "qwen3-4b-humaneval": Rates(rates_for_length(5.38, 7), PAPER),
    "qwen3-4b-mtbench": Rates(rates_for_length(3.64, 7), PAPER),
    "qwen3-8b-mtbench": Rates(rates_for_length(3.72, 7), PAPER),
    "qwen3-14b-mtbench": Rates(rates_for_length(3.70, 7), PAPER),
    "all": Rates((1.0,) * 7, "an oracle: every draft is accepted"),
    "none": Rates((0.0,) * 7, "a liar: no draft is accepted"),
}


def parse_rates(text: str) -> Rates:
    """Read a preset's name or "0.9,0.8,0.7".

    Raises:
        SettingsError: naming what is known, or the first rate that rises.
    """
    if text in PRESETS:
        return PRESETS[text]
    try:
        survival = tuple(float(part) for part in text.split(","))
    except ValueError:
        known = ", ".join(sorted(PRESETS))
        raise SettingsError(
            f"{text!r} is neither a preset ({known}) nor rates such as 0.9,0.8,0.7"
        ) from None
    for earlier, later in zip((1.0, *survival), survival, strict=False):
        if not 0.0 <= later <= earlier:
            raise SettingsError(
                f"rate {later} follows {earlier}; the chance that drafts 1..n are all accepted "
                "lies in 0..1 and never rises with n"
            )
    return Rates(survival, "given")


Answers = dict[tuple[float, tuple[int, ...]], list[int]]
"""(temperature, prompt) -> prompt and answer."""


def write_answers(path: Path, asks: Sequence[Ask], tokens: Sequence[Sequence[int]]) -> None:
    """Record the target's own answers for :class:`SyntheticProposer`."""
    rows = [
        [ask.temperature, list(ask.token_ids), list(ids)]
        for ask, ids in zip(asks, tokens, strict=True)
    ]
    path.write_text(json.dumps(rows))


def read_answers(path: Path) -> Answers:
    """Read what :func:`write_answers` wrote."""
    rows = json.loads(path.read_text())
    return {(temperature, tuple(prompt)): [*prompt, *ids] for temperature, prompt, ids in rows}


class SyntheticProposer:
    """Computes another proposer's drafts, then replaces them.

    Args:
        inner: the network that is paid for.
        survival: chance that drafts 1..n are all accepted, per n; positions past it never are.
        answers: what the target says; requests that it lacks keep the network's drafts.
    """

    def __init__(
        self,
        inner: Proposer,
        survival: Sequence[float],
        answers: Answers,
    ) -> None:
        self.taps = inner.taps
        self.group = inner.group
        self.num_drafts = inner.num_drafts
        self._inner = inner
        self._survival = np.zeros(inner.num_drafts)
        self._survival[: len(survival)] = survival[: inner.num_drafts]
        self._answers = answers
        self._requests: dict[int, Request] = {}
        self._num_rounds = 0

    @property
    def arrays(self) -> list[mx.array]:
        return self._inner.arrays

    def absorb(self, seen: Seen, batch: Batch, layout: PageLayout) -> None:
        """Remember whose block tables are whose, and absorb."""
        self._requests = {id(span.request.blocks[self.group]): span.request for span in batch.spans}
        self._inner.absorb(seen, batch, layout)

    def propose(self, anchors: Anchors) -> Draft:
        """Draft the recorded continuation, wrong from a position that the rates decide."""
        draft = self._inner.propose(anchors)
        sequences = [self._sequence(id(table)) for table in anchors.tables]
        width = max(map(len, sequences)) + self.num_drafts + 1
        padded = np.zeros((len(sequences), width), np.int32)
        for row, sequence in zip(padded, sequences, strict=True):
            row[: len(sequence)] = sequence
        places = anchors.positions[:, None] + 1 + mx.arange(self.num_drafts, dtype=mx.int32)
        right = mx.take_along_axis(mx.array(padded), mx.minimum(places, width - 1), axis=1)
        wrong = mx.where(right > 0, right - 1, 1)
        chosen = mx.where(mx.array(self._keeps(len(sequences))), right, wrong)
        known = mx.array([bool(sequence) for sequence in sequences])
        # The network's own result must be needed, or MLX would not compute it.
        return Draft(
            mx.where(known[:, None], chosen + 0 * draft.tokens, draft.tokens),
            self._confidence(draft.confidence_logits),
        )

    def _sequence(self, table_id: int) -> list[int]:
        request = self._requests[table_id]
        prompt = tuple(request.token_ids[: request.num_prompt])
        return self._answers.get((request.sampling.temperature, prompt), [])

    def _keeps(self, num_requests: int) -> np.ndarray:
        rounds = np.arange(1, num_requests + 1) + self._num_rounds
        self._num_rounds += num_requests
        return self._survival > np.modf(rounds * GOLDEN)[0][:, None]

    def _confidence(self, logits: mx.array | None) -> mx.array | None:
        """Logits of each draft's chance given the ones before it, as an honest head would say."""
        if logits is None:
            return None
        before = np.concatenate([[1.0], self._survival[:-1]])
        chance = np.clip(self._survival / np.maximum(before, 1e-6), 1e-3, 1 - 1e-3)
        return mx.array(np.log(chance / (1 - chance)).astype(np.float32)) + 0 * logits
