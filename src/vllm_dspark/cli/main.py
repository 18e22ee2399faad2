"""Dispatch ``vllm-dspark COMMAND``: one module of this package per command.

A command's module has a docstring (its help), ``add_arguments(parser)`` and
``run(args) -> int``. Heavy imports happen inside ``run``.
"""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from vllm_dspark import __version__
from vllm_dspark.errors import DSparkError

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
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, module_name in COMMANDS.items():
        module = import_module(module_name)
        summary = (module.__doc__ or "").strip().splitlines()[0]
        command = commands.add_parser(name, help=summary, description=module.__doc__)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        The command's exit status, or 2 after printing the sentence of a DSparkError.
    """
    args = build_parser().parse_args(argv)
    try:
        return args.run(args)
    except DSparkError as error:
        print(f"vllm-dspark {args.command}: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
