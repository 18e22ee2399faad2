"""The attention kernel for few rows against the plain operations."""

import mlx.core as mx
import pytest

from vllm_dspark.cache.attend import block_mask
from vllm_dspark.ops import fused, reference


@pytest.mark.cuda
@pytest.mark.skipif(not mx.cuda.is_available(), reason="needs MLX's CUDA build")
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16], ids=str)
@pytest.mark.parametrize("mask", [None, "causal", "array"])
@pytest.mark.parametrize("rows", [2, 8, 16])
@pytest.mark.parametrize("sizes", [(9, 3, 64), (4, 4, 32), (8, 2, 128), (6, 1, 256)], ids=str)
def test_the_kernel_equals_the_reference(
    sizes: tuple[int, int, int], rows: int, mask: str | None, dtype: mx.Dtype
) -> None:
    heads, kv_heads, size = sizes
    for length in (rows, 37, 300):
        # Slices of longer arrays, as the pages of a request are.
        pool = mx.random.normal((2, 3, kv_heads, 512, size)).astype(dtype)
        q = mx.random.normal((3, rows, heads, size)).astype(dtype).swapaxes(1, 2)
        k, v = pool[0, :, :, 5 : 5 + max(length, rows)], pool[1, :, :, 7 : 7 + max(length, rows)]
        given: mx.array | str | None = mask
        if mask == "array":
            lengths = mx.array([0, 1, k.shape[2] - rows])
            given = block_mask(lengths, k.shape[2] - rows, rows, window=None, is_causal=True)
        found = fused.few_rows(q, k, v, mask=given, scale=size**-0.5).astype(mx.float32)
        with mx.stream(mx.cpu):  # a GPU rounds the factors of float32 products
            wide = [array.astype(mx.float32) for array in (q, k, v)]
            expected = reference.mix(*wide, mask=given, scale=size**-0.5)
            mx.eval(expected)
        limit = {mx.float32: 2e-6, mx.float16: 2e-3, mx.bfloat16: 1e-2}[dtype]
        assert found.shape == expected.shape
        assert (mx.linalg.norm(found - expected) / mx.linalg.norm(expected)).item() < limit
