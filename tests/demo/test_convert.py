"""Weights and config of the demo model's folder."""

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize
from safetensors import safe_open

from vllm_dspark.demo.convert import hf_name, restore_rotary_order
from vllm_dspark.errors import CheckpointError


def test_names_follow_hugging_face() -> None:
    assert hf_name("token_embd.weight") == "model.embed_tokens.weight"
    assert hf_name("blk.12.ffn_down.weight") == "model.layers.12.mlp.down_proj.weight"


@pytest.mark.parametrize("name", ["blk.0.ffn_moe.weight", "rope_freqs.weight", "blk.x.attn_q.bias"])
def test_an_unknown_tensor_is_refused(name: str) -> None:
    with pytest.raises(CheckpointError, match=name):
        hf_name(name)


def test_rotary_halves_are_put_apart_again() -> None:
    # One head of four rows: llama.cpp stores 0 2 1 3 for Hugging Face's 0 1 2 3.
    stored = np.array([[0.0], [2.0], [1.0], [3.0]])
    assert restore_rotary_order(stored, 1).ravel().tolist() == [0, 1, 2, 3]


def test_values_are_the_dequantised_ones(demo_dir: Path, gguf_reader: gguf.GGUFReader) -> None:
    tensors = {tensor.name: tensor for tensor in gguf_reader.tensors}
    with safe_open(demo_dir / "model.safetensors", framework="numpy") as weights:
        assert len(weights.keys()) == len(tensors) == 272
        for name in ("blk.0.attn_v.weight", "blk.29.ffn_down.weight", "output_norm.weight"):
            expected = dequantize(tensors[name].data, tensors[name].tensor_type)
            got = weights.get_tensor(hf_name(name))
            assert got.dtype == np.float32
            assert np.array_equal(got, expected)


def test_config_describes_smollm2(demo_dir: Path) -> None:
    config = json.loads((demo_dir / "config.json").read_text())
    expected = {
        "model_type": "llama",
        "vocab_size": 49152,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "rms_norm_eps": 1e-5,
        "rope_theta": 100000.0,
        "tie_word_embeddings": True,
    }
    assert {key: config[key] for key in expected} == expected
