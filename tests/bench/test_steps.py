"""`bench steps` on the tiny pair: complete, ordered, and with its floor."""

import json
from pathlib import Path

import pytest

from vllm_dspark.cli.main import main

CONFORMANCE = Path(__file__).parents[1] / "conformance"


@pytest.mark.slow
def test_steps_are_timed_in_parts_and_the_last_line_is_json(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = [
        "bench", "steps", "--model", str(CONFORMANCE / "target"),
        "--draft", str(CONFORMANCE / "deepspec-vanilla-k7" / "draft"), "--requests", "1,2",
        "--contexts", "32", "--prefills", "32", "--drafts", "3", "--repeats", "2",
        "-o", str(tmp_path / "steps.json"),
    ]  # fmt: skip
    assert main(arguments) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result == json.loads((tmp_path / "steps.json").read_text())
    assert result["machine"]["cores"] and result["versions"]["mlx"]
    assert [(one["requests"], one["rows"]) for one in result["steps"]] == [(1, 4), (2, 8)]
    for one in result["steps"]:
        parts = ("target", "verify", "absorb", "block", "markov", "total", "floor")
        assert all(one[f"{name}_ms"] > 0 for name in parts)
        assert one["floor_ms"] > one["target_floor_ms"]
        assert one["break_even"] == pytest.approx(one["total_ms"] / one["target_ms"], abs=0.01)
    assert result["mlx_lm"]["decode_ratio"]["repeats"] == 3
    assert main(["report", str(tmp_path / "steps.json"), "-o", str(tmp_path / "r.html")]) == 0
