"""What training does differently on a GPU and on a CPU."""

from collections.abc import Callable
from typing import TypeVar

import mlx.core as mx

F = TypeVar("F", bound=Callable)


def is_gpu() -> bool:
    """Whether MLX computes on a GPU by default."""
    return mx.default_device() == mx.gpu


def compiled(function: F) -> F:
    """Fuse a function's kernels on a GPU.

    On a CPU the fused kernels would go through a C++ compiler, minutes for a training step.
    """
    return mx.compile(function) if is_gpu() else function
