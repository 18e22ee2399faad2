"""Whole engines on the tiny target give the reference's greedy tokens, however steps are cut."""

from typing import Any

import pytest
from engines import (
    PROMPTS,
    counted_preemptions,
    engine,
    expected_tokens,
    free_blocks,
    greedy,
    pool_bytes,
    reference_tokens,
    scheduler_of,
    token_ids,
)

pytestmark = pytest.mark.vllm

MODES = pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])


def test_greedy_tokens_equal_mlx_lm_alone_and_in_a_batch(llm: Any) -> None:
    before = free_blocks(llm)
    alone = [token_ids(llm.generate([prompt], greedy(), use_tqdm=False))[0] for prompt in PROMPTS]
    together = token_ids(llm.generate(list(PROMPTS), greedy(), use_tqdm=False))
    assert alone == expected_tokens()
    assert together == expected_tokens()
    assert free_blocks(llm) == before


@MODES
def test_chunks_of_sixteen_tokens_change_nothing(is_async: bool) -> None:
    with engine(async_scheduling=is_async, max_num_batched_tokens=16, max_num_seqs=8) as llm:
        outputs = llm.generate(list(PROMPTS), greedy(), use_tqdm=False)
        assert token_ids(outputs) == expected_tokens()


@MODES
def test_a_threshold_for_long_prompts_changes_nothing(is_async: bool) -> None:
    with engine(async_scheduling=is_async, long_prefill_token_threshold=4) as llm:
        outputs = llm.generate(list(PROMPTS), greedy(), use_tqdm=False)
        assert token_ids(outputs) == expected_tokens()


@MODES
@pytest.mark.parametrize("block_size", [8, 16, 32])
def test_every_block_size_gives_the_same_tokens(is_async: bool, block_size: int) -> None:
    size = pool_bytes(64, block_size)
    with engine(
        async_scheduling=is_async,
        block_size=block_size,
        kv_cache_memory_bytes=size,
        max_model_len=160,
    ) as llm:
        assert scheduler_of(llm).kv_cache_config.num_blocks == 64
        outputs = llm.generate(list(PROMPTS), greedy(), use_tqdm=False)
        assert token_ids(outputs) == expected_tokens()
        assert free_blocks(llm) == 63


@pytest.mark.parametrize("offset", [-1, 0, 1])
def test_a_warm_prefix_cache_gives_the_same_tokens(llm: Any, offset: int) -> None:
    tokenizer = llm.get_tokenizer()
    ids = tokenizer.encode(PROMPTS[2] + PROMPTS[4])[: 32 + offset]
    assert len(ids) == 32 + offset
    llm.reset_prefix_cache()
    cold, warm = (
        llm.generate([{"prompt_token_ids": ids}], greedy(24), use_tqdm=False)[0] for _ in range(2)
    )
    assert cold.num_cached_tokens == 0
    # The last prompt token is always computed, so a prompt of 32 tokens reuses one block of two.
    assert warm.num_cached_tokens == {-1: 16, 0: 16, 1: 32}[offset]
    expected = list(reference_tokens(tokenizer.decode(ids), 24))
    assert token_ids([cold, warm]) == [expected, expected]


def test_a_prompt_that_extends_a_cached_answer_gives_the_same_tokens(llm: Any) -> None:
    tokenizer = llm.get_tokenizer()
    llm.reset_prefix_cache()
    first = llm.generate([PROMPTS[2]], greedy(40), use_tqdm=False)[0]
    longer = [*first.prompt_token_ids, *first.outputs[0].token_ids, *tokenizer.encode(" Ada")]
    cached, fresh = [], []
    for kept in (cached, fresh):
        output = llm.generate([{"prompt_token_ids": longer}], greedy(16), use_tqdm=False)[0]
        kept.extend(output.outputs[0].token_ids)
        assert (output.num_cached_tokens > 0) == (kept is cached)
        llm.reset_prefix_cache()
    assert cached == fresh


