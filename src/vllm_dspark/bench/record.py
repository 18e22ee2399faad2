"""What every result says about itself: machine, versions, commit, settings, disturbance."""

import datetime
import os
import platform
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from vllm_dspark.blas import load_blas
from vllm_dspark.settings import read_environment

PACKAGES = (
    "vllm-dspark",
    "vllm",
    "mlx",
    "mlx-lm",
    "torch",
    "transformers",
    "xllamacpp",
    "mlx-dspark",
)
QUIET_CORES = 0.15
"""Other programs using more than this many cores disturb a measurement."""


def make_record(kind: str, command: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Describe a run; every result file starts with this.

    Args:
        kind: "steps", "offline", "serve" or "parity".
        command: how to run it again.
        settings: the options in force.
    """
    return {
        "kind": kind,
        "command": command,
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": describe_machine(),
        "versions": {name: text for name in PACKAGES if (text := version_of(name))},
        "commit": read_commit(),
        "settings": {name: _plain(value) for name, value in settings.items()},
    }


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


def version_of(name: str) -> str:
    """Installed version of a distribution, "" where there is none."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def describe_machine() -> dict[str, Any]:
    """Processor, memory, and what MLX computes with."""
    blas = load_blas()
    import mlx.core as mx

    return {
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "processor": processor_name(),
        "cores": os.cpu_count() or 1,
        "memory_gib": round(psutil.virtual_memory().total / 1024**3, 1),
        "device": str(mx.device_info().get("device_name", mx.default_device())),
        "blas": blas.name,
        "openblas_coretype": read_environment().openblas_coretype,
    }


def processor_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Name of the processor, as the system gives it."""
    if cpuinfo.is_file():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def read_commit(folder: Path = Path(__file__).parent) -> str:
    """Commit of the checkout this package runs from, "+" for local changes; "" outside one."""
    git = ["git", "-C", str(folder)]
    try:
        commit = subprocess.run(
            [*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True
        ).stdout.strip()
        dirty = subprocess.run(
            [*git, "status", "--porcelain", "-uno"], capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
    return commit + ("+" if dirty else "")


@dataclass(slots=True)
class Disturbance:
    """How many cores other programs used between ``start`` and ``others``.

    The processor time of this process and its children is taken out.
    """

    wall: float
    busy: float
    own: float

    @classmethod
    def start(cls) -> "Disturbance":
        return cls(time.perf_counter(), _busy_seconds(), _own_seconds())

    def others(self) -> float:
        """Cores used by others since the start, on average."""
        wall = max(time.perf_counter() - self.wall, 1e-6)
        used = (_busy_seconds() - self.busy) - (_own_seconds() - self.own)
        return round(max(used, 0.0) / wall, 2)


def _busy_seconds() -> float:
    times = psutil.cpu_times()
    return sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0)


def _own_seconds() -> float:
    total = 0.0
    process = psutil.Process()
    for one in (process, *process.children(recursive=True)):
        try:
            times = one.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system  # and of children that have ended
        total += getattr(times, "children_user", 0.0) + getattr(times, "children_system", 0.0)
    return total
