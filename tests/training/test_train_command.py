"""``vllm-dspark train`` from end to end on the tiny target."""

from pathlib import Path

import pytest

from vllm_dspark.cli.main import main

from .conftest import TARGET

FIT = "--num-layers 1 --taps 1,3 --markov-rank 8 --mask-token-id 3 --num-steps 2 --batch-rows 2"
FIT += " --num-anchors 4 --held-out-rows 4 --evaluate-every 2"


def test_the_three_stages_make_a_calibrated_draft(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, run = str(tmp_path / "rows"), str(tmp_path / "run")
    size = "--format plain --num-shards 1 --rows-per-shard 12 --row-length 64 --max-question 4"
    assert main(["train", "data", str(TARGET), rows, *size.split()]) == 0
    assert main(["train", "fit", str(TARGET), run, "--data", rows, *FIT.split()]) == 0
    draft = str(tmp_path / "run" / "draft")
    assert main(["train", "calibrate", str(TARGET), draft, "--data", rows, "--rows", "12"]) == 0
    said = capsys.readouterr().out
    assert "ECE" in said and "draft in" in said
    assert "confidence_temperatures" in (tmp_path / "run" / "draft" / "config.json").read_text()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--num-steps 0", "num_steps is 0, must be at least 1"),
        ("--taps a,b", "must be layer numbers with commas"),
        ("--taps 1,5", "must be layers 0 to 4"),
        ("--markov-kind odd", "must be one of"),
        ("--optimiser sgd", "must be one of"),
    ],
)
def test_a_bad_setting_is_one_sentence(
    words: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["train", "fit", str(TARGET), str(tmp_path), "--data", str(tmp_path)]
    assert main([*command, "--mask-token-id", "3", *words.split()]) == 2
    said = capsys.readouterr().err
    assert sentence in said and "Traceback" not in said


def test_rows_must_be_made_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["train", "fit", str(TARGET), str(tmp_path / "run"), "--data", str(tmp_path)]
    assert main([*command, "--mask-token-id", "3"]) == 2
    assert "make them with train data" in capsys.readouterr().err
