"""Speculative configurations that are refused, through vLLM's own arguments and without weights."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from drafting import SETS, VANILLA
from engines import TARGET

from vllm_dspark.plugin.guards import DRAFT_GUARDS

pytestmark = pytest.mark.vllm


def copy_without_weights(source: Path, folder: Path, **changes: Any) -> Path:
    """A checkpoint whose weights cannot be read, since there are none."""
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | changes))
    return folder


def make_config(folder: Path, draft: dict[str, Any], speculative: dict[str, Any], **options: Any):
    """vLLM's configuration of the tiny pair with changes to the draft's config.json."""
    from vllm.engine.arg_utils import EngineArgs

    target = copy_without_weights(TARGET, folder / "target")
    model = copy_without_weights(SETS / VANILLA / "draft", folder / "draft", **draft)
    config = {"method": "dspark", "model": str(model), **speculative}
    given = {"model": str(target), "max_model_len": 256, "max_num_seqs": 8, **options}
    return EngineArgs(**given, speculative_config=config).create_engine_config()


# Guard, changes of the draft's config.json, speculative options, other options, words of the
# answer.
Case = tuple[str, dict[str, Any], dict[str, Any], dict[str, Any], str]
CASES: dict[str, Case] = {
    "another method": (
        "method", {}, {"method": "ngram_gpu", "num_speculative_tokens": 3}, {}, "method is 'ngram"
    ),
    "wider than trained": ("width", {}, {"num_speculative_tokens": 8}, {}, "trained for"),
    "another hidden size": ("draft", {"hidden_size": 64}, {}, {}, "hidden size"),
    "another vocabulary": ("draft", {"vocab_size": 500}, {}, {}, "vocabulary"),
    "taps out of range": ("draft", {"target_layer_ids": [1, 3, 9]}, {}, {}, "layers 0 to 5"),
    "another depth": (
        "draft", {"num_target_layers": 4, "target_layer_ids": [1, 2]}, {}, {}, "target layers"
    ),
    "another head size": ("draft", {"head_dim": 32}, {}, {}, "head dimension"),
    "an unknown head": ("draft", {"markov_head_type": "tree"}, {}, {}, "markov_head_type"),
    "no mask token": ("draft", {"mask_token_id": 512}, {}, {}, "mask_token_id"),
    "probabilistic drafts of another method": (
        "draft-sampling",
        {},
        {"method": "ngram", "model": None, "prompt_lookup_max": 3}
        | {"num_speculative_tokens": 3, "draft_sample_method": "probabilistic"},
        {},
        "draft_sample_method is 'probabilistic'",
    ),
    "synthetic rejection": (
        "rejection",
        {},
        {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 2.0},
        {},
        "standard",
    ),
    "top-k of 0": ("top-k", {}, {"dspark_draft_topk": 0}, {}, "dspark_draft_topk"),
    "top-k above the vocabulary": ("top-k", {}, {"dspark_draft_topk": 513}, {}, "topk"),
    "a draft quantised at load": ("draft-quantization", {}, {"quantization": "fp8"}, {}, "quanti"),
    "8-bit keys of the draft": ("draft-kv-dtype", {}, {"kv_cache_dtype": "fp8"}, {}, "kv_cache"),
    "parallel drafting": (
        "parallel-drafting",
        {},
        {"method": "draft_model", "parallel_drafting": True, "num_speculative_tokens": 3},
        {},
        "parallel|draft",
    ),
    "a token budget below one round": (
        "token-budget", {}, {}, {"max_num_batched_tokens": 63}, "batched_tokens"
    ),
    "offloading": ("", {}, {}, {"kv_offloading_size": 1.0}, "offload"),
    "adapters": ("", {}, {}, {"enable_lora": True}, "LoRA"),
    "8-bit keys": ("", {}, {}, {"kv_cache_dtype": "fp8"}, "kv_cache_dtype"),
    "an unknown quantization": (
        "",
        {},
        {},
        {"additional_config": {"dspark_draft_quantization": "q2"}},
        "dspark_draft_quantization",
    ),
}  # fmt: skip
GUARD_NAMES = {guard.name for guard in DRAFT_GUARDS}
REFUSED = [name for name, case in CASES.items() if not case[0] or case[0] in GUARD_NAMES]


def test_every_guard_of_drafts_has_a_configuration() -> None:
    assert GUARD_NAMES <= {case[0] for case in CASES.values()}


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_before_weights_are_read(name: str, tmp_path: Path) -> None:
    _, draft, speculative, options, word = CASES[name]
    with pytest.raises(ValueError, match=word):
        make_config(tmp_path, draft, speculative, **options)


@pytest.mark.parametrize("num_drafts", [1, 4, 7])
def test_every_trained_number_of_drafts_is_served(num_drafts: int, tmp_path: Path) -> None:
    config = make_config(tmp_path, {}, {"num_speculative_tokens": num_drafts})
    assert config.num_speculative_tokens == num_drafts


def test_a_budget_of_exactly_one_round_is_served(tmp_path: Path) -> None:
    config = make_config(tmp_path, {}, {}, max_num_batched_tokens=64)
    assert config.scheduler_config.max_num_batched_tokens == 64


def test_a_draft_folder_that_is_no_draft_is_refused(tmp_path: Path) -> None:
    from vllm.engine.arg_utils import EngineArgs

    target = copy_without_weights(TARGET, tmp_path / "target")
    config = {"method": "dspark", "model": str(target), "num_speculative_tokens": 4}
    with pytest.raises(ValueError, match="DSpark|draft"):
        EngineArgs(
            model=str(target), max_model_len=256, speculative_config=config
        ).create_engine_config()
