"""How a target's conversations look: the tokens between what is said."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from vllm_dspark.errors import CheckpointError, SettingsError

FORMATS = ("auto", "chat", "plain")
MARKS = ("\u2460first\u2460", "\u2461second\u2461", "\u2462third\u2462")  # survive any template


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """A target's way to write a conversation.

    Attributes:
        tokenizer: text to ids.
        template: Jinja source, or "" where the target continues plain text.
        start: text before the first question.
        to_answer: text after a question, from the end-of-turn token to the answer.
        to_question: text after an answer, from the end-of-turn token to the next question.
        end_id: token that ends a turn; -1 for plain text.
        start_id: token that a plain stream begins with.
    """

    tokenizer: Tokenizer
    template: str
    start: str
    to_answer: str
    to_question: str
    end_id: int
    start_id: int

    @property
    def is_chat(self) -> bool:
        """Whether there are turns."""
        return bool(self.template)

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, without added special tokens."""
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def encode_prompt(self, entry: Mapping[str, Any]) -> list[int]:
        """Token ids of one line of a prompts file, up to where the answer begins.

        Raises:
            SettingsError: it is a conversation and the target has no chat template.
        """
        if "prompt_ids" in entry:
            return [int(token) for token in entry["prompt_ids"]]
        if "messages" in entry or self.is_chat:
            messages = entry.get("messages") or [{"role": "user", "content": entry["prompt"]}]
            if not self.is_chat:
                raise SettingsError(
                    "the prompts are conversations, but the target has no chat template; give "
                    'prompts as {"prompt": text}'
                )
            return self.encode(render(self.template, messages))
        return self.encode(entry["prompt"])


def render(template: str, messages: Sequence[Mapping[str, str]]) -> str:
    """Write a conversation down, up to where the next answer begins.

    Raises:
        CheckpointError: the template fails.
    """
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    try:
        return environment.from_string(template).render(
            messages=messages, add_generation_prompt=True, enable_thinking=False
        )
    except TemplateError as error:
        raise CheckpointError(f"the target's chat template fails: {error}") from error


def read_chat_format(folder: Path, kind: str = "auto") -> ChatFormat:
    """Read a target's tokenizer and chat template.

    Args:
        kind: ``chat``, ``plain``, or ``auto``: chat where there is a template.

    Raises:
        SettingsError: unknown kind, or ``chat`` without a template.
        CheckpointError: no tokenizer, or a template that is not understood.
    """
    if kind not in FORMATS:
        raise SettingsError(f"format is {kind!r}, must be one of {list(FORMATS)}")
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise CheckpointError(f"{folder} has no tokenizer.json; give a complete model folder")
    tokenizer = Tokenizer.from_file(str(path))
    template = "" if kind == "plain" else _read_template(folder)
    if template:
        return _split(tokenizer, template)
    if kind == "chat":
        raise SettingsError(f"{folder} has no chat template; use format plain")
    return ChatFormat(tokenizer, "", "", "", "", -1, _end_of_text(folder))


def _read_template(folder: Path) -> str:
    if (folder / "chat_template.jinja").is_file():
        return (folder / "chat_template.jinja").read_text(encoding="utf-8")
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    template = config.get("chat_template") or ""
    return template if isinstance(template, str) else ""


def _end_of_text(folder: Path) -> int:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    end = config.get("eos_token_id")
    return int((end[0] if isinstance(end, list) else end) or 0)


def _split(tokenizer: Tokenizer, template: str) -> ChatFormat:
    """Find the fixed texts between turns by rendering marks.

    Raises:
        CheckpointError: the template changes what is said, or turns end in different tokens.
    """
    roles = ("user", "assistant", "user")
    text = render(
        template,
        [{"role": role, "content": mark} for role, mark in zip(roles, MARKS, strict=True)],
    )
    places = [text.find(mark) for mark in MARKS]
    if -1 in places or places != sorted(places):
        raise CheckpointError(
            "the target's chat template does not repeat the messages in order; use format plain"
        )
    ends = [place + len(mark) for place, mark in zip(places, MARKS, strict=True)]
    to_question, to_answer = text[ends[1] : places[2]], text[ends[2] :]
    first = [
        tokenizer.encode(piece, add_special_tokens=False).ids[:1]
        for piece in (to_question, to_answer)
    ]
    if first[0] != first[1] or not first[0]:
        raise CheckpointError(
            "questions and answers end in different tokens in the target's chat template; use "
            "format plain"
        )
    return ChatFormat(
        tokenizer, template, text[: places[0]], to_answer, to_question, first[0][0], first[0][0]
    )
