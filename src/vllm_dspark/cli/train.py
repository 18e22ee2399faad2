"""Train a draft for a target: make data, fit, calibrate.

Each stage can be stopped; the same command goes on with it.
"""

import argparse
import importlib.util
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_dspark.errors import SettingsError
from vllm_dspark.training.progress import Progress
from vllm_dspark.training.settings import DataSettings, DraftShape, FitSettings, LossWeights

if TYPE_CHECKING:
    from vllm_dspark.training.frozen import FrozenTarget
    from vllm_dspark.training.trainer import Told

DTYPES = ("auto", "float32", "bfloat16", "float16")
DATA_HELP = {
    "num_shards": "files to make",
    "rows_per_shard": "streams generated side by side; one file",
    "row_length": "tokens of a stream",
    "greedy_share": "share of rows with greedy answers",
    "temperature": "of the other rows' answers",
    "own_share": "share of rows from built-in prompts when --prompts is given",
    "min_answer": "answers are cut at a length drawn from here ...",
    "max_answer": "... to here",
    "max_question": "longest question that the target writes",
    "loop_length": "tokens of a repetition before blocks stop starting in it; 0 keeps all",
    "seed": "of prompts and sampling",
}
FIT_HELP = {
    "num_steps": "optimiser steps of the whole run",
    "batch_rows": "rows per step",
    "num_anchors": "blocks per row",
    "optimiser": "muon or adamw",
    "learning_rate": "peak (default: 4e-3 for muon, 6e-4 for adamw)",
    "warmup_share": "share of the steps with a rising rate",
    "max_norm": "the gradient is clipped to",
    "weight_decay": "per unit of learning rate",
    "loss_rows": "slots whose logits are in memory at once",
    "held_out_rows": "rows of the first shard kept for evaluation",
    "evaluate_every": "steps between evaluations",
    "save_every": "steps between saves",
    "log_every": "steps between lines of the log",
    "seed": "of weights, row order and anchors",
}


