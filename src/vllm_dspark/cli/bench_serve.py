"""Compare servers under `vllm bench serve`: ours, mlx_lm's, mlx-dspark's, llama.cpp's.

Every arm and repeat gets a fresh server on the loopback interface; arms run in reversed order in
every second repeat. Status 1 when an arm's outputs differ from target-only's beyond near-ties; no
ratio is printed beside such outputs.
"""

import argparse
from dataclasses import asdict
from pathlib import Path

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
    parser.set_defaults(clients=(1, 4, 8, 16), requests=8)
    parser.add_argument(
        "--arms",
        type=names,
        default=("target-only async", "target-only sync", "DSpark async", "mlx_lm", "llama.cpp"),
        help=f"of {ARM_HELP}; draft_model, ngram, mlx_lm, mlx-dspark, llama.cpp, "
        '"llama.cpp DSpark"',
    )
    parser.add_argument("--draft-model", type=Path, help="causal draft of the arm draft_model")
    parser.add_argument(
        "--mlx-dspark-python",
        type=Path,
        help="python of an environment that has mlx-dspark (default: this one)",
    )
    parser.add_argument("--llama-target", type=Path, help="float32 GGUF of the target")
    parser.add_argument("--llama-draft", type=Path, help="GGUF of the draft")


def run(args: argparse.Namespace) -> int:
    """Measure and print."""
    load_blas()  # before MLX is imported, so that the record says what the arms use
    from vllm_dspark.bench.record import Disturbance, make_record
    from vllm_dspark.bench.serve import ServeBench, ServeSettings
    from vllm_dspark.bench.table import bench_tables

    model, draft = pair_folders(args, needs_draft=True)
    settings = ServeSettings(
        model=model,
        draft=draft,
        dtype=args.dtype,
        arms=args.arms,
        workloads=args.workloads,
        clients=args.clients,
        num_requests=args.requests,
        max_tokens=args.tokens,
        repeats=args.repeats,
        num_drafts=args.num_drafts,
        max_model_len=args.max_model_len,
        gate=args.gate or args.dtype,
        draft_model=args.draft_model,
        mlx_dspark_python=args.mlx_dspark_python,
        llama_target=args.llama_target,
        llama_draft=args.llama_draft,
    )
    end_in_order()
    record = make_record("serve", command_line(), asdict(settings))
    disturbance = Disturbance.start()
    bench = ServeBench(settings, lambda text: print(text, flush=True))
    result = {**record, **bench.run()}
    result["other_cores"] = disturbance.others()
    publish(result, bench_tables(result), args.output)
    return 1 if bench.has_mismatch else 0
