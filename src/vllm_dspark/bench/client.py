"""``vllm bench serve``, the one client of all servers, and its result file."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_dspark.bench.servers import Server
from vllm_dspark.errors import SetupError


@dataclass(frozen=True, slots=True)
class Load:
    """What the client sends.

    Attributes:
        texts: prompts with the chat template, each once, in this order.
        schema: JSON schema that vLLM's answers must follow, or "".
    """

    texts: tuple[str, ...]
    max_tokens: int
    clients: int
    temperature: float
    seed: int = 1000
    schema: str = ""

    @property
    def extra(self) -> dict[str, Any]:
        """Fields of a request that the client has no option for."""
        if not self.schema:
            return {"seed": self.seed}
        return {"seed": self.seed, "structured_outputs": {"json": json.loads(self.schema)}}


def client_command(server: Server, model: Path, load: Load, folder: Path) -> list[str]:
    """``vllm bench serve`` for a load."""
    extra = load.extra
    if server.spec.kind == "mlx_lm":
        extra["logprobs"] = False  # the client sends null, which mlx_lm refuses
    return [
        str(Path(sys.executable).parent / "vllm"), "bench", "serve", "--backend", "openai",
        "--base-url", server.url, "--endpoint", "/v1/completions", "--model", str(model),
        "--tokenizer", str(model), "--dataset-name", "custom",
        "--dataset-path", str(folder / "prompts.jsonl"), "--skip-chat-template",
        "--custom-output-len", str(load.max_tokens), "--disable-shuffle", "--no-oversample",
        "--num-prompts", str(len(load.texts)), "--max-concurrency", str(load.clients),
        "--temperature", str(load.temperature), "--extra-body", json.dumps(extra),
        "--percentile-metrics", "ttft,tpot,e2el", "--metric-percentiles", "50,95",
        "--disable-tqdm", "--save-result", "--save-detailed", "--result-dir", str(folder),
        "--result-filename", "result.json",
    ]  # fmt: skip


def run_client(server: Server, model: Path, load: Load) -> dict[str, Any]:
    """Send a load and return the client's own result.

    Raises:
        SetupError: when the client fails, or some request does.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lines = [json.dumps({"prompt": text}) for text in load.texts]
        (folder / "prompts.jsonl").write_text("\n".join(lines) + "\n")
        done = subprocess.run(
            client_command(server, model, load, folder), capture_output=True, text=True
        )
        path = folder / "result.json"
        if done.returncode or not path.is_file():
            raise SetupError(f"vllm bench serve failed:\n{(done.stdout + done.stderr)[-3000:]}")
        result = json.loads(path.read_text())
    if result["completed"] != len(load.texts):
        errors = [one for one in result.get("errors", []) if one]
        reason = errors[0].strip().splitlines()[-1] if errors else "no reason was given"
        raise SetupError(
            f"{server.spec.name} answered {result['completed']} of {len(load.texts)} requests: "
            f"{reason}"
        )
    return result


def warm_up(server: Server, model: Path, count: int) -> None:
    """Send prompts that no workload holds; they also push out what a cache keeps."""
    for index in range(count):
        body = {
            "model": str(model), "max_tokens": 4, "temperature": 0,
            "prompt": f"{index} {'warm-up ' * (4 + index)}",
        }  # fmt: skip
        server.post("/v1/completions", body)


def ask_text(server: Server, model: Path, load: Load) -> list[str]:
    """Texts of all prompts, one after the other, untimed."""
    return [_complete(server, model, text, load)["choices"][0]["text"] for text in load.texts]


def ask_ids(
    server: Server, model: Path, load: Load, prompts: Sequence[Sequence[int]]
) -> list[list[int]]:
    """Token ids of all prompts, given as token ids, untimed; vLLM only."""
    found = []
    for ids in prompts:
        answer = _complete(server, model, list(ids), load, return_token_ids=True)
        found.append(list(answer["choices"][0]["token_ids"]))
    return found


def _complete(server: Server, model: Path, prompt: Any, load: Load, **options: Any) -> Any:
    body = {
        "model": str(model),
        "prompt": prompt,
        "max_tokens": load.max_tokens,
        "temperature": load.temperature,
        **load.extra,
        **options,
    }
    return server.post("/v1/completions", body)
