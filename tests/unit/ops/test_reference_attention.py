"""The reference attention equals MLX's on odd sizes and every kind of mask."""

import itertools

import mlx.core as mx
import pytest

from vllm_dspark.errors import SettingsError
from vllm_dspark.ops import cpu, fused, reference
from vllm_dspark.ops.select import MIXES, make_mix

SIZES = list(itertools.product([1, 3], [(4, 4), (6, 2), (5, 1)], [1, 2, 7], [7, 33], [8, 17 + 7]))


@pytest.mark.parametrize("mask", [None, "causal", "array"])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_reference_equals_the_fused_operation(sizes: tuple, mask: str | None) -> None:
    requests, (heads, kv_heads), rows, length, size = sizes
    q = mx.random.normal((requests, heads, rows, size))
    k, v = (mx.random.normal((requests, kv_heads, length, size)) for _ in range(2))
    given: mx.array | str | None = mask
    if mask == "array":
        seen = mx.random.randint(1, length + 1, (requests, 1, rows, 1))
        given = mx.arange(length) < seen
    ours = reference.mix(q, k, v, mask=given, scale=size**-0.5)
    theirs = fused.mix(q, k, v, mask=given, scale=size**-0.5)
    assert ours.shape == q.shape
    assert mx.abs(ours - theirs).max().item() < 1e-5


@pytest.mark.parametrize("mask", [None, "causal", "array"])
@pytest.mark.parametrize("rows", [reference.MAX_ROWS + 1, 2 * reference.MAX_ROWS, 700])
def test_long_chunks_are_cut_without_a_difference(rows: int, mask: str | None) -> None:
    q = mx.random.normal((1, 4, rows, 8))
    k, v = (mx.random.normal((1, 2, rows + 30, 8)) for _ in range(2))
    given: mx.array | str | None = mask
    if mask == "array":
        given = reference.causal_mask(rows, rows + 30)
    ours = reference.mix(q, k, v, mask=given, scale=8**-0.5)
    theirs = fused.mix(q, k, v, mask=given, scale=8**-0.5)
    assert mx.abs(ours - theirs).max().item() < 1e-5


def test_operations_are_chosen_by_name() -> None:
    chosen = {make_mix(name) for name in MIXES}
    assert chosen == {reference.mix, cpu.mix, fused.mix, fused.mix_cuda}
    with pytest.raises(SettingsError, match="'cpu', 'cuda', 'fused', 'reference'"):
        make_mix("flash")


def test_few_rows_on_cuda_equal_the_reference() -> None:
    for rows in (1, 2, 16, 17):
        q = mx.random.normal((2, 4, rows, 16))
        k, v = mx.random.normal((2, 2, 40, 16)), mx.random.normal((2, 2, 40, 16))
        expected = reference.mix(q, k, v, mask="causal", scale=0.25)
        got = fused.mix_cuda(q, k, v, mask="causal", scale=0.25)
        assert mx.abs(got - expected).max().item() < 1e-5
