"""Products of few rows on a CPU: filling up a tile changes no number that is kept."""

import mlx.core as mx
import pytest

from vllm_dspark.nn.linear import TILE_ROWS, Linear


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(
    "shape", [(1,), (2,), (5,), (7,), (8,), (15,), (16,), (17,), (1, 7), (8, 7), (2, 3, 2)]
)
def test_a_filled_product_equals_the_plain_one(shape: tuple[int, ...], has_bias: bool) -> None:
    bias = mx.random.normal((24,)) if has_bias else None
    plain = Linear(mx.random.normal((24, 40)), bias)
    filled = Linear(plain.weight, bias)
    filled.lay_input_major()
    x = mx.random.normal((*shape, 40))
    expected, got = plain(x), filled(x)
    assert got.shape == expected.shape == (*shape, 24)
    assert mx.abs(got - expected).max().item() < 1e-4
    assert mx.array_equal(filled.weight, plain.weight)


def test_few_rows_are_really_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    pad = mx.pad
    monkeypatch.setattr(mx, "pad", lambda x, width: seen.append(width) or pad(x, width))
    layer = Linear(mx.ones((8, 8)))
    layer.lay_input_major()
    for rows in range(1, 3 * TILE_ROWS):
        layer(mx.ones((rows, 8)))
    assert [width[0][1] for width in seen if width[0][1]] == [3, 2, 1, 3, 2, 1]  # 5, 6, 7, 13 ...
