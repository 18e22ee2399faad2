"""Server processes: their commands, their start, and their end by process id, always."""

import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from vllm_dspark.errors import SetupError
from vllm_dspark.settings import child_environment

START_SECONDS = 300
TAIL_CHARACTERS = 4000
HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """How to start a server.

    Attributes:
        name: of the arm.
        command: with "{port}" where the port goes.
        kind: "vllm", "mlx_lm" or "llama.cpp".
        environment: added to this process's.
    """

    name: str
    kind: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Server:
    """A server that answers."""

    spec: ServerSpec
    port: int
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def get(self, path: str) -> str:
        """Body of a GET."""
        with urllib.request.urlopen(self.url + path, timeout=30) as answer:
            return answer.read().decode()

    def post(self, path: str, body: Mapping[str, Any], timeout_s: float = 600) -> Any:
        """Send JSON; returns the JSON of the answer, None where it is empty.

        Raises:
            SetupError: with the server's own words when it refuses.
        """
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as answer:
                text = answer.read().decode()
        except urllib.error.HTTPError as error:
            said = error.read().decode()[:500]
            raise SetupError(f"{self.spec.name} answers {error.code} to {path}: {said}") from error
        return json.loads(text) if text.strip() else None

    def resident_bytes(self) -> int:
        """Resident size of all its processes."""
        total = 0
        for one in family(self.process.pid):
            try:
                total += one.memory_info().rss
            except psutil.NoSuchProcess:
                continue
        return total


def free_port() -> int:
    """A port of the loopback interface that nobody uses now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


def family(pid: int) -> list[psutil.Process]:
    """A process and its descendants, as far as they live."""
    try:
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


@contextmanager
def start_server(spec: ServerSpec) -> Iterator[Server]:
    """Start a server on the loopback interface, wait for it, and stop it in all cases.

    Raises:
        SetupError: with the end of its log when it does not answer.
    """
    port = free_port()
    command = [part.format(port=port) if "{port}" in part else part for part in spec.command]
    with tempfile.TemporaryFile("w+b") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=child_environment(spec.environment),
        )
        server = Server(spec, port, process)
        try:
            try:
                _wait_for(server)
            except SetupError as error:
                log.seek(0)
                tail = log.read().decode(errors="replace")[-TAIL_CHARACTERS:]
                raise SetupError(f"{error}; the end of its log:\n{tail}") from None
            yield server
        finally:
            stop_family(process)


def _wait_for(server: Server) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if server.process.poll() is not None:
            raise SetupError(f"{server.spec.name} ended with status {server.process.returncode}")
        try:
            server.get("/health")
            return
        except OSError:
            time.sleep(0.5)
    raise SetupError(f"{server.spec.name} did not answer within {START_SECONDS} s")


def stop_family(process: subprocess.Popen[bytes], patience_s: float = 20.0) -> None:
    """Terminate a process and its descendants by id; kill those that stay."""
    members = family(process.pid)
    process.terminate()
    _, alive = psutil.wait_procs(members, timeout=patience_s)
    for one in alive:
        try:
            one.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(alive, timeout=patience_s)
    process.wait()


def vllm_command(
    model: Path, options: Mapping[str, Any], speculative: Mapping[str, Any] | None, is_async: bool
) -> tuple[str, ...]:
    """``vllm serve`` with options as flags."""
    command = [str(Path(sys.executable).parent / "vllm"), "serve", str(model)]
    command += ["--host", HOST, "--port", "{port}"]
    for name, value in options.items():
        command += [f"--{name}", str(value)]
    command.append("--async-scheduling" if is_async else "--no-async-scheduling")
    if speculative is not None:
        command += ["--speculative-config", json.dumps(speculative)]
    return tuple(command)


def mlx_lm_command(model: Path, clients: int) -> tuple[str, ...]:
    """``mlx_lm.server`` with room for so many clients."""
    return (
        sys.executable, "-m", "mlx_lm", "server", "--model", str(model), "--host", HOST,
        "--port", "{port}", "--decode-concurrency", str(clients),
        "--prompt-concurrency", str(clients),
    )  # fmt: skip


def llama_command(
    target: Path, clients: int, context: int, draft: Path | None, num_drafts: int
) -> tuple[str, ...]:
    """llama.cpp's server inside xllamacpp."""
    command = [sys.executable, "-m", "vllm_dspark.bench.llama_server", "--model", str(target)]
    command += ["--port", "{port}", "--clients", str(clients), "--context", str(context)]
    if draft is not None:
        command += ["--draft", str(draft), "--num-drafts", str(num_drafts)]
    return tuple(command)


def mlx_dspark_command(
    model: Path, draft: Path, clients: int, num_drafts: int, python: str = sys.executable
) -> tuple[str, ...]:
    """``mlx-dspark serve`` with the same draft, unquantised, without other kinds of drafts."""
    return (
        python, "-m", "mlx_dspark", "serve", "--mode", "dspark", "--model", str(model),
        "--drafter", str(draft), "--drafter-bits", "0", "--max-draft", str(num_drafts),
        "--no-lookup-drafts", "--max-batch", str(clients), "--host", HOST, "--port", "{port}",
    )  # fmt: skip
