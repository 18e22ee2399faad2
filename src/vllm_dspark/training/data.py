"""Make the rows that a draft learns from: everything in them is written by the target."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from vllm_dspark.training.blocks import LOOPED, SUPERVISED
from vllm_dspark.training.chat import ChatFormat
from vllm_dspark.training.frozen import FrozenTarget
from vllm_dspark.training.generate import (
    ASSISTANT,
    MAX_TURNS,
    USER,
    Plan,
    pack_scripts,
    write_streams,
)
from vllm_dspark.training.loops import repeated
from vllm_dspark.training.prompts import Question, first_question, later_question
from vllm_dspark.training.settings import DataSettings
from vllm_dspark.training.shards import Rows, list_shards, write_manifest, write_shard

NUM_FOLLOW_UPS = 512  # later questions to choose from, per shard
MAX_SHARE = 0.75  # of a row that a question and its headers may take
MAX_DRAWS = 16  # of a question; then the target writes it
Report = Callable[[int, int], None]
"""(shard, tokens per stream so far)."""


def make_data(
    target: FrozenTarget,
    chat: ChatFormat,
    folder: Path,
    settings: DataSettings,
    *,
    prompts: Sequence[Mapping[str, Any]] = (),
    report: Report = lambda shard, position: None,
) -> int:
    """Write the shards that a folder still lacks.

    Args:
        folder: made if needed; a shard that is there is not made again.
        prompts: lines of a prompts file; used for all but ``settings.own_share`` of the rows.

    Returns:
        How many shards were made.

    Raises:
        CheckpointError: the folder holds rows made with other settings.
        SettingsError: a prompt does not suit the target.
    """
    folder.mkdir(parents=True, exist_ok=True)
    described = asdict(settings)
    del described["num_shards"]  # more shards may be asked for later
    write_manifest(folder, described | {"vocab_size": target.config.vocab_size})
    heads = [chat.encode_prompt(entry) for entry in prompts]
    there = len(list_shards(folder))
    pending: Future[None] | None = None
    with ThreadPoolExecutor(max_workers=1) as writer:
        for index in range(there, settings.num_shards):
            rng = np.random.default_rng((settings.seed, index))
            plan = make_plan(chat, settings, heads, rng)
            tokens, answered = write_streams(
                target, plan, lambda position, index=index: report(index, position)
            )
            if pending is not None:
                pending.result()
            is_greedy = plan.answer_temperature == 0
            pending = writer.submit(
                _finish, folder, index, Rows(tokens, answered, is_greedy), settings.loop_length
            )
        if pending is not None:
            pending.result()
    return max(settings.num_shards - there, 0)


def _finish(folder: Path, index: int, rows: Rows, loop_length: int) -> None:
    """Mark the loops of a shard and write it."""
    mask = rows.mask * np.uint8(SUPERVISED)
    if loop_length:
        looped = repeated(rows.tokens, loop_length)
        mask = np.where(looped & (mask > 0), np.uint8(LOOPED), mask)
    write_shard(folder, index, Rows(rows.tokens, mask, rows.is_greedy))


def make_plan(
    chat: ChatFormat,
    settings: DataSettings,
    heads: Sequence[Sequence[int]],
    rng: np.random.Generator,
) -> Plan:
    """Draw what the streams of one shard begin with, and how they go on.

    Args:
        heads: token ids of the prompts file's prompts; each is used once before any is used again.
    """
    count = settings.rows_per_shard
    share = settings.own_share if heads else 1.0
    scripts: list[tuple[list[int], int]] = [
        (chat.encode(chat.to_answer), ASSISTANT) if chat.is_chat else ([], ASSISTANT)
    ]
    first = np.arange(1, count + 1, dtype=np.int32)
    turns = itertools.cycle(rng.permutation(len(heads)) if heads else [])
    for _ in range(count):
        if rng.random() < share:
            scripts.append(_own_start(chat, settings, rng))
        else:
            head = list(heads[next(turns)])[: settings.row_length - 1]
            scripts.append((head, ASSISTANT))
    base = len(scripts)
    num_later = NUM_FOLLOW_UPS if chat.is_chat else 1
    scripts += [_later(chat, settings, rng) for _ in range(num_later)]
    greedy = rng.random(count) < settings.greedy_share
    limits = np.empty((count, 2), dtype=np.int32)
    limits[:, USER] = _question_limits(chat, settings, count, rng)
    limits[:, ASSISTANT] = rng.integers(settings.min_answer, settings.max_answer + 1, size=count)
    if not chat.is_chat:
        limits[:, ASSISTANT] = settings.row_length
    return Plan(
        scripts=pack_scripts(scripts),
        first=first,
        to_answer=0,
        follow_ups=rng.integers(base, base + num_later, size=(count, MAX_TURNS)).astype(np.int32),
        answer_temperature=np.where(greedy, 0.0, settings.temperature).astype(np.float32),
        max_lengths=limits,
        end_id=chat.end_id,
        row_length=settings.row_length,
        seed=int(rng.integers(2**31)),
    )


def _question_limits(
    chat: ChatFormat, settings: DataSettings, count: int, rng: np.random.Generator
) -> np.ndarray:
    """Longest question per stream; in plain text, the sampled beginning before what is trained."""
    if chat.is_chat:
        return np.full(count, settings.max_question)
    return rng.integers(1, min(settings.max_question, settings.row_length // 4) + 1, size=count)


def _own_start(
    chat: ChatFormat, settings: DataSettings, rng: np.random.Generator
) -> tuple[list[int], int]:
    if not chat.is_chat:
        return [chat.start_id], USER
    return _script(chat, chat.start, first_question, settings, rng)


def _later(
    chat: ChatFormat, settings: DataSettings, rng: np.random.Generator
) -> tuple[list[int], int]:
    if not chat.is_chat:
        return [], ASSISTANT
    return _script(chat, chat.to_question, later_question, settings, rng)


def _script(
    chat: ChatFormat,
    before: str,
    draw: Callable[[np.random.Generator], Question],
    settings: DataSettings,
    rng: np.random.Generator,
) -> tuple[list[int], int]:
    """A question between its headers, drawn again while it would leave too little of a row."""
    question, tokens = Question("", is_whole=False), chat.encode(before)
    for _ in range(MAX_DRAWS):
        drawn = draw(rng)
        found = chat.encode(before + drawn.text + (chat.to_answer if drawn.is_whole else ""))
        if len(found) <= MAX_SHARE * settings.row_length:
            question, tokens = drawn, found
            break
    return tokens, ASSISTANT if question.is_whole else USER
