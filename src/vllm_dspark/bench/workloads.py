"""What is asked of an engine: kinds of prompts, shared prefixes, repeats, sampling."""

import json
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vllm_dspark.arms.corpus import Prompt, chat_text, read_corpus
from vllm_dspark.arms.spec import Ask
from vllm_dspark.errors import SettingsError

LISTS = ("fruit", "tools", "rivers", "colours", "trades", "birds", "metals", "sports")


@dataclass(frozen=True, slots=True)
class Workload:
    """Prompts that are sent in this order.

    Attributes:
        texts: with the chat template.
        temperature: 0 is greedy; else every request brings its own seed.
        schema: JSON schema of the answers, or "".
    """

    name: str
    texts: tuple[str, ...]
    temperature: float = 0.0
    schema: str = ""

    def asks(self, tokenizer: Any, max_tokens: int, *, ignore_eos: bool = True) -> list[Ask]:
        """The same as requests of token ids."""
        return [
            Ask(
                tuple(tokenizer.encode(text, add_special_tokens=False)),
                max_tokens,
                self.temperature,
                1000 + index if self.temperature else None,
                ignore_eos and not self.schema,
                self.schema,
            )
            for index, text in enumerate(self.texts)
        ]


Make = Callable[[Any, Sequence[Prompt], int], list[str]]
"""(tokenizer, corpus, how many) -> users' messages."""


def _of_kind(kind: str) -> Make:
    """Prompts of one kind; past the last one they come again, asking for another answer."""

    def make(_: Any, corpus: Sequence[Prompt], count: int) -> list[str]:
        texts = [one.text for one in corpus if one.kind == kind]
        rounds = range(-(-count // len(texts)))
        asked = [f"{text} Give answer {turn + 1}." if turn else text
                 for turn in rounds for text in texts]  # fmt: skip
        return asked[:count]

    return make


def _context(num_tokens: int) -> Make:
    """Prompts of about num_tokens tokens that share no prefix."""

    def make(tokenizer: Any, corpus: Sequence[Prompt], count: int) -> list[str]:
        lengths = {one: len(tokenizer.encode(one)) for one in _sentences(corpus)}
        return [
            f"Document {index + 1}. {_fill(lengths, num_tokens, random.Random(index))}\n"
            "Write three sentences about this document."
            for index in range(count)
        ]

    return make


def _fill(lengths: Mapping[str, int], num_tokens: int, order: random.Random) -> str:
    """Sentences in a random order, again and again, until they have num_tokens tokens."""
    chosen: list[str] = []
    left = num_tokens
    while True:
        for sentence in order.sample(list(lengths), len(lengths)):
            if left <= 0:
                return " ".join(chosen)
            chosen.append(sentence)
            left -= lengths[sentence]


def _sentences(corpus: Sequence[Prompt]) -> list[str]:
    return [line for one in corpus if one.kind == "long" for line in one.text.splitlines() if line]


def _shared(num_tokens: int) -> Make:
    """One long prefix and a question for each of many users, as agents send them."""

    def make(tokenizer: Any, corpus: Sequence[Prompt], count: int) -> list[str]:
        (prefix,) = _context(num_tokens)(tokenizer, corpus, 1)
        return [
            f"{prefix}\nUser {index + 1} asks: name five {LISTS[index % len(LISTS)]}."
            for index in range(count)
        ]

    return make


def _corpus(*left_out: str) -> Make:
    """The shipped prompts, one of each kind in turn, without some kinds; at most all of them."""

    def make(_: Any, corpus: Sequence[Prompt], count: int) -> list[str]:
        turns: Counter[str] = Counter()
        ranked = []
        for one in corpus:
            if one.kind not in left_out:
                ranked.append((turns[one.kind], one.text))
                turns[one.kind] += 1
        return [text for _, text in sorted(ranked, key=lambda pair: pair[0])][:count]

    return make


def _repeated(_: Any, corpus: Sequence[Prompt], count: int) -> list[str]:
    """Every prompt comes twice."""
    half = [one.text for one in corpus if one.kind == "extraction"][: max(1, count // 2)]
    return [*half, *half]


WORKLOADS: dict[str, Make] = {
    "chat": _of_kind("chat"),
    "code": _of_kind("code"),
    "maths": _of_kind("maths"),
    "context-1k": _context(1000),
    "context-4k": _context(4000),
    "shared-prefix": _shared(1000),
    "shared-4k": _shared(4000),
    "repeated": _repeated,
    "corpus": _corpus(),
    "short": _corpus("long"),
}
SAMPLED_TEMPERATURE = 0.7
SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {
            "title": {"type": "string"},
            "facts": {"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": 4},
            "score": {"type": "integer"},
        },
        "required": ["title", "facts", "score"],
        "additionalProperties": False,
    }
)
MANNERS = ("sampled", "json")
"""How a workload may be asked, after a plus sign; "sampled" alone is chat+sampled."""


def make_workload(name: str, tokenizer: Any, count: int) -> Workload:
    """Build a workload of at most ``count`` requests.

    Raises:
        SettingsError: listing the names.
    """
    base, _, manner = ("chat+sampled" if name == "sampled" else name).partition("+")
    if base not in WORKLOADS or manner not in ("", *MANNERS):
        raise SettingsError(
            f"no workload {name!r}; choose from {', '.join(WORKLOADS)}, alone or with +sampled "
            "(temperature 0.7) or +json (a schema)"
        )
    texts = WORKLOADS[base](tokenizer, read_corpus(), count)
    return Workload(
        name,
        tuple(chat_text(tokenizer, text) for text in texts),
        SAMPLED_TEMPERATURE if manner == "sampled" else 0.0,
        SCHEMA if manner == "json" else "",
    )
