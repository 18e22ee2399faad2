"""Engines that draft on the tiny pair, and what their steps did."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from engines import engine

SETS = Path(__file__).parents[1] / "conformance"
VANILLA = "deepspec-vanilla-k7"
BYTES_PER_TOKEN = 8 * 2 * 2 * 16 * 4
"""Keys and values of the tiny pair: 6 + 2 layers, both, heads, head size, float32."""


def pair_bytes(num_blocks: int, block_size: int = 16) -> int:
    """What --kv-cache-memory-bytes must be for num_blocks blocks of target and draft."""
    return num_blocks * block_size * BYTES_PER_TOKEN


def drafting_engine(
    name: str = VANILLA, speculative: dict[str, Any] | None = None, **options: Any
) -> AbstractContextManager[Any]:
    """An engine with the draft of a set."""
    config = {"method": "dspark", "model": str(SETS / name / "draft"), **(speculative or {})}
    given = {
        "kv_cache_memory_bytes": pair_bytes(512),
        "disable_log_stats": False,
        "speculative_config": config,
        **options,
    }
    return engine(**given)


def worker_of(llm: Any) -> Any:
    """The worker inside an in-process engine."""
    return llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker


@dataclass(frozen=True)
class Round:
    """What a step did for one request that emitted."""

    request_id: str
    num_tokens: int
    num_verified: int
    drafts: tuple[int, ...]
    confidences: tuple[float, ...]


@contextmanager
def watched(llm: Any) -> Iterator[list[Round]]:
    """Collect the rounds of all requests meanwhile."""
    worker, rounds = worker_of(llm), []
    runner = worker._runner
    original = runner.finish

    def finish(grammar: Any) -> Any:
        result = original(grammar)
        for request_id, outcome in result.outcomes.items():
            if outcome.token_ids:
                confidences = runner.table[request_id].confidence_logits
                rounds.append(
                    Round(
                        request_id,
                        len(outcome.token_ids),
                        outcome.num_verified,
                        outcome.drafts,
                        () if confidences is None else tuple(map(float, confidences)),
                    )
                )
        return result

    runner.finish = finish
    try:
        yield rounds
        worker.synchronize_device()
    finally:
        runner.finish = original


def assert_same_drafts(ours: Sequence[Round], expected: Sequence[Round]) -> None:
    """Step by step the same drafts, confidences and acceptance."""
    assert [one.drafts for one in ours] == [one.drafts for one in expected]
    assert [one.num_tokens for one in ours] == [one.num_tokens for one in expected]
    for one, other in zip(ours, expected, strict=True):
        np.testing.assert_allclose(one.confidences, other.confidences, atol=1e-4)


def kept_rounds(rounds: Sequence[Round], max_tokens: int) -> list[Round]:
    """Rounds until each request has max_tokens; async scheduling runs one step more."""
    counts: Counter[str] = Counter()
    kept = []
    for one in rounds:
        if counts[one.request_id] < max_tokens:
            kept.append(one)
        counts[one.request_id] += one.num_tokens
    return kept


def spec_metrics(llm: Any) -> dict[str, Any]:
    """vLLM's spec_decode counters by the end of their name."""
    found = {}
    for metric in llm.get_metrics():
        if "spec_decode" in metric.name:
            name = metric.name.split("spec_decode_")[1]
            values = getattr(metric, "values", None)
            found[name] = metric.value if values is None else np.array(values)
    return found


@contextmanager
def counted(llm: Any) -> Iterator[dict[str, Any]]:
    """How far the spec_decode counters moved meanwhile; filled at the end."""
    before, moved = spec_metrics(llm), {}
    yield moved
    moved.update({name: value - before.get(name, 0) for name, value in spec_metrics(llm).items()})
