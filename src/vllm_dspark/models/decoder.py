"""The decoder-only network that all supported families share."""

from collections.abc import Callable, Sequence

import mlx.core as mx
import mlx.nn as nn

from vllm_dspark.nn.linear import Embedding, Linear
from vllm_dspark.nn.mlp import GatedMLP
from vllm_dspark.nn.norm import RMSNorm
from vllm_dspark.nn.rotary import Rotary, Tables
from vllm_dspark.types import Attend, AttentionShape, Seen


class Attention(nn.Module):
    """Grouped-query attention; the projections are one matrix, query rows first."""

    def __init__(
        self,
        qkv_proj: Linear,
        o_proj: Linear,
        shape: AttentionShape,
        *,
        q_norm: RMSNorm | None = None,
        k_norm: RMSNorm | None = None,
    ) -> None:
        super().__init__()
        self.qkv_proj = qkv_proj
        self.o_proj = o_proj
        if q_norm is not None and k_norm is not None:
            self.q_norm = q_norm
            self.k_norm = k_norm
        self._shape = shape

    def __call__(self, x: mx.array, tables: Tables, layer: int, attend: Attend) -> mx.array:
        """Mix rows x [N, H] -> [N, H]."""
        heads, kv_heads = self._shape.num_heads, self._shape.num_kv_heads
        qkv = self.qkv_proj(x).reshape(x.shape[0], heads + 2 * kv_heads, -1)
        if "q_norm" in self:
            q = self.q_norm(qkv[:, :heads])
            k = self.k_norm(qkv[:, heads : heads + kv_heads])
            qk = mx.concatenate([q, k], axis=1)
        else:
            qk = qkv[:, : heads + kv_heads]
        qk = Rotary.apply(qk, tables)
        mixed = attend(layer, qk[:, :heads], qk[:, heads:], qkv[:, heads + kv_heads :])
        return self.o_proj(mixed.reshape(x.shape[0], -1))


class DecoderLayer(nn.Module):
    """Attention and MLP, each behind its norm, each added to the residual stream."""

    def __init__(
        self,
        self_attn: Attention,
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

    def __call__(self, x: mx.array, tables: Tables, layer: int, attend: Attend) -> mx.array:
        """Advance the residual stream x [N, H] -> [N, H]."""
        x = x + self.self_attn(self.input_layernorm(x), tables, layer, attend)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    """A causal language model that can also return chosen intermediate states."""

    def __init__(
        self,
        embed_tokens: Embedding,
        layers: Sequence[DecoderLayer],
        norm: RMSNorm,
        lm_head: Linear | None,
        rotary: Rotary,
    ) -> None:
        super().__init__()
        self.embed_tokens = embed_tokens
        self.layers = list(layers)
        self.norm = norm
        if lm_head is not None:
            self.lm_head = lm_head
        self._rotary = rotary

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding."""
        return self.embed_tokens.weight.shape[0]

    def forward(
        self,
        token_ids: mx.array,
        positions: mx.array,
        attend: Attend,
        taps: Sequence[int] = (),
    ) -> Seen:
        """Run all layers over packed rows.

        Args:
            token_ids: [N] int32.
            positions: [N] int32, absolute position of each row in its sequence.
            attend: attention of one layer; owns the cache.
            taps: state indices to return, ascending; 0 is the embedding output, j + 1 the
                residual stream after layer j, and the one past the last layer's the final-normed
                state.

        Returns:
            The final-normed state of every row, and the tapped states.
        """
        x = self.embed_tokens.lookup(token_ids)
        tables = self._rotary.tables(positions, x.dtype)
        wanted = set(taps)
        states = {0: x} if 0 in wanted else {}
        for index, layer in enumerate(self.layers):
            x = layer(x, tables, index, attend)
            if index + 1 in wanted:
                states[index + 1] = x
        hidden = self.norm(x)
        states[len(self.layers) + 1] = hidden
        return Seen(hidden, tuple(states[tap] for tap in taps))

    def lay_out_for_cpu(self, silu: Callable[[mx.array], mx.array]) -> None:
        """Store matrices the way a CPU multiplies fastest; a tied head gets its own copy.

        Args:
            silu: the activation to use from now on.
        """
        for layer in self.layers:
            attention, mlp = layer.self_attn, layer.mlp
            mlp.silu = silu
            for linear in (
                attention.qkv_proj, attention.o_proj, mlp.gate_up_proj, mlp.down_proj
            ):
                linear.lay_input_major()
        if "lm_head" not in self and not self.embed_tokens.is_quantized:
            self.lm_head = Linear(self.embed_tokens.weight)
        if "lm_head" in self:
            self.lm_head.lay_input_major()

    def embed(self, token_ids: mx.array) -> mx.array:
        """Look up token_ids [...] -> [..., H]."""
        return self.embed_tokens.lookup(token_ids)

    def unembed(self, hidden: mx.array) -> mx.array:
        """Turn final-normed states [..., H] into logits [..., V]."""
        return self.lm_head(hidden) if "lm_head" in self else self.embed_tokens(hidden)
