"""Attention and activation for CPUs, where MLX computes exponentials one at a time.

On an AMD EPYC core MLX's exponential takes 15 to 25 ns an element and the one below 5; attention of
8 rows over 1,032 keys takes 1.1 instead of 2.6 ms (SmolLM2's heads, docs/log.md).
"""

import functools

import mlx.core as mx
import numpy as np

from vllm_dspark.ops import reference

LOG2_E = 1.4426950408889634
ROUNDER = 12582912.0  # 1.5 * 2^23: adding it to |t| < 2^22 leaves round(t) in the lowest bits
MANTISSA_BITS = 23
MAX_POWER = 126.0
POLYNOMIAL = (
    0.0013400432653725147, 0.009676037356257439, 0.05550327152013779, 0.2402210682630539,
    0.6931471824645996, 1.0000001192092896,
)  # fmt: skip
"""2^f for |f| <= 1/2 through Chebyshev's nodes, highest power first; within 1.8e-7 of it."""

MAX_KEPT_ROWS = 32
"""Masks of more rows are made anew in every layer, since they would take too much memory."""

FEW_ELEMENTS = 8192
"""Up to here MLX's exponential is as fast: every operation costs some 10 us."""


def exp(x: mx.array) -> mx.array:
    """e^x of float32 [...] by additions and multiplications, which MLX computes eight at a time.

    2^t with t = n + f: a polynomial in f, and n added to the exponent bits. Relative error below
    4e-7 * max(1, |x|). Results are kept within 2^-126 .. 2^126, so e^-inf is 1e-38 and not 0.
    """
    if x.size <= FEW_ELEMENTS:
        return mx.exp(x)
    t = mx.clip(x * LOG2_E, -MAX_POWER, MAX_POWER)
    shifted = t + ROUNDER
    f = t - (shifted - ROUNDER)
    power = POLYNOMIAL[0] * f + POLYNOMIAL[1]
    for coefficient in POLYNOMIAL[2:]:
        power = power * f + coefficient
    exponent = mx.left_shift(shifted.view(mx.int32), MANTISSA_BITS)
    return (power.view(mx.int32) + exponent).view(mx.float32)


def silu(x: mx.array) -> mx.array:
    """x / (1 + e^-x), any shape and float type."""
    if x.dtype != mx.float32:
        return x * mx.sigmoid(x)
    return x / (1.0 + exp(-x))


def mix(
    q: mx.array, k: mx.array, v: mx.array, *, mask: mx.array | str | None, scale: float
) -> mx.array:
    """Attention as ``ops.select.Mix`` says. Masks are added: choosing takes four times that."""
    return reference.in_parts(_mix, q, k, v, mask=mask, scale=scale)


def _mix(
    q: mx.array, k: mx.array, v: mx.array, mask: mx.array | str | None, scale: float
) -> mx.array:
    num_requests, heads, rows, size = q.shape
    kv_heads, length = k.shape[1], k.shape[2]
    scores = reference.folded_scores(q, k, scale)
    if mask is not None:
        bias = _causal_bias(rows, length) if isinstance(mask, str) else _bias(mask)
        scores = scores.reshape(num_requests, heads, rows, length) + bias
        scores = scores.reshape(num_requests, kv_heads, -1, length)
    weights = exp(scores - scores.max(axis=-1, keepdims=True))
    total = weights.sum(axis=-1, keepdims=True)
    mixed = (weights.astype(v.dtype) @ v) / total
    return mixed.reshape(num_requests, heads, rows, size).astype(q.dtype)


def _bias(allowed: mx.array) -> mx.array:
    return mx.where(allowed, mx.array(0.0), mx.array(-mx.inf))


def _causal_bias(rows: int, length: int) -> mx.array:
    if rows <= MAX_KEPT_ROWS:
        return _few_rows_bias(rows, length)
    return _bias(reference.causal_mask(rows, length))


@functools.lru_cache(maxsize=4)
def _few_rows_bias(rows: int, length: int) -> mx.array:
    """[1, 1, rows, length]: 0 where a row may look, else -inf. One for all layers of a step.

    Made on the host: an operation would belong to a stream of this thread, and the next engine of
    the process computes in another.
    """
    last = np.arange(length - rows, length)
    bias = np.where(np.arange(length) <= last[:, None], 0.0, -np.inf)
    return mx.array(bias.astype(np.float32).reshape(1, 1, rows, length))
