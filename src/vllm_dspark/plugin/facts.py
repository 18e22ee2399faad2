"""What refusals look at: a vLLM configuration as plain values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.config import VllmConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """The parts of a configuration that this build may have to refuse.

    Attributes:
        hf_config: the target's config.json.
        quantization: vLLM's name of the target's quantisation, "" for none.
        admission_width: rows that a request with one token left may be granted.
    """

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    context_parallel_size: int = 1
    data_parallel_size: int = 1
    has_lora: bool = False
    has_sleep_mode: bool = False
    runner_type: str = "generate"
    is_multimodal: bool = False
    has_prompt_embeds: bool = False
    has_custom_logits_processors: bool = False
    is_hybrid: bool = False
    uses_mla: bool = False
    hf_config: Mapping[str, Any] = field(default_factory=dict)
    quantization: str = ""
    kv_cache_dtype: str = "auto"
    kv_connector: str = ""
    kv_offloading_size: float = 0.0
    ec_connector: bool = False
    long_prefill_token_threshold: int = 0
    admission_width: int = 1
    load_format: str = "auto"
    has_watermark: bool = False
    speculative_method: str = ""


def read_facts(config: "VllmConfig") -> EngineFacts:
    """Collect the facts of a configuration; ``model_config`` must be set."""
    model, parallel = config.model_config, config.parallel_config
    cache, speculative = config.cache_config, config.speculative_config
    transfer = config.kv_transfer_config
    num_drafts = (speculative.num_speculative_tokens or 0) if speculative else 0
    return EngineFacts(
        tensor_parallel_size=parallel.tensor_parallel_size,
        pipeline_parallel_size=parallel.pipeline_parallel_size,
        context_parallel_size=max(
            parallel.decode_context_parallel_size, parallel.prefill_context_parallel_size
        ),
        data_parallel_size=parallel.data_parallel_size,
        has_lora=config.lora_config is not None,
        has_sleep_mode=model.enable_sleep_mode,
        runner_type=model.runner_type,
        is_multimodal=model.is_multimodal_model,
        has_prompt_embeds=model.enable_prompt_embeds,
        has_custom_logits_processors=bool(model.logits_processors),
        is_hybrid=model.is_hybrid,
        uses_mla=model.use_mla,
        hf_config=model.hf_config.to_dict(),
        quantization=model.quantization or "",
        kv_cache_dtype=cache.cache_dtype,
        kv_connector=(transfer.kv_connector or "") if transfer else "",
        kv_offloading_size=cache.kv_offloading_size or 0.0,
        ec_connector=config.ec_transfer_config is not None,
        long_prefill_token_threshold=config.scheduler_config.long_prefill_token_threshold,
        admission_width=1 + num_drafts,
        load_format=str(config.load_config.load_format),
        has_watermark=getattr(config, "watermark_config", None) is not None,
        speculative_method=(speculative.method or "") if speculative else "",
    )
