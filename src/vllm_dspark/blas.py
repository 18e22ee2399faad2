"""Put a fast BLAS in front of MLX's CPU backend, and memory that is kept, before MLX is imported.

MLX on Linux resolves ``cblas_sgemm`` at load time and usually finds the slow
reference BLAS.  A library that is already loaded globally wins, so
:func:`load_blas` must run before the first ``import mlx.core``.  This module
imports neither MLX nor torch.
"""

import ctypes
import functools
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # glibc's mallopt
KEPT_BYTES = 1 << 30
LARGE_BYTES = (1 << 28, 1 << 25)  # older glibc accepts 32 MiB at most

# scripts/setup.sh makes the first one from OpenBLAS's wheel: up to 15 rows take 0.5 to 0.7 of the
# time that they take with the 0.3.21 of Debian 12.
OPENBLAS_NAMES = (
    str(Path(sys.prefix) / "lib" / "vllm_dspark" / "libopenblas.so"),
    "libopenblas.so.0",
    "libopenblas.so",
)


@dataclass(frozen=True, slots=True)
class BlasLibrary:
    """The matrix library that MLX's CPU backend will call.

    Attributes:
        name: ``accelerate``, ``openblas``, ``torch``, ``reference``, or ``too late`` when
            MLX had been imported before and could no longer be given another one.
        path: what was loaded, empty where nothing had to be.
        is_fast: whether the library is good enough to serve with.
    """

    name: str
    path: str
    is_fast: bool


@functools.cache
def load_blas() -> BlasLibrary:
    """Load the fastest BLAS found into the global symbol scope, once.

    On macOS MLX links Accelerate and nothing is loaded.  On Linux the order is
    the OpenBLAS of this environment, the system's, then the BLAS inside CPU
    torch (about five times slower), then whatever MLX was linked with.

    Returns:
        What MLX will use; the same object on every call of a process.
    """
    if sys.platform == "darwin":
        return BlasLibrary("accelerate", "", is_fast=True)
    keep_freed_memory()
    if "mlx.core" in sys.modules:
        return BlasLibrary("too late", "", is_fast=False)
    for name in OPENBLAS_NAMES:
        if _load_globally(name):
            return BlasLibrary("openblas", name, is_fast=True)
    torch_library = _torch_library()
    if torch_library is not None and _load_globally(str(torch_library)):
        return BlasLibrary("torch", str(torch_library), is_fast=True)
    return BlasLibrary("reference", "", is_fast=False)


def keep_freed_memory() -> bool:
    """Let glibc keep what is freed, up to 1 GiB, instead of giving it back to the system.

    MLX's CPU backend allocates every result by malloc, and new pages cost more than what is
    computed into them: adding a number to 786,432 others took 1.8 ns each, and 0.4 with this.

    Returns:
        Whether the C library could be told.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return any(mallopt(M_MMAP_THRESHOLD, size) for size in LARGE_BYTES) and bool(
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
    )


def _load_globally(path: str) -> bool:
    try:
        ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return True


def _torch_library() -> Path | None:
    """Find torch's CPU library without importing torch."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    library = Path(spec.origin).parent / "lib" / "libtorch_cpu.so"
    return library if library.is_file() else None
