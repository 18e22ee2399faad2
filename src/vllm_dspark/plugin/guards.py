"""What this build refuses at start-up, as a list of records."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vllm_dspark.errors import CheckpointError, UnsupportedError
from vllm_dspark.models.registry import read_target_config
from vllm_dspark.plugin.facts import EngineFacts

READ_LOAD_FORMATS = ("auto", "safetensors", "hf", "dummy")
MLX_QUANTIZATION = "mlx"


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
        "this build reads unquantised and mlx-lm 4- and 8-bit folders: convert it with "
        "mlx_lm.convert -q",
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
        lambda facts: _given(f"kv connector {facts.kv_connector!r} is set", bool(facts.kv_connector)),
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
        lambda facts: _given(f"the runner is {facts.runner_type!r}", facts.runner_type != "generate"),
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
        "speculative-method",
        lambda facts: _given(
            f"speculative method is {facts.speculative_method!r}", bool(facts.speculative_method)
        ),
        "drafting is not part of this release: drop --speculative-config",
    ),
)


def broken_guards(facts: EngineFacts, guards: Sequence[Guard] = GUARDS) -> list[tuple[Guard, str]]:
    """Guards that a configuration breaks, each with what came."""
    found = ((guard, guard.find(facts)) for guard in guards)
    return [(guard, what) for guard, what in found if what is not None]


def check_facts(facts: EngineFacts, guards: Sequence[Guard] = GUARDS) -> None:
    """Raise UnsupportedError that lists every guard the configuration breaks."""
    broken = broken_guards(facts, guards)
    if broken:
        lines = [f"{what}; {guard.advice}" for guard, what in broken]
        raise UnsupportedError("this configuration is not supported:\n- " + "\n- ".join(lines))
