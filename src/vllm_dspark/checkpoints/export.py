"""A drafter -> a checkpoint folder in DeepSpec's or Speculators' layout."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx

from vllm_dspark.drafter.config import DraftConfig
from vllm_dspark.drafter.drafter import Drafter
from vllm_dspark.errors import CheckpointError, SettingsError
from vllm_dspark.nn.linear import Linear

LAYOUTS = ("deepspec", "speculators")


def split_for_export(drafter: Drafter) -> dict[str, mx.array]:
    """Return the drafter's tensors under checkpoint names: q, k, v, gate and up apart.

    Both layouts use these names. Tables that are shared with the target are not there.

    Raises:
        CheckpointError: the drafter is quantised.
    """
    config, tensors = drafter.config, dict[str, mx.array]()
    q_size = config.num_heads * config.head_dim
    kv_size = config.num_kv_heads * config.head_dim
    sizes = {
        "self_attn.qkv_proj": (("q", q_size), ("k", kv_size), ("v", kv_size)),
        "mlp.gate_up_proj": (
            ("gate", config.intermediate_size), ("up", config.intermediate_size),
        ),
    }  # fmt: skip
    backbone = drafter.backbone
    for index, layer in enumerate(backbone.layers):
        prefix = f"layers.{index}"
        fused = {
            "self_attn.qkv_proj": layer.self_attn.qkv_proj,
            "mlp.gate_up_proj": layer.mlp.gate_up_proj,
        }
        for name, whole in fused.items():
            start = 0
            for part, size in sizes[name]:
                piece = f"{prefix}.{name.split('.')[0]}.{part}_proj"
                _put(tensors, piece, whole.rows(start, start + size))
                start += size
        _put(tensors, f"{prefix}.self_attn.o_proj", layer.self_attn.o_proj)
        _put(tensors, f"{prefix}.mlp.down_proj", layer.mlp.down_proj)
        tensors[f"{prefix}.self_attn.q_norm.weight"] = layer.self_attn.q_norm.weight
        tensors[f"{prefix}.self_attn.k_norm.weight"] = layer.self_attn.k_norm.weight
        tensors[f"{prefix}.input_layernorm.weight"] = layer.input_layernorm.weight
        tensors[f"{prefix}.post_attention_layernorm.weight"] = layer.post_attention_layernorm.weight
    _put(tensors, "fc", backbone.fc)
    tensors["hidden_norm.weight"] = backbone.hidden_norm.weight
    tensors["norm.weight"] = backbone.norm.weight
    _put_heads(tensors, drafter)
    return tensors


def _put(tensors: dict[str, mx.array], prefix: str, layer: Linear) -> None:
    if layer.is_quantized:
        raise CheckpointError(f"{prefix} is quantised; export the drafter before it is converted")
    tensors[f"{prefix}.weight"] = layer.weight
    if "bias" in layer:
        tensors[f"{prefix}.bias"] = layer.bias


def _put_heads(tensors: dict[str, mx.array], drafter: Drafter) -> None:
    head = drafter.markov_head
    if head is not None:
        names = ("markov_w1", "markov_w2", "gate_proj", "joint_proj")
        for name in names:
            if name in head:
                _put(tensors, f"markov_head.{name}", head[name])
    if drafter.confidence_head is not None:
        _put(tensors, "confidence_head.proj", drafter.confidence_head.proj)
    if drafter.embed_tokens is not None:
        _put(tensors, "embed_tokens", drafter.embed_tokens)
    if drafter.lm_head is not None:
        _put(tensors, "lm_head", drafter.lm_head)
    if drafter.draft_to_target is not None:
        offsets = drafter.draft_to_target.astype(mx.int64)
        targets = offsets + mx.arange(offsets.shape[0])
        tensors["d2t"] = offsets
        ids = mx.arange(drafter.config.vocab_size)
        tensors["t2d"] = (ids[:, None] == targets).any(axis=1)


def export_config(config: DraftConfig, layout: str, *, dtype: str) -> dict[str, Any]:
    """Write a config as config.json content.

    Args:
        layout: ``deepspec`` or ``speculators``.
        dtype: name of the stored weights' type, e.g. ``bfloat16``.

    Raises:
        SettingsError: unknown layout, or a draft that DeepSpec's layout cannot describe.
    """
    if layout not in LAYOUTS:
        raise SettingsError(f"layout is {layout!r}, must be one of {list(LAYOUTS)}")
    heads = {"markov_rank": config.markov_rank}
    if config.markov_rank:
        heads["markov_head_type"] = config.markov_kind
    heads["enable_confidence_head"] = config.confidence_kind != "none"
    if config.confidence_kind != "none":
        heads["confidence_head_with_markov"] = config.confidence_kind == "hidden+markov"
    if config.top_k is not None:
        heads["dspark_draft_topk"] = config.top_k
    if config.confidence_temperatures:
        heads["confidence_temperatures"] = list(config.confidence_temperatures)
    shared = {"block_size": config.num_slots, "mask_token_id": config.mask_token_id, **heads}
    if layout == "deepspec":
        return _deepspec(config, shared, dtype)
    return _speculators(config, shared, dtype)


def _layer_keys(config: DraftConfig) -> dict[str, Any]:
    windows = {view.window for view in config.layers} - {None}
    if len(windows) > 1:
        raise SettingsError(f"layers with different windows {sorted(windows)} cannot be exported")
    keys: dict[str, Any] = {
        "model_type": "qwen3",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "rms_norm_eps": config.rms_norm_eps,
        "attention_bias": config.attention_bias,
        "max_position_embeddings": config.max_position_embeddings,
        "hidden_act": "silu",
        "layer_types": [
            "full_attention" if view.window is None else "sliding_attention"
            for view in config.layers
        ],
        "sliding_window": windows.pop() if windows else None,
    }
    keys["use_sliding_window"] = keys["sliding_window"] is not None
    scaling = dict(config.rope_scaling or {"rope_type": "default"})
    keys["rope_parameters"] = {**scaling, "rope_theta": config.rope_theta}
    return keys


def _deepspec(config: DraftConfig, shared: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    views = {view.is_causal or view.window is not None for view in config.layers}
    if not config.predicts_from_anchor or config.is_reduced_vocab or True in views:
        raise SettingsError(
            "DeepSpec's layout has no fill-in slots, reduced vocabularies, windows or causal "
            "layers; export this draft in the speculators layout"
        )
    return {
        "architectures": ["Qwen3DSparkModel"],
        **_layer_keys(config),
        "num_target_layers": config.num_target_layers,
        "target_layer_ids": _deepspec_ids(config),
        "tie_word_embeddings": False,
        **shared,
        "dtype": dtype,
    }


def _deepspec_ids(config: DraftConfig) -> list[int]:
    """Taps as layer outputs; the last layer's id means the state after the final norm."""
    depth = config.num_target_layers
    if depth is None or depth in config.tap_states:
        raise SettingsError(
            "DeepSpec's layout needs num_target_layers, and cannot tap the last layer before the "
            f"final norm (state {depth}); set it, or export in the speculators layout"
        )
    return [depth - 1 if state == depth + 1 else state - 1 for state in config.tap_states]


