"""The draft layers: context keys and values from fused taps, and the pass over a block.

Attention is an argument; which positions a slot may see is the caller's knowledge.
"""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from vllm_dspark.drafter.config import DraftConfig
from vllm_dspark.nn.linear import Linear, joined
from vllm_dspark.nn.mlp import GatedMLP
from vllm_dspark.nn.norm import RMSNorm
from vllm_dspark.nn.rotary import Rotary, Tables

BlockAttend = Callable[[int, mx.array, mx.array, mx.array], mx.array]
"""(layer, q [R, S, H, D], k [R, S, KV, D], v [R, S, KV, D]) -> [R, S, H, D]."""

KeysValues = tuple[mx.array, mx.array]


class BlockAttention(nn.Module):
    """Projections and norms of one draft layer's attention.

    Attributes:
        qkv_proj: Linear d -> (H + 2 KV) D, query rows first, then key, then value.
        o_proj: Linear H D -> d.
        q_norm, k_norm: over D.
    """

    def __init__(
        self,
        qkv_proj: Linear,
        o_proj: Linear,
        *,
        q_norm: RMSNorm,
        k_norm: RMSNorm,
        config: DraftConfig,
    ) -> None:
        super().__init__()
        self.qkv_proj = qkv_proj
        self.o_proj = o_proj
        self.q_norm = q_norm
        self.k_norm = k_norm
        self.num_heads = config.num_heads
        self.num_kv_heads = config.num_kv_heads
        self.head_dim = config.head_dim

    def context(self, fused: mx.array, tables: Tables) -> KeysValues:
        """Keys and values of committed tokens: fused [N, d] -> two of [N, KV, D]."""
        keys, values = mx.split(self.context_proj()(fused), 2, axis=-1)
        keys = self._heads(keys, self.num_kv_heads)
        return _rotate(self.k_norm(keys), tables), self._heads(values, self.num_kv_heads)

    def context_proj(self) -> Linear:
        """The rows of ``qkv_proj`` that give keys, then values."""
        start = self.num_heads * self.head_dim
        return self.qkv_proj.rows(start, start + 2 * self.num_kv_heads * self.head_dim)

    def block(self, x: mx.array, tables: Tables) -> tuple[mx.array, mx.array, mx.array]:
        """Queries, keys, values of block slots: x [R, S, d] -> [R, S, heads, D] each."""
        start = self.num_heads * self.head_dim
        cuts = [start, start + self.num_kv_heads * self.head_dim]
        queries, keys, values = mx.split(self.qkv_proj(x), cuts, axis=-1)
        queries = self.q_norm(self._heads(queries, self.num_heads))
        keys = self.k_norm(self._heads(keys, self.num_kv_heads))
        values = self._heads(values, self.num_kv_heads)
        return _rotate(queries, tables), _rotate(keys, tables), values

    def _heads(self, x: mx.array, count: int) -> mx.array:
        return x.reshape(*x.shape[:-1], count, self.head_dim)


def _rotate(x: mx.array, tables: Tables) -> mx.array:
    """Rotate in the tables' float32, return in the dtype of x."""
    return Rotary.apply(x, tables).astype(x.dtype)


class DraftLayer(nn.Module):
    """One pre-norm transformer layer of the drafter."""

    def __init__(
        self,
        self_attn: BlockAttention,
        mlp: GatedMLP,
        *,
        input_layernorm: RMSNorm,
        post_attention_layernorm: RMSNorm,
    ) -> None:
        super().__init__()
        self.self_attn = self_attn
        self.mlp = mlp
        self.input_layernorm = input_layernorm
        self.post_attention_layernorm = post_attention_layernorm

    def __call__(self, x: mx.array, tables: Tables, attend: Callable[..., mx.array]) -> mx.array:
        """Run block slots x [R, S, d] through the layer; ``attend`` knows its index."""
        queries, keys, values = self.self_attn.block(self.input_layernorm(x), tables)
        seen = attend(queries, keys, values)
        x = x + self.self_attn.o_proj(seen.reshape(*seen.shape[:-2], -1))
        return x + self.mlp(self.post_attention_layernorm(x))


