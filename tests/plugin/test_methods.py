"""Draft models, prompt lookup and DFlash through vLLM's speculative configuration."""

from pathlib import Path
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
    scheduler_of,
    token_ids,
)
from tiny_models import TARGET, write_dflash, write_llama

pytestmark = pytest.mark.vllm

MODES = pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
PACKAGINGS = ("zlab", "speculators", "speculators-anchor")
NUM_DRAFTS = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("drafts")


def counters(llm: Any) -> dict[str, int]:
    """vLLM's speculation counters, by their short names."""
    prefix = "vllm:spec_decode_"
    return {
        metric.name.removeprefix(prefix): metric.value
        for metric in llm.get_metrics()
        if metric.name.startswith(prefix) and hasattr(metric, "value")
    }


def check(
    speculative: dict[str, Any], is_async: bool, num_groups: int = 1, **options: Any
) -> dict[str, int]:
    """Compare an engine's text with the target's, alone and together; return its counters."""
    config = {"num_speculative_tokens": NUM_DRAFTS, **speculative}
    with engine(
        speculative_config=config, async_scheduling=is_async, disable_log_stats=False, **options
    ) as llm:
        before = free_blocks(llm)
        assert len(scheduler_of(llm).kv_cache_config.kv_cache_groups) == num_groups
        alone = llm.generate([PROMPTS[2]], greedy(), use_tqdm=False)
        together = llm.generate(list(PROMPTS), greedy(), use_tqdm=False)
        assert token_ids(alone) == [expected_tokens()[2]]
        assert token_ids(together) == expected_tokens()
        assert free_blocks(llm) == before
        found = counters(llm)
    assert found["num_drafts"] > 0
    assert found["num_draft_tokens"] >= found["num_accepted_tokens"]
    return found


@MODES
def test_a_draft_model_that_is_the_target_is_always_right(is_async: bool) -> None:
    found = check({"method": "draft_model", "model": str(TARGET)}, is_async)
    assert found["num_accepted_tokens"] == found["num_draft_tokens"] > 100


@MODES
def test_a_draft_model_with_other_heads_gives_the_targets_text(
    is_async: bool, folder: Path
) -> None:
    model = write_llama(folder / "llama")
    found = check({"method": "draft_model", "model": str(model)}, is_async)
    assert found["num_draft_tokens"] > 100


def test_a_draft_model_in_a_group_of_its_own_is_always_right() -> None:
    found = check(
        {"method": "draft_model", "model": str(TARGET)},
        is_async=False,
        num_groups=2,
        additional_config={"dspark_draft_group": "separate"},
    )
    assert found["num_accepted_tokens"] == found["num_draft_tokens"] > 100


@MODES
@pytest.mark.parametrize("chunk", [16, 512])
def test_a_draft_model_is_right_after_preemption_and_in_chunks(is_async: bool, chunk: int) -> None:
    config = {"method": "draft_model", "model": str(TARGET), "num_speculative_tokens": 2}
    with engine(
        speculative_config=config,
        async_scheduling=is_async,
        disable_log_stats=False,
        kv_cache_memory_bytes=2 * pool_bytes(16),
        max_model_len=160,
        max_num_seqs=5,
        max_num_batched_tokens=chunk,
    ) as llm:
        before = free_blocks(llm)
        with counted_preemptions(llm) as preempted:
            outputs = llm.generate(list(PROMPTS), greedy(64), use_tqdm=False)
        assert len(preempted) > 0
        assert token_ids(outputs) == expected_tokens(max_tokens=64)
        assert free_blocks(llm) == before
        found = counters(llm)
        assert found["num_accepted_tokens"] == found["num_draft_tokens"] > 100


@MODES
def test_ngram_gives_the_targets_text_and_accepts_some(is_async: bool) -> None:
    found = check({"method": "ngram", "prompt_lookup_max": 4, "prompt_lookup_min": 2}, is_async)
    assert found["num_accepted_tokens"] > 0


@MODES
@pytest.mark.parametrize("packaging", PACKAGINGS)
def test_dflash_gives_the_targets_text_and_accepts_some(
    is_async: bool, packaging: str, folder: Path
) -> None:
    model = write_dflash(folder / f"dflash-{packaging}", packaging)
    found = check({"method": "dflash", "model": str(model)}, is_async)
    assert found["num_accepted_tokens"] > 0


def test_both_packagings_of_one_dflash_backbone_draft_the_same(folder: Path) -> None:
    found = []
    for packaging in ("zlab", "speculators"):
        model = write_dflash(folder / f"same-{packaging}", packaging)
        found.append(check({"method": "dflash", "model": str(model)}, is_async=False))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "speculative, words",
    [
        ({"method": "draft_model", "parallel_drafting": True}, "parallel.drafting"),
        ({"method": "ngram", "prompt_lookup_min": 5, "prompt_lookup_max": 2}, "must be <="),
        ({"method": "ngram", "dspark_draft_topk": 8}, "correct dspark_draft_topk"),
    ],
)
def test_what_is_not_implemented_is_refused(speculative: dict[str, Any], words: str) -> None:
    model = {} if speculative["method"] == "ngram" else {"model": str(TARGET)}
    with pytest.raises(ValueError, match=words):
        check({**model, **speculative}, is_async=False)


def test_quantisation_at_load_is_refused_where_nothing_would_use_it() -> None:
    with pytest.raises(ValueError, match="leave the option out"):
        check(
            {"method": "draft_model", "model": str(TARGET)},
            is_async=False,
            additional_config={"dspark_draft_quantization": "q4"},
        )


def test_a_draft_model_with_another_vocabulary_is_refused(folder: Path) -> None:
    model = write_llama(folder / "narrow", vocab_size=500)
    (model / "model.safetensors").unlink()
    for is_mixed in (False, True):
        with pytest.raises(ValueError, match="vocab"):
            check(
                {
                    "method": "draft_model",
                    "model": str(model),
                    "use_heterogeneous_vocab": is_mixed,
                },
                is_async=False,
            )


def test_a_draft_model_of_another_family_is_refused(folder: Path) -> None:
    changes = {"model_type": "mistral", "architectures": ["MistralForCausalLM"]}
    model = write_llama(folder / "mistral", **changes)
    with pytest.raises(ValueError, match="model_type is 'mistral'"):
        check({"method": "draft_model", "model": str(model)}, is_async=False)
