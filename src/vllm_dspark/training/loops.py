"""Find where a stream repeats itself: a small model loops, and loops teach a draft nothing."""

import numpy as np

MAX_PERIOD = 64  # longest repeated unit looked for, in tokens


def repeated(tokens: np.ndarray, min_length: int, max_period: int = MAX_PERIOD) -> np.ndarray:
    """Mark tokens that lie in a repetition of at least ``min_length`` tokens.

    Token t repeats with period p if it equals token t - p. It is marked once the last
    ``min_length`` tokens, and at least one whole period of them, did so.

    Args:
        tokens: [N, T] int.
        min_length: tokens of a repetition that pass unmarked.

    Returns:
        [N, T] bool.
    """
    length = tokens.shape[1]
    marked = np.zeros(tokens.shape, dtype=bool)
    steps = np.arange(length, dtype=np.int32)
    for period in range(1, min(max_period, length - 1) + 1):
        equal = np.zeros(tokens.shape, dtype=bool)
        equal[:, period:] = tokens[:, period:] == tokens[:, :-period]
        needed = max(min_length, period)
        if not (equal.sum(axis=1) >= needed).any():
            continue
        last_miss = np.maximum.accumulate(np.where(equal, -1, steps), axis=1)
        marked |= steps - last_miss >= needed
    return marked


def distinct_share(tokens: np.ndarray, size: int = 4) -> float:
    """Share of a stream's ``size``-grams that are different: tokens [T] -> 0..1."""
    grams = np.lib.stride_tricks.sliding_window_view(tokens, size)
    return len(np.unique(grams, axis=0)) / len(grams)
