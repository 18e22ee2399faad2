"""Logits of a step -> one chosen token per logits row, with scores where asked for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np

from vllm_dspark.runner.choose_drawn import choose_drawn, is_drawn
from vllm_dspark.runner.pack import Batch, Span
from vllm_dspark.runner.schedule import Grammar
from vllm_dspark.sampling.draw import draw, draw_key, shape_logits
from vllm_dspark.sampling.logprobs import TOP_TOKEN, TokenScores, score_tokens
from vllm_dspark.sampling.params import Sampling
from vllm_dspark.sampling.rules import apply_edits, apply_grammar, make_edit

LOGPROBS_MODES = ("raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits")


@dataclass(frozen=True, slots=True)
class LogitRow:
    """One row of logits: the token that follows ``span``'s known tokens and ``num_drafts`` drafts.

    Attributes:
        index: which row of the step's logits.
    """

    span: Span
    num_drafts: int
    index: int

    @property
    def sampling(self) -> Sampling:
        return self.span.request.sampling

    @property
    def position(self) -> int:
        return self.span.start + self.span.num_known + self.num_drafts

    @property
    def output_ids(self) -> list[int]:
        request = self.span.request
        return [*request.token_ids[request.num_prompt :], *self.span.drafts[: self.num_drafts]]


@dataclass(frozen=True, slots=True)
class Choices:
    """Chosen tokens of all logits rows.

    Attributes:
        token_ids: [S] int32.
        scored_rows: indices of the rows that ``scores`` covers, in order.
        limits: request id -> most drafts that may be accepted, decided on the device.
    """

    token_ids: mx.array
    scored_rows: tuple[int, ...]
    scores: TokenScores | None
    limits: Mapping[str, mx.array] = field(default_factory=dict)

    @property
    def arrays(self) -> list[mx.array]:
        return [self.token_ids, *(self.scores.arrays if self.scores else [])]


def logit_rows(batch: Batch) -> list[LogitRow]:
    """All rows of a batch that need logits, in packed order."""
    pairs = (
        (span, num_drafts)
        for span in batch.spans
        if span.is_final
        for num_drafts in range(len(span.drafts) + 1)
    )
    return [LogitRow(span, count, index) for index, (span, count) in enumerate(pairs)]


def choose(
    rows: Sequence[LogitRow],
    logits: mx.array,
    grammar: Grammar,
    logprobs_mode: str,
    rejection: str = "standard",
) -> Choices:
    """Choose a token for every row.

    Args:
        rows: descriptions of the rows of ``logits``.
        logits: [S, V] in the compute type.
        grammar: masks of this step.
        logprobs_mode: one of LOGPROBS_MODES, vLLM's --logprobs-mode.
        rejection: "standard" or "block", for drafts that were drawn.
    """
    raw = logits.astype(mx.float32)
    ruled = _apply_rules(rows, raw, grammar)
    options = [row.sampling for row in rows]
    shaped = ruled if all(one.is_greedy for one in options) else shape_logits(ruled, options)
    keys = [draw_key(row.sampling.seed, row.position) for row in rows]
    tokens = draw(shaped, options, keys)
    tokens, limits = _choose_drawn(rows, shaped, tokens, rejection)
    scored = tuple(row.index for row in rows if row.sampling.wants_logprobs)
    if not scored:
        return Choices(tokens, (), None, limits)
    base = shaped if logprobs_mode.startswith("processed") else raw
    index = mx.array(list(scored))
    scores = score_tokens(
        base[index],
        tokens[index],
        num_top=_num_top([options[row] for row in scored]),
        extra_ids=_extra_ids([options[row] for row in scored]),
        is_logits=logprobs_mode.endswith("logits"),
    )
    return Choices(tokens, scored, scores, limits)


def _choose_drawn(
    rows: Sequence[LogitRow], shaped: mx.array, tokens: mx.array, rejection: str
) -> tuple[mx.array, dict[str, mx.array]]:
    """Replace the tokens of spans whose drafts were drawn; limits are by request id."""
    limits = {}
    for row in rows:
        if row.num_drafts or not is_drawn(row.span):
            continue
        stop = row.index + len(row.span.drafts) + 1
        keys = [
            draw_key(row.sampling.seed, row.position + slot) for slot in range(stop - row.index)
        ]
        chosen, limit = choose_drawn(row.span, shaped[row.index : stop], keys, method=rejection)
        tokens[row.index : stop] = chosen
        if limit is not None:
            limits[row.span.request.request_id] = limit
    return tokens, limits


def _apply_rules(rows: Sequence[LogitRow], raw: mx.array, grammar: Grammar) -> mx.array:
    vocab_size = raw.shape[1]
    ruled = [row for row in rows if row.sampling.has_rules]
    masked = [row for row in rows if row.span.request.request_id in grammar.bitmasks]
    if not ruled and not masked:
        return raw
    edits = [
        make_edit(
            row.sampling,
            row.span.request.token_ids[: row.span.request.num_prompt],
            row.output_ids,
            vocab_size,
        )
        for row in ruled
    ]
    edited = apply_edits(mx.array(raw), [row.index for row in ruled], edits)
    if not masked:
        return edited
    bitmask = np.stack(
        [grammar.bitmasks[row.span.request.request_id][row.num_drafts] for row in masked]
    )
    return apply_grammar(edited, [row.index for row in masked], bitmask)


def _num_top(options: Sequence[Sampling]) -> int:
    asked = [one.num_logprobs or 0 for one in options]
    return -1 if -1 in asked else max(asked)


def _extra_ids(options: Sequence[Sampling]) -> mx.array | None:
    """[S, C] ids that rows name; -1 where a row's most likely tokens are wanted.

    Short rows are padded with their first id: vLLM reads as many columns as a request asked for.
    """
    width = max(len(one.logprob_ids) for one in options)
    if not width:
        return None
    named = [one.logprob_ids or (TOP_TOKEN,) for one in options]
    return mx.array([[*ids, *[ids[0]] * (width - len(ids))] for ids in named], mx.int32)
