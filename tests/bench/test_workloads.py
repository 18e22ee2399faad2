"""Workloads are what their names say."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from vllm_dspark.arms.corpus import load_tokenizer, read_corpus
from vllm_dspark.bench.workloads import WORKLOADS, make_workload
from vllm_dspark.errors import SettingsError

TARGET = Path(__file__).parents[1] / "conformance" / "target"


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return load_tokenizer(TARGET)


@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_a_workload_is_the_same_every_time_and_in_the_chat_template(
    tokenizer: Any, name: str
) -> None:
    one, other = (make_workload(name, tokenizer, 4) for _ in range(2))
    assert one == other
    assert 1 < len(one.texts) <= 4
    template = tokenizer.apply_chat_template(
        [{"role": "user", "content": "X"}], add_generation_prompt=True, tokenize=False
    )
    start, end = template.split("X")
    assert all(text.startswith(start) and text.endswith(end) for text in one.texts)


@pytest.mark.parametrize(("name", "length"), [("context-1k", 1000), ("context-4k", 4000)])
def test_long_prompts_have_their_length_and_share_nothing(
    tokenizer: Any, name: str, length: int
) -> None:
    asks = make_workload(name, tokenizer, 2).asks(tokenizer, 8)
    assert all(length <= len(ask.token_ids) < 1.6 * length for ask in asks)
    shared = os.path.commonprefix([list(ask.token_ids) for ask in asks])
    assert len(shared) < 32


def test_a_shared_prefix_is_shared_by_different_questions(tokenizer: Any) -> None:
    asks = make_workload("shared-prefix", tokenizer, 4).asks(tokenizer, 8)
    shared = os.path.commonprefix([list(ask.token_ids) for ask in asks])
    assert len(shared) >= 1000
    assert len({ask.token_ids for ask in asks}) == 4


def test_repeated_prompts_come_twice_and_sampled_ones_bring_seeds(tokenizer: Any) -> None:
    repeated = make_workload("repeated", tokenizer, 4).texts
    assert repeated[:2] == repeated[2:]
    asks = make_workload("sampled", tokenizer, 4).asks(tokenizer, 8)
    assert all(ask.temperature > 0 for ask in asks)
    assert len({ask.seed for ask in asks}) == 4


def test_a_manner_changes_how_and_not_what_is_asked(tokenizer: Any) -> None:
    plain, sampled, formed = (
        make_workload(f"short{manner}", tokenizer, 3) for manner in ("", "+sampled", "+json")
    )
    assert plain.texts == sampled.texts == formed.texts
    assert [one.temperature for one in (plain, sampled, formed)] == [0.0, 0.7, 0.0]
    (ask, *_) = formed.asks(tokenizer, 8)
    assert json.loads(ask.schema)["required"] == ["title", "facts", "score"]
    assert not ask.ignore_eos  # a grammar ends with the end token
    assert plain.asks(tokenizer, 8)[0].ignore_eos


def test_the_corpus_is_whole_and_its_short_prompts_are_short(tokenizer: Any) -> None:
    whole, short = (make_workload(name, tokenizer, 100).texts for name in ("corpus", "short"))
    assert len(whole) == 40
    assert [text for text in whole if text in short] == list(short)
    assert len(short) == 35
    assert make_workload("short", tokenizer, 5).texts == short[:5]
    kinds = {one.text: one.kind for one in read_corpus()}
    asked = [kind for text in short[:5] for one, kind in kinds.items() if one in text]
    assert len(set(asked)) == 5  # the first few are of every kind


@pytest.mark.parametrize("name", ["poems+json", "chat+loud", "sampled+json"])
def test_an_unknown_manner_is_refused(tokenizer: Any, name: str) -> None:
    with pytest.raises(SettingsError, match=r"\+json"):
        make_workload(name, tokenizer, 4)


def test_an_unknown_workload_lists_the_known_ones(tokenizer: Any) -> None:
    with pytest.raises(SettingsError, match="shared-prefix"):
        make_workload("poems", tokenizer, 4)
