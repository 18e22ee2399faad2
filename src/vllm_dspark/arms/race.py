"""One question answered by two runners of one target, each on its own clock."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from vllm_dspark.cache.layout import num_pages
from vllm_dspark.runner.build import Loaded, build_runner
from vllm_dspark.runner.schedule import Admission, Grammar, Schedule, Turn
from vllm_dspark.runner.step import Runner
from vllm_dspark.sampling.params import Sampling

BLOCK_SIZE = 16
NAME = "question"


@dataclass(slots=True)
class Lane:
    """One arm of the race.

    Attributes:
        token_ids: emitted so far.
        accepted: drafts accepted in each round that verified some.
        decode_ms: time of its steps after the prompt's.
    """

    title: str
    runner: Runner
    max_tokens: int
    token_ids: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    prompt_ms: float = 0.0
    decode_ms: float = 0.0
    drafts: tuple[int, ...] = ()
    is_done: bool = False

    @property
    def clock_ms(self) -> float:
        return self.prompt_ms + self.decode_ms

    @property
    def tokens_per_s(self) -> float:
        """Decode rate, the prompt's step apart."""
        return (len(self.token_ids) - 1) / self.decode_ms * 1e3 if self.decode_ms else 0.0

    @property
    def acceptance_length(self) -> float:
        """Mean tokens of a decode round, the target's own included."""
        return 1.0 + sum(self.accepted) / len(self.accepted) if self.accepted else 1.0

    def start(self, prompt: list[int], sampling: Sampling) -> None:
        """Run the prompt."""
        blocks = list(range(1, num_pages(len(prompt) + self.max_tokens + 32, BLOCK_SIZE) + 1))
        admission = Admission(
            request_id=NAME,
            token_ids=prompt,
            num_prompt=len(prompt),
            num_computed=0,
            blocks=(blocks,),
            sampling=sampling,
        )
        turn = Turn(NAME, len(prompt))
        self.prompt_ms = self._step(Schedule(admissions=(admission,), turns=(turn,)), sampling)

    def step(self, sampling: Sampling) -> None:
        """Run one decode round."""
        num_drafts = len(self.drafts)
        turn = Turn(NAME, 1 + num_drafts, num_drafts, self.drafts)
        before = len(self.token_ids)
        self.decode_ms += self._step(Schedule(turns=(turn,)), sampling)
        if num_drafts:
            self.accepted.append(len(self.token_ids) - before - 1)

    def _step(self, schedule: Schedule, sampling: Sampling) -> float:
        started = time.perf_counter()
        self.runner.begin(schedule)
        outcome = self.runner.finish(Grammar()).outcomes[NAME]
        spent = (time.perf_counter() - started) * 1e3
        self.token_ids.extend(outcome.token_ids)
        self.drafts = outcome.drafts
        ended = bool(self.token_ids) and self.token_ids[-1] in sampling.end_ids
        self.is_done = ended or len(self.token_ids) >= self.max_tokens
        return spent


def race(
    loaded: Loaded, prompt: list[int], *, max_tokens: int, end_ids: frozenset[int]
) -> Iterator[tuple[Lane, Lane]]:
    """Answer with the target alone and with drafts, greedy; yield both lanes after every step.

    The lane whose own clock is behind moves next, so that a reader sees both at their true speed
    although one computes at a time.
    """
    sampling = Sampling(temperature=0.0, max_tokens=max_tokens, end_ids=end_ids)
    num_blocks = num_pages(len(prompt) + max_tokens + 32, BLOCK_SIZE) + 2
    lanes = tuple(
        Lane(title, build_runner(one, num_blocks=num_blocks, block_size=BLOCK_SIZE), max_tokens)
        for title, one in (("target alone", replace(loaded, draft=None)), ("DSpark", loaded))
    )
    for lane in lanes:
        lane.start(prompt, sampling)
        yield lanes
    while running := [lane for lane in lanes if not lane.is_done]:
        min(running, key=lambda lane: lane.clock_ms).step(sampling)
        yield lanes
