"""Rows that the target writes: turns, masks, loops, resuming."""

import json
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from vllm_dspark.errors import CheckpointError, SettingsError
from vllm_dspark.training.chat import ChatFormat, read_chat_format
from vllm_dspark.training.data import make_data, make_plan
from vllm_dspark.training.feed import Place, RowFeed
from vllm_dspark.training.frozen import FrozenTarget
from vllm_dspark.training.generate import ASSISTANT, USER, write_streams
from vllm_dspark.training.loops import distinct_share, repeated
from vllm_dspark.training.prompts import first_question, read_prompts
from vllm_dspark.training.settings import DataSettings
from vllm_dspark.training.shards import Rows, list_shards, read_shard, write_shard
from vllm_dspark.training.state import RunFolder

FOLDER = Path(__file__).parent.parent / "conformance" / "target"


def test_greedy_answers_are_the_targets_own_argmax(target: FrozenTarget, rows_folder: Path) -> None:
    rows = read_shard(list_shards(rows_folder)[0])
    greedy = rows[rows.is_greedy][:8]
    logits = target.network.unembed(target.see(mx.array(greedy.tokens)).hidden)
    best = np.array(logits.argmax(axis=-1)).reshape(greedy.tokens.shape)
    written = greedy.mask[:, 1:] > 0
    agree = (best[:, :-1] == greedy.tokens[:, 1:])[written]
    assert agree.mean() > 0.995  # near-ties may flip between one row and many


def test_no_prompt_token_is_supervised(rows_folder: Path) -> None:
    rows = read_shard(list_shards(rows_folder)[0])
    assert not rows.mask[:, 0].any()
    assert 0.5 < (rows.mask > 0).mean() < 1


def test_turns_alternate_with_the_templates_headers(target: FrozenTarget) -> None:
    chat = read_chat_format(FOLDER)
    settings = DataSettings(
        num_shards=1, rows_per_shard=6, row_length=96, min_answer=10, max_answer=12, max_question=8
    )
    plan = make_plan(chat, settings, [], np.random.default_rng(0))
    tokens, answered = write_streams(target, plan)
    header = chat.encode(chat.to_answer)
    for row, mask in zip(tokens.tolist(), answered.tolist(), strict=True):
        starts = [i for i in range(len(row) - len(header)) if row[i : i + len(header)] == header]
        assert starts
        for start in starts:
            assert not any(mask[start : start + len(header)])
        assert mask[starts[0] + len(header)] == 1


def test_prompts_of_a_file_start_the_rows(target: FrozenTarget, chat: ChatFormat) -> None:
    settings = DataSettings(num_shards=1, rows_per_shard=4, row_length=32, own_share=0.0)
    plan = make_plan(chat, settings, [[7, 8, 9]], np.random.default_rng(0))
    tokens, answered = write_streams(target, plan)
    assert tokens[:, :3].tolist() == [[7, 8, 9]] * 4
    assert answered[:, :3].sum() == 0 and answered[:, 3:].all()
    assert {USER, ASSISTANT} == {0, 1}


def test_shards_that_are_there_are_not_made_again(
    target: FrozenTarget, chat: ChatFormat, tmp_path: Path
) -> None:
    def settings(count: int) -> DataSettings:
        return DataSettings(num_shards=count, rows_per_shard=3, row_length=24)

    whole, halves = tmp_path / "whole", tmp_path / "halves"
    make_data(target, chat, whole, settings(2))
    assert make_data(target, chat, halves, settings(1)) == 1
    assert make_data(target, chat, halves, settings(2)) == 1
    for one, other in zip(list_shards(whole), list_shards(halves), strict=True):
        assert (read_shard(one).tokens == read_shard(other).tokens).all()
    with pytest.raises(CheckpointError, match="row_length"):
        make_data(target, chat, whole, DataSettings(num_shards=2, rows_per_shard=3, row_length=32))


def test_a_repetition_is_marked_after_its_first_tokens() -> None:
    unit = [5, 6, 7]
    tokens = np.array([[1, 2, 3, 4, *unit * 5, 9, 9, 8]])
    marked = repeated(tokens, min_length=6)[0]
    assert np.flatnonzero(marked).tolist() == list(range(12, 19))
    assert not repeated(np.arange(40)[None], min_length=6).any()
    assert distinct_share(np.array(unit * 5)) == pytest.approx(3 / 12)


def test_every_kind_of_own_question_can_be_written() -> None:
    rng = np.random.default_rng(0)
    texts = [first_question(rng) for _ in range(400)]
    assert {question.is_whole for question in texts} == {True, False}
    assert not any("{" in question.text and "}" in question.text for question in texts)


def test_a_bad_line_of_a_prompts_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps({"prompt": "x"}) + "\n" + json.dumps({"text": "y"}) + "\n")
    with pytest.raises(SettingsError, match="line 2"):
        read_prompts(path)


def test_the_feed_gives_every_row_once_per_pass_and_resumes(tmp_path: Path) -> None:
    for index in range(2):
        tokens = np.arange(index * 10, index * 10 + 10, dtype=np.int32)[:, None].repeat(16, axis=1)
        write_shard(tmp_path, index, Rows(tokens, np.ones_like(tokens), np.ones(10, bool)))
    feed = RowFeed(tmp_path, num_held_out=2, seed=3)
    first = [feed.take(5) for _ in range(4)]
    ids = np.concatenate([rows.tokens[:, 0] for rows in first])
    assert len(set(ids[:18].tolist())) == 18 and not {0, 1} & set(ids.tolist())
    resumed = RowFeed(tmp_path, num_held_out=2, seed=3, place=feed.place)
    assert (resumed.take(7).tokens == feed.take(7).tokens).all()


def test_new_shards_come_with_as_many_older_rows(tmp_path: Path) -> None:
    def add(index: int) -> None:
        tokens = np.full((10, 16), index, dtype=np.int32)
        write_shard(tmp_path, index, Rows(tokens, np.ones_like(tokens), np.ones(10, bool)))

    add(0)
    feed = RowFeed(tmp_path, num_held_out=2, seed=3)
    feed.take(8)
    add(1)
    shards = feed.take(18).tokens[:, 0]
    assert (shards == 1).sum() == 10 and (shards == 0).sum() == 8
    assert feed.place == Place(turn=1, cursor=18, num_old=10, num_all=20)


def test_other_settings_are_refused_on_resuming(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.check_settings({"seed": 1, "num_steps": 10})
    folder.check_settings({"seed": 1, "num_steps": 20})
    with pytest.raises(CheckpointError, match="seed"):
        folder.check_settings({"seed": 2, "num_steps": 20})


def test_each_prompt_is_used_once_before_any_is_used_again(chat: ChatFormat) -> None:
    settings = DataSettings(num_shards=1, rows_per_shard=6, row_length=32, own_share=0.0)
    heads = [[10], [11], [12]]
    plan = make_plan(chat, settings, heads, np.random.default_rng(0))
    begun = plan.scripts.tokens[plan.first, 0].tolist()
    assert sorted(begun[:3]) == sorted(begun[3:]) == [10, 11, 12]
