"""Survival and costs -> lengths, and whether drafting pays at all."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from vllm_dspark.planner.costs import CostTable

FIRST_WAIT, LONGEST_WAIT = 8, 128
"""Steps without drafts between probes, doubled after every probe that does not pay."""
PATIENCE = 4
"""Steps in a row that must not pay before drafting lapses."""
MARGIN = 1.02
"""Drafting must promise this much more than plain decoding: costs are measured with noise."""


def survival_of(confidence_logits: Sequence[float], temperatures: Sequence[float]) -> list[float]:
    """Chance that the first n+1 drafts are all accepted, n = 0..K-1; falling.

    Args:
        confidence_logits: one per draft, of acceptance given that those before were accepted.
        temperatures: calibration, one per slot; empty leaves the logits as they are.
    """
    survival, chance = [], 1.0
    for slot, logit in enumerate(confidence_logits):
        heat = temperatures[slot] if slot < len(temperatures) else 1.0
        chance *= 1.0 / (1.0 + math.exp(-max(min(logit / heat, 60.0), -60.0)))
        survival.append(chance)
    return survival


@dataclass(frozen=True, slots=True)
class Plan:
    """Drafts to verify per request, and what is expected of it.

    Attributes:
        lengths: one per request.
        tokens_per_ms: expected, drafting of the next block included.
        plain_tokens_per_ms: expected when nobody drafts.
    """

    lengths: tuple[int, ...]
    tokens_per_ms: float
    plain_tokens_per_ms: float

    @property
    def pays(self) -> bool:
        return self.tokens_per_ms > MARGIN * self.plain_tokens_per_ms


def plan_lengths(
    survivals: Sequence[Sequence[float]], costs: CostTable, context: float
) -> Plan:
    """Pick lengths that maximise expected tokens per millisecond of the whole step.

    Drafts are considered by falling survival and the walk stops at the first that does not pay
    (paper, section 4.5 of our notes), so whether a draft is verified depends only on the drafts
    before it and on other requests, never on itself: sampled output stays exact.

    Args:
        survivals: per request, from ``survival_of``.
        costs: measured; verification of R requests with all their rows, and drafting for R.
        context: mean context length.

    Returns:
        Lengths in 0..K, possibly all 0.
    """
    num_requests = len(survivals)
    lengths = [0] * num_requests
    overhead = costs.draft(num_requests)
    plain = num_requests / costs.verify(num_requests, num_requests, context)
    tokens, rows = float(num_requests), num_requests
    best = tokens / (costs.verify(num_requests, rows, context) + overhead)
    order = sorted(
        ((chance, -slot, -index) for index, chances in enumerate(survivals)
         for slot, chance in enumerate(chances)),
        reverse=True,
    )
    for chance, _, negative_index in order:
        rate = (tokens + chance) / (costs.verify(num_requests, rows + 1, context) + overhead)
        if rate <= best:
            break
        tokens, rows, best = tokens + chance, rows + 1, rate
        lengths[-negative_index] += 1
    return Plan(tuple(lengths), best, plain)


@dataclass(slots=True)
class Lapse:
    """Stops drafting when it does not pay, and probes from time to time.

    While lapsed no block runs; context is still absorbed, so a probe drafts as well as ever.
    """

    _losses: int = 0
    _wait: int = FIRST_WAIT
    _steps_left: int = 0

    @property
    def is_lapsed(self) -> bool:
        return self._steps_left > 0

    def tick(self) -> bool:
        """Count a step; return whether its block pass may run."""
        if self._steps_left > 0:
            self._steps_left -= 1
            return self._steps_left == 0
        return True

    def observe(self, *, pays: bool) -> None:
        """Learn whether the block of a step paid."""
        if pays:
            self._losses, self._wait = 0, FIRST_WAIT
            return
        self._losses += 1
        if self._losses >= PATIENCE:
            self._steps_left = self._wait
            self._wait = min(2 * self._wait, LONGEST_WAIT)
            self._losses = PATIENCE - 1


@dataclass(slots=True)
class AcceptanceEstimate:
    """Online survival for drafts without a confidence head: smoothed acceptance per slot.

    A slot's chance, given that the ones before it were accepted, starts at ``prior`` and moves
    towards what is seen; only slots that were reached count.
    """

    num_drafts: int
    prior: float = 0.7
    weight: float = 8.0
    _reached: list[float] = field(default_factory=list)
    _accepted: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._reached = [self.weight] * self.num_drafts
        self._accepted = [self.weight * self.prior] * self.num_drafts

    def observe(self, num_verified: int, num_accepted: int) -> None:
        """Learn from one round; old rounds fade with a half-life of about 140."""
        for slot in range(min(num_verified, num_accepted + 1)):
            self._reached[slot] = self._reached[slot] * 0.995 + 1.0
            hit = 1.0 if slot < num_accepted else 0.0
            self._accepted[slot] = self._accepted[slot] * 0.995 + hit

    def survival(self) -> list[float]:
        """Chance that the first n+1 drafts are all accepted."""
        chances, chance = [], 1.0
        for reached, accepted in zip(self._reached, self._accepted, strict=True):
            chance *= accepted / reached
            chances.append(chance)
        return chances
