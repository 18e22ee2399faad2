"""The part of a draft's config.json that every format shares: its Qwen3-style layers."""

from collections.abc import Mapping
from typing import Any

from vllm_dspark.checkpoints.fields import Fields
from vllm_dspark.drafter.config import LayerView, Quantization
from vllm_dspark.errors import CheckpointError, UnsupportedError

ROPE_KEYS = ("rope_parameters", "rope_scaling")
QWEN3_MAX_WINDOW_LAYERS = 28  # default of transformers' Qwen3Config


def layer_sizes(fields: Fields) -> dict[str, Any]:
    """Sizes, norm, rope of the draft layers, as DraftConfig's keyword arguments.

    Raises:
        CheckpointError: a key is missing or has a wrong type.
        UnsupportedError: the layers are not Qwen3's.
    """
    _check_family(fields)
    hidden_size = fields.integer("hidden_size")
    num_heads = fields.integer("num_attention_heads")
    theta, scaling = _rope(fields)
    return {
        "hidden_size": hidden_size,
        "intermediate_size": fields.integer("intermediate_size"),
        "num_layers": fields.integer("num_hidden_layers"),
        "num_heads": num_heads,
        "num_kv_heads": fields.integer("num_key_value_heads", num_heads),
        "head_dim": fields.integer("head_dim", hidden_size // max(num_heads, 1)),
        "vocab_size": fields.integer("vocab_size"),
        "rms_norm_eps": fields.number("rms_norm_eps", 1e-6),
        "rope_theta": theta,
        "rope_scaling": scaling,
        "attention_bias": fields.flag("attention_bias", False),
        "max_position_embeddings": fields.integer("max_position_embeddings", 32768),
    }


def _check_family(fields: Fields) -> None:
    model_type = fields.text("model_type", "qwen3")
    if model_type != "qwen3":
        raise UnsupportedError(
            f"the draft's model_type is {model_type!r}; only drafts with Qwen3-style layers "
            "('qwen3') are implemented: use such a draft"
        )
    activation = fields.text("hidden_act", "silu")
    if activation != "silu":
        raise UnsupportedError(f"the draft's hidden_act is {activation!r}; only 'silu' is possible")
    partial = fields.number("partial_rotary_factor", 1.0)
    if partial != 1.0 or not fields.flag("rope_is_neox_style", True):
        raise UnsupportedError(
            "the draft rotates only part of a head, or interleaved pairs; only the whole head "
            "in split halves is implemented: use another draft"
        )


def _rope(fields: Fields) -> tuple[float, Mapping[str, Any] | None]:
    """Theta and scaling, from the old keys, the new key, or both when they agree."""
    thetas = {fields.number("rope_theta")} if "rope_theta" in fields else set()
    scalings: list[dict[str, Any]] = []
    for key in ROPE_KEYS:
        given = fields.any(key, {})
        if not isinstance(given, dict):
            raise CheckpointError(f"the draft's {key} is {given!r}, expected an object")
        rope = Fields(given, f"config.json: {key}")
        if "rope_theta" in rope:
            thetas.add(rope.number("rope_theta"))
        if rope.number("partial_rotary_factor", 1.0) != 1.0:
            raise UnsupportedError(f"the draft's {key} rotates only part of a head")
        if rope.text("rope_type", rope.text("type", "default")) != "default":
            scalings.append(given)
    if len(thetas) > 1 or (len(scalings) > 1 and scalings[0] != scalings[1]):
        raise CheckpointError(
            f"the draft's rope_theta, rope_parameters and rope_scaling disagree (theta "
            f"{sorted(thetas)}); keep the one it was trained with"
        )
    if not thetas:
        raise CheckpointError("the draft's config.json has no 'rope_theta'; add the target's")
    return thetas.pop(), (scalings[0] if scalings else None)


def layer_views(
    fields: Fields, num_layers: int, *, is_causal: bool | None, sliding_is_causal: bool = True
) -> tuple[LayerView, ...]:
    """What each layer sees.

    Args:
        fields: where ``layer_types`` and ``sliding_window`` are.
        num_layers: of the draft.
        is_causal: an explicit rule for all layers, or None.
        sliding_is_causal: the rule for sliding layers without an explicit one.

    Raises:
        CheckpointError: layer types, window and ``use_sliding_window`` contradict each other.
    """
    window = fields.integer("sliding_window", None)
    types = fields.items("layer_types", str, None)
    uses_window = fields.flag("use_sliding_window", None)
    if types is None:
        types = _default_types(fields, num_layers, bool(uses_window) and window is not None)
    views = []
    for kind in types:
        if kind not in ("full_attention", "sliding_attention"):
            raise UnsupportedError(
                f"the draft has a layer of type {kind!r}; only full_attention and "
                "sliding_attention are implemented"
            )
        is_sliding = kind == "sliding_attention"
        if is_sliding and (window is None or uses_window is False):
            raise CheckpointError(
                f"layer_types has sliding layers, but sliding_window is {window} and "
                f"use_sliding_window is {uses_window}; give the window the draft was trained with"
            )
        causal = is_causal if is_causal is not None else is_sliding and sliding_is_causal
        views.append(LayerView(window if is_sliding else None, causal))
    return tuple(views)


def _default_types(fields: Fields, num_layers: int, uses_window: bool) -> tuple[str, ...]:
    """Transformers' Qwen3 rule for configs that do not list their layer types."""
    first = fields.integer("max_window_layers", QWEN3_MAX_WINDOW_LAYERS)
    return tuple(
        "sliding_attention" if uses_window and index >= first else "full_attention"
        for index in range(num_layers)
    )


def heads(fields: Fields, *, markov: bool, defaults: bool) -> dict[str, Any]:
    """Markov and confidence heads, as DraftConfig's keyword arguments.

    Args:
        fields: where the head keys are.
        markov: whether this kind of draft has a Markov head unless it says otherwise.
        defaults: whether absent keys have Speculators' defaults; otherwise they are required
            as soon as they matter.
    """
    rank = fields.integer("markov_rank", 256 if defaults else 0) if markov else 0
    kind = "none"
    if rank:
        kind = fields.text("markov_head_type", *(("vanilla",) if defaults else ()))
    confidence = "none"
    if fields.flag("enable_confidence_head", defaults) if markov else False:
        reads_markov = fields.flag(
            "confidence_head_with_markov", *((True,) if defaults or not rank else ())
        )
        confidence = "hidden+markov" if reads_markov and rank else "hidden"
    return {"markov_rank": rank, "markov_kind": kind, "confidence_kind": confidence}


def stored_quantization(
    fields: Fields,
) -> tuple[Quantization | None, dict[str, Quantization | None] | None]:
    """How a draft converted by MLX's tools is stored: the default, and what differs from it.

    Raises:
        UnsupportedError: another tool's quantisation, or a mode other than affine.
    """
    raw = fields.any("quantization", None)
    other = fields.any("quantization_config", None)
    if raw is None and isinstance(other, dict) and "quant_method" not in other:
        raw = other  # mlx-lm writes the same object under both keys
    if raw is None:
        if other is not None:
            raise UnsupportedError(
                "the draft has a quantization_config of another tool; use a dense draft, or one "
                "quantised with mlx"
            )
        return None, None
    default = _quantization(raw)
    overrides: dict[str, Quantization | None] = {}
    for key, value in raw.items():
        if isinstance(value, dict):
            overrides[key] = _quantization({**raw, **value})
        elif value is False:
            overrides[key] = None
    return default, overrides or None


def _quantization(raw: Any) -> Quantization:
    if not isinstance(raw, dict):
        raise CheckpointError(f"the draft's quantization is {raw!r}, expected an object")
    fields = Fields(raw, "config.json: quantization")
    mode = fields.text("mode", "affine")
    if mode != "affine":
        raise UnsupportedError(f"the draft's quantization mode is {mode!r}; use 'affine'")
    return Quantization(fields.integer("group_size"), fields.integer("bits"))
