"""One step of the engine: forward, choose, and the one wait for the device."""

from collections.abc import Mapping
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from vllm_dspark.cache.attend import CausalAttend
from vllm_dspark.cache.layout import make_layout
from vllm_dspark.cache.pool import KVPool
from vllm_dspark.errors import StateError
from vllm_dspark.models.decoder import Decoder
from vllm_dspark.ops.select import Mix
from vllm_dspark.runner.choose import Choices, choose, logit_rows
from vllm_dspark.runner.pack import Batch, Span, pack
from vllm_dspark.runner.prompt_scores import score_prompt_rows, wants_prompt_scores
from vllm_dspark.runner.requests import Request, RequestTable
from vllm_dspark.runner.schedule import Grammar, HostScores, Outcome, Schedule, StepResult
from vllm_dspark.sampling.logprobs import TokenScores
from vllm_dspark.types import Seen


@dataclass(frozen=True, slots=True)
class Pending:
    """A step between its forward and its choice of tokens; nothing is computed yet."""

    schedule: Schedule
    batch: Batch
    seen: Seen
    prompt_scores: Mapping[str, TokenScores]


class Runner:
    """Computes steps: ``begin`` builds the forward, ``finish`` chooses tokens and waits.

    Args:
        target: the network.
        pool: pages of its layers.
        mix: the attention operation.
        logprobs_mode: vLLM's --logprobs-mode.
    """

    def __init__(
        self, target: Decoder, pool: KVPool, *, mix: Mix, logprobs_mode: str = "raw_logprobs"
    ) -> None:
        self.table = RequestTable()
        self._target = target
        self._pool = pool
        self._mix = mix
        self._logprobs_mode = logprobs_mode
        self._pending: Pending | None = None

    def begin(self, schedule: Schedule) -> None:
        """Follow the scheduler and build this step's forward; the device is not waited for."""
        self.table.follow(schedule)
        if not schedule.turns:
            self._pending = None
            return
        batch = pack(self.table, schedule.turns)
        layout = make_layout([span.pages(0) for span in batch.spans], self._pool.block_size)
        attend = CausalAttend(self._pool, layout, self._mix)
        seen = self._target.forward(batch.token_ids, batch.positions, attend)
        is_logits = self._logprobs_mode.endswith("logits")
        prompt_scores = {
            span.request.request_id: score_prompt_rows(
                self._target, seen.hidden, span, is_logits=is_logits
            )
            for span in batch.spans
            if wants_prompt_scores(span)
        }
        self._pending = Pending(schedule, batch, seen, prompt_scores)

    def finish(self, grammar: Grammar) -> StepResult:
        """Choose tokens, wait for the device once, and commit the step."""
        pending, self._pending = self._pending, None
        if pending is None:
            return StepResult()
        choices = self._choose(pending, grammar)
        waited = list(self._pool.arrays)
        if choices is not None:
            waited.extend(choices.arrays)
        for scores in pending.prompt_scores.values():
            waited.extend(scores.arrays)
        mx.eval(waited)
        outcomes = _outcomes(pending, choices)
        order = [turn.request_id for turn in pending.schedule.turns]
        return StepResult({request_id: outcomes[request_id] for request_id in order})

    def _choose(self, pending: Pending, grammar: Grammar) -> Choices | None:
        rows = logit_rows(pending.batch)
        if not rows:
            return None
        hidden = pending.seen.hidden
        index = pending.batch.logit_rows
        if len(index) < hidden.shape[0]:
            hidden = hidden[mx.array(index)]
        return choose(rows, self._target.unembed(hidden), grammar, self._logprobs_mode)


def _outcomes(pending: Pending, choices: Choices | None) -> dict[str, Outcome]:
    """Read evaluated arrays and advance every request."""
    tokens = np.array(choices.token_ids) if choices else np.zeros(0, np.int32)
    scores = _to_host(choices.scores) if choices and choices.scores else None
    scored = {row: order for order, row in enumerate(choices.scored_rows)} if choices else {}
    outcomes: dict[str, Outcome] = {}
    first = 0
    for span in pending.batch.spans:
        request = span.request
        emitted: tuple[int, ...] = ()
        own_scores = None
        if span.is_final:
            emitted = tuple(int(token) for token in tokens[first : first + 1])
            if scores is not None and first in scored:
                own_scores = _rows(scores, scored[first], len(emitted))
            first += len(span.drafts) + 1
        _advance(request, span, emitted)
        prompt = pending.prompt_scores.get(request.request_id)
        outcomes[request.request_id] = Outcome(
            emitted, own_scores, _collect_prompt(request, span, prompt)
        )
    return outcomes


def _advance(request: Request, span: Span, emitted: tuple[int, ...]) -> None:
    """Commit a span: known tokens and accepted drafts are computed, emitted tokens known.

    Raises:
        StateError: when the span does not start where the request's coverage ends.
    """
    if span.start != request.num_computed:
        raise StateError(
            f"request {request.request_id}: rows start at {span.start} but {request.num_computed} "
            "tokens are computed; this is a bug"
        )
    request.num_computed += span.num_known + max(len(emitted) - 1, 0)
    request.token_ids.extend(emitted)


def _collect_prompt(
    request: Request, span: Span, scores: TokenScores | None
) -> HostScores | None:
    """Keep a chunk's prompt scores; hand all out when the prompt is complete."""
    if scores is not None:
        request.prompt_scores.append(_to_host(scores))
    if not span.is_final or not request.prompt_scores:
        return None
    parts, request.prompt_scores = request.prompt_scores, []
    return HostScores(
        np.concatenate([part.token_ids for part in parts]),
        np.concatenate([part.scores for part in parts]),
        np.concatenate([part.ranks for part in parts]),
    )


def _to_host(scores: TokenScores) -> HostScores:
    return HostScores(np.array(scores.token_ids), np.array(scores.scores), np.array(scores.ranks))


def _rows(scores: HostScores, first: int, count: int) -> HostScores:
    stop = first + count
    return HostScores(
        scores.token_ids[first:stop], scores.scores[first:stop], scores.ranks[first:stop]
    )
