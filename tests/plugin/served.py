"""A real `vllm serve` process for tests, with its output kept for the failure message."""

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from engines import TARGET, pool_bytes

START_SECONDS = 420
COMPACT_JSON = '{"backend": "xgrammar", "disable_any_whitespace": true}'
"""A small model would fill its answer with the blank lines that JSON allows."""


@dataclass(frozen=True, slots=True)
class Server:
    """Where a running server answers, and where its output goes."""

    url: str
    log: Path

    def get(self, path: str) -> str:
        with urllib.request.urlopen(self.url + path, timeout=20) as answer:
            return answer.read().decode()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@contextmanager
def serving(folder: Path, *flags: str) -> Iterator[Server]:
    """Start a server on the tiny target, wait for /health, and stop it with its children."""
    port = free_port()
    server = Server(f"http://127.0.0.1:{port}", folder / "server.log")
    command = [
        str(Path(sys.executable).parent / "vllm"), "serve", str(TARGET), "--port", str(port),
        "--host", "127.0.0.1", "--served-model-name", "tiny", "--max-model-len", "512",
        "--kv-cache-memory-bytes", str(pool_bytes(128)), "--max-num-seqs", "16",
        "--structured-outputs-config", COMPACT_JSON, *flags,
    ]  # fmt: skip
    given = {**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    with server.log.open("w") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True, env=given
        )
        try:
            _wait(server, process)
            yield server
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                process.wait(10)


def _wait(server: Server, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            server.get("/health")
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.25)
        else:
            return
    raise AssertionError(f"the server did not start:\n{server.log.read_text()[-4000:]}")
