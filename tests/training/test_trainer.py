"""Whole runs on the tiny target."""

import json
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import pytest

from vllm_dspark.checkpoints.build import new_drafter
from vllm_dspark.checkpoints.draft import load_drafter, read_draft_config
from vllm_dspark.training.feed import RowFeed
from vllm_dspark.training.frozen import FrozenTarget
from vllm_dspark.training.network import parameters_of
from vllm_dspark.training.settings import DraftShape, FitSettings, LossWeights
from vllm_dspark.training.shape import draft_config
from vllm_dspark.training.state import RunFolder
from vllm_dspark.training.trainer import Trainer

SHAPE = DraftShape(num_layers=1, taps=(1, 3), markov_rank=16, mask_token_id=3)
SETTINGS = FitSettings(
    num_steps=6, batch_rows=4, num_anchors=8, held_out_rows=8, log_every=1, save_every=2,
    evaluate_every=6, seed=5,
)  # fmt: skip


def make_trainer(
    target: FrozenTarget, rows: Path, folder: Path, settings: FitSettings, shape: DraftShape = SHAPE
) -> Trainer:
    """A run in ``folder``, new or gone on with."""
    run = RunFolder(folder)
    feed = RowFeed(
        rows, num_held_out=settings.held_out_rows, seed=settings.seed, place=run.load_place()
    )
    drafter = new_drafter(draft_config(target.config, shape), seed=settings.seed)
    return Trainer(drafter, target, feed, run, settings, terms=LossWeights())


def losses(folder: Path) -> list[float]:
    """Total loss of every step in the log."""
    return [json.loads(line)["total"] for line in (folder / "log.jsonl").read_text().splitlines()]


def test_stop_and_resume_give_the_same_losses(
    target: FrozenTarget, rows_folder: Path, tmp_path: Path
) -> None:
    list(make_trainer(target, rows_folder, tmp_path / "whole", SETTINGS).run())
    list(make_trainer(target, rows_folder, tmp_path / "cut", SETTINGS).run(3))
    list(make_trainer(target, rows_folder, tmp_path / "cut", SETTINGS).run())
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole")


@pytest.mark.parametrize("kind", ["gated", "rnn", "none"])
def test_every_markov_head_trains(
    target: FrozenTarget, rows_folder: Path, tmp_path: Path, kind: str
) -> None:
    shape = replace(SHAPE, markov_kind=kind, has_confidence=kind != "none")
    settings = replace(SETTINGS, num_steps=2, optimiser="adamw")
    trainer = make_trainer(target, rows_folder, tmp_path, settings, shape)
    before = dict(trainer.state.params)
    list(trainer.run())
    unchanged = [
        name
        for name, array in trainer.state.params.items()
        if mx.array_equal(array, before[name]).item()
    ]
    assert unchanged == []


def test_acceptance_rises_and_the_draft_loads(
    target: FrozenTarget, rows_folder: Path, tmp_path: Path
) -> None:
    settings = replace(
        SETTINGS, num_steps=40, batch_rows=8, num_anchors=12, log_every=20, evaluate_every=40
    )
    trainer = make_trainer(target, rows_folder, tmp_path, settings)
    told = list(trainer.run())
    lengths = [one.rounds.length for one in told if one.rounds is not None]
    assert lengths[-1] > 1.4 and told[-1].metrics["total"] < told[0].metrics["total"]
    run = RunFolder(tmp_path)
    run.check_settings(
        {"num_steps": 40, "batch_rows": 8, "num_anchors": 12, "optimiser": "muon", "seed": 5,
         "learning_rate": None}
    )  # fmt: skip
    run.publish("tiny", 96)
    config = read_draft_config(run.draft)
    loaded = parameters_of(load_drafter(run.draft, config, mx.float32))
    best = parameters_of(load_drafter(run.best, config, mx.float32))
    assert all(mx.array_equal(loaded[name], best[name]).item() for name in best)
    assert "DSpark draft for tiny" in (run.draft / "README.md").read_text()