@MODES
@pytest.mark.parametrize("has_cache", [True, False], ids=["cache", "no-cache"])
@pytest.mark.parametrize("chunk", [16, 512])
def test_preempted_requests_give_the_same_tokens(
    is_async: bool, has_cache: bool, chunk: int
) -> None:
    with engine(
        async_scheduling=is_async,
        enable_prefix_caching=has_cache,
        kv_cache_memory_bytes=pool_bytes(16),
        max_model_len=160,
        max_num_seqs=8,
        max_num_batched_tokens=chunk,
    ) as llm:
        before = free_blocks(llm)
        with counted_preemptions(llm) as preempted:
            outputs = llm.generate(list(PROMPTS), greedy(64), use_tqdm=False)
        assert len(preempted) > 0
        assert token_ids(outputs) == expected_tokens(max_tokens=64)
        assert free_blocks(llm) == before


def test_n_samples_of_a_prompt_share_it_and_differ(llm: Any) -> None:
    from vllm import SamplingParams

    params = SamplingParams(n=4, temperature=2.0, max_tokens=24, seed=3, ignore_eos=True)
    before = free_blocks(llm)
    outputs = llm.generate([PROMPTS[0]], params, use_tqdm=False)[0].outputs
    texts = {tuple(one.token_ids) for one in outputs}
    assert [one.index for one in outputs] == [0, 1, 2, 3]
    assert all(len(one.token_ids) == 24 for one in outputs)
    assert len(texts) == 4
    assert free_blocks(llm) == before


@MODES
def test_an_urgent_request_overtakes_and_nobody_is_harmed(is_async: bool) -> None:
    with engine(
        async_scheduling=is_async, scheduling_policy="priority", max_num_seqs=2, max_model_len=160
    ) as llm:
        finished: list[str] = []
        for index, prompt in enumerate(PROMPTS):
            priority = 0 if index == len(PROMPTS) - 1 else 5
            llm.llm_engine.add_request(str(index), prompt, greedy(), priority=priority)
        tokens: dict[str, list[int]] = {}
        while llm.llm_engine.has_unfinished_requests():
            for output in llm.llm_engine.step():
                if output.finished:
                    finished.append(output.request_id)
                    tokens[output.request_id] = list(output.outputs[0].token_ids)
    last = str(len(PROMPTS) - 1)
    assert last in finished[:2]
    assert [tokens[str(index)] for index in range(len(PROMPTS))] == expected_tokens()


@pytest.mark.parametrize("steps_before", [1, 2, 7])
def test_an_abort_frees_its_blocks_and_leaves_the_others_alone(llm: Any, steps_before: int) -> None:
    before = free_blocks(llm)
    core = llm.llm_engine
    for index, prompt in enumerate(PROMPTS):
        core.add_request(f"abort-{steps_before}-{index}", prompt, greedy())
    tokens: dict[str, list[int]] = {}
    steps = 0
    while core.has_unfinished_requests():
        if steps == steps_before:
            core.abort_request([f"abort-{steps_before}-{index}" for index in (0, 3, 7)])
        for output in core.step():
            if output.finished:
                tokens[output.request_id] = list(output.outputs[0].token_ids)
        steps += 1
    kept = [index for index in range(len(PROMPTS)) if index not in (0, 3, 7)]
    expected = expected_tokens()
    for index in kept:
        assert tokens[f"abort-{steps_before}-{index}"] == expected[index]
    llm.generate([PROMPTS[5]], greedy(2), use_tqdm=False)  # the next step forgets the aborted
    assert free_blocks(llm) == before


def test_the_runner_forgets_finished_requests(llm: Any) -> None:
    llm.generate(list(PROMPTS), greedy(4), use_tqdm=False)
    llm.generate([PROMPTS[5]], greedy(2), use_tqdm=False)
    core = llm.llm_engine.engine_core.engine_core
    worker = core.model_executor.driver_worker.worker
    assert len(worker._runner.table) <= 1


def test_an_engine_can_be_printed(llm: Any) -> None:
    assert "qkv_proj" in repr(llm)
