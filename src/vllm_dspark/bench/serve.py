"""Compare servers: a fresh process for each arm and repeat, one client program for all."""

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vllm_dspark.arms.compare import GATES, compare
from vllm_dspark.arms.corpus import load_tokenizer
from vllm_dspark.arms.process import start_arm
from vllm_dspark.arms.spec import ArmSpec, Drafting, Judgement
from vllm_dspark.bench.arm_names import check_arms, find_arm, pairs_of
from vllm_dspark.bench.cells import Cell, Measured, find_ratios, in_turns
from vllm_dspark.bench.client import Load, ask_ids, ask_text, run_client, warm_up
from vllm_dspark.bench.llama_server import find_target
from vllm_dspark.bench.prometheus import parse_metrics, read_cached, read_drafting, read_kv_tokens
from vllm_dspark.bench.record import version_of
from vllm_dspark.bench.servers import (
    Server,
    ServerSpec,
    llama_command,
    mlx_dspark_command,
    mlx_lm_command,
    start_server,
    vllm_command,
)
from vllm_dspark.bench.workloads import Workload, make_workload
from vllm_dspark.blas import load_blas
from vllm_dspark.errors import SetupError

REFERENCE = "target-only sync"
ALSO_DRAFTED = ("draft_model", "ngram")
OTHERS = ("mlx_lm", "mlx-dspark", "llama.cpp", "llama.cpp DSpark")
EXTRA_PAIRS = (
    ("DSpark async", "mlx-dspark"),
    ("DSpark async", "llama.cpp DSpark"),
    ("llama.cpp DSpark", "llama.cpp"),
)
WARM_UPS = 12  # more than mlx_lm's server keeps caches of


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """What ``bench serve`` runs.

    Attributes:
        arms: as ``arm_names`` says, or of ALSO_DRAFTED and OTHERS; an outside engine that is not
            installed is left out, with a sentence.
        draft_model: folder of a causal draft for the arm of that name.
        mlx_dspark_python: interpreter of an environment that has mlx-dspark; None is this one.
        llama_target, llama_draft: GGUF files; the first is made from the demo model's where None.
    """

    model: Path
    draft: Path
    dtype: str = "float32"
    arms: tuple[str, ...] = ("target-only async", REFERENCE, "DSpark async", "mlx_lm", "llama.cpp")
    workloads: tuple[str, ...] = ("chat", "code", "maths")
    clients: tuple[int, ...] = (1, 4, 8, 16)
    num_requests: int = 8
    max_tokens: int = 64
    repeats: int = 3
    num_drafts: int = 0
    max_model_len: int = 2048
    kv_bytes: int = 1 << 29
    gate: str = "float32"
    draft_model: Path | None = None
    mlx_dspark_python: Path | None = None
    llama_target: Path | None = None
    llama_draft: Path | None = None

    def __post_init__(self) -> None:
        check_arms(self.arms, (*ALSO_DRAFTED, *OTHERS))


def make_specs(settings: ServeSettings) -> tuple[list[ServerSpec], list[str]]:
    """Servers to start, the reference first, and sentences about those left out."""
    specs, skipped = [], []
    wanted = dict.fromkeys((REFERENCE, *settings.arms))
    for name in wanted:
        make = _outside_spec if name in OTHERS else _our_spec
        spec = make(name, settings)
        if isinstance(spec, str):
            skipped.append(spec)
        else:
            specs.append(spec)
    return specs, skipped


def _our_spec(name: str, settings: ServeSettings) -> ServerSpec | str:
    options = {
        "dtype": settings.dtype,
        "max-model-len": settings.max_model_len,
        "max-num-seqs": max(settings.clients),
        "kv-cache-memory-bytes": settings.kv_bytes,
    }
    speculative: dict[str, Any] | None = None
    arm = find_arm(name)
    if arm is not None:
        speculative = arm.speculative(str(settings.draft), settings.num_drafts)
    elif name == "ngram":
        speculative = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4}
    elif name == "draft_model":
        if settings.draft_model is None:
            return "draft_model: no causal draft was given; name one with --draft-model"
        speculative = {"method": "draft_model", "model": str(settings.draft_model)}
        speculative["num_speculative_tokens"] = 4
    is_async = arm is None or arm.is_async
    command = vllm_command(settings.model, options, speculative, is_async)
    return ServerSpec(name, "vllm", command, {"VLLM_SERVER_DEV_MODE": "1"})


def fast_blas() -> dict[str, str]:
    """Environment that gives others on MLX the BLAS that our engine finds by itself."""
    blas = load_blas()
    return {"LD_PRELOAD": blas.path} if blas.name == "openblas" else {}


