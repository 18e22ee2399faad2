"""The loss kernel against the plain operations."""

import mlx.core as mx
import pytest

from vllm_dspark.ops import logit_gradient


@pytest.mark.cuda
@pytest.mark.skipif(not mx.cuda.is_available(), reason="needs MLX's CUDA build")
def test_the_kernel_equals_the_reference() -> None:
    mx.random.seed(3)
    count, size = 700, 49152
    logits = (mx.random.normal((count, size)) * 3).astype(mx.bfloat16)
    target_logits = (logits + mx.random.normal((count, size))).astype(mx.bfloat16)
    labels = mx.random.randint(0, size, (count,)).astype(mx.int32)
    shares = mx.where(mx.arange(count) % 7 == 3, 0.0, mx.random.uniform(shape=(count,)))
    found = logit_gradient.cuda(logits, target_logits, labels, shares, (0.1, 0.9))
    wide = (array.astype(mx.float32) for array in (logits, target_logits))
    expected = logit_gradient.reference(*wide, labels, shares, (0.1, 0.9))
    is_used = shares > 0
    for ours, theirs, limit in zip(found, expected, (1e-5, 1e-5, 4e-3), strict=True):
        ours = ours.astype(mx.float32)
        mask = is_used if ours.ndim == 1 else is_used[:, None]
        gap = mx.linalg.norm(mx.where(mask, ours - theirs, 0.0))
        assert (gap / mx.linalg.norm(mx.where(mask, theirs, 0.0))).item() < limit


def test_a_cpu_uses_the_reference() -> None:
    if mx.default_device() == mx.Device(mx.cpu):
        assert logit_gradient.choose(mx.bfloat16, 64) is logit_gradient.reference
