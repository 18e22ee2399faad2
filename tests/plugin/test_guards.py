"""Every refusal fires, says what came and what to do, and comes before weights are read."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from engines import TARGET

from vllm_dspark.errors import UnsupportedError
from vllm_dspark.plugin.facts import EngineFacts, SpeculativeFacts
from vllm_dspark.plugin.guards import DRAFT_GUARDS, GUARDS, broken_guards, check_facts

CONFIG = json.loads((TARGET / "config.json").read_text())
FINE = EngineFacts(hf_config=CONFIG)
FINE_DRAFT = SpeculativeFacts(method="dspark", num_drafts=4, trained_drafts=7)

# Name of the guard -> a configuration that it alone refuses, and a word its sentence must have.
BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "tensor-parallel": ({"tensor_parallel_size": 2}, "--tensor-parallel-size 1"),
    "pipeline-parallel": ({"pipeline_parallel_size": 2}, "--pipeline-parallel-size 1"),
    "context-parallel": ({"context_parallel_size": 2}, "context parallel"),
    "lora": ({"has_lora": True}, "--enable-lora"),
    "quantization": ({"quantization": "fp8"}, "mlx_lm.convert"),
    "kv-cache-dtype": ({"kv_cache_dtype": "fp8"}, "--kv-cache-dtype auto"),
    "kv-connector": ({"kv_connector": "NixlConnector"}, "--kv-transfer-config"),
    "kv-offloading": ({"kv_offloading_size": 4.0}, "--kv-offloading-size"),
    "encoder-connector": ({"ec_connector": True}, "--ec-transfer-config"),
    "sleep-mode": ({"has_sleep_mode": True}, "--enable-sleep-mode"),
    "pooling": ({"runner_type": "pooling"}, "--runner generate"),
    "multimodal": ({"is_multimodal": True}, "text"),
    "prompt-embeds": ({"has_prompt_embeds": True}, "--enable-prompt-embeds"),
    "logits-processors": ({"has_custom_logits_processors": True}, "--logits-processors"),
    "hybrid": ({"is_hybrid": True}, "Qwen3"),
    "mla": ({"uses_mla": True}, "Qwen3"),
    "experts": ({"hf_config": {**CONFIG, "num_experts": 8}}, "num_experts"),
    "model": ({"hf_config": {**CONFIG, "model_type": "gemma2"}}, "'llama', 'qwen3'"),
    "long-prefill-threshold": (
        {"long_prefill_token_threshold": 4, "admission_width": 5},
        "--long-prefill-token-threshold",
    ),
    "load-format": ({"load_format": "gguf"}, "--load-format auto"),
    "watermark": ({"has_watermark": True}, "watermark"),
    "additional-config": ({"additional_config": {"nope": 1}}, "--additional-config"),
    "idle-option": (
        {"additional_config": {"dspark_draft_quantization": "q4"}},
        "dspark_draft_quantization",
    ),
}

BROKEN_DRAFTS: dict[str, tuple[dict[str, Any], str]] = {
    "method": ({"method": "eagle3"}, "eagle3"),
    "draft": ({"draft_problem": "the draft has 3 layers too many"}, "3 layers too many"),
    "top-k": ({"top_k_problem": "dspark_draft_topk is 9"}, "dspark_draft_topk"),
    "width": ({"num_drafts": 8}, "num_speculative_tokens"),
    "adaptive-verification": ({"is_adaptive": True}, "enable_adaptive_verification"),
    "parallel-drafting": ({"method": "draft_model", "is_parallel": True}, "parallel_drafting"),
    "draft-sampling": (
        {"method": "draft_model", "draft_sample_method": "probabilistic"},
        "draft_sample_method is 'probabilistic'",
    ),
    "rejection": (
        {"rejection_sample_method": "synthetic"},
        "rejection_sample_method standard",
    ),
    "draft-quantization": ({"draft_quantization": "fp8"}, "dspark_draft_quantization"),
    "draft-kv-dtype": ({"draft_kv_cache_dtype": "fp8"}, "kv_cache_dtype"),
    "token-budget": (
        {"max_num_seqs": 8, "max_num_batched_tokens": 32},
        "--max-num-batched-tokens",
    ),
}


def test_a_supported_configuration_breaks_no_guard() -> None:
    check_facts(FINE)
    check_facts(replace(FINE, speculative=FINE_DRAFT, admission_width=5))


@pytest.mark.parametrize("name", [guard.name for guard in GUARDS])
def test_each_guard_fires_alone_with_its_sentence(name: str) -> None:
    changes, word = BROKEN[name]
    facts = replace(FINE, **changes)
    assert [guard.name for guard, _ in broken_guards(facts)] == [name]
    with pytest.raises(UnsupportedError, match="not supported") as caught:
        check_facts(facts)
    assert word in str(caught.value)
    assert ";" in str(caught.value)


@pytest.mark.parametrize("name", [guard.name for guard in DRAFT_GUARDS])
def test_each_draft_guard_fires_alone_with_its_sentence(name: str) -> None:
    changes, word = BROKEN_DRAFTS[name]
    facts = replace(FINE, speculative=replace(FINE_DRAFT, **changes))
    assert [guard.name for guard, _ in broken_guards(facts)] == [name]
    with pytest.raises(UnsupportedError) as caught:
        check_facts(facts)
    assert word in str(caught.value)


def test_names_are_unique_and_every_guard_has_a_case() -> None:
    for guards, cases in ((GUARDS, BROKEN), (DRAFT_GUARDS, BROKEN_DRAFTS)):
        names = [guard.name for guard in guards]
        assert len(set(names)) == len(names)
        assert set(names) <= set(cases)


def test_all_that_is_wrong_is_told_at_once() -> None:
    facts = replace(FINE, tensor_parallel_size=2, has_lora=True)
    with pytest.raises(UnsupportedError) as caught:
        check_facts(facts)
    assert str(caught.value).count("\n- ") == 2


def folder_without_weights(folder: Path, **changes: Any) -> Path:
    """Copy the tiny target's folder without its weights, with another config.json."""
    for path in TARGET.iterdir():
        if path.suffix != ".safetensors":
            shutil.copy(path, folder)
    config = {**CONFIG, **changes}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def quantised_by(method: str, **entry: Any) -> dict[str, Any]:
    return {"quantization_config": {"quant_method": method, **entry}}


