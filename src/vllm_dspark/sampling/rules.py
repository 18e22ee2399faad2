"""Edits that a request's rules make to one row of logits before temperature.

Everything a rule needs (the tokens so far) is on the host, so an edit is prepared there, as dense
rows, and applied on the device.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from vllm_dspark.sampling.params import Sampling


@dataclass(frozen=True, slots=True)
class RowEdit:
    """logits -> repeat(logits + bias) - penalty, for one row.

    Attributes:
        bias: [V] float32, logit bias, and -inf at forbidden tokens.
        repetition: [V] float32, divides positive logits and multiplies negative ones.
        penalty: [V] float32, presence and frequency penalties.
    """

    bias: np.ndarray
    repetition: np.ndarray
    penalty: np.ndarray


def banned_by_bad_words(bad_words: Sequence[Sequence[int]], token_ids: Sequence[int]) -> list[int]:
    """Last ids of the bad words whose beginning the output so far ends with."""
    banned = []
    for word in bad_words:
        start = len(word) - 1
        if start <= len(token_ids) and list(token_ids[len(token_ids) - start :]) == list(word[:-1]):
            banned.append(word[-1])
    return banned


def make_edit(
    sampling: Sampling, prompt_ids: Sequence[int], output_ids: Sequence[int], vocab_size: int
) -> RowEdit:
    """Prepare the edit for the token that follows ``output_ids``."""
    bias = np.zeros(vocab_size, np.float32)
    repetition = np.ones(vocab_size, np.float32)
    penalty = np.zeros(vocab_size, np.float32)
    if sampling.allowed_ids is not None:
        bias.fill(-np.inf)
        bias[list(sampling.allowed_ids)] = 0.0
    for token, value in sampling.logit_bias.items():
        bias[token] += value
    banned = banned_by_bad_words(sampling.bad_words, output_ids)
    if len(output_ids) < sampling.min_tokens:
        banned.extend(sampling.stop_ids)
    bias[banned] = -np.inf
    if sampling.has_penalties:
        output, counts = np.unique(np.asarray(output_ids, np.int64), return_counts=True)
        repetition[np.asarray(prompt_ids, np.int64)] = sampling.repetition_penalty
        repetition[output] = sampling.repetition_penalty
        penalty[output] = sampling.presence_penalty + sampling.frequency_penalty * counts
    return RowEdit(bias, repetition, penalty)


def apply_edits(logits: mx.array, rows: Sequence[int], edits: Sequence[RowEdit]) -> mx.array:
    """Apply one edit to each of the named rows of logits [S, V] float32."""
    if not rows:
        return logits
    bias = mx.array(np.stack([edit.bias for edit in edits]))
    repetition = mx.array(np.stack([edit.repetition for edit in edits]))
    penalty = mx.array(np.stack([edit.penalty for edit in edits]))
    index = mx.array(list(rows))
    picked = logits[index] + bias
    repeated = mx.where(picked > 0, picked / repetition, picked * repetition)
    logits[index] = repeated - penalty
    return logits


def apply_grammar(logits: mx.array, rows: Sequence[int], bitmask: np.ndarray) -> mx.array:
    """Forbid what a grammar forbids.

    Args:
        logits: [S, V] float32, edits already applied.
        rows: the rows under a grammar.
        bitmask: [len(rows), ceil(V / 32)] int32, bit i of word w set when token 32 w + i may come.

    Returns:
        [S, V]. Where the edits leave none of the grammar's tokens, the grammar alone decides.
    """
    if not len(rows):
        return logits
    vocab_size = logits.shape[1]
    bits = np.unpackbits(bitmask.view(np.uint8), axis=1, bitorder="little")
    allowed = mx.array(bits[:, :vocab_size].astype(bool))
    index = mx.array(list(rows))
    forbidden = mx.array(-mx.inf, mx.float32)
    picked = mx.where(allowed, logits[index], forbidden)
    is_empty = mx.max(picked, axis=1, keepdims=True) == forbidden
    logits[index] = mx.where(is_empty, mx.where(allowed, 0.0, forbidden), picked)
    return logits
