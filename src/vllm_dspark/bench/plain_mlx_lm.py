"""mlx_lm as it ships: the baseline outside this engine, with its own cache and loop."""

import time
from collections.abc import Sequence
from pathlib import Path

import mlx.core as mx
import mlx_lm
from mlx_lm.generate import generate_step


class PlainModel:
    """A folder loaded by mlx_lm."""

    def __init__(self, folder: Path) -> None:
        self.model, self.tokenizer = mlx_lm.load(str(folder))

    def decode_rate(self, prompt: Sequence[int], num_tokens: int) -> float:
        """Tokens per second of one client after the first token, by mlx_lm's own loop."""
        steps = generate_step(mx.array(list(prompt)), self.model, max_tokens=num_tokens + 1)
        next(steps)
        start = time.perf_counter()
        count = sum(1 for _ in steps)
        return count / (time.perf_counter() - start)

    def prefill_rate(self, prompt: Sequence[int]) -> float:
        """Prompt tokens per second until the first token."""
        start = time.perf_counter()
        next(generate_step(mx.array(list(prompt)), self.model, max_tokens=1))
        return len(prompt) / (time.perf_counter() - start)
