"""The losses: hand-computed values, and the analytic gradient against MLX's own."""

import math

import mlx.core as mx
import numpy as np
import pytest

from vllm_dspark.training.losses import Slots, binary_cross_entropy, block_losses, slot_weights
from vllm_dspark.training.settings import LossWeights

TERMS = LossWeights()


def random_slots(*, with_markov: bool = True) -> Slots:
    """Eleven slots of a vocabulary of 24; two have no weight."""
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> mx.array:
        return mx.array(rng.normal(size=shape).astype(np.float32))

    weights = rng.random(11).astype(np.float32)
    weights[[3, 7]] = 0
    return Slots(
        rows=normal(11, 8),
        low_rank=normal(11, 4) if with_markov else None,
        table=normal(24, 4) if with_markov else None,
        head=normal(24, 8),
        target_rows=normal(11, 8),
        labels=mx.array(rng.integers(24, size=11).astype(np.int32)),
        weights=mx.array(weights),
    )


def plain_loss(slots: Slots, logits: mx.array, confidence: mx.array) -> mx.array:
    """The three terms written out, differentiated by MLX."""
    p = mx.softmax(logits, axis=-1)
    q = mx.softmax(slots.target_rows @ slots.head.T, axis=-1)
    l1 = mx.abs(p - q).sum(axis=-1)
    picked = mx.take_along_axis(logits, slots.labels[:, None], axis=-1)[:, 0]
    ce = mx.logsumexp(logits, axis=-1) - picked
    chance = mx.stop_gradient(1 - 0.5 * l1)
    bce = -chance * mx.log(mx.sigmoid(confidence))
    bce = bce - (1 - chance) * mx.log(1 - mx.sigmoid(confidence))
    return (slots.weights * (0.1 * ce + 0.9 * l1 + bce)).sum() / slots.weights.sum()


def test_two_slots_give_the_hand_computed_terms() -> None:
    # V = 2. Slot 0: P = (.5, .5), Q = (.75, .25), label 0. Slot 1: P = Q = (.5, .5), label 1.
    log3 = math.log(3.0)
    slots = Slots(
        rows=mx.zeros((2, 1)), low_rank=None, table=None, head=mx.array([[1.0], [0.0]]),
        target_rows=mx.array([[log3], [0.0]]), labels=mx.array([0, 1], dtype=mx.int32),
        weights=mx.array([1.0, math.exp(-0.25)]),
    )  # fmt: skip
    losses = block_losses(slots, mx.zeros((2,)), TERMS, 8)
    total = 1 + math.exp(-0.25)
    assert losses.cross_entropy.item() == pytest.approx(math.log(2))
    assert losses.l1.item() == pytest.approx(0.5 / total)
    assert losses.accept.tolist() == pytest.approx([0.75, 1.0])
    assert losses.confidence.item() == pytest.approx(math.log(2))  # logit 0 costs ln 2 for any c
    assert losses.total.item() == pytest.approx(0.1 * math.log(2) + 0.9 * 0.5 / total + math.log(2))


def test_the_weights_fall_by_the_documented_factors() -> None:
    found = slot_weights(mx.ones((7,)), 4.0).tolist()
    assert found == pytest.approx([1, 0.779, 0.607, 0.472, 0.368, 0.287, 0.223], abs=5e-4)
    assert sum(found) == pytest.approx(3.735, abs=1e-3)


@pytest.mark.parametrize("with_markov", [True, False])
@pytest.mark.parametrize("piece_rows", [4, 100])
def test_value_and_gradients_equal_the_plain_formula(with_markov: bool, piece_rows: int) -> None:
    slots = random_slots(with_markov=with_markov)
    confidence = mx.array(np.linspace(-2, 2, 11).astype(np.float32))

    def remake(rows: mx.array, low_rank: mx.array, table: mx.array) -> Slots:
        if not with_markov:
            low_rank = table = None
        return Slots(
            rows, low_rank, table, slots.head, slots.target_rows, slots.labels, slots.weights
        )

    def ours(rows: mx.array, low_rank: mx.array, table: mx.array, logit: mx.array) -> mx.array:
        return block_losses(remake(rows, low_rank, table), logit, TERMS, piece_rows).total

    def plain(rows: mx.array, low_rank: mx.array, table: mx.array, logit: mx.array) -> mx.array:
        logits = rows @ slots.head.T
        if with_markov:
            logits = logits + low_rank @ table.T
        return plain_loss(slots, logits, logit)

    low_rank = slots.low_rank if with_markov else mx.zeros((11, 4))
    table = slots.table if with_markov else mx.zeros((24, 4))
    inputs = (slots.rows, low_rank, table, confidence)
    value, grads = mx.value_and_grad(ours, argnums=(0, 1, 2, 3))(*inputs)
    expected, expected_grads = mx.value_and_grad(plain, argnums=(0, 1, 2, 3))(*inputs)
    assert value.item() == pytest.approx(expected.item(), rel=1e-5)
    for grad, other in zip(grads, expected_grads, strict=True):
        assert mx.allclose(grad, other, rtol=1e-4, atol=1e-6).item()


def test_binary_cross_entropy_is_least_at_the_chance() -> None:
    logits = mx.array([-1.0, 0.0, math.log(3.0), 3.0])
    costs = binary_cross_entropy(logits, mx.array(0.75)).tolist()
    assert costs.index(min(costs)) == 2
