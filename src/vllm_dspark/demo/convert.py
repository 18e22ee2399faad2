"""A Llama GGUF as a Hugging Face folder whose weights are the dequantised values.

Everything is float32: a narrower type would be another model than the GGUF's.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.quants import dequantize
from safetensors.numpy import save_file

from vllm_dspark.demo.tokenizer import read_vocabulary, write_tokenizer
from vllm_dspark.errors import CheckpointError

WEIGHTS_NAME = "model.safetensors"
TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def convert_gguf(source: Path, directory: Path) -> None:
    """Write config, weights, tokenizer and generation config of a Llama GGUF.

    Args:
        source: a GGUF of architecture ``llama``.
        directory: exists; files in it are overwritten.

    Raises:
        CheckpointError: not a Llama GGUF, or a tensor or tokenizer that is not known.
    """
    reader = gguf.GGUFReader(source)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    if fields["general.architecture"] != "llama":
        raise CheckpointError(
            f"{source.name} has architecture {fields['general.architecture']!r}, can only read "
            "'llama'"
        )
    weights = read_weights(reader, num_heads_of(fields))
    vocabulary = read_vocabulary(fields)
    config = llama_config(fields, is_tied="lm_head.weight" not in weights)
    ids = {
        "bos_token_id": vocabulary.bos_id,
        "eos_token_id": vocabulary.eos_id,
        "pad_token_id": vocabulary.pad_id,
    }
    _write_json(directory / "config.json", config | ids)
    _write_json(directory / "generation_config.json", ids)
    write_tokenizer(vocabulary, directory)
    save_file(weights, directory / WEIGHTS_NAME, metadata={"format": "pt"})
    (directory / WEIGHTS_NAME).chmod(0o644)  # safetensors makes it private


def num_heads_of(fields: Mapping[str, Any]) -> dict[str, int]:
    """Heads of the projections whose rows llama.cpp reorders, by our tensor name's end."""
    return {
        "self_attn.q_proj.weight": fields["llama.attention.head_count"],
        "self_attn.k_proj.weight": fields["llama.attention.head_count_kv"],
    }


def read_weights(reader: gguf.GGUFReader, num_heads: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Dequantise every tensor.

    Args:
        reader: an open GGUF.
        num_heads: see :func:`num_heads_of`.

    Returns:
        Hugging Face name to float32 array, matrices as [out, in].
    """
    weights = {}
    for tensor in reader.tensors:
        name = hf_name(tensor.name)
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        for ending, heads in num_heads.items():
            if name.endswith(ending):
                values = restore_rotary_order(values, heads)
        weights[name] = np.ascontiguousarray(values)
    return weights


def hf_name(name: str) -> str:
    """Translate a tensor's name from GGUF to Hugging Face; CheckpointError if unknown."""
    if name in TOP_NAMES:
        return TOP_NAMES[name]
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", name)
    if match is None or match[2] not in LAYER_NAMES:
        raise CheckpointError(f"the GGUF has a tensor {name!r} that a Llama model does not have")
    return f"model.layers.{match[1]}.{LAYER_NAMES[match[2]]}.weight"


def restore_rotary_order(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """Undo llama.cpp's interleaving of the two rotary halves of each head.

    Args:
        rows: [num_heads * head_dim, in], pairs (i, i + head_dim/2) side by side.
        num_heads: heads of this projection.

    Returns:
        Same shape; first halves before second halves, as Hugging Face rotates them.
    """
    out, width = rows.shape
    pairs = rows.reshape(num_heads, out // num_heads // 2, 2, width)
    return pairs.swapaxes(1, 2).reshape(out, width)


def llama_config(fields: Mapping[str, Any], *, is_tied: bool) -> dict[str, Any]:
    """Write down what ``config.json`` says about a Llama model, without token ids."""
    num_heads = fields["llama.attention.head_count"]
    hidden_size = fields["llama.embedding_length"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "vocab_size": fields["llama.vocab_size"],
        "hidden_size": hidden_size,
        "intermediate_size": fields["llama.feed_forward_length"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_attention_heads": num_heads,
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "head_dim": hidden_size // num_heads,
        "max_position_embeddings": fields["llama.context_length"],
        "rope_theta": fields["llama.rope.freq_base"],
        "rope_scaling": None,
        # GGUF holds it in float32; the shortest decimal is what the model's authors wrote.
        "rms_norm_eps": float(str(np.float32(fields["llama.attention.layer_norm_rms_epsilon"]))),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": is_tied,
        "torch_dtype": "float32",
    }


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")
