"""Results as the commands write them, with invented numbers, to test tables and the report."""

from typing import Any

RECORD = {
    "command": "vllm-dspark bench offline --workloads chat,code",
    "date": "2026-01-01 00:00 UTC",
    "machine": {
        "system": "Linux x86_64",
        "python": "3.11",
        "processor": "Test processor",
        "cores": 2,
        "memory_gib": 8.0,
        "device": "cpu",
        "blas": "openblas",
        "openblas_coretype": "",
    },
    "versions": {"vllm": "0.33.0", "mlx": "0.32.4"},
    "commit": "0123456789ab",
    "settings": {},
    "other_cores": 0.02,
}
RATES = (0.8, 0.6, 0.45, 0.3, 0.25, 0.2, 0.1)


def spread(median: float) -> dict[str, float]:
    return {"median": median, "low": median * 0.95, "high": median * 1.04}


def cell(arm: str, workload: str, clients: int, rate: float) -> dict[str, Any]:
    drafts = arm.startswith("DSpark")
    return {
        "arm": arm,
        "workload": workload,
        "clients": clients,
        "repeats": 3,
        "tokens": 512,
        "tokens_per_s": spread(rate),
        "first_p50_ms": spread(40.0),
        "first_p95_ms": spread(70.0),
        "per_token_ms": spread(1000 / rate),
        "done_p95_ms": spread(4000.0),
        "length": spread(3.2 if drafts else 1.0),
        "cached_share": spread(0.0),
        "rates": list(RATES) if drafts else [],
        "check": {"exact": 7, "top_k": 1, "failures": 0},
        "note": "",
    }


def ratio(workload: str, clients: int, over: str, median: float, verdict: str) -> dict[str, Any]:
    return {
        "workload": workload,
        "clients": clients,
        "arm": "DSpark async",
        "over": over,
        "rate": 30.0 * median,
        "over_rate": 30.0,
        "strongest": "llama.cpp",
        "strongest_rate": 75.0,
        "ratio": {**spread(median), "verdict": verdict, "repeats": 3},
        "refused": "",
    }


def bench_result(kind: str = "offline") -> dict[str, Any]:
    arms = ("target-only async", "target-only sync", "DSpark async", "mlx_lm", "llama.cpp")
    places = (("chat", 1), ("chat", 4), ("shared-prefix", 4), ("context-4k", 8))
    ratios = [ratio("chat", 1, "mlx_lm", 1.6, "faster"), ratio("chat", 4, "mlx_lm", 0.8, "slower")]
    ratios.append(ratio("shared-prefix", 4, "target-only async", 1.01, "within the spread"))
    refused = ratio("context-4k", 8, "target-only async", 1.0, "faster")
    ratios.append({**refused, "ratio": None, "refused": "DSpark async: 2 outputs differ"})
    return {
        "kind": kind,
        **RECORD,
        "cells": [
            cell(arm, *place, 20.0 + 9 * i) for place in places for i, arm in enumerate(arms)
        ],
        "ratios": ratios,
        "memory": [{"arm": arm, "resident_bytes": 900 << 20, "kv_tokens": 4096} for arm in arms],
        "skipped": [
            "llama.cpp DSpark: no GGUF of the draft",
            "llama.cpp: a_client_library.client_exceptions.ServerDisconnectedError",
        ],
        "synthetic": None,
    }


def steps_result() -> dict[str, Any]:
    row = {
        "requests": 1, "drafts": 7, "context": 128, "rows": 8, "target_ms": 40.0,
        "verify_ms": 60.0, "absorb_ms": 1.0, "block_ms": 9.0, "markov_ms": 5.0, "total_ms": 80.0,
        "total_low_ms": 78.0, "total_high_ms": 84.0, "floor_ms": 25.0, "target_floor_ms": 20.0,
        "break_even": 2.0, "floor_break_even": 1.25,
    }  # fmt: skip
    target = {
        "requests": 1, "context": 128, "ms": 40.0, "low_ms": 39.0, "high_ms": 44.0,
        "floor_ms": 20.0, "tokens_per_s": 25.0,
    }  # fmt: skip
    return {
        "kind": "steps",
        **RECORD,
        "bandwidth_gb_s": 20.0,
        "target_bytes": 500,
        "draft_bytes": 100,
        "targets": [target],
        "prefills": [{"rows": 128, "target_ms": 300.0, "total_ms": 320.0}],
        "steps": [row, {**row, "requests": 4, "total_ms": 140.0, "break_even": 2.4}],
        "mlx_lm": {
            "decode_tokens_per_s": spread(25.0),
            "mlx_lm_decode_tokens_per_s": spread(22.0),
            "decode_ratio": spread(1.14),
            "eight_tokens_per_s": spread(120.0),
            "eight_over_one": spread(4.8),
            "prefill": [{"rows": 512, "tokens_per_s": spread(900.0),
                         "mlx_lm_tokens_per_s": spread(800.0), "ratio": spread(1.1)}],
        },
    }  # fmt: skip


def parity_result(passed: bool = True) -> dict[str, Any]:
    gap = {
        "prompt": "chat-3", "position": 12, "expected": 5, "got": 9, "rank": 2, "margin": 0.0002,
        "is_tie": passed,
    }  # fmt: skip
    counts = {"exact": 39, "top_k": int(passed), "failures": int(not passed)}
    rows = [
        {"arm": "DSpark sync, batch 8, cache warm", "reference": reference, "prompts": 40, **counts,
         "differences": [gap]}
        for reference in ("mlx_lm", "target-only sync, batch 8, cache warm")
    ]  # fmt: skip
    return {
        "kind": "parity",
        **RECORD,
        "gate": {"precision": "float32", "top_k": 2, "max_margin": 1e-3, "reason": "rounding"},
        "passes": [],
        "comparisons": rows,
        "problems": [] if passed else ["DSpark sync: 3 KV blocks were not given back"],
        "passed": passed,
    }


def all_results() -> list[dict[str, Any]]:
    return [bench_result(), bench_result("serve"), steps_result(), parity_result()]
