"""The three losses of a block draft, and their gradients with the logits made piece by piece.

With Z the draft's corrected logits, P = softmax(Z) and Q = softmax(target logits), a slot costs
0.1 CE(Z, data token) + 0.9 sum |P - Q| + BCE(confidence, 1 - 0.5 sum |P - Q|), each weighted by
exp(-k / 4) at slot k and divided by the sum of the weights of the whole batch.
"""

from dataclasses import dataclass

import mlx.core as mx

from vllm_dspark.errors import ShapeError
from vllm_dspark.ops import logit_gradient
from vllm_dspark.training.settings import LossWeights


@dataclass(frozen=True, slots=True)
class Slots:
    """All slots of a batch, N of them, with what their logits are made of.

    Attributes:
        rows: [N, d], final-normed hidden states of the draft.
        low_rank: [N, r], what the Markov table is applied to; None without a Markov head.
        table: [V, r], the Markov table W2; None without one.
        head: [V, d], frozen output matrix of the target.
        target_rows: [N, d], final-normed states of the target that predict the same tokens.
        labels: [N] int32, the data's tokens.
        weights: [N] float32, 0 where not supervised.
    """

    rows: mx.array
    low_rank: mx.array | None
    table: mx.array | None
    head: mx.array
    target_rows: mx.array
    labels: mx.array
    weights: mx.array


@dataclass(frozen=True, slots=True)
class Losses:
    """What a batch costs; scalars are float32, and only ``total`` has a gradient.

    Attributes:
        total: the weighted sum that is minimised.
        cross_entropy, l1, confidence: its terms before their weights.
        accept: [N] float32, 1 - 0.5 |P - Q|, the chance that each slot's draft is kept.
    """

    total: mx.array
    cross_entropy: mx.array
    l1: mx.array
    confidence: mx.array
    accept: mx.array


def slot_weights(mask: mx.array, decay_slots: float) -> mx.array:
    """Weights mask * exp(-k / decay) of slots k: mask [..., K] float32 -> [..., K]."""
    slots = mx.arange(mask.shape[-1], dtype=mx.float32)
    return mask * mx.exp(slots / -decay_slots)


def block_losses(
    slots: Slots, confidence_logits: mx.array | None, terms: LossWeights, piece_rows: int
) -> Losses:
    """Cost of a batch.

    Args:
        confidence_logits: [N] float32, or None without a confidence head.
        terms: weights of the terms; ``decay_slots`` is already in ``slots.weights``.
        piece_rows: slots whose logits are in memory at once.
    """
    total_weight = mx.maximum(slots.weights.sum(), 1e-9)
    shares = slots.weights / total_weight
    drafted, ce_rows, l1_rows = _distribution_loss(slots, shares, terms, piece_rows)
    ce_rows, l1_rows = mx.stop_gradient(ce_rows), mx.stop_gradient(l1_rows)
    accept = 1 - 0.5 * l1_rows
    confidence = mx.array(0.0)
    if confidence_logits is not None:
        confidence = (shares * binary_cross_entropy(confidence_logits, accept)).sum()
    return Losses(
        total=drafted + terms.confidence * confidence,
        cross_entropy=(shares * ce_rows).sum(),
        l1=(shares * l1_rows).sum(),
        confidence=confidence,
        accept=accept,
    )


def binary_cross_entropy(logits: mx.array, chances: mx.array) -> mx.array:
    """-c log sigmoid(x) - (1 - c) log sigmoid(-x), any shape, float32."""
    return mx.logaddexp(0.0, logits) - chances * logits


def _distribution_loss(
    slots: Slots, shares: mx.array, terms: LossWeights, piece_rows: int
) -> tuple[mx.array, mx.array, mx.array]:
    """Weighted CE and L1 with an analytic gradient; the logits are never kept.

    Returns:
        The scalar, and CE and L1 per slot [N] float32.
    """
    if slots.low_rank is None:
        inputs = slots.rows
        matrix = slots.head
    else:
        inputs = mx.concatenate([slots.rows, slots.low_rank], axis=-1)
        matrix = mx.concatenate([mx.stop_gradient(slots.head), slots.table], axis=-1)
    num_frozen = slots.head.shape[-1]

    @mx.custom_function
    def loss(inputs, matrix, target_rows, labels, shares):  # noqa: ANN001, ANN202
        return _pieces((inputs, matrix, target_rows, labels, shares), terms, num_frozen, piece_rows)

    @loss.vjp
    def loss_vjp(primals, cotangents, outputs):  # noqa: ANN001, ANN202
        inputs, matrix, *others = primals
        scale = cotangents[0]
        grad_inputs = (outputs[3] * scale).astype(inputs.dtype)
        grad_table = (outputs[4] * scale).astype(matrix.dtype)
        frozen = mx.zeros((matrix.shape[0], num_frozen), dtype=matrix.dtype)
        grad_matrix = mx.concatenate([frozen, grad_table], axis=-1)
        return (grad_inputs, grad_matrix, *(mx.zeros_like(other) for other in others))

    value, ce_rows, l1_rows, _, _ = loss(
        inputs, matrix, mx.stop_gradient(slots.target_rows), slots.labels, shares
    )
    return value, ce_rows, l1_rows


def _pieces(
    arrays: tuple[mx.array, ...], terms: LossWeights, num_frozen: int, piece_rows: int
) -> tuple[mx.array, mx.array, mx.array, mx.array, mx.array]:
    """Loss, CE and L1 per slot, gradients of the inputs and of the trained columns."""
    inputs, matrix, target_rows, labels, shares = arrays
    if inputs.shape[0] != target_rows.shape[0]:
        raise ShapeError(f"{inputs.shape[0]} draft slots and {target_rows.shape[0]} target slots")
    head = matrix[:, :num_frozen]
    measure = logit_gradient.choose(inputs.dtype, matrix.shape[0])
    weights = (terms.cross_entropy, terms.l1)
    values, ce_all, l1_all, grads = mx.array(0.0), [], [], []
    grad_table = mx.zeros((matrix.shape[0], matrix.shape[1] - num_frozen), dtype=mx.float32)
    for start in range(0, inputs.shape[0], piece_rows):
        cut = slice(start, start + piece_rows)
        logits = inputs[cut] @ matrix.T
        target_logits = target_rows[cut] @ head.T
        ce, l1, grad = measure(logits, target_logits, labels[cut], shares[cut], weights)
        values = values + (shares[cut] * (terms.cross_entropy * ce + terms.l1 * l1)).sum()
        ce_all.append(ce)
        l1_all.append(l1)
        grads.append(grad @ matrix)
        if num_frozen < matrix.shape[1]:
            grad_table = grad_table + (grad.T @ inputs[cut, num_frozen:]).astype(mx.float32)
    return values, mx.concatenate(ce_all), mx.concatenate(l1_all), mx.concatenate(grads), grad_table
