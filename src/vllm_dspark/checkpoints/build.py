"""Tensors by checkpoint name -> a finished drafter, and new drafters to train."""

from collections.abc import Mapping

import mlx.core as mx

from vllm_dspark.checkpoints.layout import matrices, norms
from vllm_dspark.drafter.backbone import Backbone, BlockAttention, DraftLayer
from vllm_dspark.drafter.confidence import ConfidenceHead
from vllm_dspark.drafter.config import DraftConfig, Quantization
from vllm_dspark.drafter.drafter import Drafter
from vllm_dspark.drafter.markov import GatedMarkovHead, MarkovHead, RnnMarkovHead
from vllm_dspark.nn.linear import Embedding, Linear, joined
from vllm_dspark.nn.mlp import GatedMLP
from vllm_dspark.nn.norm import RMSNorm

INIT_STD = 0.02
MARKOV_INIT_STD = 0.01


class DraftTensors:
    """Checkpoint tensors, handed out as layers.

    Args:
        arrays: checked tensors by checkpoint name, in their compute dtypes.
        config: tells how matrices with scales are packed.
        convert_to: form that dense backbone matrices are converted to, or None.
    """

    def __init__(
        self,
        arrays: Mapping[str, mx.array],
        config: DraftConfig,
        convert_to: Quantization | None = None,
    ) -> None:
        self._arrays = arrays
        self._config = config
        self._convert_to = convert_to
        self._shapes = matrices(config)

    def __contains__(self, prefix: str) -> bool:
        return f"{prefix}.weight" in self._arrays

    def linear(self, prefix: str, kind: type[Linear] = Linear) -> Linear:
        """The layer or table stored under one prefix."""
        get = self._arrays.get
        weight, bias = self._arrays[f"{prefix}.weight"], get(f"{prefix}.bias")
        form = self._config.quantization_of(prefix)
        if f"{prefix}.scales" in self._arrays and form is not None:
            return kind(
                weight, bias,
                scales=get(f"{prefix}.scales"), biases=get(f"{prefix}.biases"),
                group_size=form.group_size, bits=form.bits,
            )  # fmt: skip
        layer = kind(weight, bias)
        if self._convert_to is None or not self._shapes[prefix].is_backbone:
            return layer
        return layer.quantized(group_size=self._convert_to.group_size, bits=self._convert_to.bits)

    def fused(self, *prefixes: str) -> Linear:
        """Layers with the same input as one layer; differently packed ones become dense."""
        layers = [self.linear(prefix) for prefix in prefixes]
        forms = {(layer.is_quantized, layer.group_size, layer.bits) for layer in layers}
        return joined(layers if len(forms) == 1 else [dense(layer) for layer in layers])

    def dense(self, prefix: str, dtype: mx.Dtype) -> Linear:
        """One layer, unpacked and cast."""
        layer = dense(self.linear(prefix))
        bias = layer.bias.astype(dtype) if "bias" in layer else None
        return Linear(layer.weight.astype(dtype), bias)

    def norm(self, name: str) -> RMSNorm:
        """The norm stored under a prefix."""
        return RMSNorm(self._arrays[f"{name}.weight"], self._config.rms_norm_eps)


def dense(layer: Linear) -> Linear:
    """Return the layer with an unpacked weight."""
    if not layer.is_quantized:
        return layer
    weight = mx.dequantize(
        layer.weight, layer.scales, layer.biases, group_size=layer.group_size, bits=layer.bits
    )
    return Linear(weight, layer.bias if "bias" in layer else None)


def build_drafter(
    tensors: DraftTensors, config: DraftConfig, draft_to_target: mx.array | None = None
) -> Drafter:
    """Assemble a drafter from checked tensors.

    Args:
        draft_to_target: offsets [Vd] int32, or None for equal vocabularies.
    """
    backbone = Backbone(
        config,
        fc=tensors.linear("fc"),
        hidden_norm=tensors.norm("hidden_norm"),
        layers=[_layer(tensors, config, index) for index in range(config.num_layers)],
        norm=tensors.norm("norm"),
    )
    embedding = tensors.linear("embed_tokens", Embedding) if "embed_tokens" in tensors else None
    assert embedding is None or isinstance(embedding, Embedding)
    head = tensors.linear("lm_head") if "lm_head" in tensors else None
    num_logits = config.num_draft_logits
    return Drafter(
        config,
        backbone,
        markov_head=_markov(tensors, config),
        confidence_head=_confidence(tensors, config),
        embed_tokens=embedding,
        lm_head=head if head is None else _first_rows(head, num_logits),
        draft_to_target=draft_to_target,
    )


