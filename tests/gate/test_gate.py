"""The gate on the tiny pair: strict parity, acceptance after prefix hits, and a report of it."""

import json
from pathlib import Path

import pytest
from local_arms import golden_run, run_parity

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


def test_drafting_accepts_exactly_what_the_recorded_reference_accepted() -> None:
    run, answers, accepted = golden_run()
    assert [list(ids) for ids in run.tokens] == answers
    assert run.drafting.accepted == accepted
