"""Greedy texts of every way to run, against each other and against outside references."""

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vllm_dspark.arms.compare import GATES, Comparison, Gate, Judge, compare
from vllm_dspark.arms.corpus import Prompt, chat_ids, load_tokenizer, pick_evenly, read_corpus
from vllm_dspark.arms.process import Arm, start_arm
from vllm_dspark.arms.spec import ArmSpec, Run, asks_for

Tell = Callable[[str], None]
Start = Callable[[ArmSpec], AbstractContextManager[Arm]]
MAX_ACCEPTANCE_SHIFT = 0.02
"""Accepted drafts may differ this much after a prefix hit, beside near-ties of the draft."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSettings:
    """What ``parity text`` compares.

    Attributes:
        draft: None compares the target alone.
        prompts: JSONL file; None is the corpus of this package.
        limit: prompts at most, of all kinds.
        batch: the N of "batch 1 and N".
        modes: of "sync" and "async".
        min_length: mean tokens per round that a healthy draft reaches; 0 asks for any.
    """

    model: Path
    draft: Path | None = None
    dtype: str = "float32"
    prompts: Path | None = None
    limit: int = 40
    max_tokens: int = 32
    batch: int = 8
    modes: tuple[str, ...] = ("sync", "async")
    with_transformers: bool = True
    min_length: float = 0.0


@dataclass(frozen=True, slots=True)
class Pass:
    """One run of all prompts by one arm.

    Attributes:
        way: batch size and state of the prefix cache.
    """

    arm: str
    way: str
    run: Run

    @property
    def name(self) -> str:
        return f"{self.arm}, {self.way}"

    def to_json(self) -> dict[str, Any]:
        drafting = self.run.drafting
        return {
            "arm": self.arm,
            "way": self.way,
            "seconds": round(self.run.seconds, 3),
            "tokens": self.run.num_tokens,
            "cached_tokens": self.run.num_cached,
            "rounds": drafting.rounds,
            "drafted": drafting.drafted,
            "accepted": drafting.accepted,
            "length": round(drafting.length, 3),
            "rates": drafting.rates,
            "leaked_blocks": self.run.leaked_blocks,
        }


@dataclass(slots=True)
class TextReport:
    """Everything that was found.

    Attributes:
        problems: sentences about what is wrong apart from texts.
    """

    gate_name: str
    passes: list[Pass] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def num_failures(self) -> int:
        return sum(one.num_failures for one in self.comparisons) + len(self.problems)

    @property
    def is_exact(self) -> bool:
        return not self.problems and not any(one.differences for one in self.comparisons)

    def to_json(self) -> dict[str, Any]:
        return {
            "gate": {"precision": self.gate_name, **_gate_json(GATES[self.gate_name])},
            "passes": [one.to_json() for one in self.passes],
            "comparisons": [one.to_json() for one in self.comparisons],
            "problems": self.problems,
        }


def _gate_json(gate: Gate) -> dict[str, Any]:
    return {"top_k": gate.top_k, "max_margin": gate.max_margin, "reason": gate.reason}


def gate_for(model: Path, dtype: str) -> str:
    """Name of the gate: by the weights when they are quantised, else by the compute type."""
    config = json.loads((model / "config.json").read_text())
    return "4-bit" if config.get("quantization") else dtype


def make_specs(settings: TextSettings, longest: int) -> list[ArmSpec]:
    """Our arms: target-only and DSpark, in each mode."""
    specs = []
    for mode in settings.modes:
        for name, draft in (("target-only", ""), ("DSpark", str(settings.draft or ""))):
            if name == "DSpark" and not draft:
                continue
            specs.append(
                ArmSpec(
                    name=f"{name} {mode}",
                    engine="vllm",
                    model=str(settings.model),
                    dtype=settings.dtype,
                    draft=draft,
                    is_async=mode == "async",
                    max_model_len=longest,
                    max_num_seqs=settings.batch,
                )
            )
    return specs


class TextParity:
    """Runs the arms one after the other while the reference's process stays to judge.

    Args:
        settings: what to compare.
        tell: is told what goes on.
        start: runs an arm; a process of its own unless a test says otherwise.
    """

    def __init__(self, settings: TextSettings, tell: Tell, start: Start = start_arm) -> None:
        self._settings = settings
        self._tell = tell
        self._start = start
        self._gate_name = gate_for(settings.model, settings.dtype)
        fitting = self._fitting()
        chosen = pick_evenly([prompt for prompt, _ in fitting], settings.limit)
        self._corpus, self._ids = zip(*(one for one in fitting if one[0] in chosen), strict=True)

    def _fitting(self) -> list[tuple[Prompt, tuple[int, ...]]]:
        """Prompts and their token ids, without those that the model's context cannot hold."""
        config = json.loads((self._settings.model / "config.json").read_text())
        room = config.get("max_position_embeddings", 1 << 30) - self._settings.max_tokens - 16
        tokenizer = load_tokenizer(self._settings.model)
        read = [(one, chat_ids(tokenizer, one.text)) for one in read_corpus(self._settings.prompts)]
        fitting = [pair for pair in read if len(pair[1]) <= room]
        if len(fitting) < len(read):
            self._tell(f"{len(read) - len(fitting)} prompts do not fit the model's context")
        return fitting

    def run(self) -> TextReport:
        """Compare everything."""
        report = TextReport(self._gate_name)
        model, dtype = str(self._settings.model), self._settings.dtype
        plain = ArmSpec(name="mlx_lm", engine="mlx_lm", model=model, dtype=dtype)
        with self._start(plain) as judge:
            references = {"mlx_lm": self._pass(judge, "batch 1", 1)}
            if self._settings.with_transformers:
                with self._start(
                    ArmSpec(name="transformers", engine="transformers", model=model, dtype=dtype)
                ) as arm:
                    references["transformers"] = self._pass(arm, "batch 1", 1)
            for name, one in references.items():
                if name != "mlx_lm":
                    report.comparisons.append(self._compare(one, references["mlx_lm"], judge.judge))
            longest = max(map(len, self._ids)) + self._settings.max_tokens + 16
            for spec in make_specs(self._settings, longest):
                with self._start(spec) as arm:
                    report.passes.extend(self._passes(arm))
            report.comparisons.extend(
                self._compare(one, reference, judge.judge)
                for one in report.passes
                for reference in references.values()
            )
            report.comparisons.extend(self._own(report.passes, judge.judge))
        report.problems.extend(find_problems(report.passes, self._settings))
        return report

    def _passes(self, arm: Arm) -> list[Pass]:
        """All ways of one arm; the second pass over the same prompts finds them cached."""
        passes = []
        for clients in (1, self._settings.batch):
            arm.reset_cache()
            for state in ("cold", "warm"):
                passes.append(self._pass(arm, f"batch {clients}, cache {state}", clients))
        return passes

    def _pass(self, arm: Arm, way: str, clients: int) -> Pass:
        run = arm.generate(asks_for(self._ids, self._settings.max_tokens), clients)
        self._tell(f"{arm.name}, {way}: {run.num_tokens} tokens in {run.seconds:.1f} s")
        return Pass(arm.name, way, run)

    def _compare(self, one: Pass, reference: Pass, judge: Judge) -> Comparison:
        is_outside = reference.arm in ("mlx_lm", "transformers")
        return compare(
            one.name,
            one.run.tokens,
            reference.arm if is_outside else reference.name,
            reference.run.tokens,
            names=[prompt.name for prompt in self._corpus],
            prompts=self._ids,
            judge=judge,
            gate=GATES[self._gate_name],
        )

    def _own(self, passes: Sequence[Pass], judge: Judge) -> list[Comparison]:
        """DSpark against target-only run the same way, and target-only against itself."""
        named = {(one.arm, one.way): one for one in passes}
        found = []
        for one in passes:
            kind, mode = one.arm.rsplit(" ", 1)
            if kind == "DSpark":
                found.append(self._compare(one, named[f"target-only {mode}", one.way], judge))
            elif one.way == f"batch {self._settings.batch}, cache cold":
                alone = named[one.arm, "batch 1, cache cold"]
                found.append(self._compare(one, alone, judge))
        return found


