"""Questions and openings of questions, drawn from a seed; no text of a public benchmark."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

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


Maker = Callable[[Draw, np.random.Generator], Question]


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


class Slots(dict[str, str]):
    """Words for the gaps of a template, each drawn where it is asked for."""

    KINDS: ClassVar = {
        "t": "topics", "u": "topics", "n": "names", "m": "names", "x": "things", "y": "places",
        "w": "weekdays", "p": "people", "r": "relatives", "j": "jobs", "z": "projects",
        "o": "tones", "g": "languages",
    }  # fmt: skip

    def __init__(self, draw: Draw, rng: np.random.Generator) -> None:
        super().__init__()
        self._draw, self._rng = draw, rng

    def __missing__(self, key: str) -> str:
        if key == "s":
            return fill(self._draw(phrases("sentences")), self._draw, self._rng)
        if key in ("a", "b"):
            return str(self._rng.integers(2, 13) if key == "b" else self._rng.integers(13, 90))
        if key == "k":  # a job without its article
            return self._draw(phrases("jobs")).split(" ", 1)[1]
        return self._draw(phrases(self.KINDS[key]))


def fill(template: str, draw: Draw, rng: np.random.Generator) -> str:
    """Put words into the gaps of a template."""
    return template.format_map(Slots(draw, rng))


def _filled(section: str, share_cut: float) -> Maker:
    """A maker of filled templates, some of which keep only their first words."""

    def make(draw: Draw, rng: np.random.Generator) -> Question:
        text = fill(draw(phrases(section)), draw, rng)
        words = text.split(" ")
        if len(words) > 3 and rng.random() < share_cut:
            return Question(" ".join(words[: rng.integers(2, len(words))]), is_whole=False)
        return Question(text, is_whole=True)

    return make


def _passage(draw: Draw, rng: np.random.Generator) -> Question:
    """A text and what to do with it, in either order; one in four has ten sentences or more."""
    count = int(rng.integers(10, 17) if rng.random() < 0.25 else rng.integers(1, 7))
    sentences = [fill(draw(phrases("sentences")), draw, rng) for _ in range(count)]
    text = ("\n" if rng.random() < 0.3 else " ").join(sentences)
    request = fill(draw(phrases("passage_requests")), draw, rng)
    if rng.random() < 0.4:
        text = f"{fill(draw(phrases('passage_openings')), draw, rng)}\n{text}"
    between = "\n\n" if rng.random() < 0.6 else " "
    if rng.random() < 0.5:
        return Question(f"{request}{between}{text}", is_whole=True)
    return Question(f"{text}{between}{request}", is_whole=True)


_instruction, _chat = _filled("instructions", 0.3), _filled("chat", 0.35)
_reaction = _filled("reactions", 0.15)

FIRST = (
    (0.20, _opening), (0.05, _nothing), (0.12, _topic), (0.18, _instruction), (0.10, _chat),
    (0.11, _passage), (0.12, _code), (0.12, _maths),
)  # fmt: skip
"""Share and maker of each kind of first question."""


def first_question(rng: np.random.Generator) -> Question:
    """Draw how a conversation begins."""
    return _make(FIRST, rng)


def _follow_up(draw: Draw, rng: np.random.Generator) -> Question:
    return Question(draw(phrases("follow_ups")), is_whole=False)


LATER = (
    (0.32, _follow_up), (0.24, _reaction), (0.08, _nothing), (0.07, _topic), (0.09, _instruction),
    (0.04, _passage), (0.06, _code), (0.06, _maths), (0.04, _opening),
)  # fmt: skip
"""The same for later questions: mostly a reaction, else a new subject."""


def later_question(rng: np.random.Generator) -> Question:
    """Draw how a conversation goes on."""
    return _make(LATER, rng)


def _make(makers: Sequence[tuple[float, Maker]], rng: np.random.Generator) -> Question:
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
