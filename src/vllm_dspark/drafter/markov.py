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


def top_candidates(logits: mx.array, count: int) -> tuple[mx.array, mx.array]:
    """Find the ``count`` largest logits of each row; of equal ones the lower ids.

    A row is cut into groups of neighbouring ids. The best ``count`` ids lie in the ``count``
    groups with the best maxima, so only those groups are looked at closely: 7 rows of 49,152
    take 0.8 ms instead of 5 (two CPU cores, count 8).

    Args:
        logits: [..., V] float, no NaN.
        count: 1..V.

    Returns:
        (values, ids), both [..., count], by ascending id.
    """
    size = logits.shape[-1]
    if size < 4 * GROUP * count:
        ids = _best(logits, count)
        return mx.take_along_axis(logits, ids, axis=-1), ids
    num_groups = -(-size // GROUP)
    padding = [(0, 0)] * (logits.ndim - 1) + [(0, num_groups * GROUP - size)]
    padded = mx.pad(logits, padding, constant_values=-mx.inf)  # highest ids: lose every tie
    groups = padded.reshape(*logits.shape[:-1], num_groups, GROUP)
    chosen = _best(groups.max(axis=-1), count)
    values = mx.take_along_axis(groups, chosen[..., None], axis=-2).flatten(-2)
    ids = (chosen[..., None] * GROUP + mx.arange(GROUP, dtype=mx.int32)).flatten(-2)
    best = _best(values, count)
    return mx.take_along_axis(values, best, axis=-1), mx.take_along_axis(ids, best, axis=-1)


def _best(logits: mx.array, count: int) -> mx.array:
    """Ids of the ``count`` largest of each row, ascending: [..., V] -> [..., count] int32.

    A float's bits, as an integer, order like the float once negative ones are flipped. Putting
    the id below those bits makes every key different, so one partition keeps argmax's tie order.
    """
    bits = mx.view(logits.astype(mx.float32) + 0.0, mx.int32)  # + 0.0 makes -0.0 equal 0.0
    ordered = mx.where(bits < 0, bits ^ 0x7FFFFFFF, bits).astype(mx.int64)
    ids = mx.arange(logits.shape[-1], dtype=mx.int64)
    keys = -ordered * mx.array(1 << 32, dtype=mx.int64) + ids
    if count < logits.shape[-1]:
        keys = mx.partition(keys, count - 1, axis=-1)[..., :count]
    return mx.sort(keys & mx.array(0xFFFFFFFF, dtype=mx.int64), axis=-1).astype(mx.int32)
