"""Lengths from survival and costs, and the rules that exactness depends on."""

import math

import pytest

from vllm_dspark.planner.costs import CostTable
from vllm_dspark.planner.policy import (
    FIRST_WAIT,
    PATIENCE,
    AcceptanceEstimate,
    Lapse,
    plan_lengths,
    survival_of,
)


def costs(row_ms: list[float], draft_ms: float = 0.0) -> CostTable:
    """One or two requests; verification costs row_ms[rows - 1] for each number of rows."""
    rows = tuple(range(1, len(row_ms) + 1))
    return CostTable((1,), rows, (64,), ((tuple(row_ms),),), (draft_ms,))


def test_survival_is_the_product_of_calibrated_confidences() -> None:
    logits = [math.log(9), math.log(4)]
    assert survival_of(logits, ()) == pytest.approx([0.9, 0.72])
    halved = 1 / (1 + math.exp(-math.log(9) / 2))
    assert survival_of(logits, (2.0, 1.0)) == pytest.approx([halved, halved * 0.8])


def test_flat_costs_verify_everything_and_steep_costs_nothing() -> None:
    chances = [[0.9, 0.8, 0.7]]
    assert plan_lengths(chances, costs([10, 10, 10, 10]), 64).lengths == (3,)
    assert plan_lengths(chances, costs([10, 30, 60, 90]), 64).lengths == (0,)


def test_a_knee_in_the_costs_cuts_the_block() -> None:
    assert plan_lengths([[0.9, 0.8, 0.7]], costs([10, 11, 12, 25]), 64).lengths == (2,)


def test_the_paper_example_of_two_requests() -> None:
    # dspark.md 4.5: SPS(2..8) = 100, 98, 96, 90, 84, 60, 55 gives lengths (3, 1).
    speeds = [100, 98, 96, 90, 84, 60, 55]
    per_request = [1e3 / speed for speed in speeds]
    rows = tuple(n / 2 for n in range(2, 9))
    table = CostTable((1, 2), rows, (64,), ((tuple(per_request), tuple(per_request)),), (0.0, 0.0))
    survivals = [[0.9, 0.72, 0.504], [0.6, 0.3, 0.27]]
    assert plan_lengths(survivals, table, 64).lengths == (3, 1)


@pytest.mark.parametrize("later", [0.0, 0.79])
def test_a_later_chance_never_changes_an_earlier_decision(later: float) -> None:
    assert plan_lengths([[0.8, later]], costs([10, 20, 21]), 64).lengths == (0,)


def emitted_first_token(length_after: dict[int, int]) -> list[float]:
    """Distribution of the first emitted token when draft token x_1 decides the length.

    Target (0.7, 0.3), draft (0.5, 0.5), as in dspark.md 4.5; length 0 emits the target's own.
    """
    p, q = [0.7, 0.3], [0.5, 0.5]
    residual = [1.0, 0.0]
    emitted = [0.0, 0.0]
    for drafted in (0, 1):
        kept = min(1.0, p[drafted] / q[drafted])
        for token in (0, 1):
            if length_after[drafted] == 0:
                chance = p[token]
            else:
                chance = kept * (token == drafted) + (1 - kept) * residual[token]
            emitted[token] += q[drafted] * chance
    return emitted


def test_a_rule_that_looks_at_the_draft_it_judges_is_biased_and_ours_is_not() -> None:
    table = costs([1.0, 2.0, 1 / 0.45])
    survival_of_first = 0.8
    ours, retrospective = {}, {}
    for drafted, second in ((0, 0.9), (1, 0.0)):
        chances = [survival_of_first, survival_of_first * second]
        ours[drafted] = plan_lengths([chances], table, 64).lengths[0]
        rates = [1.0, 1.8 / 2.0, (1.8 + chances[1]) * 0.45]
        retrospective[drafted] = max(range(3), key=rates.__getitem__)
    assert emitted_first_token(retrospective) == pytest.approx([0.85, 0.15])
    assert emitted_first_token(ours) == pytest.approx([0.7, 0.3])


def test_a_plan_pays_only_if_it_beats_plain_decoding_with_the_block_pass_paid() -> None:
    chances = [[0.9, 0.8]]
    assert plan_lengths(chances, costs([10, 11, 12], draft_ms=5), 64).pays
    assert not plan_lengths(chances, costs([10, 11, 12], draft_ms=50), 64).pays


def test_drafting_lapses_after_losses_and_comes_back_by_probes() -> None:
    lapse = Lapse()
    for _ in range(PATIENCE):
        assert lapse.tick()
        lapse.observe(pays=False)
    assert lapse.is_lapsed
    waited = [lapse.tick() for _ in range(FIRST_WAIT)]
    assert waited == [False] * (FIRST_WAIT - 1) + [True]
    lapse.observe(pays=False)  # one failed probe waits twice as long
    assert [lapse.tick() for _ in range(2 * FIRST_WAIT)].index(True) == 2 * FIRST_WAIT - 1
    lapse.observe(pays=True)
    assert all(lapse.tick() for _ in range(5))


def test_the_estimate_learns_acceptance_per_slot_from_the_slots_that_were_reached() -> None:
    estimate = AcceptanceEstimate(3)
    for _ in range(400):
        estimate.observe(3, 1)
    first, second, third = estimate.survival()
    assert first > 0.97
    assert second < 0.05
    assert third <= second
