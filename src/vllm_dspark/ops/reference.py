"""Attention in plain MLX operations: the specification, and the fast form on a CPU."""

import mlx.core as mx


def mix(
    q: mx.array, k: mx.array, v: mx.array, *, mask: mx.array | str | None, scale: float
) -> mx.array:
    """Attention as ``ops.select.Mix`` says.

    The query heads of one key head are folded into rows, so that a request costs one matrix
    product per key head (a CPU pays per product).
    """
    num_requests, heads, rows, size = q.shape
    kv_heads, length = k.shape[1], k.shape[2]
    folded = (q * scale).reshape(num_requests, kv_heads, -1, size)
    scores = folded @ k.swapaxes(-1, -2)
    if mask is not None:
        scores = scores.reshape(num_requests, heads, rows, length)
        allowed = causal_mask(rows, length) if isinstance(mask, str) else mask
        scores = mx.where(allowed, scores, mx.array(-mx.inf, scores.dtype))
    weights = mx.softmax(scores, axis=-1, precise=True)
    mixed = weights.reshape(num_requests, kv_heads, -1, length) @ v
    return mixed.reshape(num_requests, heads, rows, size)


def causal_mask(rows: int, length: int) -> mx.array:
    """[1, 1, rows, length] bool: row i sees keys 0..length-rows+i."""
    last = mx.arange(length - rows, length)
    return (mx.arange(length) <= last[:, None])[None, None]
