"""What refusals look at: a vLLM configuration as plain values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vllm_dspark.blas import load_blas
from vllm_dspark.errors import CheckpointError, SettingsError, UnsupportedError
from vllm_dspark.models.registry import read_target_config
from vllm_dspark.plugin.locate import locate_model

if TYPE_CHECKING:
    from vllm.config import VllmConfig

BLOCK_METHODS = ("dspark", "dflash")


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
    speculative: "SpeculativeFacts | None" = None
    additional_config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculativeFacts:
    """The parts of a speculative configuration that this build may have to refuse.

    Attributes:
        num_drafts: K.
        trained_drafts: what the draft checkpoint was trained for; None where it has no block.
        draft_problem: why the draft's config.json cannot be served with this target, or "".
        top_k_problem: why ``dspark_draft_topk`` cannot be used, or "".
        max_num_seqs, max_num_batched_tokens: of the scheduler.
    """

    method: str
    num_drafts: int
    trained_drafts: int | None = None
    draft_problem: str = ""
    top_k_problem: str = ""
    draft_quantization: str = ""
    draft_kv_cache_dtype: str = "auto"
    draft_sample_method: str = "greedy"
    rejection_sample_method: str = "standard"
    is_parallel: bool = False
    max_num_seqs: int = 1
    max_num_batched_tokens: int = 1 << 30


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
        speculative=read_speculative_facts(config) if speculative else None,
        additional_config=dict(config.additional_config or {}),
    )


def read_speculative_facts(config: "VllmConfig") -> SpeculativeFacts:
    """Collect the facts of the speculative part; reads the draft's config.json."""
    speculative, scheduler = config.speculative_config, config.scheduler_config
    target = config.model_config.hf_config.to_dict()
    draft = {}
    if speculative.method in BLOCK_METHODS:
        draft = _read_draft(
            target, speculative.draft_model_config.model, speculative.dspark_draft_topk
        )
    elif speculative.method == "draft_model":
        draft = _read_causal_draft(target, speculative.draft_model_config.model)
    elif speculative.dspark_draft_topk is not None:
        draft = {"top_k_problem": f"dspark_draft_topk is given for method {speculative.method!r}"}
    return SpeculativeFacts(
        method=speculative.method or "",
        num_drafts=speculative.num_speculative_tokens or 0,
        draft_quantization=speculative.quantization or "",
        draft_kv_cache_dtype=getattr(speculative, "kv_cache_dtype", None) or "auto",
        draft_sample_method=speculative.draft_sample_method,
        rejection_sample_method=speculative.rejection_sample_method,
        is_parallel=speculative.parallel_drafting,
        max_num_seqs=scheduler.max_num_active_seqs or scheduler.max_num_seqs,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
        **draft,
    )


def _read_draft(target: Mapping[str, Any], folder: str, top_k: object) -> dict[str, Any]:
    """Check a block draft against its target by their configs alone."""
    # Imported here: these modules import MLX, and the BLAS must be loaded before it.
    load_blas()
    from vllm_dspark.checkpoints.draft import check_fits_target, read_draft_config, target_facts
    from vllm_dspark.drafter.config import resolve_top_k

    try:
        draft = read_draft_config(locate_model(folder, None))
        check_fits_target(draft, target_facts(read_target_config(target)))
    except (CheckpointError, UnsupportedError) as error:
        return {"draft_problem": str(error)}
    problem = ""
    try:
        resolve_top_k(top_k, draft.top_k, draft.num_draft_logits)
    except SettingsError as error:
        problem = str(error)
    return {"trained_drafts": draft.num_drafts, "top_k_problem": problem}


def _read_causal_draft(target: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """Check an ordinary draft model against its target by their configs alone."""
    load_blas()
    from vllm_dspark.checkpoints.target import check_causal_draft, read_target

    try:
        draft = read_target(locate_model(folder, None))
        check_causal_draft(draft, read_target_config(target))
    except CheckpointError as error:
        return {"draft_problem": f"the draft model {folder} cannot be used: {error}"}
    return {}
