"""Small draft folders on disk, valid until a test breaks one thing in them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx

from vllm_dspark.checkpoints.draft import parse_draft_config
from vllm_dspark.checkpoints.layout import matrices, norms

Config = dict[str, Any]
Tensors = dict[str, mx.array]

LAYERS: Config = {
    "model_type": "qwen3",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 40,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "attention_bias": False,
    "max_position_embeddings": 256,
    "hidden_act": "silu",
}
MARKOV: Config = {
    "markov_rank": 8,
    "markov_head_type": "vanilla",
    "enable_confidence_head": True,
    "confidence_head_with_markov": True,
}


def deepspec_config(**changes: Any) -> Config:
    """A DeepSpec config.json; a value of ... removes the key."""
    return changed(
        {
            "architectures": ["Qwen3DSparkModel"],
            **LAYERS,
            **MARKOV,
            "num_target_layers": 6,
            "target_layer_ids": [1, 3],
            "block_size": 4,
            "mask_token_id": 3,
            "tie_word_embeddings": False,
            "layer_types": ["full_attention"] * 2,
        },
        changes,
    )


def speculators_config(layers: Config | None = None, **changes: Any) -> Config:
    """A Speculators config.json; ``layers`` changes the nested layer config."""
    return changed(
        {
            "architectures": ["DSparkSpeculator"],
            "speculators_model_type": "dspark",
            **MARKOV,
            "block_size": 4,
            "aux_hidden_state_layer_ids": [2, 4],
            "mask_token_id": 3,
            "draft_vocab_size": 40,
            "sample_from_anchor": True,
            "speculators_config": proposals(4),
            "transformer_layer_config": changed(LAYERS, layers or {}),
        },
        changes,
    )


def zlab_config(**changes: Any) -> Config:
    """A z-lab DFlash config.json."""
    return changed(
        {
            "architectures": ["DFlashDraftModel"],
            **LAYERS,
            "num_target_layers": 6,
            "block_size": 5,
            "tie_word_embeddings": True,
            "dflash_config": {"mask_token_id": 3, "target_layer_ids": [1, 3]},
        },
        changes,
    )


def proposals(num_drafts: int) -> Config:
    """A speculators_config that proposes ``num_drafts`` tokens."""
    method = {"proposal_type": "greedy", "speculative_tokens": num_drafts}
    return {"default_proposal_method": "greedy", "proposal_methods": [method]}


def changed(config: Config, changes: Config) -> Config:
    """The config with keys replaced, or removed where the value is ``...``."""
    merged = {**config, **changes}
    return {key: value for key, value in merged.items() if value is not ...}


def make_tensors(config: Config, *, tables: bool = False, dtype: mx.Dtype = mx.float32) -> Tensors:
    """Random tensors of the right names and shapes; ``tables`` adds embedding and head."""
    parsed = parse_draft_config(config)
    tensors = {name: mx.random.normal((size,)) + 1 for name, size in norms(parsed).items()}
    for prefix, matrix in matrices(parsed).items():
        if matrix.is_optional and not tables:
            continue
        if prefix == "embed_tokens" and not tables:
            continue
        tensors[f"{prefix}.weight"] = mx.random.normal((matrix.rows, matrix.columns)) * 0.1
        if matrix.has_bias:
            tensors[f"{prefix}.bias"] = mx.random.normal((matrix.rows,))
    tensors = {name: array.astype(dtype) for name, array in tensors.items()}
    if parsed.is_reduced_vocab:
        kept = [2 * index for index in range(parsed.draft_vocab_size)]
        tensors["d2t"] = mx.array(kept, dtype=mx.int64) - mx.arange(len(kept))
        tensors["t2d"] = mx.array([index in kept for index in range(parsed.vocab_size)])
    return tensors


def write_folder(folder: Path, config: Config, tensors: Tensors) -> Path:
    """Write one config.json and one model.safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    mx.save_safetensors(str(folder / "model.safetensors"), tensors)
    return folder


def write_shards(folder: Path, config: Config, tensors: Tensors) -> dict[str, str]:
    """Write two shards and their index; returns the index's map."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    weight_map = {}
    for shard in range(2):
        name = f"model-0000{shard + 1}-of-00002.safetensors"
        part = {key: array for i, (key, array) in enumerate(tensors.items()) if i % 2 == shard}
        mx.save_safetensors(str(folder / name), part)
        weight_map.update(dict.fromkeys(part, name))
    write_index(folder, weight_map)
    return weight_map


def write_index(folder: Path, weight_map: dict[str, str]) -> None:
    """Write model.safetensors.index.json."""
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def quantize_tensors(
    tensors: Tensors, *, group_size: int, bits: int, keep: Callable[[str], bool] = lambda _: False
) -> Tensors:
    """Pack every matrix whose inputs divide by the group, as mlx's converters do."""
    packed = {}
    for name, array in tensors.items():
        prefix = name.removesuffix(".weight")
        if array.ndim != 2 or array.shape[1] % group_size or keep(prefix):
            packed[name] = array
            continue
        parts = mx.quantize(array, group_size=group_size, bits=bits)
        packed.update(zip((name, f"{prefix}.scales", f"{prefix}.biases"), parts, strict=True))
    return packed
