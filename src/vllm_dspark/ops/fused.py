"""Attention through MLX's own fused kernel, for GPUs, and through one of ours for few rows."""

from collections.abc import Callable
from functools import cache
from importlib import resources

import mlx.core as mx
import numpy as np

from vllm_dspark.ops import reference

FEW_ROWS = 16
NUM_THREADS = 512  # as in few_rows.cu: 16 warps
SIZES = (32, 64, 96, 128, 256)  # of a head, that a warp deals out evenly
NO_MASK, CAUSAL, ARRAY = 0, 1, 2


def mix(
    q: mx.array, k: mx.array, v: mx.array, *, mask: mx.array | str | None, scale: float
) -> mx.array:
    """Attention as ``ops.select.Mix`` says."""
    return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mask)


def mix_cuda(
    q: mx.array, k: mx.array, v: mx.array, *, mask: mx.array | str | None, scale: float
) -> mx.array:
    """Attention as ``ops.select.Mix`` says, without MLX's kernel for 2 to 16 rows.

    For several rows in 16 bits that is cuDNN's, which plans anew for every context length: a
    step of 8 rows took 84 ms on an H200 where one of 1 row took 8 (docs/log.md).
    """
    if not 1 < q.shape[2] <= FEW_ROWS:
        return mix(q, k, v, mask=mask, scale=scale)
    if q.shape[3] in SIZES and mx.default_device() == mx.Device(mx.gpu):
        return few_rows(q, k, v, mask=mask, scale=scale)
    return reference.mix(q, k, v, mask=mask, scale=scale)


def few_rows(
    q: mx.array, k: mx.array, v: mx.array, *, mask: mx.array | str | None, scale: float
) -> mx.array:
    """Attention as ``ops.select.Mix`` says by one CUDA kernel, which sums in float32."""
    requests, heads, rows, size = q.shape
    kind = NO_MASK if mask is None else CAUSAL if isinstance(mask, str) else ARRAY
    given = mask if isinstance(mask, mx.array) else _constant(True, 4)
    (mixed,) = _few_rows_kernel()(
        inputs=[q, k, v, given, _constant(scale, 1)],
        template=[("T", q.dtype), ("D", size), ("MASK", kind)],
        grid=(requests * heads * rows * NUM_THREADS, 1, 1),
        threadgroup=(NUM_THREADS, 1, 1),
        output_shapes=[(requests, rows, heads, size)],
        output_dtypes=[q.dtype],
    )
    return mixed.swapaxes(1, 2)


@cache
def _constant(value: float, ndim: int) -> mx.array:
    """An array of one number, made once, on the host: streams belong to threads."""
    dtype = np.bool_ if isinstance(value, bool) else np.float32
    return mx.array(np.full((1,) * ndim, value, dtype))


@cache
def _few_rows_kernel() -> Callable[..., list[mx.array]]:
    folder = resources.files(__package__).joinpath("kernels")
    return mx.fast.cuda_kernel(
        name="dspark_few_rows",
        input_names=["q", "k", "v", "mask", "scale"],
        output_names=["out"],
        source=folder.joinpath("few_rows.cu").read_text(encoding="utf-8"),
        ensure_row_contiguous=False,  # keys and values are views into the pages
    )
