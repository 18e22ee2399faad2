"""The sequential head: a bias on each slot's logits from the token drafted before it."""

import mlx.core as mx
import mlx.nn as nn

from vllm_dspark.nn.linear import Embedding, Linear


class MarkovHead(nn.Module):
    """The vanilla head, bias = W2 e with e = W1[previous token]; base of the other kinds.

    A head is used in two halves: :meth:`step` makes the low-rank vector that W2 is applied
    to, :meth:`bias` or :meth:`candidate_bias` applies W2 to it.

    Attributes:
        markov_w1: Embedding [V, r], rows are target token ids.
        markov_w2: Linear r -> Vd, rows are draft token ids.
    """

    def __init__(self, markov_w1: Embedding, markov_w2: Linear, rank: int) -> None:
        super().__init__()
        self.markov_w1 = markov_w1
        self.markov_w2 = markov_w2
        self.rank = rank

    def embed(self, token_ids: mx.array) -> mx.array:
        """Rows of W1: target token ids [...] -> e [..., r]."""
        return self.markov_w1.lookup(token_ids)

    def start(self, e: mx.array) -> mx.array:
        """State before slot 0, zeros like e [..., r]."""
        return mx.zeros_like(e)

    def step(self, e: mx.array, hidden: mx.array, state: mx.array) -> tuple[mx.array, mx.array]:
        """Advance one slot.

        Args:
            e: [..., r], embedding of the previous token.
            hidden: [..., d], the slot's final-normed hidden state.
            state: [..., r], from :meth:`start` or the slot before.

        Returns:
            What W2 is applied to, and the next state; both [..., r].
        """
        return e, state

    def bias(self, low_rank: mx.array) -> mx.array:
        """Bias on all draft logits: [..., r] -> [..., Vd]."""
        return self.markov_w2(low_rank)

    def candidate_rows(self, draft_ids: mx.array) -> mx.array:
        """Rows of W2: draft ids [...] -> [..., r]."""
        w2 = self.markov_w2
        if not w2.is_quantized:
            return w2.weight[draft_ids]
        return mx.dequantize(
            w2.weight[draft_ids], w2.scales[draft_ids], w2.biases[draft_ids],
            group_size=w2.group_size, bits=w2.bits,
        )  # fmt: skip

    def all_slots(self, e: mx.array, hidden: mx.array) -> mx.array:
        """Low-rank vectors of every slot when the previous tokens are known.

        Args:
            e: [..., K, r]; hidden: [..., K, d].

        Returns:
            [..., K, r].
        """
        low_rank, _ = self.step(e, hidden, self.start(e))
        return low_rank


class GatedMarkovHead(MarkovHead):
    """bias = W2 (s * e) with s = sigmoid(Wg [hidden ; e] + bg)."""

    def __init__(
        self, markov_w1: Embedding, markov_w2: Linear, rank: int, gate_proj: Linear
    ) -> None:
        super().__init__(markov_w1, markov_w2, rank)
        self.gate_proj = gate_proj

    def step(self, e: mx.array, hidden: mx.array, state: mx.array) -> tuple[mx.array, mx.array]:
        gate = mx.sigmoid(self.gate_proj(mx.concatenate([hidden, e], axis=-1)))
        return gate * e, state


class RnnMarkovHead(MarkovHead):
    """[p ; q ; o] = Wj [state ; e ; hidden] + bj; bias = W2 tanh(o), o from the old state."""

    def __init__(
        self, markov_w1: Embedding, markov_w2: Linear, rank: int, joint_proj: Linear
    ) -> None:
        super().__init__(markov_w1, markov_w2, rank)
        self.joint_proj = joint_proj

    def step(self, e: mx.array, hidden: mx.array, state: mx.array) -> tuple[mx.array, mx.array]:
        joint = self.joint_proj(mx.concatenate([state, e, hidden], axis=-1))
        keep, fresh, out = mx.split(joint, 3, axis=-1)
        keep = mx.sigmoid(keep)
        return mx.tanh(out), keep * state + (1 - keep) * mx.tanh(fresh)

    def all_slots(self, e: mx.array, hidden: mx.array) -> mx.array:
        state, low_ranks = self.start(e[..., 0, :]), []
        for slot in range(e.shape[-2]):
            low_rank, state = self.step(e[..., slot, :], hidden[..., slot, :], state)
            low_ranks.append(low_rank)
        return mx.stack(low_ranks, axis=-2)


GROUP = 64  # ids that share a maximum in the first pass of top_candidates


CHUNK = 128
"""Ids per chunk in the first stage of ``top_candidates``."""


def top_candidates(logits: mx.array, count: int) -> tuple[mx.array, mx.array]:
    """Find the ``count`` largest logits of each row; of equal ones the lower ids.

    The largest ``count`` lie in the ``count`` chunks with the largest maxima, so only those are
    partitioned: a twentieth of the work for 16 of 49,152 ids.

    Args:
        logits: [..., V] float, no NaN.
        count: 1..V.

    Returns:
        (values, ids), both [..., count], by ascending id.
    """
    size = logits.shape[-1]
    num_chunks = -(-size // CHUNK)
    if count >= num_chunks:
        ids = _first_by_key(_order_keys(logits), count)
        return mx.take_along_axis(logits, ids, axis=-1), ids
    pad = [(0, 0)] * (logits.ndim - 1) + [(0, num_chunks * CHUNK - size)]
    chunks = mx.pad(logits, pad, constant_values=-mx.inf) if pad[-1][1] else logits
    chunks = chunks.reshape(-1, num_chunks, CHUNK)
    best = _first_by_key(_order_keys(chunks.max(axis=-1)), count)
    firsts = mx.arange(chunks.shape[0])[:, None] * num_chunks
    picked = chunks.reshape(-1, CHUNK)[best + firsts]
    best = best.reshape(*logits.shape[:-1], count)
    picked = picked.reshape(*logits.shape[:-1], count * CHUNK)
    # Chunks ascend, so places among the picked order like ids.
    places = _first_by_key(_order_keys(picked), count)
    chunk_of = mx.take_along_axis(best, places // CHUNK, axis=-1)
    return mx.take_along_axis(picked, places, axis=-1), chunk_of * CHUNK + places % CHUNK


def _order_keys(values: mx.array) -> mx.array:
    """Integers that rank values [..., N] downwards, equal ones by ascending place.

    A float's bits, as an integer, order like the float once negative ones are flipped. Putting the
    place below those bits makes every key different, so one partition keeps argmax's tie order.
    """
    bits = mx.view(values.astype(mx.float32) + 0.0, mx.int32)  # + 0.0 makes -0.0 equal 0.0
    ordered = mx.where(bits < 0, bits ^ 0x7FFFFFFF, bits).astype(mx.int64)
    places = mx.arange(values.shape[-1], dtype=mx.int64)
    return -ordered * mx.array(1 << 32, dtype=mx.int64) + places


def _first_by_key(keys: mx.array, count: int) -> mx.array:
    """Places [..., count] int32, ascending, of the smallest keys [..., N]."""
    if count < keys.shape[-1]:
        keys = mx.partition(keys, count - 1, axis=-1)[..., :count]
    return mx.sort(keys & mx.array(0xFFFFFFFF, dtype=mx.int64), axis=-1).astype(mx.int32)