def _speculators(config: DraftConfig, shared: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    sliding = {view.is_causal for view in config.layers if view.window is not None}
    full = {view.is_causal for view in config.layers if view.window is None}
    depth = config.num_target_layers
    if True in full or len(sliding) > 1 or (depth and config.tap_states[-1] > depth):
        raise SettingsError(
            "the speculators layout has no causal full layers, no mixed sliding layers and no tap "
            "after the final norm; this draft cannot be exported in it"
        )
    num_drafts = config.num_drafts
    method = {"proposal_type": "greedy", "speculative_tokens": num_drafts}
    return {
        "architectures": ["DSparkSpeculator"],
        "speculators_model_type": "dspark",
        "aux_hidden_state_layer_ids": list(config.tap_states),
        "draft_vocab_size": config.draft_vocab_size,
        "target_hidden_size": config.target_hidden_size,
        "sample_from_anchor": config.predicts_from_anchor,
        "sliding_window_non_causal": sliding == {False},
        "tie_word_embeddings": False,
        **shared,
        "speculators_config": {
            "algorithm": "dspark",
            "default_proposal_method": "greedy",
            "proposal_methods": [method],
            "verifier": {"name_or_path": None, "architectures": []},
        },
        "transformer_layer_config": _layer_keys(config),
        "dtype": dtype,
    }


def export_drafter(
    folder: str | Path, drafter: Drafter, *, layout: str, dtype: mx.Dtype = mx.bfloat16
) -> None:
    """Write a checkpoint folder that :func:`load_drafter` reads back.

    Args:
        folder: made if needed; config.json and model.safetensors in it are replaced.
        layout: ``deepspec`` or ``speculators``.
        dtype: of the stored float weights.

    Raises:
        SettingsError, CheckpointError: the drafter cannot be written in that layout.
    """
    name = str(dtype).rpartition(".")[2]
    config = export_config(drafter.config, layout, dtype=name)
    tensors = {
        key: array.astype(dtype) if mx.issubdtype(array.dtype, mx.floating) else array
        for key, array in split_for_export(drafter).items()
    }
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    mx.save_safetensors(str(folder / "model.safetensors"), tensors, metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
