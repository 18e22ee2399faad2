"""Which device MLX will use, found without importing MLX (the API process asks too)."""

import sys
from importlib.metadata import distributions
from pathlib import Path

NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")


def device_kind() -> str:
    """"metal", "cuda" or "cpu": what the installed MLX build computes on."""
    if sys.platform == "darwin":
        return "metal"
    names = {(one.metadata["Name"] or "").lower() for one in distributions(name=None)}
    has_build = any(name.startswith("mlx-cuda") for name in names)
    return "cuda" if has_build and NVIDIA_DRIVER.exists() else "cpu"
