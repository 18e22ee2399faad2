"""Changes to other people's code, as records with an end; nothing else in this package patches."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from packaging.version import Version


@dataclass(frozen=True, slots=True)
class Patch:
    """One change to somebody else's code, and when it ends.

    Attributes:
        package: distribution whose version ends the patch.
        target: what is changed.
        reason: why.
        fixed_in: first release with a fix; "" while unknown.
        apply: makes the change; harmless when called again.
    """

    package: str
    target: str
    reason: str
    fixed_in: str
    apply: Callable[[], None]

    def is_expired(self, installed: str) -> bool:
        """Whether the installed release no longer needs the patch."""
        return bool(self.fixed_in) and Version(installed) >= Version(self.fixed_in)


def _nothing(*_: Any, **__: Any) -> None:
    """Stand in for a cache that a CPU does not have."""


def _still_accelerator_caches() -> None:
    if not torch.accelerator.is_available():
        torch.accelerator.empty_cache = _nothing
        torch.accelerator.empty_host_cache = _nothing


PATCHES: tuple[Patch, ...] = (
    Patch(
        "vllm",
        "torch.accelerator.empty_cache, empty_host_cache",
        "vLLM's cleanup_dist_env_and_memory calls them on every platform that is not is_cpu(), "
        "and CPU torch raises at every engine shutdown",
        "",
        _still_accelerator_caches,
    ),
)


def apply_patches() -> None:
    """Apply every patch."""
    for patch in PATCHES:
        patch.apply()