SHAPE_HELP = {
    "num_layers": "draft layers",
    "taps": "target layers whose outputs are read, e.g. 1,8,14 (default: five, evenly spread)",
    "block_size": "slots of a block",
    "markov_kind": "vanilla, gated, rnn or none",
    "markov_rank": "columns of the Markov tables",
    "mask_token_id": "token that never occurs in text, embedded in the slots after the anchor",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the sub-commands and their arguments."""
    stages = parser.add_subparsers(dest="stage", required=True, metavar="STAGE")
    data = stages.add_parser("data", help="let the target write the rows to learn from")
    _add_common(data, "folder of the rows")
    data.add_argument("--prompts", type=Path, help="JSONL of messages, prompt or prompt_ids")
    data.add_argument("--format", default="auto", help="auto, chat or plain (default: auto)")
    _add_settings(data, DataSettings, DATA_HELP)
    fit = stages.add_parser("fit", help="fit a draft to the rows")
    _add_common(fit, "folder of the run")
    fit.add_argument("--data", type=Path, required=True, help="folder made by train data")
    fit.add_argument(
        "--from", dest="start", type=Path, metavar="DRAFT",
        help="start from this draft's weights, which must have the same shape",
    )  # fmt: skip
    fit.add_argument("--stop-after", type=int, help="leave after this many steps, to go on later")
    fit.add_argument("--no-confidence", action="store_true", help="leave out the confidence head")
    _add_settings(fit, DraftShape, SHAPE_HELP)
    _add_settings(fit, FitSettings, FIT_HELP)
    calibrate = stages.add_parser("calibrate", help="make a draft's confidences honest")
    _add_common(calibrate, "the draft, whose config.json gets the temperatures")
    calibrate.add_argument("--data", type=Path, required=True, help="folder made by train data")
    calibrate.add_argument("--rows", type=int, default=64, help="its first rows are used")


def _add_common(parser: argparse.ArgumentParser, out: str) -> None:
    parser.add_argument("target", type=Path, help="folder of the target model")
    parser.add_argument("out", type=Path, help=out)
    parser.add_argument(
        "--dtype", default="auto", choices=DTYPES,
        help="of the computation (default: float32 on a CPU, bfloat16 on a GPU)",
    )  # fmt: skip


def _add_settings(parser: argparse.ArgumentParser, kind: type, helps: dict[str, str]) -> None:
    """One option per field of a settings class, with the class's defaults."""
    for field in fields(kind):
        if field.name not in helps:
            continue
        is_number = isinstance(field.default, int | float) or field.name == "mask_token_id"
        numeric = int if field.name == "mask_token_id" else type(field.default)
        shown = (
            ""
            if field.default in (None, ()) or field.name == "mask_token_id"
            else (f" (default: {field.default})")
        )
        parser.add_argument(
            f"--{field.name.replace('_', '-')}",
            type=numeric if is_number else float if field.name == "learning_rate" else str,
            required=field.name == "mask_token_id",
            help=helps[field.name] + shown,
        )


def _settings(args: argparse.Namespace, kind: type, helps: dict[str, str]) -> dict[str, Any]:
    """The options that were given, by field name."""
    given = {name: getattr(args, name) for name in helps}
    return {name: value for name, value in given.items() if value is not None}


def run(args: argparse.Namespace) -> int:
    """Run one stage."""
    _prepare()
    return {"data": _run_data, "fit": _run_fit, "calibrate": _run_calibrate}[args.stage](args)


def _prepare() -> None:
    """On MLX's CPU build, put a fast BLAS in front of it before it is imported."""
    from vllm_dspark.blas import load_blas

    if importlib.util.find_spec("mlx.lib") is None or not _has_cuda_build():
        load_blas()


def _has_cuda_build() -> bool:
    from importlib.metadata import distributions

    return any((d.name or "").startswith("mlx-cuda") for d in distributions())


def _load(args: argparse.Namespace) -> "FrozenTarget":
    import mlx.core as mx

    from vllm_dspark.training.device import is_gpu
    from vllm_dspark.training.frozen import load_frozen

    name = args.dtype if args.dtype != "auto" else "bfloat16" if is_gpu() else "float32"
    return load_frozen(args.target, getattr(mx, name))


def _run_data(args: argparse.Namespace) -> int:
    from vllm_dspark.training.chat import read_chat_format
    from vllm_dspark.training.data import make_data
    from vllm_dspark.training.prompts import read_prompts

    settings = DataSettings(**_settings(args, DataSettings, DATA_HELP))
    chat = read_chat_format(args.target, args.format)
    prompts = read_prompts(args.prompts) if args.prompts else []
    target = _load(args)
    bar = Progress("data", settings.num_shards * settings.row_length)

    def report(shard: int, position: int) -> None:
        bar.show(shard * settings.row_length + position, f"shard {shard + 1}")

    made = make_data(target, chat, args.out, settings, prompts=prompts, report=report)
    bar.show(settings.num_shards * settings.row_length, is_last=True)
    print(f"train data: {made} shards made, {settings.num_shards} in {args.out}")
    return 0


def _run_fit(args: argparse.Namespace) -> int:
    from vllm_dspark.training.feed import RowFeed
    from vllm_dspark.training.shape import draft_config
    from vllm_dspark.training.start import first_drafter
    from vllm_dspark.training.state import RunFolder
    from vllm_dspark.training.trainer import Trainer

    settings = FitSettings(**_settings(args, FitSettings, FIT_HELP))
    shape = DraftShape(**_shape(args), has_confidence=not args.no_confidence)
    target = _load(args)
    config = draft_config(target.config, shape)
    drafter = first_drafter(config, seed=settings.seed, start=args.start)
    folder = RunFolder(args.out)
    terms = LossWeights()
    started = {"from": None if args.start is None else str(args.start)}
    folder.check_settings(asdict(shape) | asdict(settings) | asdict(terms) | started)
    feed = RowFeed(
        args.data, num_held_out=settings.held_out_rows, seed=settings.seed,
        place=folder.load_place(),
    )  # fmt: skip
    trainer = Trainer(drafter, target, feed, folder, settings, terms=terms)
    bar = Progress("fit", settings.num_steps, start=trainer.state.step)
    for told in trainer.run(args.stop_after):
        bar.show(told.step, _note(told))
        if told.rounds is not None:
            print(f"\nstep {told.step}: {_acceptance(told)}", flush=True)
    bar.show(trainer.state.step, is_last=True)
    if trainer.state.best:
        folder.publish(args.target.name, feed.row_length)
        print(
            f"train fit: best acceptance length {trainer.state.best:.2f}; draft in {folder.draft}"
        )
    return 0


def _shape(args: argparse.Namespace) -> dict[str, Any]:
    """Options of the draft's shape; taps as numbers."""
    given = _settings(args, DraftShape, SHAPE_HELP)
    if "taps" in given:
        try:
            given["taps"] = tuple(int(tap) for tap in given["taps"].split(","))
        except ValueError as error:
            raise SettingsError(
                f"taps is {given['taps']!r}, must be layer numbers with commas, e.g. 1,8,14"
            ) from error
    return given


def _note(told: "Told") -> str:
    values = told.metrics
    return (
        f"loss {values['total']:.3f}, expected length {values['length']:.2f}, "
        f"{values['tokens_per_second']:.0f} tokens/s"
    )


def _acceptance(told: "Told") -> str:
    assert told.rounds is not None
    shares = " ".join(f"{share:.3f}" for share in told.rounds.by_position())
    return f"acceptance length {told.rounds.length:.3f}, by position {shares}"


def _run_calibrate(args: argparse.Namespace) -> int:
    from vllm_dspark.training.calibrate import calibrate_draft

    report = calibrate_draft(_load(args), args.out, args.data, num_rows=args.rows)
    print("\n".join(report.lines()))
    return 0
