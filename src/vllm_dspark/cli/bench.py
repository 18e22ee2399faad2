"""Measure steps, engines in process, and servers; the last line of output is JSON.

A sub-command's module is built as a command's: a docstring, ``add_arguments(parser)`` and
``run(args) -> int``.
"""

import argparse

from vllm_dspark.cli.table import add_commands

SUBJECTS = {
    "steps": "vllm_dspark.cli.bench_steps",
    "offline": "vllm_dspark.cli.bench_offline",
    "serve": "vllm_dspark.cli.bench_serve",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the sub-commands."""
    add_commands(parser, SUBJECTS, dest="subject", runs_as="run_subject")


def run(args: argparse.Namespace) -> int:
    """Run one benchmark: 0 when it is complete, 1 when outputs do not match."""
    return args.run_subject(args)