def _outside_spec(name: str, settings: ServeSettings) -> ServerSpec | str:
    clients = max(settings.clients)
    if name == "mlx_lm":
        return ServerSpec(name, "mlx_lm", mlx_lm_command(settings.model, clients), fast_blas())
    if name == "mlx-dspark":
        python = settings.mlx_dspark_python
        if python is None and not version_of(name):
            return (
                f"{name}: not installed; `pip install mlx-dspark` brings it, or name the python of "
                "an environment that has it with --mlx-dspark-python"
            )
        command = mlx_dspark_command(
            settings.model,
            settings.draft,
            clients,
            settings.num_drafts or 7,
            str(python or sys.executable),
        )
        return ServerSpec(name, "mlx-dspark", command, fast_blas())
    if not version_of("xllamacpp"):
        return f"{name}: xllamacpp is not installed; `pip install xllamacpp` brings llama.cpp"
    target = settings.llama_target or find_target(settings.model)
    if target is None:
        return f"{name}: no GGUF of the target; name one with --llama-target"
    draft = settings.llama_draft if name == "llama.cpp DSpark" else None
    if name == "llama.cpp DSpark" and draft is None:
        return (
            f"{name}: no GGUF of the draft; make one with llama.cpp's convert_hf_to_gguf.py and "
            "name it with --llama-draft"
        )
    command = llama_command(
        target, clients, settings.max_model_len, draft, settings.num_drafts or 7
    )
    return ServerSpec(name, "llama.cpp", command)


@dataclass(slots=True)
class Expected:
    """The reference's answers to one workload.

    Attributes:
        prompts, ids: token ids; texts: without special tokens.
    """

    prompts: list[tuple[int, ...]]
    ids: list[list[int]]
    texts: list[str] = field(default_factory=list)


class ServeBench:
    """Runs all servers in turns.

    Args:
        settings: what to run.
        tell: is told what goes on.
    """

    def __init__(self, settings: ServeSettings, tell: Callable[[str], None]) -> None:
        self._settings = settings
        self._tell = tell
        self._tokenizer = load_tokenizer(settings.model)
        self._cells: dict[tuple[str, str, int], Cell] = {}
        self._expected: dict[str, Expected] = {}
        self._memory: dict[str, dict[str, Any]] = {}
        self._failed: dict[str, str] = {}

    @property
    def has_mismatch(self) -> bool:
        """Whether an arm's outputs differ beyond near-ties."""
        return any(one.check is not None and not one.matches for one in self._cells.values())

    def run(self) -> dict[str, Any]:
        """Measure everything; returns the body of the result."""
        if not version_of("pandas"):
            raise SetupError(
                "`vllm bench serve` needs pandas to read prompts: pip install 'vllm-dspark[bench]'"
            )
        specs, skipped = make_specs(self._settings)
        for sentence in skipped:
            self._tell(f"left out: {sentence}")
        named = {spec.name: spec for spec in specs}
        size = max(self._settings.num_requests, *self._settings.clients)
        workloads = [
            make_workload(name, self._tokenizer, size) for name in self._settings.workloads
        ]
        for repeat, name in in_turns(list(named), self._settings.repeats):
            if repeat and name not in self._settings.arms:
                continue  # the reference has given its answers
            if name in self._failed:
                continue
            try:
                self._run_arm(named[name], repeat, workloads)
            except SetupError as error:
                if named[name].kind == "vllm":
                    raise
                self._failed[name] = f"{name}: {error}"
                self._tell(f"left out: {self._failed[name]}")
        cells = [
            one for one in self._cells.values() if one.repeats and one.arm not in self._failed
        ]
        return {
            "cells": [one.to_json() for one in cells],
            "ratios": find_ratios(cells, pairs_of(named, EXTRA_PAIRS, ALSO_DRAFTED)),
            "memory": [{"arm": name, **found} for name, found in self._memory.items()],
            "skipped": [*skipped, *self._failed.values()],
        }

    def _run_arm(self, spec: ServerSpec, repeat: int, workloads: Sequence[Workload]) -> None:
        """One arm's turn on a fresh server."""
        name = spec.name
        with start_server(spec) as server:
            self._tell(f"repeat {repeat + 1}: {name} answers")
            for workload in workloads:
                if workload.schema and spec.kind != "vllm":
                    continue  # the client asks for a grammar in vLLM's words
                if repeat == 0:
                    self._check(server, workload)
                if name in self._settings.arms:
                    self._time_all(server, workload)
            self._memory[name] = read_memory(server, self._settings.kv_bytes)

    def _load(self, workload: Workload, clients: int) -> Load:
        return Load(
            workload.texts,
            self._settings.max_tokens,
            clients,
            workload.temperature,
            schema=workload.schema,
        )

    def _check(self, server: Server, workload: Workload) -> None:
        """Untimed: compare the answers with the reference's, token ids where it gives them."""
        load, model = self._load(workload, 1), self._settings.model
        name = server.spec.name
        prompts = [
            tuple(self._tokenizer.encode(text, add_special_tokens=False)) for text in workload.texts
        ]
        ids: list[list[int]] | None = None
        if server.spec.kind == "vllm":
            ids = ask_ids(server, model, load, prompts)
        if name == REFERENCE:
            assert ids is not None
            texts = [self._tokenizer.decode(one, skip_special_tokens=True) for one in ids]
            self._expected[workload.name] = Expected(prompts, ids, texts)
        check, note = None, "its random numbers are others"
        if ids is not None or not workload.temperature:
            expected = self._expected[workload.name]
            if ids is None:
                ids = self._ids_of(ask_text(server, model, load), expected)
            check, note = self._judge(name, workload.name, ids), ""
        for clients in self._settings.clients:
            self._cells[name, workload.name, clients] = Cell(
                name, workload.name, clients, check=check, note=note
            )

    def _ids_of(self, texts: Sequence[str], expected: Expected) -> list[list[int]]:
        """Token ids of texts: the reference's where the text is the same."""
        return [
            ids if text.strip() == known.strip() else self._tokenizer.encode(text)
            for text, known, ids in zip(texts, expected.texts, expected.ids, strict=True)
        ]

    def _judge(self, name: str, workload: str, ids: list[list[int]]) -> dict[str, int]:
        expected = self._expected[workload]
        found = compare(
            name,
            ids,
            REFERENCE,
            expected.ids,
            names=[f"{workload}-{index}" for index in range(len(ids))],
            prompts=expected.prompts,
            judge=self._ask_judge,
            gate=GATES[self._settings.gate],
        )
        for gap in found.differences:
            self._tell(f"{name}: {gap}")
        return {
            "exact": found.num_exact,
            "top_k": found.num_ties,
            "failures": found.num_failures,
        }

    def _ask_judge(self, cases: Sequence[tuple[Sequence[int], int]]) -> list[Judgement]:
        """Plain mlx_lm in a process of its own; only differences need it."""
        spec = ArmSpec(name="judge", engine="mlx_lm", model=str(self._settings.model))
        with ExitStack() as stack:
            return stack.enter_context(start_arm(spec)).judge(cases)

    def _time_all(self, server: Server, workload: Workload) -> None:
        for clients in self._settings.clients:
            warm_up(server, self._settings.model, WARM_UPS)
            if server.spec.kind == "vllm":
                server.post("/reset_prefix_cache", {})
            before = read_counts(server)
            result = self._run_client(server, self._load(workload, clients))
            measured = measure(result, before, read_counts(server))
            cell = self._cells[server.spec.name, workload.name, clients]
            cell.repeats.append(measured)
            self._check_timed(cell, result["generated_texts"])
            self._tell(
                f"{workload.name}, {clients} clients, {server.spec.name}: "
                f"{measured.tokens_per_s:.1f} tokens/s, {measured.length:.2f} tokens/round"
            )

    def _run_client(self, server: Server, load: Load) -> dict[str, Any]:
        """The client's result; others' servers, which may close a connection, get a second try."""
        try:
            return run_client(server, self._settings.model, load)
        except SetupError as error:
            if server.spec.kind == "vllm":
                raise
            self._tell(f"{server.spec.name}: once more, since {str(error)[:200]}")
            return run_client(server, self._settings.model, load)

    def _check_timed(self, cell: Cell, texts: Sequence[str]) -> None:
        """The answers of a timed run must be as good as those of the untimed one."""
        if cell.check is None:
            return
        ids = self._ids_of(texts, self._expected[cell.workload])
        cell.keep_worse(self._judge(cell.arm, cell.workload, ids))


