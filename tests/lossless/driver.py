"""A small scheduler around a real runner, and the tiny pairs it runs."""

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from vllm_dspark.cache.pool import KVPool
from vllm_dspark.ops.select import default_mix_name, make_mix
from vllm_dspark.runner.build import DraftSettings, Loaded, build_runner, load
from vllm_dspark.runner.drafting import NO_CONTEXT_LIMIT, DraftPolicy
from vllm_dspark.runner.propose import Proposer
from vllm_dspark.runner.schedule import Admission, Grammar, Outcome, Schedule, Turn
from vllm_dspark.runner.step import Runner
from vllm_dspark.sampling.params import Sampling

CONFORMANCE = Path(__file__).parents[1] / "conformance"
VANILLA = "deepspec-vanilla-k7"
SLIDING = "speculators-fillin-sliding-k5"
GREEDY = Sampling(temperature=0.0, max_tokens=48)
NUM_BLOCKS = 512


@functools.cache
def pair(name: str = VANILLA, num_drafts: int | None = None) -> Loaded:
    """The tiny target with the draft of a set."""
    settings = DraftSettings(folder=CONFORMANCE / name / "draft", num_drafts=num_drafts)
    return load(CONFORMANCE / "target", "float32", settings)


@functools.cache
def cases(name: str = VANILLA) -> list[tuple[list[int], list[int]]]:
    """Prompts of a set and the target's 48 greedy tokens after each."""
    golden = json.loads((CONFORMANCE / name / "golden.json").read_text())
    return [(case["prompt_ids"], case["output_ids"]) for case in golden["cases"]]


@dataclass(frozen=True)
class Proposal:
    """One block as the runner handed it out.

    Attributes:
        position: of its anchor.
    """

    position: int
    drafts: tuple[int, ...]
    confidences: np.ndarray | None


@dataclass
class Live:
    """What the scheduler knows of one request."""

    prompt: list[int]
    sampling: Sampling
    blocks: list[int]
    num_computed: int = 0
    tokens: list[int] = field(default_factory=list)
    drafts: tuple[int, ...] = ()
    proposals: list[Proposal] = field(default_factory=list)
    accepted: list[tuple[int, int]] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    is_admitted: bool = False
    is_done: bool = False

    @property
    def known(self) -> list[int]:
        return [*self.prompt, *self.tokens]

    @property
    def has_ended(self) -> bool:
        limit = self.sampling.max_tokens
        ends = bool(self.tokens) and self.tokens[-1] in self.sampling.end_ids
        ends = ends and len(self.tokens) >= self.sampling.min_tokens
        return ends or (limit is not None and len(self.tokens) >= limit)


