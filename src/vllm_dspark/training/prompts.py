"""Questions and openings of questions, drawn from a seed; no text of a public benchmark."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vllm_dspark.errors import SettingsError
from vllm_dspark.training.phrases import MATHS_ENDINGS, phrases

Draw = Callable[[Sequence[str]], str]


@dataclass(frozen=True, slots=True)
class Question:
    """A question, or how one begins.

    Attributes:
        text: its words.
        is_whole: False lets the target write the rest.
    """

    text: str
    is_whole: bool


def _topic(draw: Draw, rng: np.random.Generator) -> Question:
    request = draw(phrases("topic_requests"))
    text = request.format(t=draw(phrases("topics")), u=draw(phrases("topics")))
    if rng.random() < 0.4:  # keep some words only: the target finds another end
        words = text.split(" ")
        return Question(" ".join(words[: rng.integers(2, len(words) + 1)]), is_whole=False)
    return Question(text, is_whole=True)


def _maths(draw: Draw, rng: np.random.Generator) -> Question:
    if rng.random() < 0.3:
        return Question(draw(phrases("maths_openings")), is_whole=False)
    b, d = (int(x) for x in rng.integers(2, 13, size=2))
    a, c = int(rng.integers(3, 60)), int(rng.integers(3, 120)) * b
    names = phrases("names")
    text = draw(phrases("maths")).format(
        n=draw(names), m=draw(names), x=draw(phrases("things")), a=a, b=b, c=c, d=d
    )
    if rng.random() < 0.3:
        sentences = text.split(". ")
        if len(sentences) > 1:
            return Question(". ".join(sentences[:-1]) + ".", is_whole=False)
    return Question(text + draw(MATHS_ENDINGS), is_whole=True)


def _code(draw: Draw, rng: np.random.Generator) -> Question:
    if rng.random() < 0.4:
        return Question(draw(phrases("code_openings")), is_whole=False)
    words = phrases("function_words")
    name = f"{draw(words)}_{draw(words)}"
    text = draw(phrases("code_requests")).format(
        k=draw(phrases("tasks")), f=name, v=draw(phrases("variables"))
    )
    return Question(text, is_whole=rng.random() < 0.75)


def _opening(draw: Draw, rng: np.random.Generator) -> Question:
    return Question(draw(phrases("openings")), is_whole=False)


def _nothing(draw: Draw, rng: np.random.Generator) -> Question:
    return Question("", is_whole=False)


FIRST = ((0.34, _opening), (0.10, _nothing), (0.22, _topic), (0.17, _code), (0.17, _maths))
"""Share and maker of each kind of first question."""


def first_question(rng: np.random.Generator) -> Question:
    """Draw how a conversation begins."""
    return _make(FIRST, rng)


def _follow_up(draw: Draw, rng: np.random.Generator) -> Question:
    return Question(draw(phrases("follow_ups")), is_whole=False)


LATER = (
    (0.45, _follow_up), (0.15, _nothing), (0.16, _topic), (0.08, _code), (0.08, _maths),
    (0.08, _opening),
)  # fmt: skip
"""The same for later questions: mostly a reaction, else a new subject."""


def later_question(rng: np.random.Generator) -> Question:
    """Draw how a conversation goes on."""
    return _make(LATER, rng)


Makers = Sequence[tuple[float, Callable[[Draw, np.random.Generator], Question]]]


def _make(makers: Makers, rng: np.random.Generator) -> Question:
    def draw(choices: Sequence[str]) -> str:
        return choices[rng.integers(len(choices))]

    kind = rng.choice(len(makers), p=[share for share, _ in makers])
    return makers[kind][1](draw, rng)


def read_prompts(path: Path) -> list[dict[str, Any]]:
    """Read a JSONL file; each line has ``messages``, ``prompt`` or ``prompt_ids``.

    Raises:
        SettingsError: naming the line that has none of them, or is not JSON.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise SettingsError(f"cannot read the prompts {path}: {error.strerror}") from error
    prompts = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except json.JSONDecodeError as error:
            raise SettingsError(f"{path}, line {number}, is not JSON ({error})") from error
        keys = ("messages", "prompt", "prompt_ids")
        if not isinstance(entry, dict) or not any(key in entry for key in keys):
            raise SettingsError(f"{path}, line {number}, has none of {', '.join(keys)}; give one")
        prompts.append(entry)
    if not prompts:
        raise SettingsError(f"{path} has no prompts; give one JSON object per line")
    return prompts
