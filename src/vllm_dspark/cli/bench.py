"""Measure steps, engines in process, and servers; the last line of output is JSON.

A sub-command's module is built as a command's: a docstring, ``add_arguments(parser)`` and
``run(args) -> int``.
"""

import argparse
from importlib import import_module

SUBJECTS = {
    "steps": "vllm_dspark.cli.bench_steps",
    "offline": "vllm_dspark.cli.bench_offline",
    "serve": "vllm_dspark.cli.bench_serve",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the sub-commands."""
    subjects = parser.add_subparsers(dest="subject", required=True, metavar="SUBJECT")
    for name, module_name in SUBJECTS.items():
        module = import_module(module_name)
        summary = (module.__doc__ or "").strip().splitlines()[0]
        subject = subjects.add_parser(name, help=summary, description=module.__doc__)
        module.add_arguments(subject)
        subject.set_defaults(run_subject=module.run)


def run(args: argparse.Namespace) -> int:
    """Run one benchmark: 0 when it is complete, 1 when outputs do not match."""
    return args.run_subject(args)