class Backbone(nn.Module):
    """Fusion of the target's taps, and the stack of draft layers.

    Attributes:
        fc: Linear m d_target -> d over the concatenated taps.
        hidden_norm: after fc.
        layers: the draft layers.
        norm: final norm of the block stream.
    """

    def __init__(
        self,
        config: DraftConfig,
        *,
        fc: Linear,
        hidden_norm: RMSNorm,
        layers: list[DraftLayer],
        norm: RMSNorm,
    ) -> None:
        super().__init__()
        self.fc = fc
        self.hidden_norm = hidden_norm
        self.layers = layers
        self.norm = norm
        self._rotary = config.make_rotary()
        self._context_proj: Linear | None = None
        self._key_scale: mx.array | None = None

    def join_context(self) -> None:
        """Keep the key and value rows of all layers as one more matrix, read along its outputs.

        A CPU then absorbs a token with one product instead of one per layer. Weights must not
        change afterwards; quantised ones stay as they are.
        """
        attentions = [layer.self_attn for layer in self.layers]
        if any(one.qkv_proj.is_quantized for one in attentions):
            return
        self._context_proj = joined([one.context_proj() for one in attentions])
        self._context_proj.lay_input_major()
        self.fc.lay_input_major()
        self._key_scale = mx.stack([one.k_norm.weight for one in attentions])[:, None]

    @property
    def joined_arrays(self) -> list[Any]:
        """What ``join_context`` made, as a tree to be evaluated with the weights."""
        if self._context_proj is None:
            return []
        return [self._context_proj.parameters(), self._key_scale]

    @property
    def dtype(self) -> mx.Dtype:
        """The dtype that the draft layers compute in."""
        return self.norm.weight.dtype

    def fuse(self, taps: list[mx.array] | tuple[mx.array, ...]) -> mx.array:
        """Fuse the tapped states, in the config's order: each [N, d_target] -> c [N, d]."""
        wide = mx.concatenate(list(taps), axis=-1)
        # Residual streams overflow float16, so such drafts keep fc in float32.
        wide = wide.astype(mx.float32 if self.dtype == mx.float16 else self.dtype)
        return self.hidden_norm(self.fc(wide)).astype(self.dtype)

    def context_kv(self, fused: mx.array, positions: mx.array) -> list[KeysValues]:
        """Keys and values that committed tokens show to every draft layer.

        Args:
            fused: c [N, d], from :meth:`fuse`.
            positions: [N] int32, absolute positions of the tokens.

        Returns:
            Per layer (keys, values), both [N, KV, D]; keys are normed and rotated.
        """
        tables = self._rotary.tables(positions)
        if self._context_proj is not None:
            return self._joined_context(self._context_proj, fused, tables)
        return [layer.self_attn.context(fused, tables) for layer in self.layers]

    def _joined_context(self, proj: Linear, fused: mx.array, tables: Tables) -> list[KeysValues]:
        """``context_kv`` of all layers at once."""
        first = self.layers[0].self_attn
        shape = (fused.shape[0], len(self.layers), 2, first.num_kv_heads, first.head_dim)
        both = proj(fused).reshape(shape)
        keys = mx.fast.rms_norm(both[:, :, 0], None, first.k_norm.eps) * self._key_scale
        keys = keys.reshape(shape[0], -1, first.head_dim)
        keys = _rotate(keys, tables).reshape(shape[0], shape[1], *shape[3:])
        return [(keys[:, layer], both[:, layer, 1]) for layer in range(shape[1])]

    def block(self, x: mx.array, positions: mx.array, attend: BlockAttend) -> mx.array:
        """Run embedded block slots through all layers.

        Args:
            x: [R, S, d], embeddings of the anchor and the masks.
            positions: [R, S] int32, absolute.
            attend: attention of one layer over context and block.

        Returns:
            g [R, S, d], final-normed.
        """
        tables = self._rotary.tables(positions)
        x = x.astype(self.dtype)
        for index, layer in enumerate(self.layers):
            x = layer(x, tables, lambda q, k, v, index=index: attend(index, q, k, v))
        return self.norm(x)
