"""Temperature, truncation and the random draw, on the device."""

from collections.abc import Sequence

import mlx.core as mx

from vllm_dspark.sampling.params import Sampling

MASK_64 = (1 << 64) - 1
FEWEST_SORTED = 8
"""Where at most one in so many is to be kept, those are picked out before sorting: 8 rows of 49,152
take 53 ms to sort on a CPU, and 5 ms to partition."""
TARGET_STREAM = 0
"""Random stream of tokens drawn from the target; other streams are independent of it."""
DRAFT_STREAM = 1
"""Random stream of drafts that are drawn."""
ROUND_STRIDE = 1024
"""Draws of a round that a later round must not see again are keyed by the round's first undecided
position, which grows with every round, times this, plus the slot: a slot's own position comes again
after a rejection, and that rejection says something about its noise."""


def draw_key(seed: int, position: int, stream: int = TARGET_STREAM) -> tuple[int, int]:
    """Key of the draw for one position: two 32-bit words.

    A draw depends on the request's seed and the position of its token alone, so that batch, order
    and preemption do not matter. The words are a 64-bit finaliser (splitmix64's constants) over
    the three numbers.
    """
    word = (seed * 0x9E3779B97F4A7C15 + position * 0xD1342543DE82EF95 + stream + 1) & MASK_64
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        word = ((word ^ (word >> shift)) * factor) & MASK_64
    word ^= word >> 31
    return word >> 32, word & 0xFFFFFFFF


def truncate(
    logits: mx.array, top_k: mx.array, top_p: mx.array, max_top_k: int | None = None
) -> mx.array:
    """Keep the top_k largest, then the smallest set whose mass reaches top_p.

    Args:
        logits: [S, V] float32, temperature applied.
        top_k: [S] int32 in 1..V. top_p: [S] float32 in (0, 1].
        max_top_k: the largest of ``top_k`` where it is known and not V: only so many are sorted.

    Returns:
        [S, V], -inf where a token is cut. Ties with the last kept value are kept.
    """
    cut = mx.array(-mx.inf, mx.float32)
    largest = logits
    if max_top_k is not None and max_top_k <= logits.shape[1] // FEWEST_SORTED:
        start = logits.shape[1] - max_top_k
        largest = mx.partition(logits, start, axis=1)[:, start:]
    ordered = mx.sort(largest, axis=1)[:, ::-1]
    rank = mx.arange(ordered.shape[1])
    ordered = mx.where(rank < top_k[:, None], ordered, cut)
    mass = mx.softmax(ordered, axis=1, precise=True)
    before = mx.cumsum(mass, axis=1) - mass
    # Sums round up to 1, so a top_p of 1 is not compared.
    reached = (before >= top_p[:, None]) & (top_p[:, None] < 1.0) & (rank > 0)
    kept = ~reached & (ordered > cut)
    last = mx.min(mx.where(kept, ordered, mx.array(mx.inf, mx.float32)), axis=1, keepdims=True)
    return mx.where(logits >= last, logits, cut)


def shape_logits(logits: mx.array, options: Sequence[Sampling]) -> mx.array:
    """Apply temperature, min-p, top-k and top-p, in vLLM's order.

    Args:
        logits: [S, V] float32 after rules and grammar.
        options: one per row; greedy rows keep their logits.

    Returns:
        [S, V]: softmax of a row is the distribution to draw from.
    """
    vocab_size = logits.shape[1]
    heat = mx.array([1.0 if one.is_greedy else one.temperature for one in options])
    shaped = logits / heat[:, None]
    if any(one.min_p > 0 and not one.is_greedy for one in options):
        floor = mx.array([mx.inf if one.min_p <= 0 else one.min_p for one in options])
        floor = mx.where(floor == mx.inf, mx.array(-mx.inf), mx.log(floor))
        limit = mx.max(shaped, axis=1, keepdims=True) + floor[:, None]
        shaped = mx.where(shaped >= limit, shaped, mx.array(-mx.inf, mx.float32))
    if any((one.top_k > 0 or one.top_p < 1.0) and not one.is_greedy for one in options):
        top_k = mx.array(
            [one.top_k if 0 < one.top_k < vocab_size else vocab_size for one in options]
        )
        top_p = mx.array([one.top_p for one in options])
        limits = [one.top_k for one in options]
        width = max(limits) if all(0 < one < vocab_size for one in limits) else None
        shaped = truncate(shaped, top_k, top_p, width)
    return shaped


def draw(
    logits: mx.array, options: Sequence[Sampling], keys: Sequence[tuple[int, int]]
) -> mx.array:
    """Choose one token per row: argmax where greedy, else by Gumbel noise from the row's key.

    Args:
        logits: [S, V] float32 from ``shape_logits``.
        options, keys: one per row.

    Returns:
        [S] int32.
    """
    if all(one.is_greedy for one in options):
        return mx.argmax(logits, axis=1).astype(mx.int32)
    width = (logits.shape[1],)
    noise = mx.stack(
        [
            mx.zeros(width)
            if one.is_greedy
            else mx.random.gumbel(width, key=mx.array(key, mx.uint32))
            for one, key in zip(options, keys, strict=True)
        ]
    )
    return mx.argmax(logits + noise, axis=1).astype(mx.int32)
