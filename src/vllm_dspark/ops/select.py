"""The operations that have more than one implementation, and the choice between them."""

from collections.abc import Callable
from typing import Protocol

import mlx.core as mx

from vllm_dspark.errors import SettingsError
from vllm_dspark.ops import cpu, fused, reference

Mask = mx.array | str | None


class Mix(Protocol):
    """Attention of R requests with M rows each over L keys."""

    def __call__(
        self, q: mx.array, k: mx.array, v: mx.array, *, mask: Mask, scale: float
    ) -> mx.array:
        """Mix values.

        Args:
            q: [R, H, M, D].
            k, v: [R, KV, L, D]; H is a multiple of KV.
            mask: [R or 1, 1, M, L] bool, True where a row may look; "causal" when row i of M
                sees keys 0..L-M+i; None when every row sees every key.
            scale: factor on the scores.

        Returns:
            [R, H, M, D].
        """
        ...


MIXES: dict[str, Callable[..., mx.array]] = {
    "reference": reference.mix,
    "cpu": cpu.mix,
    "fused": fused.mix,
    "cuda": fused.mix_cuda,
}


def make_mix(name: str) -> Mix:
    """Return the named attention. Called once per process."""
    if name not in MIXES:
        raise SettingsError(f"there is no attention {name!r}; choose from {sorted(MIXES)}")
    return MIXES[name]


def default_mix_name() -> str:
    """The attention for the default device: our operations on a CPU, MLX's kernel on a GPU."""
    if mx.default_device() != mx.Device(mx.gpu):
        return "cpu"
    return "cuda" if mx.cuda.is_available() else "fused"


def default_max_gathered() -> int | None:
    """Keys of a request up to which requests are attended together, by copying their pages.

    Measured on two CPU cores with 8 requests (docs/log.md): of 136 keys each, together takes 25 ms
    a step and one by one 37; of 1,032 keys 212 and 131. A GPU copies faster than it starts kernels.
    """
    return 384 if mx.default_device() == mx.Device(mx.cpu) else None
