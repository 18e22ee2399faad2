"""Rotary frequencies equal transformers' for every scaling."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from vllm_dspark.errors import CheckpointError
from vllm_dspark.models.config import ROPE_KEYS
from vllm_dspark.models.registry import read_target_config
from vllm_dspark.nn.rotary import Rotary, make_rotary

THETA = 500000.0
SCALINGS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
    "yarn-mscale": {
        "rope_type": "yarn",
        "factor": 40.0,
        "original_max_position_embeddings": 4096,
        "beta_fast": 16,
        "beta_slow": 2,
        "mscale": 1.0,
        "mscale_all_dim": 0.7,
    },
    "yarn-given": {
        "rope_type": "yarn",
        "factor": 2.0,
        "original_max_position_embeddings": 4096,
        "attention_factor": 1.3,
        "truncate": False,
    },
}


def transformers_tables(
    scaling: dict[str, Any], head_dim: int, positions: list[int]
) -> list[np.ndarray]:
    import torch
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = LlamaConfig(
        hidden_size=4 * head_dim,
        num_attention_heads=4,
        head_dim=head_dim,
        max_position_embeddings=131072,
        rope_parameters={**scaling, "rope_theta": THETA},
    )
    found = LlamaRotaryEmbedding(config)(torch.zeros(1), torch.tensor([positions]))
    return [table[0, :, : head_dim // 2].numpy() for table in found]


@pytest.mark.parametrize("name", sorted(SCALINGS))
@pytest.mark.parametrize("head_dim", [16, 64, 128])
def test_tables_equal_transformers(name: str, head_dim: int) -> None:
    positions = [0, 1, 7, 100, 1000]
    tables = make_rotary(head_dim, THETA, SCALINGS[name]).tables(mx.array(positions))
    expected = transformers_tables(SCALINGS[name], head_dim, positions)
    for ours, theirs in zip(tables, expected, strict=True):
        second_half = np.array(ours[:, 0])[:, head_dim // 2 :]
        assert np.abs(second_half - theirs).max() < 2e-4


def test_rotation_equals_mlx() -> None:
    x = mx.random.normal((1, 3, 5, 16))
    rotary = make_rotary(16, THETA, None)
    tables = rotary.tables(mx.arange(4, 9))
    ours = Rotary.apply(x[0].swapaxes(0, 1), tables)
    theirs = mx.fast.rope(x, 16, traditional=False, base=THETA, scale=1.0, offset=4)
    assert mx.abs(ours - theirs[0].swapaxes(0, 1)).max().item() < 1e-5


CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "vocab_size": 32,
    "rms_norm_eps": 1e-5,
}


def test_unknown_scalings_are_refused_by_the_config_alone() -> None:
    with pytest.raises(CheckpointError, match="'longrope'; this build implements default"):
        read_target_config({**CONFIG, "rope_scaling": {"rope_type": "longrope"}})
    with pytest.raises(CheckpointError, match="'dynamic'"):
        make_rotary(16, THETA, {"type": "dynamic"})


@pytest.mark.parametrize("kind", [kind for kind, keys in ROPE_KEYS.items() if keys])
def test_a_scaling_without_its_keys_is_refused(kind: str) -> None:
    key = ROPE_KEYS[kind][-1]
    scaling = {name: value for name, value in SCALINGS[kind].items() if name != key}
    with pytest.raises(CheckpointError, match=f"without '{key}'"):
        read_target_config({**CONFIG, "rope_scaling": scaling})


def test_partial_rotation_is_refused() -> None:
    scaling = {"rope_type": "default", "partial_rotary_factor": 0.5}
    with pytest.raises(CheckpointError, match="partial_rotary_factor"):
        read_target_config({**CONFIG, "rope_parameters": scaling})
