"""Run folders of golden numbers through the loader, the paged cache and the runner.

Each DIR is a set (draft/, golden.json, often golden.safetensors) or a folder of sets. Tokens,
drafts and accepted counts must be equal, and logits and confidences within 1e-3, in float32. In a
set without golden.safetensors a token may differ where the golden one's logit is within 1e-3 of
the best.
"""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from vllm_dspark.blas import load_blas
from vllm_dspark.errors import DSparkError

if TYPE_CHECKING:
    from vllm_dspark.parity.conformance import SetReport

MAX_SHOWN = 5
HEADERS = (
    "set", "K", "top-k", "cases", "rounds", "drafts equal", "accepted", "confidence error",
    "arrays", "array error", "near-ties", "result",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("directories", nargs="+", type=Path, metavar="DIR", help="set, or sets")
    parser.add_argument(
        "--target", type=Path, metavar="DIR", help="target of all sets (default: beside each set)"
    )
    parser.add_argument(
        "--top-k",
        type=int,
        metavar="N",
        help="dspark_draft_topk, where golden.json has no draft_topk (default: the topkN of the "
        "set's name, else all ids)",
    )


def run(args: argparse.Namespace) -> int:
    """Check every set; print a table and the first differences."""
    load_blas()
    from vllm_dspark.parity.conformance import check_set
    from vllm_dspark.parity.golden_sets import find_sets, read_set

    sets = [read_set(path, args.target, args.top_k) for path in find_sets(args.directories)]
    reports = []
    for golden in sets:
        try:
            reports.append(check_set(golden))
        except DSparkError as error:
            raise type(error)(f"{golden.name}: {error}") from error
    print(format_table([HEADERS, *(_row(report) for report in reports)]))
    for report in reports:
        _print_differences(report)
    is_equal = not any(report.faults for report in reports)
    counts = {"sets": len(reports), "equal": sum(not report.faults for report in reports)}
    print(json.dumps(counts))
    return 0 if is_equal else 1


def format_table(rows: list[tuple[str, ...]]) -> str:
    """Lay out rows in columns; the first column to the left, the others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


def _row(report: "SetReport") -> tuple[str, ...]:
    num_drafts = report.num_rounds * report.num_drafts
    return (
        report.name,
        str(report.num_drafts),
        "all" if report.top_k is None else str(report.top_k),
        str(report.num_cases),
        str(report.num_rounds),
        f"{report.num_proposals}/{num_drafts}",
        str(report.num_accepted),
        f"{report.confidence_error:.1e}",
        str(report.num_arrays),
        f"{report.array_error:.1e}",
        str(report.num_ties),
        f"{len(report.faults)} differ" if report.faults else "equal",
    )


def _print_differences(report: "SetReport") -> None:
    for one in [*report.faults, *(one for one in report.differences if not one.is_fault)][
        :MAX_SHOWN
    ]:
        print(f"{report.name}: {one}")
    if report.unknown_arrays:
        print(f"{report.name}: not compared: {', '.join(report.unknown_arrays)}")
    hidden = len(report.differences) - MAX_SHOWN
    if hidden > 0:
        print(f"{report.name}: and {hidden} more")
