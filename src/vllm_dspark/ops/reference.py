"""Attention in plain MLX operations: the specification, and the fast form on a CPU."""

import mlx.core as mx

MAX_ROWS = 256
"""Rows of a request whose scores exist at one time; a long chunk is cut into such parts."""


def mix(
    q: mx.array, k: mx.array, v: mx.array, *, mask: mx.array | str | None, scale: float
) -> mx.array:
    """Attention as ``ops.select.Mix`` says.

    The query heads of one key head are folded into rows, so that a request costs one matrix
    product per key head (a CPU pays per product).
    """
    rows, length = q.shape[2], k.shape[2]
    if rows <= MAX_ROWS:
        return _mix(q, k, v, mask, scale)
    parts = []
    for start in range(0, rows, MAX_ROWS):
        stop = min(start + MAX_ROWS, rows)
        seen, part_mask = length, mask
        if isinstance(mask, str):
            seen = length - rows + stop  # the keys after it are masked for the whole part
        elif mask is not None:
            part_mask = mask[:, :, start:stop]
        parts.append(_mix(q[:, :, start:stop], k[:, :, :seen], v[:, :, :seen], part_mask, scale))
    return mx.concatenate(parts, axis=2)


def _mix(
    q: mx.array, k: mx.array, v: mx.array, mask: mx.array | str | None, scale: float
) -> mx.array:
    num_requests, heads, rows, size = q.shape
    kv_heads, length = k.shape[1], k.shape[2]
    folded = (q * scale).reshape(num_requests, kv_heads, -1, size)
    scores = (folded @ k.swapaxes(-1, -2)).astype(mx.float32)
    if mask is not None:
        scores = scores.reshape(num_requests, heads, rows, length)
        allowed = causal_mask(rows, length) if isinstance(mask, str) else mask
        scores = mx.where(allowed, scores, mx.array(-mx.inf, scores.dtype))
    # Written out: MLX's softmax takes three times as long as its exponential on a CPU.
    weights = mx.exp(scores - scores.max(axis=-1, keepdims=True))
    total = weights.sum(axis=-1).reshape(num_requests, heads, rows, 1)
    mixed = weights.reshape(num_requests, kv_heads, -1, length).astype(v.dtype) @ v
    return (mixed.reshape(num_requests, heads, rows, size) / total).astype(q.dtype)


def causal_mask(rows: int, length: int) -> mx.array:
    """[1, 1, rows, length] bool: row i sees keys 0..length-rows+i."""
    last = mx.arange(length - rows, length)
    return (mx.arange(length) <= last[:, None])[None, None]
