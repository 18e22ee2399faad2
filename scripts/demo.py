"""Serve the demo model, ask it one question, show the answer, stop the server.

Standard library only, so that it can say what is missing. Run by `make demo`.
"""

import argparse
import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODEL_DIR = Path("models/SmolLM2-135M-Instruct")
DRAFT_DIR = Path("pairs/SmolLM2-135M-Instruct-DSpark")
LOG = ROOT / ".venv" / ".setup" / "demo-server.log"
QUESTION = "What is the capital of France, and what is it famous for?"
START_LIMIT_S = 300.0  # the first start of all inspects the model's class: half a minute
STOP_LIMIT_S = 20.0


def main() -> int:
    """Run the demo; 1 with a sentence when a part of it fails."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=MODEL_DIR, help="default: %(default)s")
    parser.add_argument("--draft", type=Path, default=DRAFT_DIR, help="default: %(default)s")
    parser.add_argument("--prompt", default=QUESTION, help="default: %(default)s")
    parser.add_argument("--max-tokens", type=int, default=120, help="default: %(default)s")
    args = parser.parse_args()
    os.chdir(ROOT)
    vllm = Path(sys.executable).parent / "vllm"
    parts = (args.model / "config.json", args.draft / "config.json", vllm)
    if not all(part.exists() for part in parts):
        print("demo: the set-up is not complete; run `make setup`", file=sys.stderr)
        return 1
    name = args.model.name
    command = [str(vllm.relative_to(ROOT)), "serve", str(args.model), "--served-model-name", name]
    command += ["--max-model-len", "2048", "--kv-cache-memory-bytes", "1G"]
    drafting = {"method": "dspark", "model": str(args.draft), "num_speculative_tokens": 7}
    command += ["--speculative-config", json.dumps(drafting)]
    try:
        with serve(command) as url:
            print(f"\n> {args.prompt}\n")
            num_tokens, seconds = ask(url, name, args.prompt, args.max_tokens)
            length = acceptance_length(url)
    except (OSError, RuntimeError) as error:
        print(f"\ndemo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ndemo: stopped", file=sys.stderr)
        return 130
    print(f"\n\n{num_tokens} tokens in {seconds:.1f} s, computed by MLX behind vLLM's server;")
    print(f"{length:.2f} tokens a round, the target's own included.")
    print(f"To keep a server running:\n\n    {shlex.join(command)}\n")
    return 0


@contextlib.contextmanager
def serve(command: list[str]) -> Iterator[str]:
    """Run the server on a free port while the block runs; yield its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    LOG.parent.mkdir(parents=True, exist_ok=True)
    with LOG.open("wb") as log:
        server = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        wait_until_healthy(server, url)
        yield url
    finally:
        stop(server)


def wait_until_healthy(server: subprocess.Popen[bytes], url: str) -> None:
    """Wait for /health, counting seconds aloud; RuntimeError if the server ends or hangs."""
    start = time.monotonic()
    shown = 0
    while (elapsed := time.monotonic() - start) < START_LIMIT_S:
        if server.poll() is not None:
            show_log_end()
            raise RuntimeError(f"the server ended with status {server.returncode}; see {LOG}")
        with contextlib.suppress(OSError):
            with urllib.request.urlopen(f"{url}/health", timeout=2):
                line_start = "\r" if sys.stdout.isatty() else ""
                print(f"{line_start}server ready after {elapsed:.0f} s       ")
                return
        if sys.stdout.isatty():
            print(f"\rserver starting ... {elapsed:.0f} s", end="", flush=True)
        elif elapsed >= shown:
            print(f"server starting ... {elapsed:.0f} s", flush=True)
            shown += 10
        time.sleep(0.25)
    show_log_end()
    raise RuntimeError(f"the server was not ready after {START_LIMIT_S:.0f} s; see {LOG}")


def show_log_end(num_lines: int = 15) -> None:
    """Print the last lines of the server's log to standard error."""
    lines = LOG.read_text(errors="replace").splitlines()[-num_lines:]
    print("\n--- the server's last words:", *lines, sep="\n", file=sys.stderr)


def ask(url: str, model: str, prompt: str, max_tokens: int) -> tuple[int, float]:
    """Send one chat request and print the answer as it comes.

    Returns:
        Tokens of the answer, and seconds from request to end.
    """
    body = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    request = urllib.request.Request(
        f"{url}/v1/chat/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    start = time.monotonic()
    num_tokens = 0
    try:
        response = urllib.request.urlopen(request, timeout=120)
    except urllib.error.HTTPError as error:
        raise RuntimeError(f"the server answered {error.code}: {error.read().decode()}") from error
    with response:
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line.removeprefix(b"data: "))
            for choice in event.get("choices", []):
                print(choice["delta"].get("content") or "", end="", flush=True)
            if event.get("usage"):
                num_tokens = event["usage"]["completion_tokens"]
    if not num_tokens:
        show_log_end()
        raise RuntimeError(f"the answer broke off; see {LOG}")
    return num_tokens, time.monotonic() - start


def acceptance_length(url: str) -> float:
    """Mean tokens of a round so far, from the server's own counters."""
    counts = {"num_drafts": 0.0, "num_accepted_tokens": 0.0}
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as response:
        for line in response.read().decode().splitlines():
            for name in counts:
                if line.startswith(f"vllm:spec_decode_{name}_total"):
                    counts[name] += float(line.rsplit(" ", 1)[1])
    return 1.0 + counts["num_accepted_tokens"] / max(counts["num_drafts"], 1.0)


def stop(server: subprocess.Popen[bytes]) -> None:
    """Ask the server to end; end its process group when it does not."""
    if server.poll() is None:
        server.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(STOP_LIMIT_S)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(server.pid, signal.SIGKILL)  # start_new_session: the group is the server's own
    server.wait()


if __name__ == "__main__":
    sys.exit(main())
