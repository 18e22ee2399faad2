"""``vllm-dspark train`` from end to end on the tiny target."""

import json
from pathlib import Path

import mlx.core as mx
import pytest

from vllm_dspark.checkpoints.build import new_drafter
from vllm_dspark.checkpoints.draft import load_drafter, read_draft_config
from vllm_dspark.checkpoints.export import export_drafter
from vllm_dspark.checkpoints.target import read_target
from vllm_dspark.cli.main import main
from vllm_dspark.training.network import parameters_of
from vllm_dspark.training.settings import DraftShape
from vllm_dspark.training.shape import draft_config

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


def make_rows(folder: Path) -> str:
    """A dozen short rows."""
    size = "--format plain --num-shards 1 --rows-per-shard 12 --row-length 64 --max-question 4"
    assert main(["train", "data", str(TARGET), str(folder), *size.split()]) == 0
    return str(folder)


def test_a_run_can_start_from_a_drafts_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, first, second = make_rows(tmp_path / "rows"), tmp_path / "first", tmp_path / "second"
    command = ["train", "fit", str(TARGET), "OUT", "--data", rows, *FIT.split()]
    command[3] = str(first)
    assert main(command) == 0
    draft = str(first / "draft")
    command[3] = str(second)
    # So small a rate that two steps leave the weights where they started; another seed, so that
    # weights drawn at random would be others.
    slow = ["--learning-rate", "1e-9", "--seed", "9", "--from", draft]
    assert main([*command, *slow]) == 0
    config = read_draft_config(draft)
    before, after = (
        parameters_of(load_drafter(run / "draft", config, mx.float32)) for run in (first, second)
    )
    assert all(mx.allclose(before[name], after[name], atol=1e-5).item() for name in before)
    settings = json.loads((second / "settings.json").read_text())
    assert settings["from"] == draft
    assert json.loads((first / "settings.json").read_text())["from"] is None


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--markov-rank 16", "markov_rank is 8 there and 16 in the run"),
        ("--taps 1,2", "tap_states is (2, 4) there and (2, 3) in the run"),
    ],
)
def test_a_draft_of_another_shape_cannot_start_a_run(
    words: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = draft_config(
        read_target(TARGET), DraftShape(num_layers=1, taps=(1, 3), markov_rank=8, mask_token_id=3)
    )
    export_drafter(tmp_path / "draft", new_drafter(config, seed=1), layout="deepspec")
    command = ["train", "fit", str(TARGET), str(tmp_path / "run"), "--data", str(tmp_path)]
    command += ["--from", str(tmp_path / "draft")]
    assert main([*command, *FIT.split(), *words.split()]) == 2
    said = capsys.readouterr().err
    assert sentence in said and "Traceback" not in said
    assert not (tmp_path / "run").exists()


def test_a_folder_without_a_draft_cannot_start_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["train", "fit", str(TARGET), str(tmp_path / "run"), "--data", str(tmp_path)]
    assert main([*command, "--from", str(tmp_path / "none"), *FIT.split()]) == 2
    assert "config.json" in capsys.readouterr().err