Counts = tuple[Drafting, tuple[float, float]]


def read_counts(server: Server) -> Counts | None:
    """Counters of a vLLM server; None for others."""
    if server.spec.kind != "vllm":
        return None
    metrics = parse_metrics(server.get("/metrics"))
    return read_drafting(metrics), read_cached(metrics)


def measure(result: Mapping[str, Any], before: Counts | None, after: Counts | None) -> Measured:
    """The client's result and the server's counters as one repeat of a cell."""
    drafting, share = Drafting(), 0.0
    if before is not None and after is not None:
        drafting = after[0].since(before[0])
        asked = after[1][0] - before[1][0]
        share = (after[1][1] - before[1][1]) / asked if asked else 0.0
    return Measured(
        result["total_output_tokens"],
        result["duration"],
        result["p50_ttft_ms"],
        result["p95_ttft_ms"],
        result["mean_tpot_ms"],
        result["p95_e2el_ms"],
        drafting.length,
        tuple(drafting.rates),
        share,
    )


def read_memory(server: Server, kv_bytes: int) -> dict[str, Any]:
    """Memory by domain, as far as the server tells."""
    found: dict[str, Any] = {"resident_bytes": server.resident_bytes()}
    if server.spec.kind != "vllm":
        return found
    metrics = parse_metrics(server.get("/metrics"))
    found.update(kv_bytes=kv_bytes, kv_tokens=read_kv_tokens(metrics))
    try:
        answer = server.post("/collective_rpc", {"method": "memory_report"})
    except SetupError:
        return found  # a worker without the report: what else is known stays
    return {**found, **answer["results"][0]}
