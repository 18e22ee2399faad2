"""Compare greedy texts: target-only with DSpark, both with mlx_lm and transformers.

A row is exact, or its first differing token was among the reference's best k within the margin of
the precision's gate (a near-tie), or it failed. Status 1 on a failure; with --strict on any
inexact row.
"""

import argparse
from collections.abc import Mapping
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vllm_dspark.blas import load_blas
from vllm_dspark.cli.results import (
    add_pair_arguments,
    command_line,
    end_in_order,
    pair_folders,
    publish,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_pair_arguments(parser)
    parser.add_argument("--no-draft", action="store_true", help="compare the target alone")
    parser.add_argument("--prompts", type=Path, help="JSONL file (default: our forty prompts)")
    parser.add_argument("--limit", type=int, default=40, help="prompts (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=32, help="new tokens of each")
    parser.add_argument("--batch", type=int, default=8, help="requests together")
    parser.add_argument("--mode", choices=("sync", "async", "both"), default="both")
    parser.add_argument("--no-transformers", action="store_true", help="leave transformers out")
    parser.add_argument("--strict", action="store_true", help="near-ties fail, too")
    parser.add_argument(
        "--min-length", type=float, default=0.0, help="fail below this many tokens per round"
    )


def run(args: argparse.Namespace) -> int:
    """Compare and print."""
    load_blas()  # before MLX is imported, so that the record says what the arms use
    from vllm_dspark.bench.record import make_record
    from vllm_dspark.parity.text import TextParity, TextSettings

    model, draft = pair_folders(args, needs_draft=not args.no_draft)
    settings = TextSettings(
        model=model,
        draft=draft,
        dtype=args.dtype,
        prompts=args.prompts,
        limit=args.limit,
        max_tokens=args.tokens,
        batch=args.batch,
        modes=("sync", "async") if args.mode == "both" else (args.mode,),
        with_transformers=not args.no_transformers and find_spec("transformers") is not None,
        min_length=args.min_length,
    )
    end_in_order()
    record = make_record("parity", command_line(), asdict(settings))
    report = TextParity(settings, lambda text: print(text, flush=True)).run()
    result = {**record, **report.to_json(), "strict": args.strict}
    is_good = report.is_exact if args.strict else not report.num_failures
    result["passed"] = is_good
    publish(result, describe(result), args.output)
    return 0 if is_good else 1


def describe(result: Mapping[str, Any]) -> list[str]:
    """Turn a result into a table."""
    gate = result["gate"]
    lines = [
        "",
        f"{'arm':42} {'against':42} {'exact':>7} {'top-k':>6} {'failed':>7}",
    ]
    for one in result["comparisons"]:
        lines.append(
            f"{one['arm']:42} {one['reference']:42} {one['exact']:>3}/{one['prompts']:<3} "
            f"{one['top_k']:>6} {one['failures']:>7}"
        )
    lines += [
        "",
        f"{'arm':42} {'accepted':>9} {'drafted':>8} {'tokens/round':>13} {'cached':>7}",
    ]
    lines += [
        f"{one['arm'] + ', ' + one['way']:42} {one['accepted']:>9} {one['drafted']:>8} "
        f"{one['length']:>13.3f} {one['cached_tokens']:>7}"
        for one in result["passes"]
    ]
    lines += ["", *_describe_differences(result["comparisons"])]
    lines += [f"PROBLEM: {sentence}" for sentence in result["problems"]]
    lines.append(
        f"gate {gate['precision']}: top {gate['top_k']}, margin at most {gate['max_margin']} "
        f"({gate['reason']}): {'passed' if result['passed'] else 'FAILED'}"
    )
    return lines


def _describe_differences(comparisons: list[Mapping[str, Any]]) -> list[str]:
    return [
        f"{'near-tie' if gap['is_tie'] else 'FAILED'}: {one['arm']} against {one['reference']}, "
        f"{gap['prompt']} at token {gap['position']}: {gap['got']} instead of {gap['expected']}, "
        f"rank {gap['rank']}, margin {gap['margin']}"
        for one in comparisons
        for gap in one["differences"]
    ]
