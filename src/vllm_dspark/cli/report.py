"""Turn results of `bench` and `parity text` into one HTML file and a Markdown table."""

import argparse
import json
from pathlib import Path
from typing import Any

from vllm_dspark.errors import SettingsError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("results", type=Path, nargs="+", metavar="RESULT.json")
    parser.add_argument("-o", "--output", type=Path, default=Path("report.html"))
    parser.add_argument("--markdown", type=Path, help="write the tables here instead of printing")
    parser.add_argument(
        "--into",
        type=Path,
        action="append",
        default=[],
        metavar="DOCUMENT.md",
        help="also put the tables between the marks <!-- results: KIND --> and "
        "<!-- end of results --> of a document",
    )


def run(args: argparse.Namespace) -> int:
    """Write the page and the tables."""
    from vllm_dspark.bench.report import render_html
    from vllm_dspark.bench.table import fill, render_markdown

    results = [read_result(path) for path in args.results]
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(render_html(results))
    text = render_markdown(results)
    if args.markdown is None:
        print(text)
    else:
        args.markdown.write_text(text)
    for path in args.into:
        path.write_text(fill(path.read_text(), results))
        print(path)
    print(args.output)
    return 0


def read_result(path: Path) -> dict[str, Any]:
    """One result file.

    Raises:
        SettingsError: when it cannot be read as JSON.
    """
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise SettingsError(
            f"cannot read {path} ({error}): give files that `bench` or `parity text` wrote with -o"
        ) from error
