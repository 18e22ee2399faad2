"""Cost tables: interpolation, monotony, gaps."""

import pytest

from vllm_dspark.errors import SettingsError
from vllm_dspark.planner.costs import CostTable, interpolate, make_table


def test_between_points_costs_are_linear_and_beyond_them_the_slope_goes_on() -> None:
    axis, values = [1, 2, 4], [10.0, 12.0, 20.0]
    assert interpolate(axis, values, 1) == 10.0
    assert interpolate(axis, values, 3) == 16.0
    assert interpolate(axis, values, 6) == 28.0
    assert interpolate(axis, values, 0) == 10.0


def test_verification_is_looked_up_by_rows_per_request() -> None:
    table = CostTable(
        (1, 2), (1, 8), (64, 1024),
        (((10.0, 17.0), (12.0, 26.0)), ((20.0, 27.0), (22.0, 36.0))),
        (3.0, 4.0),
    )  # fmt: skip
    assert table.verify(1, 8, 64) == 17.0
    assert table.verify(2, 2, 64) == 12.0
    assert table.verify(2, 16, 1024) == 36.0
    assert table.draft(2) == 4.0


def test_more_rows_or_requests_or_context_never_cost_less() -> None:
    verify = {(1, 1, 64): 10.0, (1, 2, 64): 8.0, (2, 1, 64): 9.0, (2, 2, 64): 30.0,
              (1, 1, 1024): 7.0, (1, 2, 1024): 12.0}
    table = make_table(verify, {1: 5.0, 2: 3.0})
    assert table.verify(1, 2, 64) == 10.0
    assert table.verify(2, 2, 64) == 10.0
    assert table.verify(1, 1, 1024) == 10.0
    assert table.draft(2) == 5.0


def test_cells_that_were_not_reached_are_scaled_from_smaller_ones() -> None:
    table = make_table({(1, 1, 64): 10.0, (2, 1, 64): 15.0}, {1: 1.0, 2: 1.0, 4: 1.0})
    assert table.verify(4, 4, 64) == 30.0


def test_an_axis_that_does_not_ascend_is_refused() -> None:
    with pytest.raises(SettingsError, match="ascending"):
        CostTable((2, 1), (1,), (64,), (((1.0,), (1.0,)),), (1.0, 1.0))
