"""Repeats of arms on workloads -> cells, ratios and refusals; the shape of every bench report."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vllm_dspark.arms.spec import Run
from vllm_dspark.bench.timing import Ratio, Spread, percentile

METRICS = (
    "tokens_per_s",
    "first_p50_ms",
    "first_p95_ms",
    "per_token_ms",
    "done_p95_ms",
    "length",
    "cached_share",
)
OUTSIDE = ("mlx_lm", "llama.cpp", "mlx-dspark")
"""First words of the names of arms that are not this project."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One repeat of one cell.

    Attributes:
        first_p50_ms, first_p95_ms: until the first token.
        per_token_ms: mean over requests of the time per token after the first, by token counts.
        done_p95_ms: until the last token.
        length: tokens per round, 1 without drafts; ``rates`` per position.
        cached_share: prompt tokens that a prefix hit provided.
    """

    tokens: int
    seconds: float
    first_p50_ms: float
    first_p95_ms: float
    per_token_ms: float
    done_p95_ms: float
    length: float = 1.0
    rates: tuple[float, ...] = ()
    cached_share: float = 0.0

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds

    @classmethod
    def of(cls, run: Run, num_prompt_tokens: int) -> "Measured":
        first = [one.first_s * 1e3 for one in run.answers]
        done = [one.done_s * 1e3 for one in run.answers]
        longer = [one.per_token_s * 1e3 for one in run.answers if len(one.token_ids) > 1]
        return cls(
            run.num_tokens,
            run.seconds,
            percentile(first, 0.5),
            percentile(first, 0.95),
            statistics.fmean(longer or [0.0]),
            percentile(done, 0.95),
            run.drafting.length,
            tuple(run.drafting.rates),
            run.num_cached / max(num_prompt_tokens, 1),
        )


@dataclass(slots=True)
class Cell:
    """All repeats of an arm on a workload with so many clients.

    Attributes:
        check: how its outputs compare with the reference's: exact, near-ties, failures; None
            where they cannot be compared, and ``note`` says why.
    """

    arm: str
    workload: str
    clients: int
    repeats: list[Measured] = field(default_factory=list)
    check: Mapping[str, int] | None = None
    note: str = ""

    @property
    def matches(self) -> bool:
        """Whether its outputs were compared and differ by near-ties at most."""
        return self.check is not None and self.check["failures"] == 0

    def keep_worse(self, check: Mapping[str, int] | None) -> None:
        """Take over a later check of the same cell when it is worse."""
        if check is not None and self.check is not None and check["exact"] < self.check["exact"]:
            self.check = check

    @property
    def rate(self) -> float:
        return statistics.median(one.tokens_per_s for one in self.repeats)

    def to_json(self) -> dict[str, Any]:
        summary = {
            name: Spread.of([getattr(one, name) for one in self.repeats]).to_json()
            for name in METRICS
        }
        return {
            "arm": self.arm,
            "workload": self.workload,
            "clients": self.clients,
            "repeats": len(self.repeats),
            "tokens": self.repeats[0].tokens,
            **summary,
            "rates": list(self.repeats[-1].rates),
            "check": None if self.check is None else dict(self.check),
            "note": self.note,
        }


def find_ratios(cells: Sequence[Cell], pairs: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    """Ratios of output tokens per second, each beside the rates it is made of.

    A ratio is refused where outputs differ beyond near-ties, or could not be compared.

    Args:
        pairs: (arm, arm that it is divided by).
    """
    named = {(one.arm, one.workload, one.clients): one for one in cells}
    places = list(dict.fromkeys((one.workload, one.clients) for one in cells))
    found = []
    for workload, clients in places:
        here = [one for one in cells if (one.workload, one.clients) == (workload, clients)]
        outside = [one for one in here if one.arm.split()[0] in OUTSIDE]
        strongest = max(outside, key=lambda one: one.rate, default=None)
        for top, bottom in pairs:
            ours, other = (
                named.get((top, workload, clients)),
                named.get((bottom, workload, clients)),
            )
            if ours is None or other is None:
                continue
            row: dict[str, Any] = {
                "workload": workload,
                "clients": clients,
                "arm": top,
                "over": bottom,
                "rate": round(ours.rate, 2),
                "over_rate": round(other.rate, 2),
                "strongest": None if strongest is None else strongest.arm,
                "strongest_rate": None if strongest is None else round(strongest.rate, 2),
            }
            row.update(_ratio_or_refusal(ours, other))
            found.append(row)
    return found


def _ratio_or_refusal(ours: Cell, other: Cell) -> dict[str, Any]:
    for cell in (ours, other):
        if cell.check is None:
            return {"ratio": None, "refused": f"{cell.arm}: {cell.note or 'outputs not compared'}"}
        if not cell.matches:
            return {
                "ratio": None,
                "refused": f"{cell.arm}: {cell.check['failures']} outputs differ beyond near-ties",
            }
    count = min(len(ours.repeats), len(other.repeats))
    left = [one.tokens_per_s for one in ours.repeats[:count]]
    right = [one.tokens_per_s for one in other.repeats[:count]]
    return {"ratio": Ratio.of(left, right).to_json(), "refused": ""}


def in_turns(names: Sequence[str], num_repeats: int) -> list[tuple[int, str]]:
    """(repeat, arm) in the order to run; every second repeat goes backwards."""
    return [
        (repeat, name)
        for repeat in range(num_repeats)
        for name in (names if repeat % 2 == 0 else list(names)[::-1])
    ]