def _first_rows(layer: Linear, count: int) -> Linear:
    """Drop rows that only pad a vocabulary."""
    return layer if layer.weight.shape[0] == count else layer.rows(0, count)


def _layer(tensors: DraftTensors, config: DraftConfig, index: int) -> DraftLayer:
    prefix = f"layers.{index}"
    attention = f"{prefix}.self_attn"
    return DraftLayer(
        BlockAttention(
            tensors.fused(*(f"{attention}.{name}_proj" for name in "qkv")),
            tensors.linear(f"{attention}.o_proj"),
            q_norm=tensors.norm(f"{attention}.q_norm"),
            k_norm=tensors.norm(f"{attention}.k_norm"),
            config=config,
        ),
        GatedMLP(
            tensors.fused(f"{prefix}.mlp.gate_proj", f"{prefix}.mlp.up_proj"),
            tensors.linear(f"{prefix}.mlp.down_proj"),
        ),
        input_layernorm=tensors.norm(f"{prefix}.input_layernorm"),
        post_attention_layernorm=tensors.norm(f"{prefix}.post_attention_layernorm"),
    )


def _markov(tensors: DraftTensors, config: DraftConfig) -> MarkovHead | None:
    if config.markov_kind == "none":
        return None
    w1 = tensors.linear("markov_head.markov_w1", Embedding)
    assert isinstance(w1, Embedding)
    w2 = _first_rows(tensors.linear("markov_head.markov_w2"), config.num_draft_logits)
    rank = config.markov_rank
    if config.markov_kind == "gated":
        return GatedMarkovHead(w1, w2, rank, tensors.linear("markov_head.gate_proj"))
    if config.markov_kind == "rnn":
        return RnnMarkovHead(w1, w2, rank, tensors.linear("markov_head.joint_proj"))
    return MarkovHead(w1, w2, rank)


def _confidence(tensors: DraftTensors, config: DraftConfig) -> ConfidenceHead | None:
    if config.confidence_kind == "none":
        return None
    reads_markov = config.confidence_kind == "hidden+markov"
    return ConfidenceHead(
        tensors.dense("confidence_head.proj", mx.float32), reads_markov=reads_markov
    )


def new_drafter(
    config: DraftConfig,
    *,
    seed: int,
    dtype: mx.Dtype = mx.float32,
    tables: Mapping[str, mx.array] | None = None,
    draft_to_target: mx.array | None = None,
) -> Drafter:
    """Make a drafter with random weights, to be trained.

    Args:
        config: of a dense draft.
        seed: of the initial weights; the same seed gives the same drafter.
        tables: frozen ``embed_tokens.weight`` and ``lm_head.weight`` to store with the draft;
            what is left out is shared with the target.
        draft_to_target: as in :func:`build_drafter`.
    """
    key = mx.random.key(seed)
    arrays = {name: mx.ones((length,), dtype=dtype) for name, length in norms(config).items()}
    for prefix, matrix in matrices(config).items():
        if prefix in ("embed_tokens", "lm_head"):
            continue
        key, now = mx.random.split(key)
        std = MARKOV_INIT_STD if prefix.endswith("markov_w1") else INIT_STD
        shape = (matrix.rows, matrix.columns)
        arrays[f"{prefix}.weight"] = (mx.random.normal(shape, key=now) * std).astype(dtype)
        if matrix.has_bias:
            arrays[f"{prefix}.bias"] = mx.zeros((matrix.rows,), dtype=dtype)
    arrays.update({name: table.astype(dtype) for name, table in (tables or {}).items()})
    return build_drafter(DraftTensors(arrays, config), config, draft_to_target)
