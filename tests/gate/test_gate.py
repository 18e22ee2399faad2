"""The gate on the tiny pair: strict parity, acceptance after prefix hits, and a report of it."""

import json
from pathlib import Path

import pytest
from local_arms import CONFORMANCE, DRAFT, TARGET, run_parity, start_local

from vllm_dspark.arms.spec import ArmSpec, asks_for
from vllm_dspark.bench.record import make_record
from vllm_dspark.cli.main import main

pytestmark = [pytest.mark.vllm, pytest.mark.slow]


def test_parity_is_strict_and_acceptance_survives_prefix_hits(tmp_path: Path) -> None:
    report = run_parity(tmp_path, modes=("sync", "async"))
    assert report.problems == []
    assert report.is_exact, [one for one in report.comparisons if one.differences]
    for one in report.passes:
        if one.arm.startswith("DSpark"):
            assert (one.run.num_cached > 0) == one.way.endswith("warm")
    drafted = {
        one.name: (one.run.drafting.rounds, one.run.drafting.accepted)
        for one in report.passes
        if one.arm.startswith("DSpark")
    }
    assert len(set(drafted.values())) == 1, drafted
    _build_report(tmp_path, report.to_json())


def _build_report(folder: Path, found: dict) -> None:
    record = make_record("parity", "vllm-dspark parity text", {})
    result = folder / "parity.json"
    result.write_text(json.dumps({**record, **found, "passed": True}))
    page, text = folder / "report.html", folder / "report.md"
    assert main(["report", str(result), "-o", str(page), "--markdown", str(text)]) == 0
    assert page.read_text().count("<svg") >= 2
    assert "| DSpark async, batch 4, cache warm | mlx_lm | 4 of 4 |" in text.read_text()


def test_every_round_accepts_what_the_recorded_reference_accepted() -> None:
    golden = json.loads((CONFORMANCE / "deepspec-vanilla-k7" / "golden.json").read_text())
    cases = golden.get("cases", golden) if isinstance(golden, dict) else golden
    asks = asks_for([case["prompt_ids"] for case in cases], len(cases[0]["output_ids"]))
    spec = ArmSpec(
        name="DSpark", engine="vllm", model=str(TARGET), draft=str(DRAFT), max_model_len=512
    )
    with start_local(spec) as arm:
        run = arm.generate(asks, 1)
    assert [list(ids) for ids in run.tokens] == [case["output_ids"] for case in cases]
    accepted = sum(one["accepted"] for case in cases for one in case["rounds"])
    # The last round of an answer may be cut at max_tokens, which the reference does not do.
    assert accepted - 7 * len(cases) < run.drafting.accepted <= accepted
