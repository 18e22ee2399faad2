"""Times steps of a loaded pair on this machine: the only place that owns a clock."""

import itertools
import time
from collections.abc import Callable

import mlx.core as mx

from vllm_dspark.planner.costs import Cell, CostTable, make_table
from vllm_dspark.runner.schedule import Admission, Grammar, Schedule, Turn
from vllm_dspark.runner.step import Runner
from vllm_dspark.sampling.params import Sampling

REQUEST_COUNTS = (1, 2, 4, 8, 16)
CONTEXTS = (64, 1024)
REPEATS = 3


def row_counts(num_drafts: int) -> tuple[int, ...]:
    """Rows per request to time: 1, powers of two, and 1 + K."""
    powers = itertools.takewhile(lambda rows: rows < num_drafts + 1, (1, 2, 4, 8, 16, 32))
    return (*powers, num_drafts + 1)


def time_ms(function: Callable[[], None]) -> float:
    """Least milliseconds of a few calls after one that warms up; other programs only add."""
    function()
    samples = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        function()
        samples.append((time.perf_counter() - start) * 1e3)
    return min(samples)


class StepTimer:
    """Runs made-up requests through a runner whose pages nobody uses yet.

    Args:
        runner: just built; left without requests.
        num_blocks, block_size: of its pool.
    """

    def __init__(self, runner: Runner, *, num_blocks: int, block_size: int) -> None:
        self._runner = runner
        self._num_blocks = num_blocks
        self._block_size = block_size

    def fits(self, num_requests: int, context: int, rows: int) -> bool:
        """Whether the pool holds so many requests."""
        per_request = -(-(context + rows) // self._block_size)
        return num_requests * per_request < self._num_blocks

    def step(self, num_requests: int, rows: int, context: int, *, drafts: bool) -> float:
        """Milliseconds of one step of num_requests x rows after context tokens."""
        per_request = -(-(context + rows) // self._block_size)
        ids = [f"timer-{index}" for index in range(num_requests)]

        def run() -> None:
            admissions = tuple(
                Admission(
                    request_id=request_id,
                    token_ids=[1] * (context + 1),
                    num_prompt=context + 1,
                    num_computed=context,
                    blocks=self._blocks(index, per_request),
                    sampling=Sampling(temperature=0.0),
                )
                for index, request_id in enumerate(ids)
            )
            # Drafts that are certain to be refused cost what others cost.
            turns = tuple(Turn(one, rows, rows - 1, (0,) * (rows - 1)) for one in ids)
            self._runner.begin(
                Schedule(admissions=admissions, turns=turns, skip_drafts=not drafts)
            )
            self._runner.finish(Grammar())

        spent = time_ms(run)
        self._runner.begin(Schedule(forgotten=frozenset(ids)))
        return spent

    def _blocks(self, index: int, per_request: int) -> tuple[list[int], ...]:
        first = 1 + index * per_request
        # Descending ids: serving with several clients rarely finds consecutive ones.
        table = list(range(first + per_request - 1, first - 1, -1))
        return tuple(table for _ in range(self._runner.num_groups))


def measure_costs(
    runner: Runner, *, num_blocks: int, block_size: int, num_drafts: int, budget_s: float = 9.0
) -> CostTable:
    """Time the cells of a cost table, the small ones first, within a budget of seconds."""
    timer = StepTimer(runner, num_blocks=num_blocks, block_size=block_size)
    rows = row_counts(num_drafts)
    cells = sorted(
        (
            (requests, count, context)
            for requests in REQUEST_COUNTS
            for count in rows
            for context in CONTEXTS
            if timer.fits(requests, context, count)
        ),
        key=lambda cell: (cell[0] * cell[1] * (1 if cell[2] == CONTEXTS[0] else 4), cell),
    )
    deadline = time.perf_counter() + budget_s
    verify: dict[Cell, float] = {}
    draft: dict[int, float] = {}
    for requests, count, context in cells:
        if verify and time.perf_counter() > deadline:
            break
        verify[requests, count, context] = timer.step(requests, count, context, drafts=False)
        if count == 1 and context == CONTEXTS[0]:
            both = timer.step(requests, count, context, drafts=True)
            draft[requests] = max(both - verify[requests, count, context], 0.01)
    mx.clear_cache()
    return make_table(verify, draft)
