"""How much memory the pages get, and what is said when there is none."""

from pathlib import Path

import mlx.core as mx
import pytest

from vllm_dspark.errors import MemoryBudgetError
from vllm_dspark.ops.reference import MAX_ROWS
from vllm_dspark.runner.build import Loaded, load
from vllm_dspark.runner.memory import (
    MIB,
    PARTS_IN_FLIGHT,
    PROBE_ROWS,
    SCORES_SAFETY,
    estimate_peak_bytes,
    measure_budget,
    probe_bytes,
    working_set_bytes,
)

TARGET = Path(__file__).parents[2] / "conformance" / "target"


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    return load(TARGET, "float32")


def test_mlx_reports_peaks_on_this_device() -> None:
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    mx.eval(mx.zeros((4 * MIB,)) + 1.0)
    assert mx.get_peak_memory() - before >= 16 * MIB


def test_a_parabola_is_extrapolated_with_a_margin_on_its_square_part() -> None:
    peaks = [1000 + 20 * rows + 3 * rows * rows for rows in PROBE_ROWS]
    square = 3 * SCORES_SAFETY
    assert estimate_peak_bytes(peaks, 256, 256) == 1000 + 20 * 256 + square * 256 * 256
    assert estimate_peak_bytes(peaks, 100, 2048) == 1000 + 20 * 100 + square * 100 * 2048
    most = PARTS_IN_FLIGHT * MAX_ROWS
    assert estimate_peak_bytes(peaks, 2048, 4096) == 1000 + 20 * 2048 + square * most * 4096


def test_noise_never_makes_a_larger_step_cheaper() -> None:
    assert estimate_peak_bytes([1000, 900, 800], 2048, 64) >= 800
    assert estimate_peak_bytes([1000, 3000, 4000], 64, 64) >= 4000


@pytest.mark.parametrize(("rows", "context"), [(512, 512), (128, 1024), (1024, 2048)])
def test_an_extrapolated_peak_covers_a_measured_one(
    loaded: Loaded, rows: int, context: int
) -> None:
    peaks = [probe_bytes(loaded, rows) for rows in PROBE_ROWS]
    measured = probe_bytes(loaded, rows, context - rows)
    estimate = estimate_peak_bytes(peaks, rows, context)
    assert 0.8 * measured < estimate < 2.5 * measured


def test_the_budget_is_the_share_less_the_peak(loaded: Loaded) -> None:
    budget = measure_budget(loaded, max_rows=256, max_context=512, utilization=0.5)
    assert 0 < budget < working_set_bytes()


def test_what_does_not_fit_is_told_in_numbers(loaded: Loaded) -> None:
    with pytest.raises(MemoryBudgetError) as caught:
        measure_budget(loaded, max_rows=256, max_context=512, utilization=0.0001)
    text = str(caught.value)
    assert "a step of 256 rows at 512 tokens of context take" in text
    assert "0.0001 of the working set of" in text
    assert "--kv-cache-memory-bytes" in text
