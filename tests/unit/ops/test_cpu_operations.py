"""The CPU's exponential, activation and attention equal what they replace."""

import math
from concurrent.futures import ThreadPoolExecutor

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from vllm_dspark.ops import cpu, reference


def test_the_exponential_is_as_exact_as_float32_allows() -> None:
    x = np.linspace(-87, 87, 200_001, dtype=np.float32)
    expected = np.exp(x.astype(np.float64))
    error = np.abs(np.array(cpu.exp(mx.array(x))) / expected - 1)
    assert (error / np.maximum(1, np.abs(x))).max() < 4e-7


def test_the_exponential_of_extremes_stays_finite() -> None:
    extremes = [-mx.inf, -1e30, -100.0, 0.0, 100.0, 1e30, mx.inf]
    many = mx.array(extremes * (cpu.FEW_ELEMENTS // len(extremes) + 1))
    found = np.array(cpu.exp(many))[: len(extremes)]
    assert np.isfinite(found).all()
    assert found[0] == found[1] < 2e-38
    assert found[3] == pytest.approx(1.0, abs=2e-7)


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
@pytest.mark.parametrize("size", [7, 20_000])
def test_silu_equals_mlx(size: int, dtype: mx.Dtype) -> None:
    x = (mx.random.normal((size,)) * 20).astype(dtype)
    x[0], x[1] = -200.0, 200.0
    got, expected = cpu.silu(x), nn.silu(x)
    assert got.dtype == dtype
    assert mx.abs(got - expected).max().item() <= (1e-5 if dtype == mx.float32 else 0.5)


@pytest.mark.parametrize("mask", [None, "causal", "array"])
@pytest.mark.parametrize("requests", [1, 3])
@pytest.mark.parametrize(("rows", "length"), [(1, 9), (8, 24), (8, 1030), (300, 310)])
def test_attention_equals_the_reference(
    rows: int, length: int, requests: int, mask: str | None
) -> None:
    q = mx.random.normal((requests, 6, rows, 16)) * 3
    k, v = (mx.random.normal((requests, 2, length, 16)) for _ in range(2))
    given: mx.array | str | None = mask
    if mask == "array":
        given = mx.arange(length) < mx.random.randint(1, length + 1, (requests, 1, rows, 1))
    expected = reference.mix(q, k, v, mask=given, scale=0.25)
    got = cpu.mix(q, k, v, mask=given, scale=0.25)
    assert got.shape == expected.shape
    assert mx.abs(got - expected).max().item() < 1e-5


def test_a_mask_that_another_thread_left_unfinished_can_be_used() -> None:
    def attend(_: object = None) -> mx.array:
        q, k = mx.ones((1, 2, 5, 8)), mx.ones((1, 2, 41, 8))
        return cpu.mix(q, k, k, mask="causal", scale=1.0)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(attend).result()  # built, never computed
    assert mx.allclose(attend(), mx.ones((1, 2, 5, 8))).item()


def test_a_masked_key_has_no_weight() -> None:
    rows, length = 8, 2_000
    assert 4 * rows * length > cpu.FEW_ELEMENTS
    q = mx.random.normal((1, 4, rows, 8))
    k, v = mx.random.normal((1, 4, length, 8)), mx.ones((1, 4, length, 8))
    allowed = mx.broadcast_to(mx.arange(length) < 5, (1, 1, rows, length))
    v[:, :, 5:] = 1e6
    assert mx.abs(cpu.mix(q, k, v, mask=allowed, scale=1 / math.sqrt(8)) - 1).max().item() < 1e-5
