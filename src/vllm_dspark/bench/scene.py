"""A runner with requests in mid-flight, made without a prefill, to time single steps of it."""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from vllm_dspark.runner.build import Loaded, build_runner
from vllm_dspark.runner.schedule import Admission, Grammar, Schedule, StepResult, Turn
from vllm_dspark.runner.step import Runner
from vllm_dspark.sampling.params import Sampling

BLOCK_SIZE = 16
GREEDY = Sampling(temperature=0.0)


@dataclass(frozen=True, slots=True)
class Scene:
    """Requests that a runner serves, by name.

    Attributes:
        vocab_size: bound of the random token ids.
    """

    runner: Runner
    names: tuple[str, ...]
    vocab_size: int

    def step(self, num_drafts: int = 0) -> StepResult:
        """Run a decode step of all requests, each with num_drafts random drafts to verify."""
        drafts = random_ids(num_drafts, self.vocab_size)
        turns = tuple(Turn(name, 1 + num_drafts, num_drafts, drafts) for name in self.names)
        return run(self.runner, Schedule(turns=turns))


def run(runner: Runner, schedule: Schedule) -> StepResult:
    """Compute one step."""
    runner.begin(schedule)
    return runner.finish(Grammar())


def random_ids(count: int, vocab_size: int, seed: int = 0) -> tuple[int, ...]:
    """Token ids without meaning, the same for a seed."""
    return tuple(np.random.default_rng(seed).integers(0, vocab_size, count).tolist())


def make_runner(loaded: Loaded, num_requests: int, max_length: int) -> Runner:
    """Build a runner with pages for requests of max_length tokens; block 0 stays unused."""
    blocks = num_requests * pages_for(max_length) + 1
    return build_runner(loaded, num_blocks=blocks, block_size=BLOCK_SIZE)


def pages_for(length: int) -> int:
    """Blocks of a request of ``length`` tokens."""
    return -(-length // BLOCK_SIZE)


def tables(num_requests: int, max_length: int) -> list[list[int]]:
    """Block tables that follow each other, one per request."""
    ids = itertools.count(1)
    width = pages_for(max_length)
    return [list(itertools.islice(ids, width)) for _ in range(num_requests)]


def admissions(
    prompts: Sequence[Sequence[int]], num_computed: int, max_length: int
) -> tuple[Admission, ...]:
    """Admit prompts whose first num_computed tokens count as a prefix hit."""
    return tuple(
        Admission(
            request_id=str(index),
            token_ids=list(prompt),
            num_prompt=len(prompt),
            num_computed=num_computed,
            blocks=(table,),
            sampling=GREEDY,
        )
        for index, (prompt, table) in enumerate(
            zip(prompts, tables(len(prompts), max_length), strict=True)
        )
    )


@contextmanager
def requests_at(
    runner: Runner, num_requests: int, context: int, *, vocab_size: int, max_length: int
) -> Iterator[Scene]:
    """Requests with ``context`` tokens each, as if all but the last came from a prefix hit.

    The pages hold zeros: what they hold does not change how long a step takes.
    """
    prompts = [random_ids(context, vocab_size, seed) for seed in range(num_requests)]
    admitted = admissions(prompts, context - 1, max_length)
    names = tuple(one.request_id for one in admitted)
    run(runner, Schedule(admissions=admitted, turns=tuple(Turn(name, 1) for name in names)))
    try:
        yield Scene(runner, names, vocab_size)
    finally:
        run(runner, Schedule(forgotten=frozenset(names)))
