"""What a decoder-only target says about itself, independent of the family that said it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vllm_dspark.errors import CheckpointError
from vllm_dspark.types import AttentionShape

ROPE_KEYS = {
    "default": (),
    "linear": ("factor",),
    "llama3": (
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
    ),
    "yarn": ("factor", "original_max_position_embeddings"),
}
"""Rotary scalings that ``nn.rotary`` implements, each with the keys it needs."""

QUANTIZED_BITS = (2, 3, 4, 5, 6, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetConfig:
    """Sizes and switches of a decoder-only transformer.

    Attributes:
        has_qk_norm: queries and keys are RMS-normalised per head before rotation.
        rope_scaling: the config's rope parameters; empty for plain rotary.
        quantization: mlx-lm's ``quantization`` entry (group_size, bits), or None.
    """

    model_type: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: Mapping[str, Any] = field(default_factory=dict)
    has_qk_norm: bool = False
    tie_word_embeddings: bool = False
    max_position_embeddings: int = 2048
    quantization: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise CheckpointError(
                f"num_attention_heads is {self.num_heads} and num_key_value_heads is "
                f"{self.num_kv_heads}; the first must be a multiple of the second: "
                "check the target's config.json"
            )
        if self.head_dim % 2:
            raise CheckpointError(
                f"head_dim is {self.head_dim}; rotary positions need an even number: "
                "check the target's config.json"
            )

    @property
    def attention(self) -> AttentionShape:
        return AttentionShape(self.num_layers, self.num_heads, self.num_kv_heads, self.head_dim)


def common_fields(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Translate the keys that every supported family shares.

    Raises:
        CheckpointError: naming the first key that is missing or asks for something not
            implemented.
    """
    names = {
        "hidden_size": "hidden_size",
        "intermediate_size": "intermediate_size",
        "num_layers": "num_hidden_layers",
        "num_heads": "num_attention_heads",
        "vocab_size": "vocab_size",
        "rms_norm_eps": "rms_norm_eps",
    }
    for key in names.values():
        if key not in raw:
            raise CheckpointError(
                f"config.json has no {key!r}, which a {raw.get('model_type')} target needs: "
                "use a complete Hugging Face or mlx-lm folder"
            )
    fields = {ours: raw[theirs] for ours, theirs in names.items()}
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    _check_rope(rope)
    _check_quantization(raw.get("quantization") or {})
    fields["num_kv_heads"] = raw.get("num_key_value_heads") or raw["num_attention_heads"]
    fields["head_dim"] = raw.get("head_dim") or raw["hidden_size"] // raw["num_attention_heads"]
    fields["rope_theta"] = float(raw.get("rope_theta") or rope.get("rope_theta") or 10000.0)
    fields["rope_scaling"] = rope
    fields["tie_word_embeddings"] = bool(raw.get("tie_word_embeddings", False))
    fields["max_position_embeddings"] = raw.get("max_position_embeddings", 2048)
    fields["quantization"] = raw.get("quantization")
    return fields


def refuse_unless(raw: Mapping[str, Any], key: str, allowed: tuple[Any, ...]) -> None:
    """Raise CheckpointError unless config key is absent or one of the allowed values."""
    if key in raw and raw[key] not in allowed:
        raise CheckpointError(
            f"config.json has {key} = {raw[key]!r}; this build implements "
            f"{' or '.join(map(repr, allowed))}: use another checkpoint"
        )


def _check_rope(rope: Mapping[str, Any]) -> None:
    """Raise CheckpointError for rotary parameters that are not implemented or incomplete."""
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ROPE_KEYS:
        raise CheckpointError(
            f"config.json has rope type {kind!r}; this build implements "
            f"{', '.join(ROPE_KEYS)}: use a checkpoint with one of these"
        )
    missing = [key for key in ROPE_KEYS[kind] if rope.get(key) is None]
    if missing:
        raise CheckpointError(
            f"config.json has rope type {kind!r} without {missing[0]!r}, which it needs: "
            "add it to rope_parameters"
        )
    refuse_unless(rope, "partial_rotary_factor", (1.0, None))


def _check_quantization(entry: Mapping[str, Any]) -> None:
    """Raise CheckpointError unless mlx-lm's quantization entry, if any, is one we can read."""
    refuse_unless(entry, "mode", ("affine",))
    refuse_unless(entry, "bits", QUANTIZED_BITS)
