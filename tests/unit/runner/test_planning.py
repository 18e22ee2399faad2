"""The planner on live requests: trust in measured costs, and what happens without it."""

import numpy as np

from vllm_dspark.planner.costs import CostTable
from vllm_dspark.runner.planning import TRIAL_STEPS, DraftPlanner
from vllm_dspark.runner.requests import Request
from vllm_dspark.sampling.params import Sampling


def planner(row_ms: tuple[float, ...], draft_ms: float = 1.0) -> DraftPlanner:
    rows = tuple(range(1, len(row_ms) + 1))
    return DraftPlanner(CostTable((1,), rows, (64,), ((row_ms,),), (draft_ms,)), num_drafts=3)


def request(logits: list[float] | None) -> Request:
    one = Request("a", [1] * 10, 8, 9, Sampling(temperature=0.0), [np.zeros(1, np.int32)])
    one.confidence_logits = None if logits is None else np.array(logits)
    return one


def test_a_table_that_is_only_slower_by_a_factor_stays_trusted() -> None:
    ours = planner((10.0, 11.0, 12.0, 13.0))
    for step in range(200):
        rows = 1 + step % 4
        ours.observe_step(
            num_requests=1, num_rows=rows, context=64, drafted=1, ms=3 * (10 + rows)
        )
    assert not ours.is_distrusted


def test_a_shuffled_table_is_distrusted_and_the_whole_block_is_verified() -> None:
    ours = planner((200.0, 3.0, 90.0, 1.0))
    for step in range(4 * TRIAL_STEPS):
        rows = 1 + step % 4
        ours.observe_step(num_requests=1, num_rows=rows, context=64, drafted=1, ms=10 + rows)
    assert ours.is_distrusted
    assert ours.plan([request([-5.0, -5.0, -5.0])]) == [3]
    assert all(ours.may_draft() for _ in range(50))


def test_equal_costs_everywhere_verify_the_whole_block() -> None:
    assert planner((10.0, 10.0, 10.0, 10.0), draft_ms=0.01).plan([request([1.0, 1.0, 1.0])]) == [3]


def test_without_confidences_the_estimate_decides() -> None:
    ours = planner((10.0, 10.5, 11.0, 11.5))
    for _ in range(300):
        ours.observe_round(3, 0)
    assert ours.plan([request(None)]) == [0]


def test_lengths_are_counted() -> None:
    ours = planner((10.0, 10.1, 10.2, 10.3))
    ours.plan([request([4.0, 4.0, 4.0])])
    assert ours.lengths == {3: 1}
