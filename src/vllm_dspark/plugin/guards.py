"""What this build refuses at start-up, as a list of records."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vllm_dspark.errors import CheckpointError, UnsupportedError
from vllm_dspark.models.registry import read_target_config
from vllm_dspark.plugin.facts import BLOCK_METHODS, EngineFacts, SpeculativeFacts

READ_LOAD_FORMATS = ("auto", "safetensors", "hf", "dummy")
MLX_QUANTIZATION = "mlx"
OPTIONS: dict[str, tuple[object, ...] | None] = {
    "dspark_draft_quantization": (None, "q4", "q8"),
    "dspark_draft_group": ("merged", "separate"),
    "dspark_draft_window": None,
}
"""Keys of --additional-config, each with the values it takes, the default first; None stands for
a number of context positions."""
OPTION_METHODS = {
    "dspark_draft_quantization": BLOCK_METHODS,
    "dspark_draft_group": (*BLOCK_METHODS, "draft_model"),
    "dspark_draft_window": BLOCK_METHODS,
}
"""Speculative methods that an option acts on."""


@dataclass(frozen=True, slots=True)
class Guard:
    """One configuration that is refused.

    Attributes:
        name: short name, for tests and logs.
        find: what came, or None when the configuration is fine.
        advice: what is expected and what to do instead.
    """

    name: str
    find: Callable[[EngineFacts], str | None]
    advice: str


def _above_one(label: str, value: int) -> str | None:
    return f"{label} is {value}" if value > 1 else None


def _given(label: str, is_given: bool) -> str | None:
    return label if is_given else None


def _unknown_model(facts: EngineFacts) -> str | None:
    try:
        read_target_config(facts.hf_config)
    except CheckpointError as error:
        return str(error)
    return None


def _experts(facts: EngineFacts) -> str | None:
    keys = ("num_experts", "num_local_experts", "n_routed_experts")
    named = next((key for key in keys if facts.hf_config.get(key)), None)
    return f"the model is a mixture of experts ({named} in config.json)" if named else None


QUANTIZATION_ADVICE = (
    "this build reads unquantised and mlx-lm folders: take the unquantised model, or quantise it "
    "with mlx_lm.convert -q"
)


def refused_quantization(method: str) -> str:
    """The sentence for a quantisation method that is not MLX's own."""
    return f"the model is quantised with {method!r}; {QUANTIZATION_ADVICE}"


def _foreign_quantization(facts: EngineFacts) -> str | None:
    entry = facts.hf_config.get("quantization_config") or {}
    method = facts.quantization or entry.get("quant_method", "")
    if method in ("", MLX_QUANTIZATION):
        return None
    return f"the model is quantised with {method!r}"


def _narrow_threshold(facts: EngineFacts) -> str | None:
    threshold = facts.long_prefill_token_threshold
    if not 0 < threshold < facts.admission_width:
        return None
    return f"long_prefill_token_threshold is {threshold}, below {facts.admission_width}"


def _unknown_options(facts: EngineFacts) -> str | None:
    for name, value in facts.additional_config.items():
        if name not in OPTIONS:
            return f"additional_config has {name!r}"
        choices = OPTIONS[name]
        if choices is None:
            if value is not None and (type(value) is not int or value < 1):
                return f"{name} is {value!r}, must be a number of positions above 0"
        elif value not in choices:
            return f"{name} is {value!r}, must be one of {list(choices)}"
    return None


def _idle_option(facts: EngineFacts) -> str | None:
    method = "" if facts.speculative is None else facts.speculative.method
    for name, methods in OPTION_METHODS.items():
        default = (OPTIONS[name] or (None,))[0]
        if facts.additional_config.get(name, default) != default and method not in methods:
            return f"additional_config has {name!r} and the speculative method is {method!r}"
    return None


