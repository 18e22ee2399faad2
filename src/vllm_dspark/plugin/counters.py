"""Our own figures in /metrics: the engine process writes a small file, the API process reads it.

vLLM's statistics have no place for a plugin's. Both processes know the engine's instance id, so
the file is found without another setting.
"""

import json
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from vllm.logger import init_logger

if TYPE_CHECKING:
    from prometheus_client.core import Metric
    from vllm.config import VllmConfig

    from vllm_dspark.runner.drafting import DraftPolicy

logger = init_logger(f"vllm.{__name__}")

WRITE_PERIOD_S = 0.5
LOG_PERIOD_S = 30.0


def counter_path(instance_id: str, rank: int) -> Path:
    """The file of one engine."""
    return Path(tempfile.gettempdir()) / f"vllm-dspark-{instance_id}-{rank}.json"


def read_policy(policy: "DraftPolicy") -> dict[str, Any]:
    """What a runner has counted, as plain values."""
    planner = policy.planner
    figures: dict[str, Any] = {
        "not_drafted": dict(policy.reasons),
        "expected_tokens": policy.expected_tokens,
        "expected_rounds": policy.expected_rounds,
    }
    if planner is not None:
        figures["planned"] = {str(length): count for length, count in planner.lengths.items()}
        figures["distrusted"] = int(planner.is_distrusted)
    return figures


@dataclass(slots=True)
class CounterFile:
    """Written by the worker at most twice a second, and logged now and then."""

    path: Path
    _written: float = 0.0
    _logged: float = field(default_factory=time.monotonic)
    _last: Mapping[str, Any] = field(default_factory=dict)

    def update(self, policy: "DraftPolicy", *, is_final: bool = False) -> None:
        """Write what the runner has counted, if it is time to."""
        now = time.monotonic()
        if now - self._written < WRITE_PERIOD_S and not is_final:
            return
        self._written = now
        figures = read_policy(policy)
        self.path.write_text(json.dumps(figures))
        if (now - self._logged >= LOG_PERIOD_S or is_final) and figures != self._last:
            self._logged, self._last = now, figures
            rounds = figures["expected_rounds"]
            expected = figures["expected_tokens"] / rounds if rounds else 0.0
            logger.info(
                "drafting: expected acceptance length %.2f over %d rounds; not drafted %s; "
                "verified lengths %s",
                expected, rounds, figures["not_drafted"], figures.get("planned", "all"),
            )

    def remove(self) -> None:
        """Delete the file."""
        self.path.unlink(missing_ok=True)


class DraftCollector:
    """Turns the files of one server's engines into metrics when /metrics is read.

    Args:
        config: its instance id is set after the platform has seen it.
    """

    def __init__(self, config: "VllmConfig") -> None:
        self._config = config

    def collect(self) -> "Iterator[Metric]":
        """All figures of all engines that have written any."""
        reasons = CounterMetricFamily(
            "vllm:dspark_not_drafted", "Rounds without drafts, by reason.",
            labels=["engine", "reason"],
        )
        lengths = CounterMetricFamily(
            "vllm:dspark_planned_length", "Rounds by the number of drafts the planner verified.",
            labels=["engine", "length"],
        )
        expected = GaugeMetricFamily(
            "vllm:dspark_expected_acceptance_length",
            "Mean tokens per round that the confidence head expected, the target's own included.",
            labels=["engine"],
        )
        distrusted = GaugeMetricFamily(
            "vllm:dspark_costs_distrusted",
            "1 when measured step costs do not predict steps and all drafts are verified.",
            labels=["engine"],
        )
        for rank, figures in self._figures():
            for reason, count in figures["not_drafted"].items():
                reasons.add_metric([rank, reason], count)
            for length, count in figures.get("planned", {}).items():
                lengths.add_metric([rank, length], count)
            if figures["expected_rounds"]:
                mean = figures["expected_tokens"] / figures["expected_rounds"]
                expected.add_metric([rank], mean)
            if "distrusted" in figures:
                distrusted.add_metric([rank], figures["distrusted"])
        yield from (reasons, lengths, expected, distrusted)

    def _figures(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for rank in range(self._config.parallel_config.data_parallel_size):
            try:
                path = counter_path(self._config.instance_id, rank)
                yield str(rank), json.loads(path.read_text())
            except (OSError, ValueError):
                continue


def register_collector(config: "VllmConfig") -> None:
    """Show an engine's figures in this process's /metrics; a later engine replaces an earlier."""
    global _registered  # noqa: PLW0603 - prometheus_client's registry is global, so is this
    if _registered is not None:
        REGISTRY.unregister(_registered)
    _registered = DraftCollector(config)
    REGISTRY.register(_registered)


_registered: DraftCollector | None = None
