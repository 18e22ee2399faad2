"""Show what MLX and vLLM will run on here, and what to fix."""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from types import ModuleType

from vllm_dspark.blas import BlasLibrary, load_blas
from vllm_dspark.settings import read_environment

PACKAGES = ("vllm", "torch", "mlx", "mlx-lm", "transformers", "tokenizers", "numpy")
PLUGIN_GROUP = "vllm.platform_plugins"
PLUGIN_VALUE = "vllm_dspark.plugin:register"
MATRIX_SIZE = 1024  # rows and columns of the measured matmul
SLOW_GFLOPS = 20.0  # below this a CPU's matmul is the reference BLAS's, or starved
TIGHT_BYTES = 4 * 1024**3  # measured: two processes of 2.3 and 0.8 GB serve the demo model


@dataclass(frozen=True, slots=True)
class Report:
    """What doctor found out.

    Attributes:
        system: operating system and processor type.
        python: version.
        versions: package to version, "" where not installed.
        mlx_build: ``cpu``, ``metal``, ``cuda``, or "" when MLX cannot be imported.
        mlx_error: why MLX cannot be imported, or "".
        device: MLX's name of its default device.
        blas: the matrix library, used on the CPU only.
        gflops: float32 matmul, median, in 10^9 operations per second; 0 unmeasured.
        memory_bytes: main memory.
        available_bytes: main memory free for new processes.
        working_set_bytes: what the device recommends to use; main memory on a CPU.
        platform_plugins: registered platform plugins of vLLM, ``name = value``.
        openblas_coretype: the kernel OpenBLAS is forced to, or "".
    """

    system: str
    python: str
    versions: dict[str, str]
    mlx_build: str
    mlx_error: str
    device: str
    blas: BlasLibrary
    gflops: float
    memory_bytes: int
    available_bytes: int
    working_set_bytes: int
    platform_plugins: tuple[str, ...]
    openblas_coretype: str


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that can be wrong, and what to do about it.

    Attributes:
        is_hit: tells whether a report shows it.
        is_broken: nothing can be served until it is fixed; else it is a note.
        advice: a sentence, formatted with the report as ``r``.
    """

    is_hit: Callable[[Report], bool]
    is_broken: bool
    advice: str


CHECKS = (
    Check(
        lambda r: not r.versions["vllm"],
        True,
        "vLLM is not installed: run `make setup` in a checkout of this project",
    ),
    Check(
        lambda r: bool(r.versions["vllm"]) and not r.versions["vllm"].startswith("0.33."),
        True,
        "vLLM is {r.versions[vllm]}, this release needs 0.33.*: run `make setup`",
    ),
    Check(
        lambda r: bool(r.mlx_error),
        True,
        "MLX cannot be imported ({r.mlx_error}): on Linux install its backend with "
        "`pip install 'vllm-dspark[cpu]'` or `'vllm-dspark[cuda]'`, never both",
    ),
    Check(
        lambda r: not any(PLUGIN_VALUE in plugin for plugin in r.platform_plugins),
        True,
        "the platform plugin is not registered, so vLLM will not use MLX: "
        "install this package with `pip install -e .`",
    ),
    Check(
        lambda r: len(r.platform_plugins) > 1,
        True,
        "vLLM accepts one active platform plugin and found {r.platform_plugins}: "
        "uninstall the others, or name ours with VLLM_PLUGINS=mlx",
    ),
    Check(
        lambda r: r.mlx_build == "cpu" and r.blas.name == "torch",
        False,
        "MLX multiplies with the BLAS inside torch; OpenBLAS is several times faster: "
        "install it (Debian, Ubuntu: apt-get install libopenblas0-pthread)",
    ),
    Check(
        lambda r: r.mlx_build == "cpu" and r.blas.name == "reference",
        False,
        "MLX multiplies with the reference BLAS, some 30 times too slow: "
        "install OpenBLAS (Debian, Ubuntu: apt-get install libopenblas0-pthread)",
    ),
    Check(
        lambda r: r.mlx_build == "cpu" and r.blas.is_fast and 0 < r.gflops < SLOW_GFLOPS,
        False,
        "{r.gflops:.0f} GFLOPS is little for {r.blas.name}: other programs hold the processor, "
        "or its threads are limited",
    ),
    Check(
        lambda r: r.mlx_build == "cpu" and bool(r.openblas_coretype),
        False,
        "OPENBLAS_CORETYPE={r.openblas_coretype} forces OpenBLAS to that processor's kernels; "
        "unset it for benchmarks if your OpenBLAS knows this processor",
    ),
    Check(
        lambda r: r.mlx_build == "metal",
        False,
        "the Metal build is used as MLX ships it; this release was not yet measured on it",
    ),
    Check(
        lambda r: 0 < r.available_bytes < TIGHT_BYTES,
        False,
        "less than 4 GiB of memory is available, which is tight for the demo: close other programs",
    ),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")


def run(args: argparse.Namespace) -> int:
    """Print the report; 1 if something is broken, else 0."""
    report = examine()
    hits = findings(report)
    # Imported here: it imports MLX, which must come after the BLAS.
    from vllm_dspark.cli.cost_tables import describe_costs
    from vllm_dspark.runner.cost_cache import list_costs

    if args.json:
        listed = [{"is_broken": check.is_broken, "advice": text} for check, text in hits]
        print(json.dumps(
            {"report": asdict(report), "findings": listed, "step_costs": list_costs()}, indent=2
        ))
    else:
        lines = [*describe(report), "", *describe_costs(), "", *describe_findings(hits)]
        print("\n".join(lines))
    return 1 if any(check.is_broken for check, _ in hits) else 0


def findings(report: Report) -> list[tuple[Check, str]]:
    """List the checks that a report hits, each with its sentence."""
    return [(check, check.advice.format(r=report)) for check in CHECKS if check.is_hit(report)]


def describe_findings(hits: list[tuple[Check, str]]) -> list[str]:
    """Turn findings into lines, the broken ones first."""
    if not hits:
        return ["nothing to fix"]
    ordered = sorted(hits, key=lambda hit: not hit[0].is_broken)
    return [f"{'BROKEN' if check.is_broken else 'note'}: {text}" for check, text in ordered]


def describe(report: Report) -> list[str]:
    """Turn a report into lines, one fact each."""
    blas = f"{report.blas.name} {report.blas.path}".strip()
    rows = {
        "system": f"{report.system}, Python {report.python}",
        "device": f"{report.device or 'none'} (MLX build: {report.mlx_build or 'none'})",
        "matmul": f"{report.gflops:.0f} GFLOPS, float32 {MATRIX_SIZE} x {MATRIX_SIZE}",
        "blas": blas if report.mlx_build == "cpu" else "not used on this device",
        "memory": f"{_gib(report.available_bytes)} of {_gib(report.memory_bytes)} available, "
        f"recommended working set {_gib(report.working_set_bytes)}",
        "plugin": ", ".join(report.platform_plugins) or "none registered",
    }
    rows |= {name: version or "not installed" for name, version in report.versions.items()}
    return [f"{name:<13} {text}" for name, text in rows.items()]


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 1024**3:.1f} GiB"


def examine() -> Report:
    """Look at this machine and this Python environment; takes about a second."""
    import psutil

    blas = load_blas()
    memory = psutil.virtual_memory()
    mx, error = _import_mlx()
    return Report(
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        versions={name: _version(name) for name in PACKAGES},
        mlx_build=_mlx_build(mx) if mx else "",
        mlx_error=error,
        device=str(mx.device_info().get("device_name", mx.default_device())) if mx else "",
        blas=blas,
        gflops=_measure_gflops(mx) if mx else 0.0,
        memory_bytes=memory.total,
        available_bytes=memory.available,
        working_set_bytes=_working_set_bytes(mx, memory.total),
        platform_plugins=tuple(
            f"{point.name} = {point.value}" for point in metadata.entry_points(group=PLUGIN_GROUP)
        ),
        openblas_coretype=read_environment().openblas_coretype,
    )


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _import_mlx() -> tuple[ModuleType | None, str]:
    """Import MLX, or say in one line why that fails."""
    try:
        import mlx.core as mx
    except ImportError as error:
        return None, str(error).splitlines()[0]
    return mx, ""


def _mlx_build(mx: ModuleType) -> str:
    if mx.metal.is_available():
        return "metal"
    return "cuda" if mx.cuda.is_available() else "cpu"


def _working_set_bytes(mx: ModuleType | None, memory_bytes: int) -> int:
    """What MLX's device recommends to allocate at most; main memory where it does not say."""
    details = mx.device_info() if mx else {}
    known = ("max_recommended_working_set_size", "total_memory", "memory_size")
    return next((int(details[key]) for key in known if details.get(key)), memory_bytes)


def _measure_gflops(mx: ModuleType, num_repeats: int = 7) -> float:
    """Time a float32 matmul on the default device: two warm-ups, then the median."""
    left = mx.random.normal((MATRIX_SIZE, MATRIX_SIZE))
    right = mx.random.normal((MATRIX_SIZE, MATRIX_SIZE))
    mx.eval(left, right)
    seconds = []
    for _ in range(num_repeats + 2):
        start = time.perf_counter()
        mx.eval(left @ right)
        seconds.append(time.perf_counter() - start)
    return 2 * MATRIX_SIZE**3 / statistics.median(seconds[2:]) / 1e9
