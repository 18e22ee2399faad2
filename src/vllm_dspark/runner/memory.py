"""How much memory the pages may take: recommended working set less a measured peak."""

import sys

import mlx.core as mx
import psutil

from vllm_dspark.errors import MemoryBudgetError
from vllm_dspark.runner.build import Loaded, build_runner
from vllm_dspark.runner.schedule import Admission, Grammar, Schedule, Turn
from vllm_dspark.sampling.params import Sampling

PROBE_ROWS = (64, 128, 256)
CPU_SHARE, CPU_PAGES_BYTES = 0.5, 4 << 30
"""A CPU has no recommended working set: half of the free memory, and at most what is in use and
4 GiB for pages, which are cleared at start."""
MIB = 1 << 20


def working_set_bytes() -> int:
    """Memory that the device recommends to use, weights included."""
    info = mx.device_info()
    recommended = info.get("max_recommended_working_set_size") or info.get("total_memory")
    if mx.default_device() == mx.Device(mx.gpu) and recommended:
        return int(recommended)
    assert sys.platform != "darwin" or not recommended
    free = int(psutil.virtual_memory().available * CPU_SHARE)
    return mx.get_active_memory() + min(free, CPU_PAGES_BYTES)


def probe_bytes(loaded: Loaded, num_rows: int) -> int:
    """Measure the peak of one prefill of num_rows rows, weights included."""
    block_size = 16
    num_blocks = num_rows // block_size + 2
    runner = build_runner(loaded, num_blocks=num_blocks, block_size=block_size)
    admission = Admission(
        request_id="probe",
        token_ids=[0] * num_rows,
        num_prompt=num_rows,
        num_computed=0,
        blocks=(list(range(1, num_blocks)),),
        sampling=Sampling(temperature=0.0),
    )
    mx.reset_peak_memory()
    runner.begin(Schedule(admissions=(admission,), turns=(Turn("probe", num_rows),)))
    runner.finish(Grammar())
    return mx.get_peak_memory()


def estimate_peak_bytes(peaks: list[int], num_rows: int) -> int:
    """Extrapolate peaks measured at PROBE_ROWS to num_rows by the parabola through them.

    Activations grow linearly with the rows of a step and attention scores with their square.
    """
    (x0, x1, x2), (y0, y1, y2) = PROBE_ROWS, peaks
    first, second = (y1 - y0) / (x1 - x0), (y2 - y1) / (x2 - x1)
    bend = max((second - first) / (x2 - x0), 0.0)
    slope = max(first - bend * (x0 + x1), 0.0)
    base = y0 - slope * x0 - bend * x0 * x0
    return int(max(base + slope * num_rows + bend * num_rows * num_rows, y2))


def measure_budget(loaded: Loaded, *, max_rows: int, utilization: float) -> int:
    """Bytes left for pages.

    Args:
        max_rows: rows of the largest step (max_num_batched_tokens).
        utilization: share of the working set to use, vLLM's --gpu-memory-utilization.

    Raises:
        MemoryBudgetError: with the numbers, when weights and one step do not fit.
    """
    peaks = [probe_bytes(loaded, rows) for rows in PROBE_ROWS]
    peak = estimate_peak_bytes(peaks, max_rows)
    mx.clear_cache()
    working_set = working_set_bytes()
    budget = int(working_set * utilization) - peak
    if budget <= 0:
        raise MemoryBudgetError(
            f"the model and a step of {max_rows} rows take {peak / MIB:.0f} MiB, but "
            f"{utilization:.2f} of the working set of {working_set / MIB:.0f} MiB is "
            f"{working_set * utilization / MIB:.0f} MiB: lower --max-num-batched-tokens, raise "
            "--gpu-memory-utilization, or set --kv-cache-memory-bytes"
        )
    return budget
