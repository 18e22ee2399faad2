"""Compare this installation with recorded numbers and with references.

A sub-command's module is built as a command's: a docstring, ``add_arguments(parser)`` and
``run(args) -> int``.
"""

import argparse

from vllm_dspark.cli.table import add_commands

SUBJECTS = {
    "conformance": "vllm_dspark.cli.parity_conformance",
    "text": "vllm_dspark.cli.parity_text",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the sub-commands."""
    add_commands(parser, SUBJECTS, dest="subject", runs_as="run_subject")


def run(args: argparse.Namespace) -> int:
    """Run one comparison: 0 when all is equal, 1 on any difference."""
    return args.run_subject(args)
