"""The corpus that ships, and files of others."""

from collections import Counter
from pathlib import Path

import pytest

from vllm_dspark.arms.corpus import pick_evenly, read_corpus
from vllm_dspark.errors import SettingsError


def test_forty_prompts_of_six_kinds_ship_with_the_package() -> None:
    prompts = read_corpus()
    assert len(prompts) == len({one.name for one in prompts}) == 40
    kinds = Counter(one.kind for one in prompts)
    assert set(kinds) == {"chat", "maths", "code", "extraction", "lists", "long"}
    assert min(kinds.values()) >= 5
    assert min(len(one.text) for one in prompts if one.kind == "long") > 1500


def test_a_few_are_picked_from_every_kind_in_their_order() -> None:
    prompts = read_corpus()
    picked = pick_evenly(prompts, 6)
    assert len({one.kind for one in picked}) == 6
    assert picked == [one for one in prompts if one in picked]
    assert pick_evenly(prompts, 100) == prompts


def test_a_line_without_a_prompt_is_named(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text('{"prompt": "Hello"}\n\n{"text": "no"}\n')
    with pytest.raises(SettingsError, match="line 3"):
        read_corpus(path)
