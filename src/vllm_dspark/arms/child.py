"""The process of an arm: reads an ArmSpec, then commands, one JSON object a line.

Engines print what they like; it goes to standard error, answers to the original output.
"""

import json
import os
import sys
import traceback
from importlib import import_module
from typing import Any, Protocol, TextIO

from vllm_dspark.arms.spec import ArmSpec, Ask, Run

ENGINES = {
    "vllm": "vllm_dspark.arms.vllm_engine",
    "mlx_lm": "vllm_dspark.arms.mlx_lm_engine",
    "transformers": "vllm_dspark.arms.transformers_engine",
}


class Engine(Protocol):
    """What an arm can do."""

    def generate(self, asks: list[Ask], clients: int) -> Run:
        """Answer requests, ``clients`` of them at a time."""
        ...

    def memory(self) -> dict[str, int]:
        """Bytes in use, by domain."""
        ...

    def reset_cache(self) -> None:
        """Forget cached prefixes."""
        ...


def serve(lines: TextIO, answers: TextIO) -> None:
    """Answer commands until the input ends."""
    spec = ArmSpec.from_json(json.loads(next(lines)))
    engine = import_module(ENGINES[spec.engine]).make_engine(spec)
    _say(answers, {})
    for line in lines:
        command = json.loads(line)
        _say(answers, perform(engine, command.pop("do"), command))


def perform(engine: Any, verb: str, given: dict[str, Any]) -> Any:
    """Run one command on an engine."""
    match verb:
        case "generate":
            asks = [Ask.from_json(one) for one in given["asks"]]
            return engine.generate(asks, given["clients"]).to_json()
        case "judge":
            return [engine.judge(*one) for one in given["cases"]]
        case _:
            return getattr(engine, verb)()


def _say(answers: TextIO, value: Any) -> None:
    answers.write(json.dumps(value) + "\n")
    answers.flush()


def main() -> int:
    """Run until standard input closes."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    from vllm_dspark.blas import load_blas

    load_blas()
    try:
        serve(sys.stdin, answers)
    except Exception:  # noqa: BLE001 - the parent shows it; this process ends with it
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
