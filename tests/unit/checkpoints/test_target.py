"""Targets in every form load and compute what mlx_lm computes."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from vllm_dspark.checkpoints.target import load_target
from vllm_dspark.errors import CheckpointError

TARGET = Path(__file__).parents[2] / "conformance" / "target"
TOLERANCE = 1e-3
IDS = [55, 75, 72, 310, 68, 87, 306, 68, 87, 224, 300, 426]


def attend_causally(_layer: int, q: mx.array, k: mx.array, v: mx.array) -> mx.array:
    """Attention without a cache: q [N, heads, D], k and v [N, kv heads, D] -> [N, heads, D]."""
    rows = [x.swapaxes(0, 1)[None] for x in (q, k, v)]
    mixed = mx.fast.scaled_dot_product_attention(*rows, scale=q.shape[-1] ** -0.5, mask="causal")
    return mixed[0].swapaxes(0, 1)


def own_logits(folder: Path, ids: list[int]) -> np.ndarray:
    _, model = load_target(folder, mx.float32)
    seen = model.forward(mx.array(ids), mx.arange(len(ids)), attend_causally)
    return np.array(model.unembed(seen.hidden))


def mlx_lm_logits(folder: Path, ids: list[int]) -> np.ndarray:
    import mlx_lm

    model, _ = mlx_lm.load(str(folder))
    return np.array(model(mx.array([ids]))[0].astype(mx.float32))


def assert_equal_logits(folder: Path, ids: list[int] = IDS) -> None:
    ours, theirs = own_logits(folder, ids), mlx_lm_logits(folder, ids)
    assert np.abs(ours - theirs).max() < TOLERANCE
    assert np.array_equal(ours.argmax(axis=1), theirs.argmax(axis=1))


def convert(source: Path, folder: Path, **options: Any) -> Path:
    from mlx_lm import convert as mlx_convert

    mlx_convert(str(source), str(folder), dtype="float32", **options)
    return folder


@pytest.mark.parametrize("bits", [4, 8])
def test_mlx_lm_folders_of_the_tiny_target(tmp_path: Path, bits: int) -> None:
    folder = convert(TARGET, tmp_path / "q", quantize=True, q_bits=bits, q_group_size=32)
    assert_equal_logits(folder)


@pytest.mark.slow
@pytest.mark.parametrize("bits", [4, 8])
def test_mlx_lm_folders_of_the_demo_model(demo_dir: Path, tmp_path: Path, bits: int) -> None:
    folder = convert(demo_dir, tmp_path / "q", quantize=True, q_bits=bits, q_group_size=64)
    assert_equal_logits(folder, [1, 504, 2365, 314, 260, 338])


def test_settings_may_differ_between_layers_that_stand_apart(tmp_path: Path) -> None:
    def recipe(path: str, _module: Any) -> Any:
        return {"group_size": 32, "bits": 8 if "down_proj" in path else 4, "mode": "affine"}

    folder = convert(TARGET, tmp_path / "q", quantize=True, q_group_size=32, quant_predicate=recipe)
    assert_equal_logits(folder)


def test_settings_that_differ_inside_one_product_are_refused(tmp_path: Path) -> None:
    def recipe(path: str, _module: Any) -> Any:
        return {"group_size": 32, "bits": 8 if "v_proj" in path else 4, "mode": "affine"}

    folder = convert(TARGET, tmp_path / "q", quantize=True, q_group_size=32, quant_predicate=recipe)
    with pytest.raises(CheckpointError, match="one setting for all layers"):
        load_target(folder, mx.float32)


def test_layers_left_unquantised_are_equal(tmp_path: Path) -> None:
    def only_mlp(path: str, _module: Any) -> bool:
        return "mlp" in path

    folder = convert(
        TARGET, tmp_path / "q", quantize=True, q_group_size=32, quant_predicate=only_mlp
    )
    assert_equal_logits(folder)


SMALL = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 500,
    "max_position_embeddings": 128,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama, own head": ("Llama", {"tie_word_embeddings": False}),
    "llama, tied head": ("Llama", {"tie_word_embeddings": True}),
    "llama, biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, llama3 rope": ("Llama", {"rope_parameters": LLAMA3}),
    "llama, yarn rope": ("Llama", {"rope_parameters": YARN}),
    "llama, one key head": ("Llama", {"num_key_value_heads": 1}),
    "qwen3, own head": ("Qwen3", {"tie_word_embeddings": False}),
    "qwen3, tied head": ("Qwen3", {"tie_word_embeddings": True}),
    "qwen3, biases": ("Qwen3", {"attention_bias": True}),
    "qwen3, wide heads": ("Qwen3", {"head_dim": 32}),
}


def write_random(folder: Path, family: str, changes: dict[str, Any]) -> Any:
    """Save a random transformers model, biases included, and return it."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**{**SMALL, **changes})
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            spread = 0.2 if name.endswith("bias") or "norm" in name else 0.3
            parameter.add_(torch.randn_like(parameter) * spread)
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_every_variant_equals_transformers(tmp_path: Path, name: str) -> None:
    import torch

    family, changes = VARIANTS[name]
    model = write_random(tmp_path, family, changes)
    ids = list(range(3, 43))
    with torch.no_grad():
        expected = model(torch.tensor([ids])).logits[0].numpy()
    ours = own_logits(tmp_path, ids)
    assert np.abs(ours - expected).max() < TOLERANCE * max(1.0, np.abs(expected).max() / 20)


def test_a_leftover_tensor_is_named(tmp_path: Path) -> None:
    write_random(tmp_path, "Llama", {"attention_bias": True})
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "num_hidden_layers": 1}))
    with pytest.raises(
        CheckpointError, match=r"tensors that a llama model does not have.*layers.1"
    ):
        load_target(tmp_path, mx.float32)


def test_a_wrong_shape_is_told_with_both_numbers(tmp_path: Path) -> None:
    write_random(tmp_path, "Llama", {})
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "intermediate_size": 64}))
    with pytest.raises(CheckpointError, match=r"has shape \(48, 32\), config.json asks for \(64"):
        load_target(tmp_path, mx.float32)
