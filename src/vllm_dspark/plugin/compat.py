"""Changes to other people's code, as records with an end; nothing else in this package patches."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
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


def _skip_rounds_without_drafts() -> None:
    """Wrap the two counters of draft rounds, once."""
    # vLLM is not importable as a whole while it is loading the platform.
    from vllm.v1.metrics.stats import RequestSpecDecodeMetrics
    from vllm.v1.spec_decode.metrics import SpecDecodingStats

    counters = ((SpecDecodingStats, "observe_draft"), (RequestSpecDecodeMetrics, "observe"))
    for owner, name in counters:
        original = getattr(owner, name)
        if not hasattr(original, "__wrapped__"):
            setattr(owner, name, _only_with_drafts(original))


def _only_with_drafts(original: Callable[..., None]) -> Callable[..., None]:
    @wraps(original)
    def observe(self: Any, num_draft_tokens: int, *args: Any, **options: Any) -> None:
        if num_draft_tokens > 0:
            original(self, num_draft_tokens, *args, **options)

    return observe


PATCHES: tuple[Patch, ...] = (
    Patch(
        "vllm",
        "torch.accelerator.empty_cache, empty_host_cache",
        "vLLM's cleanup_dist_env_and_memory calls them on every platform that is not is_cpu(), "
        "and CPU torch raises at every engine shutdown",
        "",
        _still_accelerator_caches,
    ),
    Patch(
        "vllm",
        "SpecDecodingStats.observe_draft, RequestSpecDecodeMetrics.observe",
        "an admission padded with placeholder drafts counts as a round although nothing was "
        "drafted, which lowers the reported acceptance length",
        "",
        _skip_rounds_without_drafts,
    ),
)


def apply_patches() -> None:
    """Apply every patch."""
    for patch in PATCHES:
        patch.apply()
