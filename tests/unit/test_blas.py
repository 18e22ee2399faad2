"""The order in which a BLAS is looked for."""

import subprocess
import sys
from pathlib import Path

import pytest

from vllm_dspark import blas


@pytest.fixture
def linux(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(blas.sys, "platform", "linux")
    monkeypatch.delitem(sys.modules, "mlx.core", raising=False)
    return monkeypatch


def test_after_mlx_it_is_too_late(linux: pytest.MonkeyPatch) -> None:
    linux.setitem(sys.modules, "mlx.core", object())
    library = blas.load_blas.__wrapped__()
    assert (library.name, library.is_fast) == ("too late", False)


def test_openblas_comes_first(linux: pytest.MonkeyPatch) -> None:
    linux.setattr(blas, "_load_globally", lambda path: True)
    assert blas.load_blas.__wrapped__().name == "openblas"


def test_the_openblas_of_the_environment_comes_before_the_systems(
    linux: pytest.MonkeyPatch,
) -> None:
    asked = []
    linux.setattr(blas, "_load_globally", lambda path: asked.append(path) or len(asked) == 2)
    found = blas.load_blas.__wrapped__()
    assert Path(asked[0]).is_relative_to(sys.prefix)
    assert (found.path, found.is_fast) == ("libopenblas.so.0", True)


def test_freed_memory_is_kept_where_the_c_library_can(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    class Glibc:
        """Refuses a threshold above 32 MiB, as old versions do."""

        @staticmethod
        def mallopt(option: int, value: int) -> int:
            asked.append((option, value))
            return int(option != blas.M_MMAP_THRESHOLD or value <= 1 << 25)

    monkeypatch.setattr(blas.ctypes, "CDLL", lambda name: Glibc)
    assert blas.keep_freed_memory()
    assert asked[-2:] == [(blas.M_MMAP_THRESHOLD, 1 << 25), (blas.M_TRIM_THRESHOLD, 1 << 30)]
    monkeypatch.setattr(blas.ctypes, "CDLL", lambda name: object())
    assert not blas.keep_freed_memory()


def test_the_blas_inside_torch_comes_second(linux: pytest.MonkeyPatch) -> None:
    linux.setattr(blas, "_load_globally", lambda path: "openblas" not in path)
    linux.setattr(blas, "_torch_library", lambda: Path("/torch/lib/libtorch_cpu.so"))
    assert blas.load_blas.__wrapped__() == blas.BlasLibrary(
        "torch", "/torch/lib/libtorch_cpu.so", is_fast=True
    )


def test_without_any_the_reference_is_reported_as_slow(linux: pytest.MonkeyPatch) -> None:
    linux.setattr(blas, "_load_globally", lambda path: False)
    linux.setattr(blas, "_torch_library", lambda: None)
    assert not blas.load_blas.__wrapped__().is_fast


def test_nothing_is_loaded_on_macos(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas.sys, "platform", "darwin")
    monkeypatch.setattr(blas, "_load_globally", pytest.fail)
    assert blas.load_blas.__wrapped__().name == "accelerate"


def test_loading_twice_gives_the_same_answer_and_imports_neither_mlx_nor_torch() -> None:
    code = (
        "import sys; from vllm_dspark.blas import load_blas; "
        "assert load_blas() is load_blas(); print({'mlx', 'torch'} & set(sys.modules))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "set()"


@pytest.mark.vllm
def test_the_platform_leaves_mlx_alone_so_that_the_worker_can_load_a_blas_first() -> None:
    code = "import sys, vllm_dspark.plugin.platform; print('mlx.core' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.splitlines()[-1] == "False"
