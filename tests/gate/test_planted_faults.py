"""Faults that have hurt block drafting elsewhere are caught by `parity text` and the gate."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from local_arms import golden_run, run_parity

import vllm_dspark.runner.step as step
from vllm_dspark.runner.propose import Anchors, BlockProposer
from vllm_dspark.runner.requests import RequestTable

pytestmark = [pytest.mark.vllm, pytest.mark.slow]


@pytest.fixture
def patch() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patcher:
        yield patcher


def test_a_draft_shifted_by_one_position_after_a_prefix_hit(
    patch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hits: set[str] = set()
    admit, make_anchors = RequestTable._admit, step.make_anchors

    def note_hits(self: RequestTable, admission: Any) -> None:
        if admission.num_computed:
            hits.add(admission.request_id)
        admit(self, admission)

    def shift(spans: list[Any], *rest: Any) -> Anchors:
        anchors = make_anchors(spans, *rest)
        wrong = mx.array([int(span.request.request_id in hits) for span in spans], mx.int32)
        return Anchors(anchors.tokens, anchors.positions - wrong, anchors.tables, anchors.bounds)

    patch.setattr(RequestTable, "_admit", note_hits)
    patch.setattr(step, "make_anchors", shift)
    report = run_parity(tmp_path)
    assert hits
    assert report.num_failures == len(report.problems) > 0, "texts stay exact: only counts show it"
    assert any("after prefix hits" in text for text in report.problems), report.problems


def test_taps_off_by_one_layer(patch: pytest.MonkeyPatch) -> None:
    original = BlockProposer.__init__

    def shift(self: BlockProposer, *args: Any, **options: Any) -> None:
        original(self, *args, **options)
        self.taps = tuple(tap - 1 for tap in self.taps)

    patch.setattr(BlockProposer, "__init__", shift)
    run, answers, accepted = golden_run()
    assert [list(ids) for ids in run.tokens] == answers, "texts stay exact: only counts show it"
    assert run.drafting.accepted != accepted, "the gate asks for equality"


def test_a_drafted_token_emitted_unverified(patch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    original = step._emitted

    def trust(decided: Any) -> dict[str, tuple[int, ...]]:
        emitted = original(decided)
        for span in decided.finals:
            if span.drafts:
                name = span.request.request_id
                emitted[name] = (span.drafts[0], *emitted[name][1:])
        return emitted

    patch.setattr(step, "_emitted", trust)
    report = run_parity(tmp_path)
    failed = [one.arm for one in report.comparisons if one.num_failures]
    assert failed and all(arm.startswith("DSpark") for arm in failed)


def test_a_leaked_block(patch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from vllm.v1.core.block_pool import BlockPool

    original = BlockPool.free_blocks

    def keep_one(self: BlockPool, blocks: Any) -> None:
        original(self, list(blocks)[1:])

    patch.setattr(BlockPool, "free_blocks", keep_one)
    report = run_parity(tmp_path)
    assert any("were not given back" in text for text in report.problems), report.problems


def test_outputs_cut_one_token_early(patch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import vllm.v1.core.sched.scheduler as scheduler

    original = scheduler.check_stop

    def hurry(request: Any, *args: Any) -> bool:
        request.max_tokens -= 1
        try:
            return original(request, *args)
        finally:
            request.max_tokens += 1

    patch.setattr(scheduler, "check_stop", hurry)
    report = run_parity(tmp_path)
    gaps = [gap for one in report.comparisons for gap in one.differences]
    assert gaps and all(gap.got is None and not gap.is_tie for gap in gaps if gap.position == 31)
    assert report.num_failures >= len(report.passes) * 4
