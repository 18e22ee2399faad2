"""Applies the planner to live requests: survival in, lengths out, and what was learnt."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from vllm_dspark.planner.costs import CostTable
from vllm_dspark.planner.policy import AcceptanceEstimate, Lapse, plan_lengths, survival_of
from vllm_dspark.runner.requests import Request

TRUSTED_ERROR = 0.7
"""Spread of log(actual / predicted) step times above which a cost table is not believed."""
TRIAL_STEPS = 48
MEMORY = 0.95


@dataclass(slots=True)
class Trust:
    """Whether a cost table predicts the steps it is used for, up to one common factor.

    A machine that is slower or faster than when it was measured changes all steps alike and no
    decision; a table that is wrong changes their order.
    """

    num_steps: int = 0
    mean: float = 0.0
    spread: float = 0.0

    def observe(self, predicted_ms: float, actual_ms: float) -> None:
        """Compare one step."""
        error = math.log(max(actual_ms, 1e-3) / max(predicted_ms, 1e-3))
        self.num_steps += 1
        share = max(1.0 / self.num_steps, 1.0 - MEMORY)
        self.spread += share * (abs(error - self.mean) - self.spread)
        self.mean += share * (error - self.mean)

    @property
    def is_lost(self) -> bool:
        return self.num_steps >= TRIAL_STEPS and self.spread > TRUSTED_ERROR


@dataclass(slots=True)
class DraftPlanner:
    """Decides per step how many drafts of each request are verified.

    Attributes:
        costs: measured on this machine for this pair.
        num_drafts: K.
        temperatures: calibration of the confidence head, one per slot or empty.
        lengths: how often each length was chosen.
    """

    costs: CostTable
    num_drafts: int
    temperatures: tuple[float, ...] = ()
    lengths: Counter[int] = field(default_factory=Counter)
    trust: Trust = field(default_factory=Trust)
    _lapse: Lapse = field(default_factory=Lapse)
    _estimate: AcceptanceEstimate | None = None

    def __post_init__(self) -> None:
        self._estimate = AcceptanceEstimate(self.num_drafts)

    @property
    def is_distrusted(self) -> bool:
        return self.trust.is_lost

    def may_draft(self) -> bool:
        """Whether this step's block pass may run; called once a step."""
        return self.is_distrusted or self._lapse.tick()

    def plan(self, requests: Sequence[Request]) -> list[int]:
        """Lengths of the requests that have just drafted."""
        survivals = [self._survival(request) for request in requests]
        context = sum(request.num_computed for request in requests) / len(requests)
        plan = plan_lengths(survivals, self.costs, context)
        lengths = list(plan.lengths)
        if self.is_distrusted:
            lengths = [self.num_drafts] * len(requests)
        else:
            self._lapse.observe(pays=plan.pays)
        self.lengths.update(lengths)
        return lengths

    def _survival(self, request: Request) -> list[float]:
        if request.confidence_logits is None:
            assert self._estimate is not None
            return self._estimate.survival()
        return survival_of([float(one) for one in request.confidence_logits], self.temperatures)

    def observe_round(self, num_verified: int, num_accepted: int) -> None:
        """Learn what became of one request's drafts."""
        assert self._estimate is not None
        if num_verified:
            self._estimate.observe(num_verified, num_accepted)

    def observe_step(
        self, *, num_requests: int, num_rows: int, context: float, drafted: int, ms: float
    ) -> None:
        """Learn how long a step of decoding requests took."""
        predicted = self.costs.verify(num_requests, num_rows, context)
        if drafted:
            predicted += self.costs.draft(drafted)
        self.trust.observe(predicted, ms)
