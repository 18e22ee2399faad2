"""Arguments, files and printing that the measuring commands share."""

import argparse
import json
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vllm_dspark.errors import SettingsError

DEFAULT_MODEL = Path("models/SmolLM2-135M-Instruct")
DEFAULT_PAIR = Path("pairs/SmolLM2-135M-Instruct-DSpark")


def add_pair_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the target, its draft and where the result goes."""
    parser.add_argument(
        "--model", type=Path, default=DEFAULT_MODEL, help="target folder (default: %(default)s)"
    )
    parser.add_argument(
        "--draft", type=Path, default=DEFAULT_PAIR, help="draft folder (default: %(default)s)"
    )
    parser.add_argument("--dtype", default="float32", help="compute type (default: %(default)s)")
    parser.add_argument("-o", "--output", type=Path, help="write the JSON here too")


def pair_folders(args: argparse.Namespace, *, needs_draft: bool) -> tuple[Path, Path | None]:
    """Folders of the target and of its draft, None when it is not needed.

    Raises:
        SettingsError: naming the folder that is missing, and what makes it.
    """
    if not (args.model / "config.json").is_file():
        raise SettingsError(
            f"no model in {args.model}: `vllm-dspark fetch-demo` makes the demo model, or name "
            "another folder with --model"
        )
    if not needs_draft:
        return args.model, None
    if not (args.draft / "config.json").is_file():
        raise SettingsError(f"no draft in {args.draft}: name its folder with --draft")
    return args.model, args.draft


def end_in_order() -> None:
    """Let a termination signal unwind this process, so that what it started is stopped, too."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _: sys.exit(128 + received))


def numbers(text: str) -> tuple[int, ...]:
    """Parse "1,4,8"."""
    return tuple(int(part) for part in text.split(",") if part)


def command_line() -> str:
    """How this process was called, without folders of the machine."""
    return shlex.join(["vllm-dspark", *sys.argv[1:]])


def publish(result: dict[str, Any], lines: Sequence[str], output: Path | None) -> None:
    """Print the table and then the JSON as the last line; write the JSON where asked."""
    print("\n".join(lines))
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result), flush=True)


def names(text: str) -> tuple[str, ...]:
    """Parse "chat,code"."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def add_workload_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what ``bench offline`` and ``bench serve`` both take."""
    parser.add_argument(
        "--workloads",
        type=names,
        default=("chat", "code", "maths"),
        help="of chat, code, maths, short, corpus (all forty prompts), context-1k, context-4k, "
        "shared-prefix, shared-4k, repeated; each also with +sampled or +json",
    )
    parser.add_argument("--clients", type=numbers, default=(1, 4), metavar="N,N")
    parser.add_argument(
        "--requests", type=int, default=4, help="requests of a cell; never fewer than clients"
    )
    parser.add_argument("--tokens", type=int, default=64, help="new tokens of each")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--num-drafts", type=int, default=0, help="K (default: as trained)")
    parser.add_argument("--max-model-len", type=int, default=2048)
    parser.add_argument("--gate", default="", help="precision of the output check (default: dtype)")
