"""vLLM's /metrics page -> the counts that reports need."""

import re
from collections.abc import Iterable
from typing import Any

from vllm_dspark.arms.spec import Drafting

LINE = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")
LABEL = re.compile(r'(\w+)="([^"]*)"')
SPEC = "vllm:spec_decode_num_"


def parse_metrics(text: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Prometheus text -> name -> (labels, value) pairs."""
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for line in text.splitlines():
        match = LINE.match(line)
        if match is not None:
            labels = dict(LABEL.findall(match["labels"] or ""))
            found.setdefault(match["name"], []).append((labels, float(match["value"])))
    return found


def total(metrics: dict[str, Any], name: str) -> float:
    """Sum of a counter over its labels; 0 where it is missing."""
    return sum(value for _, value in metrics.get(name, ()))


def read_drafting(metrics: dict[str, Any]) -> Drafting:
    """Counts of drafting since the server's start."""
    rows = metrics.get(f"{SPEC}accepted_tokens_per_pos_total", ())
    at = {int(labels["position"]): int(value) for labels, value in rows}
    return Drafting(
        int(total(metrics, f"{SPEC}drafts_total")),
        int(total(metrics, f"{SPEC}draft_tokens_total")),
        int(total(metrics, f"{SPEC}accepted_tokens_total")),
        tuple(at[position] for position in sorted(at)),
    )


def read_cached(metrics: dict[str, Any]) -> tuple[float, float]:
    """(prompt tokens looked up, of these found) in the prefix cache since the start."""
    return (
        total(metrics, "vllm:prefix_cache_queries_total"),
        total(metrics, "vllm:prefix_cache_hits_total"),
    )


def read_kv_tokens(metrics: dict[str, Any]) -> int | None:
    """Tokens that the pages hold."""
    rows: Iterable[tuple[dict[str, str], float]] = metrics.get("vllm:cache_config_info", ())
    for labels, _ in rows:
        if "num_gpu_blocks" in labels and "block_size" in labels:
            return int(labels["num_gpu_blocks"]) * int(labels["block_size"])
    return None
