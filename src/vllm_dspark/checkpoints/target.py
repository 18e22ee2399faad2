"""A Hugging Face or mlx-lm folder -> a finished target network."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx

from vllm_dspark.errors import CheckpointError
from vllm_dspark.models.config import TargetConfig
from vllm_dspark.models.decoder import Attention, Decoder, DecoderLayer
from vllm_dspark.models.registry import read_target_config
from vllm_dspark.nn.linear import Embedding, Linear, joined
from vllm_dspark.nn.mlp import GatedMLP
from vllm_dspark.nn.norm import RMSNorm
from vllm_dspark.nn.rotary import make_rotary
from vllm_dspark.ops import cpu

IGNORED_SUFFIXES = ("rotary_emb.inv_freq",)


def read_config_json(folder: Path) -> dict[str, Any]:
    """Read folder/config.json.

    Raises:
        CheckpointError: when the folder or the file is missing, or is not JSON.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise CheckpointError(
            f"{folder} has no config.json; give a local Hugging Face or mlx-lm model folder"
        )
    try:
        return json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise CheckpointError(f"{path} is not JSON ({error}); download it again") from error


def read_target(folder: Path) -> TargetConfig:
    """Read what a target says about itself; no weights are touched."""
    return read_target_config(read_config_json(folder))


def check_causal_draft(draft: TargetConfig, target: TargetConfig) -> None:
    """Refuse a causal draft model whose token ids are not the target's.

    Raises:
        CheckpointError: the vocabularies differ in size.
    """
    if draft.vocab_size != target.vocab_size:
        raise CheckpointError(
            f"the vocabulary is {draft.vocab_size} in the draft model and {target.vocab_size} in "
            "the target; use a draft model with the target's tokenizer"
        )


def read_tensors(folder: Path) -> dict[str, mx.array]:
    """Open every tensor of a folder's safetensors files; data is read on first use.

    Raises:
        CheckpointError: when there is no such file, or a shard of the index is missing.
    """
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    else:
        names = sorted(path.name for path in folder.glob("model*.safetensors"))
    if not names:
        raise CheckpointError(
            f"{folder} has no model.safetensors; give a folder with safetensors weights"
        )
    tensors: dict[str, mx.array] = {}
    for name in names:
        if not (folder / name).is_file():
            raise CheckpointError(f"{folder} lacks the shard {name}; download it again")
        tensors.update(mx.load(str(folder / name)))
    return tensors


