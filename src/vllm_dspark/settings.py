"""The environment, read and written in this one module.

The package has no environment variables of its own; its options are vLLM's.
What is read here belongs to other libraries and is only reported.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# On CUDA MLX rounds the factors of float32 products of two rows or more (TF32), of one row not:
# verifying drafts would give other text than decoding does.
EXACT_FLOAT32 = {"MLX_ENABLE_TF32": "0"}


@dataclass(frozen=True, slots=True)
class Environment:
    """What other libraries read from the environment, as we report it.

    Attributes:
        openblas_coretype: the processor kernel that OpenBLAS is forced to, or "".
    """

    openblas_coretype: str = ""


def read_environment() -> Environment:
    """Read the variables of this process that change how fast or right MLX is."""
    return Environment(openblas_coretype=os.environ.get("OPENBLAS_CORETYPE", ""))


def cache_folder() -> Path:
    """Folder for what is measured once and read again: XDG's cache, or ~/.cache."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "vllm-dspark"


def set_environment_defaults(defaults: Mapping[str, str]) -> None:
    """Set variables of other libraries, for this process and its children, unless set.

    Args:
        defaults: name to value; a name that the user exported keeps the user's value.
    """
    for name, value in defaults.items():
        os.environ.setdefault(name, value)


def child_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """This process's environment with ``extra``, for a child that must have it."""
    return {**os.environ, **extra}
