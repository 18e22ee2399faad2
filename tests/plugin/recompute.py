"""What sampling options mean, recomputed with numpy from mlx_lm's logits."""

from typing import Any

import mlx.core as mx
import numpy as np
from engines import reference_model


def forced_logits(output: Any) -> np.ndarray:
    """Logits [outputs, V] before each output token of a finished request, by mlx_lm."""
    return all_logits(output)[len(output.prompt_token_ids) - 1 : -1]


def all_logits(output: Any) -> np.ndarray:
    """Logits [tokens, V] after each token of prompt and output, by mlx_lm."""
    model, _ = reference_model()
    ids = [*output.prompt_token_ids, *output.outputs[0].token_ids]
    return np.array(model(mx.array([ids]))[0])


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Log-probabilities of rows, in float64."""
    wide = logits.astype(np.float64)
    shifted = wide - wide.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def penalised(
    logits: np.ndarray,
    prompt: list[int],
    output: list[int],
    *,
    presence: float = 0.0,
    frequency: float = 0.0,
    repetition: float = 1.0,
) -> np.ndarray:
    """One row of logits after OpenAI's and the repetition penalty."""
    row = logits.astype(np.float64)
    for token in {*prompt, *output}:
        row[token] = row[token] / repetition if row[token] > 0 else row[token] * repetition
    for token in set(output):
        row[token] -= presence + frequency * output.count(token)
    return row


def tokens_of(output: Any) -> list[int]:
    """Tokens of the first output."""
    return list(output.outputs[0].token_ids)
