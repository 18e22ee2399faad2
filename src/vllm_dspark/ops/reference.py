"""Attention in plain MLX operations: the specification."""

from collections.abc import Callable

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
    return in_parts(_mix, q, k, v, mask=mask, scale=scale)


def in_parts(  # noqa: PLR0913 - an operation and its arguments
    operation: Callable[..., mx.array],
    q: mx.array,
    k: mx.array,
    v: mx.array,
    *,
    mask: mx.array | str | None,
    scale: float,
) -> mx.array:
    """Call ``operation(q, k, v, mask, scale)`` with at most MAX_ROWS rows at a time."""
    rows, length = q.shape[2], k.shape[2]
    if rows <= MAX_ROWS:
        return operation(q, k, v, mask, scale)
    parts = []
    for start in range(0, rows, MAX_ROWS):
        stop = min(start + MAX_ROWS, rows)
        seen, part_mask = length, mask
        if isinstance(mask, str):
            seen = length - rows + stop  # the keys after it are masked for the whole part
        elif mask is not None:
            part_mask = mask[:, :, start:stop]
        cut = (q[:, :, start:stop], k[:, :, :seen], v[:, :, :seen])
        parts.append(operation(*cut, part_mask, scale))
    return mx.concatenate(parts, axis=2)


def _mix(
    q: mx.array, k: mx.array, v: mx.array, mask: mx.array | str | None, scale: float
) -> mx.array:
    num_requests, heads, rows, size = q.shape
    kv_heads, length = k.shape[1], k.shape[2]
    scores = folded_scores(q, k, scale)
    if mask is not None:
        scores = scores.reshape(num_requests, heads, rows, length)
        allowed = causal_mask(rows, length) if isinstance(mask, str) else mask
        scores = mx.where(allowed, scores, mx.array(-mx.inf, scores.dtype))
    weights = mx.softmax(scores.reshape(num_requests, kv_heads, -1, length), axis=-1, precise=True)
    mixed = weights.astype(v.dtype) @ v
    return mixed.reshape(num_requests, heads, rows, size).astype(q.dtype)


def folded_scores(q: mx.array, k: mx.array, scale: float) -> mx.array:
    """Scores of q [R, H, M, D] and k [R, KV, L, D]: [R, KV, H / KV * M, L] float32."""
    folded = (q * scale).reshape(k.shape[0], k.shape[1], -1, k.shape[3])
    return (folded @ k.swapaxes(-1, -2)).astype(mx.float32)


def causal_mask(rows: int, length: int) -> mx.array:
    """[1, 1, rows, length] bool: row i sees keys 0..length-rows+i."""
    last = mx.arange(length - rows, length)
    return (mx.arange(length) <= last[:, None])[None, None]