GUARDS: tuple[Guard, ...] = (
    Guard(
        "tensor-parallel",
        lambda facts: _above_one("tensor_parallel_size", facts.tensor_parallel_size),
        "one device computes the whole model: use --tensor-parallel-size 1",
    ),
    Guard(
        "pipeline-parallel",
        lambda facts: _above_one("pipeline_parallel_size", facts.pipeline_parallel_size),
        "one device computes the whole model: use --pipeline-parallel-size 1",
    ),
    Guard(
        "context-parallel",
        lambda facts: _above_one("context parallel size", facts.context_parallel_size),
        "one device holds the whole context: leave the context parallel sizes at 1",
    ),
    Guard(
        "lora",
        lambda facts: _given("LoRA is enabled", facts.has_lora),
        "adapters are not implemented: merge the adapter into the model and drop --enable-lora",
    ),
    Guard(
        "quantization",
        _foreign_quantization,
        QUANTIZATION_ADVICE,
    ),
    Guard(
        "kv-cache-dtype",
        lambda facts: _given(
            f"kv_cache_dtype is {facts.kv_cache_dtype!r}",
            facts.kv_cache_dtype not in ("auto", "float32", "float16", "bfloat16"),
        ),
        "keys and values are kept in the compute type: use --kv-cache-dtype auto",
    ),
    Guard(
        "kv-connector",
        lambda facts: _given(
            f"kv connector {facts.kv_connector!r} is set", bool(facts.kv_connector)
        ),
        "keys and values stay on this device: drop --kv-transfer-config",
    ),
    Guard(
        "kv-offloading",
        lambda facts: _given(
            f"kv_offloading_size is {facts.kv_offloading_size}", facts.kv_offloading_size > 0
        ),
        "memory is unified, there is nowhere to offload to: drop --kv-offloading-size",
    ),
    Guard(
        "encoder-connector",
        lambda facts: _given("an encoder cache connector is set", facts.ec_connector),
        "there is no encoder: drop --ec-transfer-config",
    ),
    Guard(
        "sleep-mode",
        lambda facts: _given("sleep mode is enabled", facts.has_sleep_mode),
        "MLX's memory cannot be handed back and restored: drop --enable-sleep-mode and stop the "
        "server instead",
    ),
    Guard(
        "pooling",
        lambda facts: _given(
            f"the runner is {facts.runner_type!r}", facts.runner_type != "generate"
        ),
        "only text generation is implemented: use --runner generate and a causal model",
    ),
    Guard(
        "multimodal",
        lambda facts: _given("the model takes images, audio or video", facts.is_multimodal),
        "only text is implemented: use a text model",
    ),
    Guard(
        "prompt-embeds",
        lambda facts: _given("prompt embeddings are enabled", facts.has_prompt_embeds),
        "prompts are token ids here: drop --enable-prompt-embeds",
    ),
    Guard(
        "logits-processors",
        lambda facts: _given(
            "custom logits processors are set", facts.has_custom_logits_processors
        ),
        "they are torch code and logits are MLX arrays: drop --logits-processors",
    ),
    Guard(
        "hybrid",
        lambda facts: _given("the model has recurrent or mixed layers", facts.is_hybrid),
        "only attention layers of one kind are implemented: use a Qwen3 or Llama model",
    ),
    Guard(
        "mla",
        lambda facts: _given("the model uses latent attention (MLA)", facts.uses_mla),
        "only grouped-query attention is implemented: use a Qwen3 or Llama model",
    ),
    Guard(
        "experts", _experts, "only dense models are implemented: use a dense Qwen3 or Llama model"
    ),
    Guard("model", _unknown_model, "nothing has been loaded"),
    Guard(
        "long-prefill-threshold",
        _narrow_threshold,
        "a request with one token left is granted 1 + K rows and vLLM's scheduler dies when the "
        "threshold is below that: raise --long-prefill-token-threshold or leave it at 0",
    ),
    Guard(
        "load-format",
        lambda facts: _given(
            f"load_format is {facts.load_format!r}", facts.load_format not in READ_LOAD_FORMATS
        ),
        "weights are read from safetensors files: use --load-format auto",
    ),
    Guard(
        "watermark",
        lambda facts: _given("watermarking is configured", facts.has_watermark),
        "it is not implemented: drop the watermark configuration",
    ),
    Guard(
        "additional-config",
        _unknown_options,
        f"the options of this plugin are {', '.join(sorted(OPTIONS))}: correct "
        "--additional-config",
    ),
    Guard(
        "idle-option",
        _idle_option,
        "it would do nothing with that method: leave the option out (a draft model is quantised "
        "beforehand, with mlx_lm.convert -q)",
    ),
)




@dataclass(frozen=True, slots=True)
class DraftGuard:
    """One speculative configuration that is refused; fields as in ``Guard``."""

    name: str
    find: Callable[[SpeculativeFacts], str | None]
    advice: str


