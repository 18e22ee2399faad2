"""Medians with their spread, and ratios that say whether they mean anything."""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Spread:
    """A median and the extremes it lies between."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        return cls(statistics.median(values), min(values), max(values))

    def to_json(self) -> dict[str, float]:
        return {name: round(value, 4) for name, value in asdict(self).items()}


def percentile(values: Sequence[float], share: float) -> float:
    """Value below which ``share`` (0..1) of the values lie, by the nearest rank."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered) - 1e-9) - 1)]


def time_ms(function: Callable[[], Any], *, repeats: int, warmups: int = 2) -> Spread:
    """Time a call that waits for its own result."""
    for _ in range(warmups):
        function()
    return Spread.of([once_ms(function) for _ in range(repeats)])


def interleave_ms(
    functions: Sequence[Callable[[], Any]], *, repeats: int, warmups: int = 2
) -> list[Spread]:
    """Time several calls in turns, so that a disturbance meets all of them."""
    rounds = [[once_ms(function) for function in functions] for _ in range(warmups + repeats)]
    return [Spread.of(times) for times in zip(*rounds[warmups:], strict=True)]


def once_ms(function: Callable[[], Any]) -> float:
    """Milliseconds of one call."""
    start = time.perf_counter()
    function()
    return (time.perf_counter() - start) * 1e3


MIN_REPEATS = 3


@dataclass(frozen=True, slots=True)
class Ratio:
    """One arm's rate over another's, repeat by repeat.

    Attributes:
        spread: of the ratios of the repeats; one repeat of each arm ran next to the other.
        verdict: "faster" or "slower" where the two arms' rates do not overlap at all, whatever
            the order they ran in; else why there is none.
    """

    spread: Spread
    num_repeats: int
    verdict: str

    @classmethod
    def of(cls, ours: Sequence[float], others: Sequence[float]) -> "Ratio":
        spread = Spread.of([one / other for one, other in zip(ours, others, strict=True)])
        verdict = "within the spread"
        if len(ours) < MIN_REPEATS:
            verdict = "too few repeats"
        elif min(ours) > max(others):
            verdict = "faster"
        elif max(ours) < min(others):
            verdict = "slower"
        return cls(spread, len(ours), verdict)

    def to_json(self) -> dict[str, Any]:
        return {**self.spread.to_json(), "verdict": self.verdict, "repeats": self.num_repeats}
