"""Questions from our own templates."""

import json
import re
from pathlib import Path

import numpy as np

import vllm_dspark
from vllm_dspark.training.phrases import _sections
from vllm_dspark.training.prompts import first_question, later_question

EVALUATION = (
    Path(__file__).parent.parent / "data" / "held_out.jsonl",
    Path(vllm_dspark.__file__).parent / "data" / "prompts.jsonl",
)


def runs_of_six(text: str) -> set[tuple[str, ...]]:
    """Every six words in a row."""
    words = re.findall(r"[a-z']+", text.lower())
    return {tuple(words[at : at + 6]) for at in range(len(words) - 5)}


def test_every_gap_of_a_template_is_filled() -> None:
    rng = np.random.default_rng(3)
    texts = [make(rng).text for _ in range(3000) for make in (first_question, later_question)]
    assert not [text for text in texts if re.search(r"{[a-z]}", text)]
    assert len(set(texts)) > 3000


def test_the_same_seed_draws_the_same_questions() -> None:
    first, second = ([first_question(np.random.default_rng(7)) for _ in range(20)] for _ in "ab")
    assert first == second


def test_no_template_shares_six_words_in_a_row_with_an_evaluation_prompt() -> None:
    said: set[tuple[str, ...]] = set()
    for path in EVALUATION:
        for line in path.read_text().splitlines():
            entry = json.loads(line)
            turns = entry.get("messages") or [{"content": entry["prompt"]}]
            said |= {run for turn in turns for run in runs_of_six(turn["content"])}
    ours = {run for lines in _sections().values() for line in lines for run in runs_of_six(line)}
    assert said and not said & ours
