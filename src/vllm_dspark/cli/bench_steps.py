"""Time the parts of a step: target alone, verify, absorb, block, Markov walk, prefill."""

import argparse
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from vllm_dspark.cli.results import add_pair_arguments, command_line, numbers, pair_folders, publish


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_pair_arguments(parser)
    parser.add_argument("--no-draft", action="store_true", help="measure the target alone")
    parser.add_argument("--no-mlx-lm", action="store_true", help="leave plain mlx_lm out")
    parser.add_argument("--requests", type=numbers, default=(1, 4, 8), metavar="N,N")
    parser.add_argument("--contexts", type=numbers, default=(128, 1024), metavar="N,N")
    parser.add_argument("--prefills", type=numbers, default=(128, 512), metavar="N,N")
    parser.add_argument(
        "--drafts", type=numbers, default=(), metavar="K,K", help="default: 1, half of K, K"
    )
    parser.add_argument("--repeats", type=int, default=10)


def run(args: argparse.Namespace) -> int:
    """Measure and print."""
    from vllm_dspark.blas import load_blas

    load_blas()
    from vllm_dspark.bench.record import Disturbance, make_record
    from vllm_dspark.bench.steps import StepSettings, measure_steps

    model, draft = pair_folders(args, needs_draft=not args.no_draft)
    settings = StepSettings(
        model=model,
        draft=draft,
        dtype=args.dtype,
        requests=args.requests,
        contexts=args.contexts,
        drafts=args.drafts,
        prefills=args.prefills,
        repeats=args.repeats,
        with_mlx_lm=not args.no_mlx_lm,
    )
    record = make_record("steps", command_line(), asdict(settings))
    disturbance = Disturbance.start()
    result = {**record, **measure_steps(settings)}
    result["other_cores"] = disturbance.others()
    publish(result, describe(result), args.output)
    return 0


def describe(result: Mapping[str, Any]) -> list[str]:
    """Turn a result into a table."""
    lines = [
        f"{result['machine']['processor']}, {result['machine']['cores']} cores, "
        f"{result['machine']['device']}; memory read at {result['bandwidth_gb_s']} GB/s; "
        f"other programs used {result['other_cores']} cores",
        "",
        "target alone: requests context       ms      low     high    floor    tokens/s",
    ]
    lines += [
        f"{one['requests']:>23} {one['context']:>7} {one['ms']:>8.2f} {one['low_ms']:>8.2f} "
        f"{one['high_ms']:>8.2f} {one['floor_ms']:>8.2f} {one['tokens_per_s']:>11.1f}"
        for one in result["targets"]
    ]
    lines += ["", "prefill: rows  target ms  with draft ms"]
    lines += [
        f"{one['rows']:>13} {one['target_ms']:>10.1f} {one.get('total_ms', float('nan')):>14.1f}"
        for one in result["prefills"]
    ]
    if "steps" in result:
        lines += ["", *_describe_steps(result["steps"])]
    if "mlx_lm" in result:
        lines += ["", *_describe_mlx_lm(result["mlx_lm"])]
    return lines


def _describe_steps(steps: list[Mapping[str, float]]) -> list[str]:
    names = ("requests", "drafts", "context")
    times = ("target", "verify", "absorb", "block", "markov", "total", "floor")
    head = " ".join(f"{name:>8}" for name in (*names, *times))
    lines = [
        f"steps in ms; break-even in tokens per step\n{head} {'break-even':>11} {'at floor':>9}"
    ]
    for one in steps:
        cells = [f"{one[name]:>8}" for name in names]
        cells += [f"{one[f'{name}_ms']:>8.2f}" for name in times]
        lines.append(
            f"{' '.join(cells)} {one['break_even']:>11.2f} {one['floor_break_even']:>9.2f}"
        )
    return lines


def _describe_mlx_lm(one: Mapping[str, Any]) -> list[str]:
    def cell(values: Mapping[str, float]) -> str:
        return f"{values['median']:.2f} ({values['low']:.2f} to {values['high']:.2f})"

    lines = [
        f"decode, one client: ours {cell(one['decode_tokens_per_s'])} tokens/s, "
        f"mlx_lm {cell(one['mlx_lm_decode_tokens_per_s'])}, ratio {cell(one['decode_ratio'])}",
        f"eight clients together: {cell(one['eight_tokens_per_s'])} tokens/s, "
        f"{cell(one['eight_over_one'])} times one",
    ]
    lines += [
        f"prefill of {row['rows']}: ours {cell(row['tokens_per_s'])} tokens/s, "
        f"mlx_lm {cell(row['mlx_lm_tokens_per_s'])}, ratio {cell(row['ratio'])}"
        for row in one["prefill"]
    ]
    return lines
