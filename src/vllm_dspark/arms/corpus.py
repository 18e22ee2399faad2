"""Prompts from a JSONL file, and the forty that ship with this package."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from vllm_dspark.errors import SettingsError

BUILT_IN = "prompts.jsonl"


@dataclass(frozen=True, slots=True)
class Prompt:
    """One question of a corpus; ``kind`` groups it with its like."""

    name: str
    kind: str
    text: str


def read_corpus(path: Path | None = None) -> list[Prompt]:
    """Read prompts: objects with "prompt", and optionally "id" and "kind", one a line.

    Args:
        path: None is the corpus of this package.

    Raises:
        SettingsError: naming the line that is no such object.
    """
    if path is None:
        text = (resources.files("vllm_dspark") / "data" / BUILT_IN).read_text()
    else:
        text = path.read_text()
    prompts = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        found = json.loads(line)
        if not isinstance(found, dict) or not isinstance(found.get("prompt"), str):
            raise SettingsError(
                f'line {number} of {path or BUILT_IN} has no "prompt" text: write one JSON object '
                'a line, {"id": ..., "kind": ..., "prompt": ...}'
            )
        prompts.append(
            Prompt(found.get("id", f"line-{number}"), found.get("kind", "other"), found["prompt"])
        )
    return prompts


def pick_evenly(prompts: Sequence[Prompt], limit: int) -> list[Prompt]:
    """Take at most ``limit`` prompts, one of each kind in turn."""
    kinds: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        kinds.setdefault(prompt.kind, []).append(prompt)
    turns = [
        one
        for row in range(max(map(len, kinds.values()), default=0))
        for group in kinds.values()
        for one in group[row : row + 1]
    ]
    chosen = {one.name for one in turns[:limit]}
    return [one for one in prompts if one.name in chosen]


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer of a target's folder."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def chat_text(tokenizer: Any, text: str) -> str:
    """A user's message as the target's chat template writes it."""
    messages = [{"role": "user", "content": text}]
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)


def chat_ids(tokenizer: Any, text: str) -> tuple[int, ...]:
    """Token ids of a user's message in the chat template."""
    return tuple(tokenizer.encode(chat_text(tokenizer, text), add_special_tokens=False))
