"""Small networks on disk for tests that need another draft than the recorded sets have."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx

CONFORMANCE = Path(__file__).parent / "conformance"
TARGET = CONFORMANCE / "target"
VOCAB_SIZE = 512

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "head_dim": 32,
    "vocab_size": VOCAB_SIZE,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
    "bos_token_id": None,
    "eos_token_id": 2,
}


def write_folder(folder: Path, config: dict[str, Any], tensors: dict[str, mx.array]) -> Path:
    """Write config.json and model.safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    mx.save_safetensors(str(folder / "model.safetensors"), tensors, metadata={"format": "pt"})
    return folder


def write_llama(folder: Path, **changes: Any) -> Path:
    """Write a random Llama whose heads differ from the tiny target's in number and size."""
    config = {**LLAMA, **changes}
    hidden, inner, size = (config[key] for key in ("hidden_size", "intermediate_size", "head_dim"))
    q_size, kv_size = (config[key] * size for key in ("num_attention_heads", "num_key_value_heads"))
    shapes = {"model.embed_tokens": (config["vocab_size"], hidden)}
    for index in range(config["num_hidden_layers"]):
        layer = f"model.layers.{index}"
        shapes |= {
            f"{layer}.self_attn.q_proj": (q_size, hidden),
            f"{layer}.self_attn.k_proj": (kv_size, hidden),
            f"{layer}.self_attn.v_proj": (kv_size, hidden),
            f"{layer}.self_attn.o_proj": (hidden, q_size),
            f"{layer}.mlp.gate_proj": (inner, hidden),
            f"{layer}.mlp.up_proj": (inner, hidden),
            f"{layer}.mlp.down_proj": (hidden, inner),
        }
    keys = mx.random.split(mx.random.key(1), len(shapes))
    tensors = {
        f"{name}.weight": mx.random.normal(shape, key=key) * 0.3
        for (name, shape), key in zip(shapes.items(), keys, strict=True)
    }
    norms = ["model.norm"]
    for index in range(config["num_hidden_layers"]):
        layer = f"model.layers.{index}"
        norms += [f"{layer}.input_layernorm", f"{layer}.post_attention_layernorm"]
    tensors |= {f"{name}.weight": mx.ones((hidden,)) for name in norms}
    return write_folder(folder, config, tensors)


def write_dflash(folder: Path, packaging: str) -> Path:
    """Write the backbone of a recorded Speculators draft as a DFlash draft, without its heads.

    Args:
        packaging: ``zlab`` or ``speculators``, which fill in; ``speculators-anchor`` predicts
            from the anchor.
    """
    is_anchor = packaging.endswith("anchor")
    name = "speculators-anchor-k5" if is_anchor else "speculators-fillin-sliding-k5"
    source = CONFORMANCE / name / "draft"
    config = json.loads((source / "config.json").read_text())
    tensors = {
        key: array
        for key, array in mx.load(str(source / "model.safetensors")).items()
        if not key.startswith(("markov_head.", "confidence_head."))
    }
    config = {key: value for key, value in config.items() if "markov" not in key}
    del config["enable_confidence_head"]
    config["architectures"] = ["DFlashDraftModel"]
    config["speculators_model_type"] = "dflash"
    config["speculators_config"]["algorithm"] = "dflash"
    if packaging == "zlab":
        config = {
            **config["transformer_layer_config"],
            "architectures": ["DFlashDraftModel"],
            "block_size": config["block_size"],
            "num_target_layers": 6,
            "tie_word_embeddings": True,
            "dflash_config": {
                "mask_token_id": config["mask_token_id"],
                "target_layer_ids": [tap - 1 for tap in config["aux_hidden_state_layer_ids"]],
            },
        }
    return write_folder(folder, config, tensors)
