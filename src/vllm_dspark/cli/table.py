"""Tables of commands: name -> module with a docstring, ``add_arguments`` and ``run``."""

import argparse
from collections.abc import Mapping
from importlib import import_module


def add_commands(
    parser: argparse.ArgumentParser, modules: Mapping[str, str], *, dest: str, runs_as: str
) -> None:
    """Give a parser one sub-command per module.

    Args:
        modules: name -> module, whose docstring is the help.
        dest: attribute that holds the chosen name.
        runs_as: attribute that holds the chosen module's ``run``.
    """
    commands = parser.add_subparsers(dest=dest, required=True, metavar=dest.upper())
    for name, module_name in modules.items():
        module = import_module(module_name)
        summary = (module.__doc__ or "").strip().splitlines()[0]
        command = commands.add_parser(name, help=summary, description=module.__doc__)
        module.add_arguments(command)
        command.set_defaults(**{runs_as: module.run})
