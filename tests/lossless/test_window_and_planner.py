"""The draft's context window, and the planner on a real runner: drafts change, text does not."""

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from driver import GREEDY, NUM_BLOCKS, Engine, cases, make_runner, pair

from vllm_dspark.cache.attend import block_mask
from vllm_dspark.planner.costs import CostTable
from vllm_dspark.planner.policy import FIRST_WAIT, PATIENCE
from vllm_dspark.runner.build import build_runner
from vllm_dspark.runner.planning import DraftPlanner
from vllm_dspark.runner.propose import BlockProposer
from vllm_dspark.runner.step import Runner

PROMPT = [*cases()[0][0], *cases()[1][0], *cases()[2][0], *cases()[3][0]]


def windowed(window: int | None) -> Runner:
    loaded = pair()
    return build_runner(
        replace(loaded, draft=replace(loaded.draft, window=window)),
        num_blocks=NUM_BLOCKS, block_size=16,
    )  # fmt: skip


def proposals(runner: Runner, **options: object) -> list:
    engine = Engine(runner, **options)
    engine.add("a", PROMPT, GREEDY)
    engine.add("b", PROMPT[:-9], GREEDY)
    done = engine.run().done
    return [(done[name].tokens, done[name].proposals) for name in ("a", "b")]


def masked_only(window: int, monkeypatch: pytest.MonkeyPatch) -> list:
    """The same window by masks alone, every context laid out whole."""
    runner = windowed(window)
    assert isinstance(runner._proposer, BlockProposer)
    monkeypatch.setattr(runner._proposer, "_reach", None)
    return proposals(runner)


@pytest.mark.parametrize("window", [1, 5, 16, 33])
@pytest.mark.parametrize("seed", [None, 4])
def test_cutting_pages_to_the_window_drafts_what_masking_alone_drafts(
    window: int, seed: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for cut, whole in zip(
        proposals(windowed(window), seed=seed), masked_only(window, monkeypatch), strict=True
    ):
        assert [one.drafts for one in cut[1]] == [one.drafts for one in whole[1]]
        for ours, theirs in zip(cut[1], whole[1], strict=True):
            assert np.abs(ours.confidences - theirs.confidences).max() < 1e-4


def test_a_window_changes_drafts_but_never_text() -> None:
    plain, narrow = proposals(windowed(None)), proposals(windowed(1))
    assert [tokens for tokens, _ in plain] == [tokens for tokens, _ in narrow]
    assert [one.drafts for one in plain[0][1]] != [one.drafts for one in narrow[0][1]]


def test_a_window_as_long_as_the_context_changes_nothing() -> None:
    plain, wide = proposals(windowed(None)), proposals(windowed(4096))
    assert [one.drafts for one in plain[0][1]] == [one.drafts for one in wide[0][1]]


def test_a_window_is_measured_from_the_anchor_for_every_slot() -> None:
    mask = block_mask(mx.array([5]), 8, 3, window=2, is_causal=False)[0, 0]
    assert mask[:, :8].tolist() == [[column in (3, 4) for column in range(8)]] * 3
    assert mask[:, 8:].tolist() == [[True] * 3] * 3


def planned(draft_ms: float, row_ms: float = 0.1) -> Runner:
    """A runner whose planner believes the given costs."""
    runner = make_runner()
    rows = tuple(range(1, 9))
    line = tuple(10.0 + row_ms * count for count in rows)
    table = CostTable((1, 8), rows, (64,), ((line, line),), (draft_ms, draft_ms))
    runner.policy.planner = DraftPlanner(table, num_drafts=7)
    # Steps of the tiny pair take what they take; this test is not about trust.
    runner.policy.planner.trust.num_steps = -(10**9)
    return runner


@pytest.mark.parametrize(("draft_ms", "row_ms"), [(0.1, 0.1), (0.1, 9.0), (500.0, 0.1)])
def test_no_plan_changes_a_token(draft_ms: float, row_ms: float) -> None:
    engine = Engine(planned(draft_ms, row_ms))
    for index, (prompt, _) in enumerate(cases()):
        engine.add(str(index), prompt, GREEDY)
    done = engine.run().done
    assert [done[str(index)].tokens for index in range(8)] == [out for _, out in cases()]


def test_a_knee_in_the_costs_cuts_every_block_there() -> None:
    runner = planned(0.1)
    costs = runner.policy.planner.costs
    line = tuple(10.0 if rows <= 3 else 500.0 for rows in costs.rows)
    runner.policy.planner.costs = replace(costs, verify_ms=((line, line),))
    engine = Engine(runner)
    engine.add("a", cases()[0][0], GREEDY)
    done = engine.run().done["a"]
    assert max(runner.policy.planner.lengths) == 2
    assert {verified for _, verified in done.accepted} <= {1, 2}
    assert done.tokens == cases()[0][1]


def test_a_lapsed_drafter_still_absorbs_and_its_probe_drafts_as_ever() -> None:
    """After a lapse the first probe must equal what a drafter that never lapsed proposes there."""
    runner = planned(draft_ms=500.0)
    engine = Engine(runner)
    engine.add("a", cases()[0][0], GREEDY)
    lapsed = engine.run().done["a"]
    assert runner.policy.reasons["does_not_pay"] >= FIRST_WAIT - 1
    probes = [one for one in lapsed.proposals if one.drafts]
    every = {}
    reference = Engine(make_runner())
    reference.add("a", cases()[0][0], GREEDY)
    while reference.live:
        reference.injected["a"] = ()  # one token a round, so that every anchor is drafted from
        reference.step()
        one = reference.live.get("a")
        if one is not None and one.proposals:
            every[one.proposals[-1].position] = one.proposals[-1].drafts
    assert len(probes) > PATIENCE  # the first rounds, and at least one probe after the lapse
    for probe in probes:
        assert probe.drafts == every[probe.position][: len(probe.drafts)]
    planner = runner.policy.planner
    assert PATIENCE <= planner.lengths.total() < 47
