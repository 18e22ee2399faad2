"""Fixtures for every test; a fast BLAS is loaded before anything imports MLX."""

from pathlib import Path

import numpy as np
import pytest

from vllm_dspark.blas import load_blas

load_blas()

ROOT = Path(__file__).parent.parent
DEMO_DIR = ROOT / "models" / "SmolLM2-135M-Instruct"


@pytest.fixture(autouse=True)
def seeds() -> None:
    """Start every test from the same random state."""
    import mlx.core as mx

    mx.random.seed(0)
    np.random.seed(0)


@pytest.fixture(scope="session")
def demo_dir() -> Path:
    """The demo model's folder, made by `make setup`."""
    from vllm_dspark.demo.fetch import is_complete

    if not is_complete(DEMO_DIR):
        pytest.skip("the demo model is missing; `make setup` fetches it")
    return DEMO_DIR
