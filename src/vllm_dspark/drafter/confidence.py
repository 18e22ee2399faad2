"""The confidence head: the chance that a draft is accepted, given that those before it were."""

import mlx.core as mx
import mlx.nn as nn

from vllm_dspark.nn.linear import Linear


class ConfidenceHead(nn.Module):
    """logit = w [hidden ; W1 row of the previous token] + b, always in float32.

    Attributes:
        proj: Linear d (+ r) -> 1 in float32.
        reads_markov: whether the input ends with the Markov embedding.
    """

    def __init__(self, proj: Linear, *, reads_markov: bool) -> None:
        super().__init__()
        self.proj = proj
        self.reads_markov = reads_markov

    def __call__(self, hidden: mx.array, e: mx.array | None) -> mx.array:
        """Score slots.

        Args:
            hidden: [..., d], final-normed hidden states of the slots.
            e: [..., r], raw W1 rows of the previous tokens; may be None if not read.

        Returns:
            [...] float32, logits of the acceptance chance.
        """
        inputs = hidden.astype(mx.float32)
        if self.reads_markov:
            inputs = mx.concatenate([inputs, e.astype(mx.float32)], axis=-1)
        return self.proj(inputs)[..., 0]