def find_problems(passes: Sequence[Pass], settings: TextSettings) -> list[str]:
    """What texts cannot show: leaked blocks, a cache never hit, a draft that is not used."""
    problems = []
    for one in passes:
        if one.run.leaked_blocks:
            problems.append(f"{one.name}: {one.run.leaked_blocks} KV blocks were not given back")
        if one.way.endswith("warm") and not one.run.num_cached:
            problems.append(f"{one.name}: the prefix cache was never hit")
    drafting = [one for one in passes if one.arm.startswith("DSpark")]
    for one in drafting:
        if not one.run.drafting.drafted:
            problems.append(f"{one.name}: no draft was verified")
        elif one.run.drafting.length < settings.min_length:
            problems.append(
                f"{one.name}: {one.run.drafting.length:.2f} tokens per round, less than "
                f"{settings.min_length:.2f}"
            )
    problems.extend(_shifted_acceptance(drafting))
    return problems


def _shifted_acceptance(passes: Sequence[Pass]) -> list[str]:
    """Acceptance must not depend on whether a prompt's prefix came from the cache."""
    named = {(one.arm, one.way): one for one in passes}
    found = []
    for (arm, way), warm in named.items():
        cold = named.get((arm, way.replace("warm", "cold")))
        if cold is None or cold is warm:
            continue
        before, after = cold.run.drafting.accepted, warm.run.drafting.accepted
        if abs(after - before) > max(1.0, MAX_ACCEPTANCE_SHIFT * before):
            found.append(
                f"{arm}, {way}: {after} drafts were accepted after prefix hits but {before} "
                "without; the draft's own cache is wrong"
            )
    return found
