"""Cross entropy and L1 of draft logits against target logits, with the gradient.

The plain version is the specification; the kernel makes one pass per slot on CUDA.
"""

from collections.abc import Callable
from functools import cache
from importlib import resources

import mlx.core as mx

NUM_THREADS = 1024
LogitGradient = Callable[..., tuple[mx.array, mx.array, mx.array]]


def reference(
    logits: mx.array,
    target_logits: mx.array,
    labels: mx.array,
    shares: mx.array,
    weights: tuple[float, float],
) -> tuple[mx.array, mx.array, mx.array]:
    """CE and L1 of each slot, and the gradient of their weighted sum.

    With P and Q the softmax of both and s = sign(P - Q), the gradient of sum |P - Q| is
    P (s - sum s P). Slots with share 0 have no gradient.

    Args:
        logits, target_logits: [N, V]; labels: [N] int32; shares: [N] float32.
        weights: of CE and of L1.

    Returns:
        CE [N] and L1 [N] in float32 (unspecified where the share is 0), gradient [N, V] in the
        logits' type.
    """
    ce_weight, l1_weight = weights
    p = mx.softmax(logits, axis=-1, precise=True)
    q = mx.softmax(target_logits, axis=-1, precise=True)
    difference = p.astype(mx.float32) - q.astype(mx.float32)
    l1 = mx.abs(difference).sum(axis=-1)
    signs = mx.sign(difference)
    tilt = (signs * p.astype(mx.float32)).sum(axis=-1, keepdims=True)
    chosen = mx.take_along_axis(p, labels[:, None], axis=-1)[:, 0].astype(mx.float32)
    ce = -mx.log(mx.maximum(chosen, 1e-30))
    is_label = mx.arange(logits.shape[-1], dtype=labels.dtype) == labels[:, None]
    grad = p.astype(mx.float32) * (ce_weight + l1_weight * (signs - tilt))
    grad = shares[:, None] * (grad - mx.where(is_label, ce_weight, 0.0))
    return ce, l1, grad.astype(logits.dtype)


def cuda(
    logits: mx.array,
    target_logits: mx.array,
    labels: mx.array,
    shares: mx.array,
    weights: tuple[float, float],
) -> tuple[mx.array, mx.array, mx.array]:
    """As :func:`reference`, for bfloat16 logits with V a multiple of 8."""
    count, size = logits.shape
    grad, ce, l1 = _kernel()(
        inputs=[logits, target_logits, labels, shares, mx.array(weights)],
        template=[("V", size)],
        grid=(count * NUM_THREADS, 1, 1),
        threadgroup=(NUM_THREADS, 1, 1),
        output_shapes=[logits.shape, (count,), (count,)],
        output_dtypes=[logits.dtype, mx.float32, mx.float32],
    )
    return ce, l1, grad


@cache
def _kernel() -> Callable[..., list[mx.array]]:
    folder = resources.files(__package__).joinpath("kernels")
    return mx.fast.cuda_kernel(
        name="dspark_logit_gradient",
        input_names=["logits", "target_logits", "labels", "shares", "weights"],
        output_names=["grad", "ce", "l1"],
        source=folder.joinpath("logit_gradient.cu").read_text(encoding="utf-8"),
        header=folder.joinpath("block_reduce.cuh").read_text(encoding="utf-8"),
    )


def choose(dtype: mx.Dtype, size: int) -> LogitGradient:
    """The version for logits of a type and a vocabulary's size on the default device."""
    is_cuda = mx.cuda.is_available() and mx.default_device() == mx.Device(mx.gpu)
    return cuda if is_cuda and dtype == mx.bfloat16 and size % 8 == 0 else reference