METHODS = (*BLOCK_METHODS, "draft_model", "ngram")


def _small_budget(facts: SpeculativeFacts) -> str | None:
    needed = facts.max_num_seqs * (1 + facts.num_drafts)
    if needed <= facts.max_num_batched_tokens:
        return None
    return (
        f"{facts.max_num_seqs} requests that verify {facts.num_drafts} drafts need {needed} rows "
        f"and max_num_batched_tokens is {facts.max_num_batched_tokens}"
    )


def _too_wide(facts: SpeculativeFacts) -> str | None:
    trained = facts.trained_drafts
    if trained is None or 1 <= facts.num_drafts <= trained:
        return None
    return f"num_speculative_tokens is {facts.num_drafts} and the draft was trained for {trained}"


DRAFT_GUARDS: tuple[DraftGuard, ...] = (
    DraftGuard(
        "method",
        lambda facts: _given(
            f"speculative method is {facts.method!r}", facts.method not in METHODS
        ),
        f"the methods here are {', '.join(METHODS)}: use one of them",
    ),
    DraftGuard(
        "draft",
        lambda facts: facts.draft_problem or None,
        "give a DSpark or DFlash checkpoint that was trained for this target, or for method "
        "draft_model a small Qwen3 or Llama model with this target's tokenizer",
    ),
    DraftGuard(
        "top-k",
        lambda facts: facts.top_k_problem or None,
        "correct dspark_draft_topk in --speculative-config",
    ),
    DraftGuard(
        "width",
        _too_wide,
        "a bidirectional block wider than trained is another network: lower "
        "num_speculative_tokens to the trained number",
    ),
    DraftGuard(
        "draft-sampling",
        lambda facts: _given(
            f"draft_sample_method is {facts.draft_sample_method!r}",
            facts.draft_sample_method
            not in (("greedy", "probabilistic") if facts.method in BLOCK_METHODS else ("greedy",)),
        ),
        "drafts are picked (greedy), or drawn (probabilistic) with dspark and dflash: use one of "
        "these",
    ),
    DraftGuard(
        "rejection",
        lambda facts: _given(
            f"rejection_sample_method is {facts.rejection_sample_method!r}",
            facts.rejection_sample_method not in ("standard", "block"),
        ),
        "only verification that keeps the target's distribution is implemented: use "
        "rejection_sample_method standard or block",
    ),
    DraftGuard(
        "draft-quantization",
        lambda facts: _given(
            f"the draft's quantization is {facts.draft_quantization!r}",
            facts.draft_quantization not in ("", MLX_QUANTIZATION),
        ),
        "quantise the draft at load with --additional-config "
        '\'{"dspark_draft_quantization": "q4"}\', or give a draft quantised by mlx',
    ),
    DraftGuard(
        "draft-kv-dtype",
        lambda facts: _given(
            f"the draft's kv_cache_dtype is {facts.draft_kv_cache_dtype!r}",
            facts.draft_kv_cache_dtype != "auto",
        ),
        "draft and target share pages of one precision: leave the draft's kv_cache_dtype out",
    ),
    DraftGuard(
        "token-budget",
        _small_budget,
        "a step must be able to verify every request: raise --max-num-batched-tokens, or lower "
        "--max-num-seqs or num_speculative_tokens",
    ),
)


def broken_guards(
    facts: EngineFacts,
    guards: Sequence[Guard] = GUARDS,
    draft_guards: Sequence[DraftGuard] = DRAFT_GUARDS,
) -> list[tuple[Guard | DraftGuard, str]]:
    """Guards that a configuration breaks, each with what came."""
    found: list[tuple[Guard | DraftGuard, str | None]]
    found = [(guard, guard.find(facts)) for guard in guards]
    if facts.speculative is not None:
        found += [(guard, guard.find(facts.speculative)) for guard in draft_guards]
    return [(guard, what) for guard, what in found if what is not None]


def check_facts(facts: EngineFacts) -> None:
    """Raise UnsupportedError that lists every guard the configuration breaks."""
    broken = broken_guards(facts)
    if broken:
        lines = [f"{what}; {guard.advice}" for guard, what in broken]
        raise UnsupportedError("this configuration is not supported:\n- " + "\n- ".join(lines))
