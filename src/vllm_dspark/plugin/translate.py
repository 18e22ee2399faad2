"""vLLM's objects -> ours, and back."""

import random
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from vllm.v1.outputs import DraftTokenIds, LogprobsLists, LogprobsTensors, ModelRunnerOutput

from vllm_dspark.runner.schedule import (
    Admission,
    Grammar,
    HostScores,
    Outcome,
    Schedule,
    StepResult,
    Turn,
)
from vllm_dspark.sampling.params import Sampling

if TYPE_CHECKING:
    from vllm.sampling_params import SamplingParams
    from vllm.v1.core.sched.output import GrammarOutput, NewRequestData, SchedulerOutput

PLACEHOLDER = -1


def translate_sampling(params: "SamplingParams", seed: int) -> Sampling:
    """Read a request's options; ``seed`` is used where it brings none."""
    end_ids = set(params.stop_token_ids or ())
    if params.eos_token_id is not None and not params.ignore_eos:
        end_ids.add(params.eos_token_id)
    return Sampling(
        temperature=params.temperature,
        top_k=max(params.top_k, 0),
        top_p=params.top_p,
        min_p=params.min_p,
        seed=seed if params.seed is None else params.seed,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        repetition_penalty=params.repetition_penalty,
        min_tokens=params.min_tokens,
        stop_ids=frozenset(params.all_stop_token_ids),
        end_ids=frozenset(end_ids),
        max_tokens=params.max_tokens,
        logit_bias=dict(params.logit_bias or {}),
        allowed_ids=tuple(params.allowed_token_ids) if params.allowed_token_ids else None,
        bad_words=tuple(tuple(word) for word in params.bad_words_token_ids or ()),
        num_logprobs=params.logprobs,
        num_prompt_logprobs=params.prompt_logprobs,
        logprob_ids=tuple(params.logprob_token_ids or ()),
        is_structured=params.structured_outputs is not None,
    )


class ScheduleReader:
    """SchedulerOutput -> Schedule.

    Args:
        seed: start of the stream that seeds requests which bring no seed.
        keeps_drafts: the runner holds its own drafts (async scheduling sends placeholders).
    """

    def __init__(self, seed: int, *, keeps_drafts: bool = False) -> None:
        self._seeds = random.Random(seed)
        self._keeps_drafts = keeps_drafts

    def read(self, output: "SchedulerOutput") -> Schedule:
        """Translate one step."""
        assert not output.kv_cache_block_copies and not output.new_block_ids_to_zero
        cached = output.scheduled_cached_reqs
        assert not cached.resumed_req_ids, "resumed requests arrive as new ones"
        new_blocks = {
            request_id: blocks
            for request_id, blocks in zip(cached.req_ids, cached.new_block_ids, strict=True)
            if blocks is not None
        }
        return Schedule(
            admissions=tuple(self._admission(one) for one in output.scheduled_new_reqs),
            forgotten=frozenset(output.finished_req_ids | (output.preempted_req_ids or set())),
            new_blocks=new_blocks,
            turns=tuple(
                self._turn(output, request_id, num_tokens)
                for request_id, num_tokens in output.num_scheduled_tokens.items()
            ),
            skip_drafts=output.skip_drafts,
            num_drafts_wanted=output.num_spec_tokens_to_schedule,
        )

    def _admission(self, one: "NewRequestData") -> Admission:
        assert one.sampling_params is not None and one.prompt_token_ids is not None
        seed = self._seeds.getrandbits(63)
        return Admission(
            request_id=one.req_id,
            token_ids=list(one.prefill_token_ids or one.prompt_token_ids),
            num_prompt=len(one.prompt_token_ids),
            num_computed=one.num_computed_tokens,
            blocks=one.block_ids,
            sampling=translate_sampling(one.sampling_params, seed),
        )

    def _turn(self, output: "SchedulerOutput", request_id: str, num_tokens: int) -> Turn:
        drafts = output.scheduled_spec_decode_tokens.get(request_id)
        if not drafts:
            return Turn(request_id, num_tokens)
        if self._keeps_drafts and drafts[0] == PLACEHOLDER:
            return Turn(request_id, num_tokens, len(drafts))
        real = tuple(draft for draft in drafts if draft != PLACEHOLDER)
        return Turn(request_id, num_tokens, len(drafts), real)


def translate_grammar(output: "GrammarOutput | None", rows_per_request: int) -> Grammar:
    """Split vLLM's bitmask: rows_per_request rows for each structured request."""
    if output is None:
        return Grammar()
    ids = output.structured_output_request_ids
    step = rows_per_request
    bitmasks = {
        request_id: output.grammar_bitmask[index * step : (index + 1) * step]
        for index, request_id in enumerate(ids)
    }
    counts = output.num_acceptable_drafts or [0] * len(ids)
    return Grammar(bitmasks, dict(zip(ids, counts, strict=True)))


def translate_result(result: StepResult) -> ModelRunnerOutput:
    """Turn a step's outcomes into what the scheduler takes."""
    outcomes = result.outcomes
    ids = list(outcomes)
    return ModelRunnerOutput(
        req_ids=ids,
        req_id_to_index={request_id: index for index, request_id in enumerate(ids)},
        sampled_token_ids=[list(outcome.token_ids) for outcome in outcomes.values()],
        logprobs=_join_scores(list(outcomes.values())),
        prompt_logprobs_dict=_prompt_scores(outcomes),
    )


def _join_scores(outcomes: list[Outcome]) -> LogprobsLists | None:
    """One table for the step; ``cu`` says where each request's rows start."""
    if all(outcome.scores is None for outcome in outcomes):
        return None
    starts, parts, row = [], [], 0
    for outcome in outcomes:
        starts.append(row)
        if outcome.scores is not None:
            parts.append(outcome.scores)
            row += len(outcome.scores.ranks)
    return LogprobsLists(
        np.concatenate([part.token_ids for part in parts]),
        np.concatenate([part.scores for part in parts]),
        np.concatenate([part.ranks for part in parts]),
        [*starts, row],
    )


def _prompt_scores(outcomes: Mapping[str, Outcome]) -> dict[str, LogprobsTensors | None]:
    return {
        request_id: _to_tensors(outcome.prompt_scores)
        for request_id, outcome in outcomes.items()
        if outcome.prompt_scores is not None
    }


def _to_tensors(scores: HostScores) -> LogprobsTensors:
    return LogprobsTensors(
        torch.from_numpy(scores.token_ids),
        torch.from_numpy(scores.scores),
        torch.from_numpy(scores.ranks),
    )


def translate_drafts(result: StepResult) -> DraftTokenIds:
    """The drafts of a finished step."""
    outcomes = result.outcomes
    return DraftTokenIds(list(outcomes), [list(one.drafts) for one in outcomes.values()])


def report_unverified(output: "SchedulerOutput", result: StepResult, grammar: Grammar) -> None:
    """Tell the scheduler's statistics how many scheduled drafts were none.

    Placeholders (padded admissions, and async scheduling's guesses) count as drafts otherwise. The
    object is the engine's own as long as worker and scheduler share a process.
    """
    invalid = {}
    for request_id, drafts in output.scheduled_spec_decode_tokens.items():
        verified = result.outcomes[request_id].num_verified
        verified = min(verified, grammar.num_acceptable.get(request_id, verified))
        if verified < len(drafts):
            invalid[request_id] = len(drafts) - verified
    output.num_invalid_spec_tokens = invalid or None
