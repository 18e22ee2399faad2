"""Which blocks a row gives: anchors, labels and the mask of supervised slots.

``dspark.md`` 6.2 in the issue's papers; a row is one stream of T tokens with a loss mask.
"""

from dataclasses import dataclass

import mlx.core as mx
import numpy as np

SUPERVISED = 1  # in a row's mask: a token that the target wrote as an answer
LOOPED = 2  # the same, deep in a repetition: a label, never an anchor


@dataclass(frozen=True, slots=True)
class Blocks:
    """The slots of a batch's blocks, B rows with A blocks of K slots each.

    Attributes:
        anchors: [B, A] int32, positions of the anchors.
        previous: [B, A, K] int32, the token before each label: x_a, x_{a+1}, ...
        labels: [B, A, K] int32, the tokens x_{a+1} ... x_{a+K}; token 0 past the row's end.
        mask: [B, A, K] float32, 1 where a slot is supervised, a prefix of each block.
        sources: [B, A, K] int32, position whose final state gives the target's distribution.
    """

    anchors: mx.array
    previous: mx.array
    labels: mx.array
    mask: mx.array
    sources: mx.array


def valid_anchors(mask: np.ndarray) -> np.ndarray:
    """Where blocks may start: mask [..., T] uint8 -> [..., T] bool.

    An anchor is an answer's token outside loops whose successor is an answer's token too.
    """
    allowed = np.zeros(mask.shape, dtype=bool)
    allowed[..., :-1] = (mask[..., :-1] == SUPERVISED) & (mask[..., 1:] > 0)
    return allowed


def draw_anchors(
    allowed: np.ndarray, count: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Draw distinct anchors of every row, uniformly.

    Args:
        allowed: [B, T] bool.
        count: A, blocks per row.

    Returns:
        Positions [B, A] int32, ascending among the real ones, and which are real [B, A] bool; the
        others, where a row has fewer than A, are at position 0.
    """
    count = min(count, allowed.shape[1])
    scores = np.where(allowed, rng.random(allowed.shape, dtype=np.float32), np.float32(2))
    chosen = np.argpartition(scores, count - 1, axis=1)[:, :count]
    is_real = np.take_along_axis(allowed, chosen, axis=1)
    order = np.sort(np.where(is_real, chosen, allowed.shape[1]), axis=1)
    is_real = order < allowed.shape[1]
    return np.where(is_real, order, 0).astype(np.int32), is_real


def make_blocks(
    tokens: mx.array, mask: mx.array, anchors: mx.array, is_real: mx.array, num_slots: int
) -> Blocks:
    """Cut the blocks that start at given anchors out of rows.

    Args:
        tokens: [B, T] int32; mask: [B, T], above 0 where supervised.
        anchors: [B, A] int32; is_real: [B, A] bool.
        num_slots: K.
    """
    length = tokens.shape[1]
    sources = anchors[..., None] + mx.arange(num_slots, dtype=mx.int32)
    flat = sources.reshape(tokens.shape[0], -1)
    inside = flat + 1 < length

    def read(rows: mx.array, positions: mx.array) -> mx.array:
        clipped = mx.minimum(positions, length - 1)
        return mx.take_along_axis(rows, clipped, axis=1).reshape(sources.shape)

    inside = inside.reshape(sources.shape)
    supervised = (read(mask, flat + 1) > 0) & inside & is_real[..., None]
    return Blocks(
        anchors=anchors,
        previous=read(tokens, flat),
        labels=mx.where(inside, read(tokens, flat + 1), 0),
        mask=mx.cumprod(supervised.astype(mx.float32), axis=-1),
        sources=mx.minimum(sources, length - 1),
    )