class Engine:
    """Schedules requests the way vLLM does: all running ones in every step.

    Args:
        runner: from ``make_runner``.
        block_size: of its pool.
        chunk: most prompt tokens of a request in a step.
        seed: shuffles the free blocks; None hands them out in order.
        max_model_len: context limit.
    """

    def __init__(
        self,
        runner: Runner,
        *,
        block_size: int = 16,
        chunk: int = 1 << 20,
        seed: int | None = None,
        max_model_len: int = NO_CONTEXT_LIMIT,
    ) -> None:
        self.runner = runner
        self.live: dict[str, Live] = {}
        self.done: dict[str, Live] = {}
        self.skip_drafts = False
        self.injected: dict[str, tuple[int, ...]] = {}
        self.free = list(range(NUM_BLOCKS - 1, 0, -1))
        if seed is not None:
            np.random.default_rng(seed).shuffle(self.free)
        self._block_size = block_size
        self._chunk = chunk
        self._max_model_len = max_model_len
        self._forgotten: set[str] = set()

    def add(
        self,
        name: str,
        prompt: Sequence[int],
        sampling: Sampling = GREEDY,
        *,
        shared: Sequence[int] = (),
        tokens: Sequence[int] = (),
    ) -> None:
        """Queue a request; ``shared`` are blocks of a prefix hit, ``tokens`` outputs so far."""
        self.live[name] = Live(
            list(prompt),
            sampling,
            list(shared),
            num_computed=len(shared) * self._block_size,
            tokens=list(tokens),
        )

    def drop(self, name: str) -> Live:
        """Abort or preempt a request: its blocks are free, the runner will forget it."""
        one = self.live.pop(name)
        self.free.extend(reversed(one.blocks))
        self._forgotten.add(name)
        return one

    def step(self) -> None:
        """Schedule, run and take in one step."""
        admissions, turns, new_blocks = [], [], {}
        for name, one in self.live.items():
            turn = self._turn(name, one)
            grown = self._grow(one, one.num_computed + turn.num_tokens)
            if one.is_admitted:
                if grown:
                    new_blocks[name] = (grown,)
            else:
                admissions.append(self._admission(name, one))
            turns.append(turn)
        forgotten, self._forgotten = frozenset(self._forgotten), set()
        self.runner.begin(
            Schedule(
                admissions=tuple(admissions),
                forgotten=forgotten,
                new_blocks=new_blocks,
                turns=tuple(turns),
                skip_drafts=self.skip_drafts,
            )
        )
        outcomes = self.runner.finish(Grammar()).outcomes
        for turn in turns:
            self._take(turn, outcomes[turn.request_id])

    def run(self, max_steps: int = 10_000) -> "Engine":
        """Step until nothing is left."""
        for _ in range(max_steps):
            if not self.live:
                break
            self.step()
        return self

    def _turn(self, name: str, one: Live) -> Turn:
        remaining = len(one.known) - one.num_computed
        if remaining > 1 or not one.tokens:
            return Turn(name, min(remaining, self._chunk))
        drafts = self.injected.get(name, one.drafts)
        return Turn(name, 1 + len(drafts), len(drafts), drafts)

    def _grow(self, one: Live, stop: int) -> list[int]:
        assert stop <= self._max_model_len, "rows past the context limit"
        needed = -(-stop // self._block_size) - len(one.blocks)
        grown = [self.free.pop() for _ in range(needed)]
        one.blocks += grown
        return grown

    def _admission(self, name: str, one: Live) -> Admission:
        one.is_admitted = True
        return Admission(
            request_id=name,
            token_ids=one.known,
            num_prompt=len(one.prompt),
            num_computed=one.num_computed,
            blocks=(list(one.blocks),),
            sampling=one.sampling,
        )

    def _take(self, turn: Turn, outcome: Outcome) -> None:
        """Follow an outcome, checking that nothing comes after the end."""
        one = self.live[turn.request_id]
        one.outcomes.append(outcome)
        one.num_computed += turn.num_tokens - turn.num_drafts
        if outcome.token_ids:
            one.num_computed += len(outcome.token_ids) - 1
        if turn.num_drafts:
            one.accepted.append((len(outcome.token_ids) - 1, turn.num_drafts))
        for token in outcome.token_ids:
            assert not one.has_ended, "a token after the end"
            one.tokens.append(token)
        one.drafts = outcome.drafts
        self._check_drafts(one)
        if outcome.drafts:
            confidences = self.runner.table[turn.request_id].confidence_logits
            one.proposals.append(Proposal(len(one.known) - 1, outcome.drafts, confidences))
        if one.has_ended or len(one.known) >= self._max_model_len:
            one.is_done = True
            self.done[turn.request_id] = self.drop(turn.request_id)

    def _check_drafts(self, one: Live) -> None:
        drafts = one.drafts
        if one.has_ended:
            assert drafts == (), "drafts after the end"
        limit = one.sampling.max_tokens
        if limit is not None:
            assert len(drafts) <= max(limit - len(one.tokens) - 1, 0), "drafts past max_tokens"
        assert len(one.known) + len(drafts) < self._max_model_len or not drafts
        assert not any(token in one.sampling.end_ids for token in drafts[:-1])


def make_runner(
    loaded: Loaded | None = None,
    proposer: Proposer | str | None = "draft",
    *,
    block_size: int = 16,
    max_model_len: int = NO_CONTEXT_LIMIT,
) -> Runner:
    """A runner of a pair: with its own draft, with a stub, or (None) the target alone."""
    loaded = loaded or pair()
    if proposer == "draft":
        return build_runner(
            loaded, num_blocks=NUM_BLOCKS, block_size=block_size, max_model_len=max_model_len
        )
    if proposer is None:
        alone = replace(loaded, draft=None)
        return build_runner(
            alone, num_blocks=NUM_BLOCKS, block_size=block_size, max_model_len=max_model_len
        )
    pool = KVPool(
        loaded.config.attention, num_blocks=NUM_BLOCKS, block_size=block_size, dtype=loaded.dtype
    )
    return Runner(
        loaded.target,
        pool,
        mix=make_mix(default_mix_name()),
        proposer=proposer,
        policy=DraftPolicy(max_model_len),
    )


def run_alone(
    prompt: Sequence[int], sampling: Sampling = GREEDY, *, drafting: bool = False
) -> Live:
    """One request by itself."""
    engine = Engine(make_runner(proposer="draft" if drafting else None))
    engine.add("a", prompt, sampling)
    return engine.run().done["a"]
