"""Compare arms in process: no server, no client, the same workloads and the same report."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from vllm_dspark.arms.compare import GATES, Judge, compare
from vllm_dspark.arms.corpus import load_tokenizer
from vllm_dspark.arms.process import Arm, start_arm
from vllm_dspark.arms.spec import ArmSpec, Ask, Run
from vllm_dspark.arms.synthetic import parse_rates, write_answers
from vllm_dspark.bench.arm_names import OurArm, check_arms, find_arm, pairs_of
from vllm_dspark.bench.cells import Cell, Measured, find_ratios, in_turns
from vllm_dspark.bench.workloads import Workload, make_workload

REFERENCE = "target-only sync"
PLAIN = "mlx_lm"
SYNTHETIC = "synthetic"


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineSettings:
    """What ``bench offline`` runs.

    Attributes:
        arms: as ``arm_names`` says, or mlx_lm.
        synthetic: preset or rates of the synthetic arm; "" leaves it out.
        num_requests: requests of a cell; with more clients than that, one for each.
        kv_bytes: pages of each of our arms.
    """

    model: Path
    draft: Path
    dtype: str = "float32"
    arms: tuple[str, ...] = ("target-only async", REFERENCE, "DSpark async", PLAIN)
    synthetic: str = ""
    workloads: tuple[str, ...] = ("chat", "code", "maths")
    clients: tuple[int, ...] = (1, 4)
    num_requests: int = 4
    max_tokens: int = 64
    repeats: int = 3
    num_drafts: int = 0
    max_model_len: int = 2048
    kv_bytes: int = 1 << 29
    gate: str = "float32"

    def __post_init__(self) -> None:
        check_arms(self.arms, (PLAIN,))


class OfflineBench:
    """Runs all arms side by side, in turns.

    Args:
        settings: what to run.
        tell: is told what goes on.
    """

    def __init__(self, settings: OfflineSettings, tell: Callable[[str], None]) -> None:
        self._settings = settings
        self._tell = tell
        self._tokenizer = load_tokenizer(settings.model)
        self._cells: dict[tuple[str, str, int], Cell] = {}
        self._expected: dict[str, Run] = {}

    def run(self) -> dict[str, Any]:
        """Measure everything; returns the body of the result."""
        names = self._settings.workloads
        size = max(self._settings.num_requests, *self._settings.clients)
        workloads = [make_workload(name, self._tokenizer, size) for name in names]
        asks = {one.name: one.asks(self._tokenizer, self._settings.max_tokens) for one in workloads}
        with TemporaryDirectory() as folder, ExitStack() as stack:
            arms = self._start(stack, workloads, asks, Path(folder) / "answers.json")
            memory = []
            for workload in workloads:
                timed = self._asked(arms)
                self._check(timed, workload, asks[workload.name], arms[PLAIN].judge)
                for clients in self._settings.clients:
                    sent = asks[workload.name][: max(clients, self._settings.num_requests)]
                    self._time(timed, workload, sent, clients)
            for arm in arms.values():
                memory.append({"arm": arm.name, **arm.memory()})
        cells = list(self._cells.values())
        return {
            "cells": [one.to_json() for one in cells],
            "ratios": find_ratios(cells, pairs_of(self._settings.arms, also_drafted=(SYNTHETIC,))),
            "memory": memory,
            "synthetic": self._describe_synthetic(),
        }

    def _asked(self, arms: Mapping[str, Arm]) -> dict[str, Arm]:
        """Without those that only give answers to compare with."""
        return {
            name: arm for name, arm in arms.items()
            if name in self._settings.arms or name == SYNTHETIC
        }  # fmt: skip

    @property
    def has_mismatch(self) -> bool:
        """Whether an arm's outputs differ beyond near-ties."""
        return any(one.check is not None and not one.matches for one in self._cells.values())

    def _describe_synthetic(self) -> dict[str, Any] | None:
        if not self._settings.synthetic:
            return None
        rates = parse_rates(self._settings.synthetic)
        return {"survival": list(rates.survival), "source": rates.source}

    def _start(
        self,
        stack: ExitStack,
        workloads: Sequence[Workload],
        asks: Mapping[str, list[Ask]],
        answers: Path,
    ) -> dict[str, Arm]:
        """Start the reference first: the synthetic arm needs its answers."""
        wanted = [name for name in self._settings.arms if name not in (REFERENCE, PLAIN)]
        arms: dict[str, Arm] = {}
        for name in (REFERENCE, PLAIN, *wanted):
            arms[name] = stack.enter_context(start_arm(self._spec(name)))
        for workload in workloads:
            self._expected[workload.name] = arms[REFERENCE].generate(asks[workload.name], 1)
            self._tell(f"{workload.name}: reference answers ready")
        if self._settings.synthetic:
            sent = [ask for one in workloads for ask in asks[one.name]]
            tokens = [ids for one in workloads for ids in self._expected[one.name].tokens]
            write_answers(answers, sent, tokens)
            spec = self._spec(SYNTHETIC, answers)
            arms[SYNTHETIC] = stack.enter_context(start_arm(spec))
        return arms

    def _spec(self, name: str, answers: Path | None = None) -> ArmSpec:
        settings = self._settings
        ours = OurArm(drafts=True, is_async=True) if name == SYNTHETIC else find_arm(name)
        speculative = None
        if ours is not None:
            speculative = ours.speculative(str(settings.draft), settings.num_drafts)
        return ArmSpec(
            name=name,
            engine="mlx_lm" if ours is None else "vllm",
            model=str(settings.model),
            dtype=settings.dtype,
            is_async=ours is not None and ours.is_async,
            options={"speculative_config": speculative} if speculative else {},
            max_model_len=settings.max_model_len,
            max_num_seqs=max(settings.clients),
            kv_bytes=settings.kv_bytes,
            synthetic=parse_rates(settings.synthetic).survival if answers else (),
            answers=str(answers or ""),
        )

    def _check(
        self, arms: Mapping[str, Arm], workload: Workload, asks: list[Ask], judge: Judge
    ) -> None:
        """Untimed: compare every arm's token ids with the reference's; also warms it up."""
        for name, arm in arms.items():
            checks = {}
            for clients in self._settings.clients:
                arm.reset_cache()
                sent = asks[: max(clients, self._settings.num_requests)]
                run = arm.generate(sent, clients)
                checks[clients] = self._compare(name, judge, workload, sent, run)
            for clients, check in checks.items():
                cell = Cell(name, workload.name, clients, check=check)
                if check is None:
                    cell.note = "its random numbers are others, and it has no grammars"
                self._cells[name, workload.name, clients] = cell

    def _compare(
        self,
        name: str,
        judge: Judge,
        workload: Workload,
        asks: list[Ask],
        run: Run,
    ) -> dict[str, int] | None:
        if name == PLAIN and (workload.temperature or workload.schema):
            return None
        found = compare(
            name,
            run.tokens,
            REFERENCE,
            self._expected[workload.name].tokens[: len(asks)],
            names=[f"{workload.name}-{index}" for index in range(len(asks))],
            prompts=[ask.token_ids for ask in asks],
            judge=judge,
            gate=GATES[self._settings.gate],
        )
        return {
            "exact": found.num_exact,
            "top_k": found.num_ties,
            "failures": found.num_failures + bool(run.leaked_blocks),
        }

    def _time(
        self, arms: Mapping[str, Arm], workload: Workload, asks: list[Ask], clients: int
    ) -> None:
        num_prompt = sum(len(ask.token_ids) for ask in asks)
        for repeat, name in in_turns(list(arms), self._settings.repeats):
            arms[name].reset_cache()
            run = arms[name].generate(asks, clients)
            measured = Measured.of(run, num_prompt)
            cell = self._cells[name, workload.name, clients]
            cell.repeats.append(measured)
            cell.keep_worse(self._compare(name, arms, workload, asks, run))
            self._tell(
                f"{workload.name}, {clients} clients, repeat {repeat + 1}, {name}: "
                f"{measured.tokens_per_s:.1f} tokens/s, {measured.length:.2f} tokens/round"
            )