class TensorBag:
    """Tensors by name, each handed out once, in the compute type.

    Args:
        tensors: name -> array.
        dtype: type that float tensors are cast to.
        quantization: mlx-lm's entry, with optional per-layer overrides by name.
    """

    def __init__(
        self,
        tensors: Mapping[str, mx.array],
        *,
        dtype: mx.Dtype,
        quantization: Mapping[str, Any] | None,
    ) -> None:
        self._left = dict(tensors)
        self._dtype = dtype
        self._quantization = quantization or {}

    def __contains__(self, name: str) -> bool:
        return name in self._left

    @property
    def names(self) -> list[str]:
        """Names not handed out yet."""
        return sorted(self._left)

    def take(self, name: str, shape: tuple[int, ...] | None = None) -> mx.array:
        """Remove and return one tensor; None as shape accepts any.

        Raises:
            CheckpointError: when it is missing or has another shape.
        """
        if name not in self._left:
            raise CheckpointError(f"the target's weights lack {name}; download them again")
        tensor = self._left.pop(name)
        if shape is not None and tensor.shape != shape:
            raise CheckpointError(
                f"{name} has shape {tensor.shape}, config.json asks for {shape}; "
                "weights and config.json do not belong together"
            )
        return tensor if tensor.dtype == mx.uint32 else tensor.astype(self._dtype)

    def linear(self, name: str, num_out: int, num_in: int, kind: type[Linear] = Linear) -> Linear:
        """Remove the tensors of one linear layer or embedding and build it."""
        if f"{name}.scales" not in self._left:
            bias = self.take(f"{name}.bias", (num_out,)) if f"{name}.bias" in self._left else None
            return kind(self.take(f"{name}.weight", (num_out, num_in)), bias)
        entry = self._quantization.get(name)
        settings = {**self._quantization, **(entry if isinstance(entry, Mapping) else {})}
        bits, group_size = settings.get("bits", 4), settings.get("group_size", 64)
        if settings.get("mode", "affine") != "affine":
            raise CheckpointError(
                f"{name} is quantised in mode {settings['mode']!r}; this build reads affine: "
                "convert the model with mlx_lm.convert --q-mode affine"
            )
        groups = (num_out, num_in // group_size)
        bias = self.take(f"{name}.bias", (num_out,)) if f"{name}.bias" in self._left else None
        return kind(
            self.take(f"{name}.weight", (num_out, num_in * bits // 32)),
            bias,
            scales=self.take(f"{name}.scales", groups),
            biases=self.take(f"{name}.biases", groups),
            group_size=group_size,
            bits=bits,
        )


def build_layer(bag: TensorBag, config: TargetConfig, index: int) -> DecoderLayer:
    """Build decoder layer ``index`` from its tensors."""
    prefix = f"model.layers.{index}"
    hidden, inner, eps = config.hidden_size, config.intermediate_size, config.rms_norm_eps
    q_size = config.num_heads * config.head_dim
    kv_size = config.num_kv_heads * config.head_dim

    def linear(name: str, num_out: int, num_in: int) -> Linear:
        return bag.linear(f"{prefix}.{name}", num_out, num_in)

    def norm(name: str, size: int) -> RMSNorm:
        return RMSNorm(bag.take(f"{prefix}.{name}.weight", (size,)), eps)

    qkv = joined(
        [
            linear("self_attn.q_proj", q_size, hidden),
            linear("self_attn.k_proj", kv_size, hidden),
            linear("self_attn.v_proj", kv_size, hidden),
        ]
    )
    head_norms = {}
    if config.has_qk_norm:
        head_norms = {
            name: norm(f"self_attn.{name}", config.head_dim) for name in ("q_norm", "k_norm")
        }
    gate_up = joined(
        [linear("mlp.gate_proj", inner, hidden), linear("mlp.up_proj", inner, hidden)]
    )
    return DecoderLayer(
        Attention(
            qkv, linear("self_attn.o_proj", hidden, q_size), config.attention, **head_norms
        ),
        GatedMLP(gate_up, linear("mlp.down_proj", hidden, inner)),
        input_layernorm=norm("input_layernorm", hidden),
        post_attention_layernorm=norm("post_attention_layernorm", hidden),
    )


def build_target(
    tensors: Mapping[str, mx.array], config: TargetConfig, dtype: mx.Dtype
) -> Decoder:
    """Assemble the network; every tensor must be used.

    Args:
        tensors: name -> array, names as in Hugging Face and mlx-lm.
        dtype: compute type; float32 on a CPU.

    Raises:
        CheckpointError: naming a tensor that is missing, of another shape, or left over.
    """
    bag = TensorBag(tensors, dtype=dtype, quantization=config.quantization)
    hidden = config.hidden_size
    embed = bag.linear("model.embed_tokens", config.vocab_size, hidden, Embedding)
    layers = [build_layer(bag, config, index) for index in range(config.num_layers)]
    norm = RMSNorm(bag.take("model.norm.weight", (hidden,)), config.rms_norm_eps)
    head = None
    if not config.tie_word_embeddings:
        head = bag.linear("lm_head", config.vocab_size, hidden)
    left = [name for name in bag.names if not name.endswith(IGNORED_SUFFIXES)]
    if config.tie_word_embeddings:
        left = [name for name in left if not name.startswith("lm_head.")]
    if left:
        raise CheckpointError(
            f"the target's weights hold {len(left)} tensors that a {config.model_type} model "
            f"does not have, such as {left[0]}; use a checkpoint of this family"
        )
    rotary = make_rotary(config.head_dim, config.rope_theta, config.rope_scaling)
    assert embed is not None and isinstance(embed, Embedding)
    return Decoder(embed, layers, norm, head, rotary)


def load_target(folder: Path, dtype: mx.Dtype) -> tuple[TargetConfig, Decoder]:
    """Read and assemble a target; weights are on the device when this returns."""
    config = read_target(folder)
    network = build_target(read_tensors(folder), config, dtype)
    network.eval()
    if mx.default_device() == mx.Device(mx.cpu):
        network.lay_out_for_cpu(cpu.silu)
    mx.eval(network.parameters())
    return config, network
