"""The memory flags, seen from the engine."""

from typing import Any

import pytest
from engines import (
    BYTES_PER_TOKEN,
    PROMPTS,
    engine,
    expected_tokens,
    greedy,
    pool_bytes,
    scheduler_of,
    token_ids,
)

from vllm_dspark.errors import MemoryBudgetError

pytestmark = pytest.mark.vllm


def num_blocks(llm: Any) -> int:
    return scheduler_of(llm).kv_cache_config.num_blocks


def test_a_given_size_is_used_as_it_is() -> None:
    with engine(kv_cache_memory_bytes=pool_bytes(40)) as llm:
        assert num_blocks(llm) == 40


def test_a_share_of_the_machine_is_measured() -> None:
    with engine(
        kv_cache_memory_bytes=None, gpu_memory_utilization=0.5, max_num_batched_tokens=512
    ) as llm:
        assert num_blocks(llm) * 16 * BYTES_PER_TOKEN > pool_bytes(64)
        outputs = llm.generate(list(PROMPTS), greedy(), use_tqdm=False)
        assert token_ids(outputs) == expected_tokens()


def test_a_share_that_is_too_small_is_refused_with_numbers() -> None:
    with (
        pytest.raises(MemoryBudgetError, match=r"0.0001 of the working set of \d+ MiB"),
        engine(kv_cache_memory_bytes=None, gpu_memory_utilization=0.0001),
    ):
        pass
