"""Who drafts in a step, how many drafts are kept, and why not: host arithmetic only."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from vllm_dspark.planner.policy import survival_of
from vllm_dspark.runner.pack import Span
from vllm_dspark.runner.planning import DraftPlanner
from vllm_dspark.runner.requests import Request
from vllm_dspark.runner.schedule import Schedule

NO_CONTEXT_LIMIT = 1 << 60


def tokens_left(request: Request, max_model_len: int) -> int:
    """Output tokens that the request may still get."""
    limit = request.sampling.max_tokens
    by_request = NO_CONTEXT_LIMIT if limit is None else limit - request.num_outputs
    return min(by_request, max_model_len - len(request.token_ids))


def trim_emitted(tokens: tuple[int, ...], request: Request) -> tuple[int, ...]:
    """Cut emitted tokens where the request ends: at a stop id, or at max_tokens."""
    sampling = request.sampling
    for index, token in enumerate(tokens):
        num_outputs = request.num_outputs + index + 1
        ends_here = token in sampling.end_ids and num_outputs >= sampling.min_tokens
        if ends_here or num_outputs == sampling.max_tokens:
            return tokens[: index + 1]
    return tokens


@dataclass(slots=True)
class DraftPolicy:
    """Decides who drafts, and counts the reasons of those who do not.

    Attributes:
        max_model_len: context limit.
        temperatures: calibration of the confidence head, one per slot or empty.
        planner: chooses how many drafts are verified; None verifies all of them.
        reasons: why a request that emitted did not draft -> how often.
        expected_tokens: sum, over ``expected_rounds`` rounds, of the tokens that the confidence
            head expects a round to emit, the target's own included.
    """

    max_model_len: int = NO_CONTEXT_LIMIT
    temperatures: tuple[float, ...] = ()
    planner: DraftPlanner | None = None
    reasons: Counter[str] = field(default_factory=Counter)
    expected_tokens: float = 0.0
    expected_rounds: int = 0

    def drafting(self, finals: Sequence[Span], schedule: Schedule) -> tuple[int, ...]:
        """Indices of the spans that draft in this step."""
        if self.planner is not None and not self.planner.may_draft():
            self.reasons["does_not_pay"] += len(finals)
            return ()
        chosen = []
        for index, span in enumerate(finals):
            reason = self._reason(span, schedule)
            if reason is None:
                chosen.append(index)
            else:
                self.reasons[reason] += 1
        return tuple(chosen)

    def _reason(self, span: Span, schedule: Schedule) -> str | None:
        if schedule.skip_drafts:
            return "scheduler_skips"
        if schedule.num_drafts_wanted == 0:
            return "schedule_zero"
        # The step emits at least one token; one more must be left for a draft to be of use.
        left = tokens_left(span.request, self.max_model_len)
        if left <= 2:
            return "near_limit"
        return None

    def settle(
        self, proposals: Sequence[tuple[Request, tuple[int, ...]]], wanted: int | None
    ) -> None:
        """Give every request the part of its proposals that the next step is to verify.

        Args:
            proposals: requests that drafted, holding what the step emitted.
            wanted: the scheduler's limit; None is none.
        """
        lengths: Sequence[int | None] = [None] * len(proposals)
        if self.planner is not None and proposals:
            lengths = self.planner.plan([request for request, _ in proposals])
        for (request, drafts), length in zip(proposals, lengths, strict=True):
            request.drafts = trim_drafts(drafts, request, self)[:wanted][:length]
            self._expect(request)

    def _expect(self, request: Request) -> None:
        if request.confidence_logits is not None and request.drafts:
            kept = request.confidence_logits[: len(request.drafts)]
            survival = survival_of([float(one) for one in kept], self.temperatures)
            self.expected_tokens += 1.0 + sum(survival)
            self.expected_rounds += 1

    def observe_round(self, num_verified: int, num_accepted: int) -> None:
        """Learn what became of one request's drafts."""
        if self.planner is not None:
            self.planner.observe_round(num_verified, num_accepted)


def trim_drafts(
    drafts: tuple[int, ...], request: Request, policy: DraftPolicy
) -> tuple[int, ...]:
    """Keep the drafts that can be of use after what the request has just emitted.

    A verify step emits one token more than it accepts, so one place is left for it; and nothing
    follows a token that ends the request.
    """
    if request.has_ended:
        return ()
    kept = drafts[: max(tokens_left(request, policy.max_model_len) - 1, 0)]
    for index, token in enumerate(kept):
        if token in request.sampling.end_ids:
            return kept[: index + 1]
    return kept
