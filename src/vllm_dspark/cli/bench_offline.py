"""Compare target-only, DSpark and mlx_lm in process, without a server.

Status 1 when an arm's outputs differ from target-only's beyond near-ties; no ratio is printed
beside such outputs.
"""

import argparse
from dataclasses import asdict

from vllm_dspark.bench.arm_names import HELP as ARM_HELP
from vllm_dspark.blas import load_blas
from vllm_dspark.cli.results import (
    add_pair_arguments,
    add_workload_arguments,
    command_line,
    end_in_order,
    names,
    pair_folders,
    publish,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_pair_arguments(parser)
    add_workload_arguments(parser)
    parser.add_argument(
        "--arms",
        type=names,
        default=("target-only async", "target-only sync", "DSpark async", "mlx_lm"),
        help=f"of {ARM_HELP}; mlx_lm",
    )
    parser.add_argument(
        "--synthetic",
        default="",
        metavar="RATES",
        help="add an arm whose drafts are accepted at these rates: a preset such as "
        "qwen3-8b-gsm8k-greedy, or 0.9,0.8,0.7",
    )


def run(args: argparse.Namespace) -> int:
    """Measure and print."""
    load_blas()  # before MLX is imported, so that the record says what the arms use
    from vllm_dspark.bench.offline import OfflineBench, OfflineSettings
    from vllm_dspark.bench.record import Disturbance, make_record
    from vllm_dspark.bench.table import bench_tables

    model, draft = pair_folders(args, needs_draft=True)
    settings = OfflineSettings(
        model=model,
        draft=draft,
        dtype=args.dtype,
        arms=args.arms,
        synthetic=args.synthetic,
        workloads=args.workloads,
        clients=args.clients,
        num_requests=args.requests,
        max_tokens=args.tokens,
        repeats=args.repeats,
        num_drafts=args.num_drafts,
        max_model_len=args.max_model_len,
        gate=args.gate or args.dtype,
    )
    end_in_order()
    record = make_record("offline", command_line(), asdict(settings))
    disturbance = Disturbance.start()
    bench = OfflineBench(settings, lambda text: print(text, flush=True))
    result = {**record, **bench.run()}
    result["other_cores"] = disturbance.others()
    publish(result, bench_tables(result), args.output)
    return 1 if bench.has_mismatch else 0
