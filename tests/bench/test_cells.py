"""Ratios, refusals, orders and percentiles."""

from vllm_dspark.arms.spec import Answer, Drafting, Run
from vllm_dspark.bench.cells import Cell, Measured, find_ratios, in_turns
from vllm_dspark.bench.timing import Ratio, percentile

GOOD = {"exact": 4, "top_k": 0, "failures": 0}
BAD = {"exact": 3, "top_k": 0, "failures": 1}


def cell(arm: str, rates: list[float], check: dict[str, int] | None = GOOD) -> Cell:
    repeats = [Measured(int(rate), 1.0, 1.0, 1.0, 1.0, 1.0) for rate in rates]
    return Cell(arm, "chat", 1, repeats, check, "" if check else "not comparable")


def test_a_ratio_stands_beside_its_rates_and_the_strongest_outside_engine() -> None:
    cells = [cell("DSpark async", [30, 33]), cell("mlx_lm", [20, 20]), cell("llama.cpp", [80, 70])]
    (row,) = find_ratios(cells, [("DSpark async", "mlx_lm")])
    assert row["ratio"]["median"] == 1.575
    assert (row["rate"], row["over_rate"]) == (31.5, 20.0)
    assert (row["strongest"], row["strongest_rate"]) == ("llama.cpp", 75.0)


def test_no_ratio_is_made_beside_unequal_or_uncompared_outputs() -> None:
    for check in (BAD, None):
        cells = [cell("DSpark async", [30, 33], check), cell("mlx_lm", [20, 20])]
        (row,) = find_ratios(cells, [("DSpark async", "mlx_lm")])
        assert row["ratio"] is None
        assert "DSpark async" in row["refused"]


def test_a_winner_needs_rates_that_do_not_overlap() -> None:
    assert Ratio.of([12, 13, 12], [10, 11, 10]).verdict == "faster"
    assert Ratio.of([8, 9, 9], [10, 10, 11]).verdict == "slower"
    assert Ratio.of([12, 14, 16], [10, 13, 11]).verdict == "within the spread"
    assert Ratio.of([12, 12], [10, 10]).verdict == "too few repeats"


def test_every_second_repeat_runs_the_arms_backwards() -> None:
    assert in_turns(["a", "b"], 3) == [(0, "a"), (0, "b"), (1, "b"), (1, "a"), (2, "a"), (2, "b")]


def test_time_per_token_counts_tokens_not_chunks() -> None:
    run = Run((Answer((1, 2, 3, 4, 5), 1.0, 3.0), Answer((1,), 1.0, 1.0)), 4.0, Drafting(2, 8, 3))
    found = Measured.of(run, 10)
    assert found.per_token_ms == 500.0
    assert found.tokens_per_s == 1.5
    assert found.length == 2.5


def test_percentiles_are_values_that_were_measured() -> None:
    values = [float(number) for number in range(1, 21)]
    assert percentile(values, 0.5) == 10.0
    assert percentile(values, 0.95) == 19.0
    assert percentile([3.0], 0.95) == 3.0
