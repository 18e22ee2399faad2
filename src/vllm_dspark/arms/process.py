"""The parent's side of an arm's process."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from vllm_dspark.arms.spec import ArmSpec, Ask, Judgement, Run
from vllm_dspark.errors import SetupError

TAIL_CHARACTERS = 4000


class Arm:
    """An arm that runs; made by :func:`start_arm`."""

    def __init__(self, spec: ArmSpec, process: subprocess.Popen[str], log: Any) -> None:
        self.spec = spec
        self.name = spec.name
        self._process = process
        self._log = log

    def tell(self, command: dict[str, Any]) -> Any:
        """Send a command and wait for its answer.

        Raises:
            SetupError: with the end of its log when the process has died.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it has died; the missing answer below says so
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._log.seek(0)
            tail = self._log.read()[-TAIL_CHARACTERS:]
            raise SetupError(f"the arm {self.name!r} ended; the end of its log:\n{tail}")
        return json.loads(line)

    def generate(self, asks: Sequence[Ask], clients: int) -> Run:
        """Answer requests, ``clients`` of them at a time."""
        command = {"do": "generate", "asks": [asdict(one) for one in asks], "clients": clients}
        return Run.from_json(self.tell(command))

    def judge(self, cases: Sequence[tuple[Sequence[int], int]]) -> list[Judgement]:
        """Rank and margin of a token after a prefix, by (prefix, token)."""
        found = self.tell({"do": "judge", "cases": [(list(ids), token) for ids, token in cases]})
        return [Judgement(*one) for one in found]

    def memory(self) -> dict[str, int]:
        """Bytes in use, by domain."""
        return self.tell({"do": "memory"})

    def reset_cache(self) -> None:
        """Forget cached prefixes."""
        self.tell({"do": "reset_cache"})


@contextmanager
def start_arm(spec: ArmSpec) -> Iterator[Arm]:
    """Run an arm's process, and end it in all cases.

    Raises:
        SetupError: with the end of its log when it does not start.
    """
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "vllm_dspark.arms.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        try:
            arm = Arm(spec, process, log)
            arm.tell(spec.to_json())
            yield arm
        finally:
            end_process(process)


def end_process(process: subprocess.Popen[Any], patience_s: float = 20.0) -> None:
    """Close a process's input and wait; terminate and then kill it when it stays."""
    if process.stdin is not None:
        try:
            process.stdin.close()
        except BrokenPipeError:
            pass  # it had ended before it read everything
    for stop in (None, process.terminate, process.kill):
        if stop is not None:
            stop()
        try:
            process.wait(patience_s)
            break
        except subprocess.TimeoutExpired:
            continue
    if process.stdout is not None:
        process.stdout.close()
