"""How much memory the pages may take: recommended working set less a measured peak."""

import sys

import mlx.core as mx
import psutil

from vllm_dspark.errors import MemoryBudgetError
from vllm_dspark.ops import reference
from vllm_dspark.runner.build import Loaded, build_runner
from vllm_dspark.runner.schedule import Admission, Grammar, Schedule, Turn
from vllm_dspark.sampling.params import Sampling

PROBE_ROWS = (64, 128, 256)
CPU_SHARE, CPU_PAGES_BYTES = 0.5, 4 << 30
"""A CPU has no recommended working set: half of the free memory, and at most what is in use and
4 GiB for pages, which are cleared at start."""
PARTS_IN_FLIGHT, SCORES_SAFETY = 3, 2.0
"""MLX allocates ahead of its CPU thread, so some parts of a cut chunk exist together; and the
scores' share of the small probes is within a factor of two of that of long contexts (measured)."""
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


def probe_bytes(loaded: Loaded, num_rows: int, num_computed: int = 0) -> int:
    """Measure the peak of one prefill chunk of num_rows rows, weights included."""
    block_size, length = 16, num_computed + num_rows
    num_blocks = length // block_size + 2
    runner = build_runner(loaded, num_blocks=num_blocks, block_size=block_size)
    admission = Admission(
        request_id="probe",
        token_ids=[0] * length,
        num_prompt=length,
        num_computed=num_computed,
        blocks=(list(range(1, num_blocks)),),
        sampling=Sampling(temperature=0.0),
    )
    mx.reset_peak_memory()
    runner.begin(Schedule(admissions=(admission,), turns=(Turn("probe", num_rows),)))
    runner.finish(Grammar())
    return mx.get_peak_memory()


def estimate_peak_bytes(peaks: list[int], num_rows: int, max_context: int) -> int:
    """Extrapolate peaks of whole prompts of PROBE_ROWS rows to the largest step.

    Activations grow with the rows of a step, attention scores with the rows of one request that
    are attended together times its context: a parabola through the peaks gives both factors.
    """
    (x0, x1, x2), (y0, y1, y2) = PROBE_ROWS, peaks
    first, second = (y1 - y0) / (x1 - x0), (y2 - y1) / (x2 - x1)
    bend = max((second - first) / (x2 - x0), 0.0)
    slope = max(first - bend * (x0 + x1), 0.0)
    base = y0 - slope * x0 - bend * x0 * x0
    rows_at_once = min(num_rows, max_context, PARTS_IN_FLIGHT * reference.MAX_ROWS)
    scores = SCORES_SAFETY * bend * rows_at_once * max_context
    return int(max(base + slope * num_rows + scores, y2))


def measure_budget(loaded: Loaded, *, max_rows: int, max_context: int, utilization: float) -> int:
    """Bytes left for pages.

    Args:
        max_rows: rows of the largest step (max_num_batched_tokens).
        max_context: longest context of a request (max_model_len).
        utilization: share of the working set to use, vLLM's --gpu-memory-utilization.

    Raises:
        MemoryBudgetError: with the numbers, when weights and one step do not fit.
    """
    peaks = [probe_bytes(loaded, rows) for rows in PROBE_ROWS]
    peak = estimate_peak_bytes(peaks, max_rows, max_context)
    mx.clear_cache()
    working_set = working_set_bytes()
    budget = int(working_set * utilization) - peak
    if budget <= 0:
        raise MemoryBudgetError(
            f"the model and a step of {max_rows} rows at {max_context} tokens of context take "
            f"{peak / MIB:.0f} MiB, but {utilization:g} of the working set of "
            f"{working_set / MIB:.0f} MiB is {working_set * utilization / MIB:.0f} MiB: lower "
            "--max-num-batched-tokens or --max-model-len, raise --gpu-memory-utilization, or set "
            "--kv-cache-memory-bytes"
        )
    return budget
