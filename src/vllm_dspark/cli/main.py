"""Dispatch ``vllm-dspark COMMAND``: one module of this package per command.

A command's module has a docstring (its help), ``add_arguments(parser)`` and
``run(args) -> int``. Heavy imports happen inside ``run``.
"""

import argparse
import sys
from collections.abc import Sequence

from vllm_dspark import __version__
from vllm_dspark.cli.table import add_commands
from vllm_dspark.errors import DSparkError
from vllm_dspark.settings import EXACT_FLOAT32, set_environment_defaults

COMMANDS = {
    "bench": "vllm_dspark.cli.bench",
    "demo": "vllm_dspark.cli.demo",
    "doctor": "vllm_dspark.cli.doctor",
    "fetch-demo": "vllm_dspark.cli.fetch_demo",
    "parity": "vllm_dspark.cli.parity",
    "report": "vllm_dspark.cli.report",
    "train": "vllm_dspark.cli.train",
}


def build_parser() -> argparse.ArgumentParser:
    """Build the parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="vllm-dspark", description="Tools beside `vllm serve` for vLLM on MLX."
    )
    parser.add_argument("--version", action="version", version=f"vllm-dspark {__version__}")
    add_commands(parser, COMMANDS, dest="command", runs_as="run")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        The command's exit status, or 2 after printing the sentence of a DSparkError.
    """
    args = build_parser().parse_args(argv)
    set_environment_defaults(EXACT_FLOAT32)
    try:
        return args.run(args)
    except DSparkError as error:
        print(f"vllm-dspark {args.command}: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
