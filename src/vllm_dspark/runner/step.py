"""One step of the engine: forward, choose, verify, absorb, propose, and the one wait."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from vllm_dspark.cache.attend import CausalAttend
from vllm_dspark.cache.layout import PageLayout, make_layout
from vllm_dspark.cache.pool import KVPool
from vllm_dspark.drafter.drafter import Draft
from vllm_dspark.errors import StateError
from vllm_dspark.models.decoder import Decoder
from vllm_dspark.ops.select import Mix
from vllm_dspark.runner.choose import Choices, LogitRow, choose, logit_rows
from vllm_dspark.runner.drafting import DraftPolicy, trim_emitted
from vllm_dspark.runner.pack import Batch, Span, pack
from vllm_dspark.runner.prompt_scores import score_prompt_rows, wants_prompt_scores
from vllm_dspark.runner.propose import Anchors, HostProposer, Proposer
from vllm_dspark.runner.requests import Request, RequestTable
from vllm_dspark.runner.schedule import Grammar, HostScores, Outcome, Schedule, StepResult
from vllm_dspark.sampling.logprobs import TokenScores
from vllm_dspark.types import Seen
from vllm_dspark.verify.greedy import verify_greedy


@dataclass(frozen=True, slots=True)
class Pending:
    """A step between its forward and its choice of tokens; nothing is computed yet."""

    schedule: Schedule
    batch: Batch
    layouts: Mapping[int, PageLayout]
    seen: Seen
    prompt_scores: Mapping[str, TokenScores]
    begin_ms: float


@dataclass(frozen=True, slots=True)
class Decided:
    """What a step decided, still on the device.

    Attributes:
        finals: spans that emit, in packed order.
        accepted: [R] int32, drafts accepted per final span.
        drafting: indices into ``finals`` of the requests that draft.
        draft: proposals of those; None without any, or when they are looked up on the host.
    """

    finals: tuple[Span, ...]
    choices: Choices | None = None
    accepted: mx.array | None = None
    drafting: tuple[int, ...] = ()
    draft: Draft | None = None

    @property
    def arrays(self) -> list[mx.array]:
        """Everything that the step must wait for."""
        arrays = list(self.choices.arrays) if self.choices else []
        if self.accepted is not None:
            arrays.append(self.accepted)
        if self.draft is not None:
            arrays.append(self.draft.tokens)
            for extra in (self.draft.confidence_logits, self.draft.drawn_logits):
                if extra is not None:
                    arrays.append(extra)
        return arrays


class Runner:
    """Computes steps: ``begin`` builds the forward, ``finish`` decides and waits.

    Args:
        target: the network.
        pool: pages of its layers, KV cache group 0.
        mix: the attention operation.
        proposer: source of drafts on the device; None without one.
        lookup: source of drafts on the host, instead of a proposer.
        policy: who may draft.
        logprobs_mode: vLLM's --logprobs-mode.
        rejection: "standard" or "block": the rule for drafts that were drawn.
        max_gathered: as ``cache.layout.make_layout`` takes it.
    """

    def __init__(  # noqa: PLR0913 - one argument per collaborator
        self,
        target: Decoder,
        pool: KVPool,
        *,
        mix: Mix,
        proposer: Proposer | None = None,
        lookup: HostProposer | None = None,
        policy: DraftPolicy | None = None,
        logprobs_mode: str = "raw_logprobs",
        rejection: str = "standard",
        max_gathered: int | None = None,
    ) -> None:
        self.table = RequestTable()
        self.policy = policy or DraftPolicy()
        self._target = target
        self._pool = pool
        self._mix = mix
        self._proposer = proposer
        self._lookup = lookup
        self._logprobs_mode = logprobs_mode
        self._rejection = rejection
        self._max_gathered = max_gathered
        self._pending: Pending | None = None
        self._ended: frozenset[str] = frozenset()

    @property
    def num_groups(self) -> int:
        """KV cache groups whose block tables requests must bring."""
        return 1 + (self._proposer.group if self._proposer is not None else 0)

    def wrap_proposer(self, wrap: Callable[[Proposer], Proposer]) -> None:
        """Put a source of drafts around the present one, e.g. to set how many are accepted."""
        assert self._proposer is not None
        self._proposer = wrap(self._proposer)

    def begin(self, schedule: Schedule) -> None:
        """Follow the scheduler and build this step's forward; the device is not waited for.

        Nothing is computed for a request that ended in the step before this one was scheduled.
        """
        started = time.perf_counter()
        self.table.follow(schedule)
        ids = [turn.request_id for turn in schedule.turns]
        self._ended = frozenset(one for one in ids if self.table[one].has_ended)
        turns = [turn for turn in schedule.turns if turn.request_id not in self._ended]
        if not turns:
            self._pending = None
            return
        batch = pack(self.table, turns)
        groups = {0} if self._proposer is None else {0, self._proposer.group}
        layouts = {
            group: make_layout(
                [span.pages(group) for span in batch.spans],
                self._pool.block_size,
                self._max_gathered,
            )
            for group in groups
        }
        attend = CausalAttend(self._pool, layouts[0], self._mix)
        taps = () if self._proposer is None else self._proposer.taps
        seen = self._target.forward(batch.token_ids, batch.positions, attend, taps)
        scores = self._score_prompts(batch, seen)
        spent = (time.perf_counter() - started) * 1e3
        self._pending = Pending(schedule, batch, layouts, seen, scores, spent)

    def finish(self, grammar: Grammar) -> StepResult:
        """Decide tokens and drafts, wait for the device once, and commit the step."""
        pending, self._pending = self._pending, None
        ended = {request_id: Outcome() for request_id in self._ended}
        if pending is None:
            return StepResult(ended)
        started = time.perf_counter()
        decided = self._decide(pending, grammar)
        waited = [*self._pool.arrays, *decided.arrays]
        if self._proposer is not None:
            waited.extend(self._proposer.arrays)
        for scores in pending.prompt_scores.values():
            waited.extend(scores.arrays)
        mx.eval(waited)
        self._observe_time(pending, decided, (time.perf_counter() - started) * 1e3)
        outcomes = {**ended, **self._commit(pending, decided)}
        order = [turn.request_id for turn in pending.schedule.turns]
        return StepResult({request_id: outcomes[request_id] for request_id in order})

    def _observe_time(self, pending: Pending, decided: Decided, finish_ms: float) -> None:
        """Tell the planner what a step cost that only decoded."""
        spans = pending.batch.spans
        planner = self.policy.planner
        if planner is None or any(span.num_known > 1 for span in spans):
            return
        planner.observe_step(
            num_requests=len(spans),
            num_rows=pending.batch.num_rows,
            context=sum(span.start for span in spans) / len(spans),
            drafted=len(decided.drafting),
            ms=pending.begin_ms + finish_ms,
        )

    def _score_prompts(self, batch: Batch, seen: Seen) -> dict[str, TokenScores]:
        is_logits = self._logprobs_mode.endswith("logits")
        return {
            span.request.request_id: score_prompt_rows(
                self._target, seen.hidden, span, is_logits=is_logits
            )
            for span in batch.spans
            if wants_prompt_scores(span)
        }

    def _decide(self, pending: Pending, grammar: Grammar) -> Decided:
        """The step as a lazy graph: choose, verify, absorb, propose."""
        batch = pending.batch
        finals = tuple(span for span in batch.spans if span.is_final)
        if self._proposer is not None:
            self._proposer.absorb(pending.seen, batch, pending.layouts[self._proposer.group])
        rows = logit_rows(batch)
        if not rows:
            return Decided(finals)
        choices = self._choose(pending, rows, grammar)
        accepted, next_tokens = verify(finals, choices, grammar)
        drafting: tuple[int, ...] = ()
        if self._proposer is not None or self._lookup is not None:
            drafting = self.policy.drafting(finals, pending.schedule)
        if self._proposer is None or not drafting:
            return Decided(finals, choices, accepted, drafting)
        anchors = make_anchors(
            [finals[index] for index in drafting],
            _pick(accepted, drafting, len(finals)),
            _pick(next_tokens, drafting, len(finals)),
            self._proposer.group,
        )
        return Decided(finals, choices, accepted, drafting, self._proposer.propose(anchors))

    def _choose(self, pending: Pending, rows: list[LogitRow], grammar: Grammar) -> Choices:
        hidden = pending.seen.hidden
        index = pending.batch.logit_rows
        if len(index) < hidden.shape[0]:
            hidden = hidden[mx.array(index)]
        logits = self._target.unembed(hidden)
        return choose(rows, logits, grammar, self._logprobs_mode, self._rejection)

    def _commit(self, pending: Pending, decided: Decided) -> dict[str, Outcome]:
        """Read evaluated arrays and advance every request."""
        emitted = _emitted(decided)
        scores = _scores(decided)
        for span in pending.batch.spans:
            _advance(span.request, span, emitted.get(span.request.request_id, ()))
            span.request.drafts = ()
        self.policy.settle(self._proposals(decided), pending.schedule.num_drafts_wanted)
        outcomes: dict[str, Outcome] = {}
        for span in pending.batch.spans:
            request = span.request
            request_id = request.request_id
            tokens = emitted.get(request_id, ())
            self.policy.observe_round(len(span.drafts), len(tokens) - 1)
            own = scores.get(request_id)
            prompt = pending.prompt_scores.get(request_id)
            outcomes[request_id] = Outcome(
                tokens,
                None if own is None else _rows(own, 0, len(tokens)),
                _collect_prompt(request, span, prompt),
                request.drafts,
                len(span.drafts),
            )
        return outcomes

    def _proposals(self, decided: Decided) -> list[tuple[Request, tuple[int, ...]]]:
        """What was drafted, for requests that hold what the step emitted."""
        requests = [decided.finals[index].request for index in decided.drafting]
        if self._lookup is not None:
            return [(one, self._lookup.lookup(one)) for one in requests]
        if decided.draft is None:
            return []
        table = np.array(decided.draft.tokens)
        logits = decided.draft.confidence_logits
        confidences = [None] * len(table) if logits is None else list(np.array(logits))
        proposals = []
        drawn = decided.draft.drawn_logits
        for order, (request, row, confidence) in enumerate(
            zip(requests, table, confidences, strict=True)
        ):
            request.confidence_logits = confidence
            is_drawn = drawn is not None and not request.sampling.is_greedy
            request.draft_logits = drawn[order] if is_drawn else None
            proposals.append((request, tuple(int(token) for token in row)))
        return proposals


def _pick(values: mx.array, index: tuple[int, ...], count: int) -> mx.array:
    return values if len(index) == count else values[mx.array(list(index))]


def verify(
    finals: tuple[Span, ...], choices: Choices, grammar: Grammar
) -> tuple[mx.array, mx.array]:
    """Accept the drafts that equal the chosen tokens.

    A choice is what the target alone would have emitted after the same tokens: the argmax, or the
    draw from its distribution with the position's own noise. Keeping a draft only where it equals
    the choice therefore emits exactly what the target alone emits, sampled or not. (Where drafts
    were drawn, choices come from rejection sampling, and block verification limits the count.)

    Args:
        finals: spans that emit, in packed order.
        choices: one per logits row of these spans, in order.
        grammar: bounds how many drafts its masks covered.

    Returns:
        accepted [R] and next token [R], int32.
    """
    counts = [
        min(len(span.drafts), grammar.num_acceptable.get(span.request.request_id, 1 << 30))
        for span in finals
    ]
    width = max(len(span.drafts) for span in finals)
    tokens = choices.token_ids
    if width == 0:
        return mx.zeros(len(finals), mx.int32), tokens
    table = np.zeros((len(finals), width), np.int32)
    index = np.zeros((len(finals), width + 1), np.int32)
    first = 0
    for row, span in enumerate(finals):
        num_drafts = len(span.drafts)
        table[row, :num_drafts] = span.drafts
        index[row, : num_drafts + 1] = np.arange(first, first + num_drafts + 1)
        first += num_drafts + 1
    limits = mx.array(counts, mx.int32)
    for row, span in enumerate(finals):
        if span.request.request_id in choices.limits:
            limits[row] = mx.minimum(limits[row], choices.limits[span.request.request_id])
    return verify_greedy(mx.array(table), limits, tokens[mx.array(index)])


def make_anchors(
    spans: list[Span], accepted: mx.array, next_tokens: mx.array, group: int
) -> Anchors:
    """Describe the requests that draft: each anchor is the token the step has just decided."""
    firsts = [span.start + span.num_known for span in spans]
    return Anchors(
        tokens=next_tokens,
        positions=mx.array(firsts, mx.int32) + accepted,
        tables=[span.request.blocks[group] for span in spans],
        bounds=[span.start + span.num_rows for span in spans],
        firsts=firsts,
        options=[span.request.sampling for span in spans],
    )


def _emitted(decided: Decided) -> dict[str, tuple[int, ...]]:
    """Tokens per emitting request: the choices at its accepted drafts and one more."""
    if decided.choices is None:
        return {}
    choices = np.array(decided.choices.token_ids)
    accepted = np.array(decided.accepted)
    emitted, first = {}, 0
    for span, count in zip(decided.finals, accepted, strict=True):
        tokens = tuple(int(token) for token in choices[first : first + int(count) + 1])
        emitted[span.request.request_id] = trim_emitted(tokens, span.request)
        first += len(span.drafts) + 1
    return emitted


def _scores(decided: Decided) -> dict[str, HostScores]:
    """All scored rows per request; the first ones belong to what was emitted."""
    choices = decided.choices
    if choices is None or choices.scores is None:
        return {}
    host = _to_host(choices.scores)
    order = {row: position for position, row in enumerate(choices.scored_rows)}
    scores, first = {}, 0
    for span in decided.finals:
        count = len(span.drafts) + 1
        if first in order:
            scores[span.request.request_id] = _rows(host, order[first], count)
        first += count
    return scores


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
