"""Folders of golden numbers: what they hold, where their target lies, and what is wrong with them.

A set is a folder with ``draft/``, ``golden.json`` and, often, ``golden.safetensors``; its target
lies beside it as ``../target`` unless one is named.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_dspark.errors import CheckpointError

GOLDEN = "golden.json"
ARRAYS = "golden.safetensors"


@dataclass(frozen=True, slots=True)
class GoldenRound:
    """One recorded round: a block, and what the target made of it.

    Attributes:
        start: position of the anchor.
        confidence_logits: one per draft, or None without a confidence head.
    """

    start: int
    anchor: int
    draft: tuple[int, ...]
    confidence_logits: tuple[float, ...] | None
    accepted: int
    next_token: int


@dataclass(frozen=True, slots=True)
class GoldenCase:
    """One prompt with its greedy output and rounds."""

    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    rounds: tuple[GoldenRound, ...]


@dataclass(frozen=True, slots=True)
class GoldenSet:
    """One folder, read.

    Attributes:
        name: of the folder.
        top_k: the ``dspark_draft_topk`` that the numbers are for; None walks over all ids.
        arrays: the safetensors file, or None where there is none.
    """

    name: str
    draft: Path
    target: Path
    top_k: int | None
    cases: tuple[GoldenCase, ...]
    arrays: Path | None

    @property
    def num_drafts(self) -> int:
        return max(len(item.draft) for case in self.cases for item in case.rounds)

    @property
    def num_positions(self) -> int:
        """Positions of the longest case, the drafts of its last round included."""
        longest = max(len(case.prompt_ids) + len(case.output_ids) for case in self.cases)
        return longest + 2 * (self.num_drafts + 1)


def find_sets(folders: Sequence[Path]) -> list[Path]:
    """Folders of sets among ``folders``, each of which is a set or holds sets.

    Raises:
        CheckpointError: a folder that is neither.
    """
    found: list[Path] = []
    for folder in folders:
        if (folder / GOLDEN).is_file():
            found.append(folder)
            continue
        inside = sorted(path.parent for path in folder.glob(f"*/{GOLDEN}"))
        if not inside:
            raise CheckpointError(
                f"{folder} has no {GOLDEN}, nor has any folder in it; give a folder with draft/ "
                f"and {GOLDEN}, or one that holds such folders"
            )
        found.extend(inside)
    return found


def read_set(folder: Path, target: Path | None = None, top_k: int | None = None) -> GoldenSet:
    """Read one set; no weights are touched.

    Args:
        folder: from :func:`find_sets`.
        target: None looks beside the set.
        top_k: used where golden.json does not say one.

    Raises:
        CheckpointError: something is missing or malformed.
    """
    golden = _read_golden(folder / GOLDEN)
    beside = folder.resolve().parent / "target"
    target = beside if target is None else target
    for path, advice in (
        (folder / "draft", "a set is a draft with its numbers"),
        (target, "name the target that the draft was trained for with --target"),
    ):
        if not (path / "config.json").is_file():
            raise CheckpointError(f"{path} has no config.json; {advice}")
    arrays = folder / ARRAYS
    return GoldenSet(
        name=folder.resolve().name,
        draft=folder / "draft",
        target=target,
        top_k=_resolve_top_k(golden, folder.resolve().name, top_k),
        cases=_read_cases(golden, folder / GOLDEN),
        arrays=arrays if arrays.is_file() else None,
    )


def _read_golden(path: Path) -> dict[str, Any]:
    try:
        golden = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); fetch the set again") from error
    return golden if isinstance(golden, dict) else {"cases": golden}


def _resolve_top_k(golden: dict[str, Any], name: str, given: int | None) -> int | None:
    for key in ("draft_topk", "dspark_draft_topk"):
        if key in golden:
            return golden[key]
    if given is not None:
        return given
    named = re.search(r"topk(\d+)", name)
    return int(named[1]) if named else None


def _read_cases(golden: dict[str, Any], path: Path) -> tuple[GoldenCase, ...]:
    try:
        cases = tuple(_read_case(case) for case in golden["cases"])
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{path} is not in the form of a golden file ({error!r}); it needs cases with "
            "prompt_ids, output_ids and rounds"
        ) from error
    if not any(case.rounds for case in cases) or not all(case.prompt_ids for case in cases):
        raise CheckpointError(f"{path} has no rounds, or an empty prompt; record the set again")
    return cases


def _read_case(case: dict[str, Any]) -> GoldenCase:
    return GoldenCase(
        tuple(map(int, case["prompt_ids"])),
        tuple(map(int, case["output_ids"])),
        tuple(_read_round(item) for item in case["rounds"]),
    )


def _read_round(item: dict[str, Any]) -> GoldenRound:
    confidences = item.get("confidence_logits")
    return GoldenRound(
        start=int(item["start"]),
        anchor=int(item["anchor"]),
        draft=tuple(map(int, item["draft"])),
        confidence_logits=None if confidences is None else tuple(map(float, confidences)),
        accepted=int(item["accepted"]),
        next_token=int(item["next_token"]),
    )
