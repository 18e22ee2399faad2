"""What the scheduler decided for one step, and what came of it, without vLLM's types."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from vllm_dspark.sampling.params import Sampling

Blocks = tuple[list[int], ...]
"""Block ids of one request, one list per KV cache group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """A request that the runner has not seen, or has forgotten by preemption.

    Attributes:
        token_ids: all known tokens: the prompt, and outputs when resumed.
        num_prompt: length of the prompt.
        num_computed: tokens whose keys and values a prefix hit provides.
    """

    request_id: str
    token_ids: list[int]
    num_prompt: int
    num_computed: int
    blocks: Blocks
    sampling: Sampling


@dataclass(frozen=True, slots=True)
class Turn:
    """One request's share of a step.

    Attributes:
        num_tokens: rows granted, drafts included.
        num_drafts: how many of them are drafts.
        drafts: the drafts to verify; None when the runner is to use those it keeps.
    """

    request_id: str
    num_tokens: int
    num_drafts: int = 0
    drafts: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """One step as the scheduler wants it.

    Attributes:
        forgotten: requests that finished, were aborted or preempted before this step.
        new_blocks: blocks granted to running requests.
        skip_drafts: no request can use drafts proposed in this step.
        num_drafts_wanted: K for the next step; None is the runner's own.
    """

    admissions: tuple[Admission, ...] = ()
    forgotten: frozenset[str] = frozenset()
    new_blocks: Mapping[str, Blocks] = field(default_factory=dict)
    turns: tuple[Turn, ...] = ()
    skip_drafts: bool = False
    num_drafts_wanted: int | None = None


@dataclass(frozen=True, slots=True)
class Grammar:
    """Masks of the requests under a grammar in this step.

    Attributes:
        bitmasks: request id -> [rows, ceil(V / 32)] int32, a row per logits row of the request.
        num_acceptable: request id -> leading drafts that the masks cover.
    """

    bitmasks: Mapping[str, np.ndarray] = field(default_factory=dict)
    num_acceptable: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HostScores:
    """``sampling.logprobs.TokenScores`` on the host."""

    token_ids: np.ndarray
    scores: np.ndarray
    ranks: np.ndarray


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one request got from a step.

    Attributes:
        token_ids: emitted tokens, none while its prompt is unfinished.
        scores: one row per emitted token, or None when not asked for.
        prompt_scores: rows for prompt tokens 1.. when the prompt has just finished.
        drafts: proposals for the next step.
        num_verified: drafts that this step verified.
    """

    token_ids: tuple[int, ...] = ()
    scores: HostScores | None = None
    prompt_scores: HostScores | None = None
    drafts: tuple[int, ...] = ()
    num_verified: int = 0


@dataclass(frozen=True, slots=True)
class StepResult:
    """Outcomes of a step by request id, in the scheduler's order."""

    outcomes: Mapping[str, Outcome] = field(default_factory=dict)
