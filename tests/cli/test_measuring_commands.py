"""Exit codes of the measuring commands, and sentences about what is missing."""

import argparse
import json
from pathlib import Path

import pytest

from vllm_dspark.arms.compare import Comparison, Difference
from vllm_dspark.bench.offline import OfflineBench
from vllm_dspark.cli.main import main
from vllm_dspark.cli.results import numbers
from vllm_dspark.parity.text import TextParity, TextReport

CONFORMANCE = Path(__file__).parents[1] / "conformance"
PAIR = (
    "--model", str(CONFORMANCE / "target"),
    "--draft", str(CONFORMANCE / "deepspec-vanilla-k7" / "draft"),
)  # fmt: skip


def difference(*, is_tie: bool) -> Comparison:
    gap = Difference("p", 3, 5, 6, 2, 0.0004, is_tie)
    return Comparison("DSpark sync, batch 1, cache cold", "mlx_lm", 4, (gap,))


@pytest.mark.parametrize(
    ("comparisons", "problems", "flags", "status"),
    [
        ([], [], [], 0),
        ([difference(is_tie=True)], [], [], 0),
        ([difference(is_tie=True)], [], ["--strict"], 1),
        ([difference(is_tie=False)], [], [], 1),
        ([], ["KV blocks were not given back"], [], 1),
    ],
)
def test_parity_fails_on_a_failure_and_when_strict_on_a_near_tie(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    comparisons: list[Comparison],
    problems: list[str],
    flags: list[str],
    status: int,
) -> None:
    report = TextReport("float32", [], comparisons, problems)
    monkeypatch.setattr(TextParity, "run", lambda _: report)
    assert main(["parity", "text", *PAIR, *flags]) == status
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["passed"] == (status == 0)


@pytest.mark.parametrize("has_mismatch", [False, True])
def test_a_benchmark_beside_unequal_outputs_ends_with_status_1(
    monkeypatch: pytest.MonkeyPatch, has_mismatch: bool
) -> None:
    found = {"cells": [], "ratios": [], "memory": []}
    monkeypatch.setattr(OfflineBench, "run", lambda _: found)
    monkeypatch.setattr(OfflineBench, "has_mismatch", has_mismatch)
    assert main(["bench", "offline", *PAIR]) == int(has_mismatch)


@pytest.mark.parametrize("command", [["bench", "steps"], ["bench", "serve"], ["parity", "text"]])
def test_a_missing_folder_is_named(capsys: pytest.CaptureFixture[str], command: list[str]) -> None:
    assert main([*command, "--model", "/nowhere"]) == 2
    assert "no model in /nowhere" in capsys.readouterr().err
    assert main([*command, *PAIR[:2], "--draft", "/nowhere"]) == 2
    assert "no draft in /nowhere" in capsys.readouterr().err


def test_lists_of_numbers_are_separated_by_commas() -> None:
    assert numbers("1,4,8") == (1, 4, 8)
    with pytest.raises((ValueError, argparse.ArgumentTypeError)):
        numbers("a")


def test_a_file_that_is_no_result_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "result.json"
    for text in (None, "not JSON"):
        if text is not None:
            path.write_text(text)
        assert main(["report", str(path), "-o", str(tmp_path / "r.html")]) == 2
        assert f"cannot read {path}" in capsys.readouterr().err