GPTQ = {"bits": 4, "group_size": 128, "desc_act": False, "sym": True}
AWQ = {"bits": 4, "group_size": 128, "zero_point": True}
CONNECTOR = {"kv_connector": "ExampleConnector", "kv_role": "kv_both"}
MXFP4 = {"group_size": 32, "bits": 4, "mode": "mxfp4"}
PROCESSOR = "vllm.v1.sample.logits_processor:MinPLogitsProcessor"

# Flags and changes of config.json that reach the guards through vLLM, and words of the sentence.
REACHABLE: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "tensor-parallel": ({"tensor_parallel_size": 2}, {}, "--tensor-parallel-size 1"),
    "pipeline-parallel": ({"pipeline_parallel_size": 2}, {}, "--pipeline-parallel-size 1"),
    "lora": ({"enable_lora": True}, {}, "drop --enable-lora"),
    "kv-fp8": ({"kv_cache_dtype": "fp8"}, {}, "--kv-cache-dtype auto"),
    "kv-bfloat16": ({"kv_cache_dtype": "bfloat16"}, {}, "set `--kv-cache-dtype` to `auto`"),
    "kv-transfer": ({"kv_transfer_config": CONNECTOR}, {}, "drop --kv-transfer-config"),
    "kv-offloading": ({"kv_offloading_size": 1.0}, {}, "drop --kv-offloading-size"),
    "sleep": ({"enable_sleep_mode": True}, {}, "Sleep mode is not supported"),
    "load-format": ({"load_format": "gguf"}, {}, "--load-format auto"),
    "processors": ({"logits_processors": [PROCESSOR]}, {}, "drop --logits-processors"),
    "prompt-embeds": ({"enable_prompt_embeds": True}, {}, "drop --enable-prompt-embeds"),
    "pooling": ({"runner": "pooling"}, {}, "--runner generate"),
    "additional": ({"additional_config": {"nope": 1}}, {}, "--additional-config"),
    "fp8": ({}, quantised_by("fp8", activation_scheme="dynamic"), "mlx_lm.convert -q"),
    "awq": ({}, quantised_by("awq", **AWQ), "mlx_lm.convert -q"),
    "gptq": ({}, quantised_by("gptq", **GPTQ), "mlx_lm.convert -q"),
    "fp8-flag": ({"quantization": "fp8"}, {}, "mlx_lm.convert -q"),
    "mxfp4": ({}, {"quantization": MXFP4, "quantization_config": MXFP4}, "'affine'"),
    "architecture": ({}, {"architectures": ["NopeForCausalLM"]}, "are not supported"),
    "family": (
        {},
        {"architectures": ["LlamaForCausalLM"], "model_type": "mistral"},
        "['llama', 'qwen3']",
    ),
    "experts": ({}, {"num_experts": 8}, "mixture of experts"),
    "window": ({}, {"use_sliding_window": True, "sliding_window": 64}, "use_sliding_window"),
    "activation": ({}, {"hidden_act": "gelu"}, "hidden_act"),
    "rope": (
        {},
        {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
        "'dynamic'",
    ),
}


@pytest.mark.vllm
@pytest.mark.parametrize("name", sorted(REACHABLE))
def test_vllm_refuses_before_weights_are_read(name: str, tmp_path: Path) -> None:
    from vllm.engine.arg_utils import EngineArgs

    flags, changes, words = REACHABLE[name]
    folder = folder_without_weights(tmp_path, **changes)
    with pytest.raises(ValueError, match=re.escape(words)):
        EngineArgs(model=str(folder), max_model_len=256, **flags).create_engine_config()


@pytest.mark.vllm
def test_a_narrow_threshold_is_refused_with_drafts_only(tmp_path: Path) -> None:
    from vllm.engine.arg_utils import EngineArgs

    folder = folder_without_weights(tmp_path)
    lookup = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 3}
    narrow = {"model": str(folder), "max_model_len": 256, "long_prefill_token_threshold": 4}
    EngineArgs(**narrow).create_engine_config()
    with pytest.raises(ValueError, match="--long-prefill-token-threshold"):
        EngineArgs(**narrow, speculative_config=lookup).create_engine_config()


@pytest.mark.vllm
def test_sixteen_bit_types_become_float32_on_a_cpu(tmp_path: Path) -> None:
    import torch
    from vllm.engine.arg_utils import EngineArgs

    from vllm_dspark.plugin.device import device_kind

    if device_kind() != "cpu":
        pytest.skip("MLX computes 16-bit types on this device")
    folder = folder_without_weights(tmp_path)
    config = EngineArgs(model=str(folder), dtype="bfloat16").create_engine_config()
    assert config.model_config.dtype == torch.float32
