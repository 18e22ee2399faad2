"""Measured cost tables on disk, one file per machine, pair, compute type and version."""

import hashlib
import json
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_dspark.errors import SettingsError
from vllm_dspark.planner.costs import CostTable
from vllm_dspark.settings import cache_folder


@dataclass(frozen=True, slots=True, kw_only=True)
class CostKey:
    """What a measured table depends on.

    Attributes:
        blas: file of the matrix library, "" where MLX brings it along.
        target, draft: folders.
        weights: size and time of their weight files, so that another model there is another key.
    """

    device: str
    blas: str
    mlx_version: str
    package_version: str
    dtype: str
    target: str
    draft: str
    weights: tuple[tuple[str, int, int], ...]
    num_drafts: int
    block_size: int

    @property
    def path(self) -> Path:
        """File of the table."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        text = json.dumps([platform.node(), platform.processor(), fields], default=str)
        return cache_folder() / "costs" / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


def describe_weights(folders: Sequence[Path]) -> tuple[tuple[str, int, int], ...]:
    """Name, size in bytes and modification time in seconds of all weight files."""
    return tuple(
        (path.name, path.stat().st_size, int(path.stat().st_mtime))
        for folder in folders
        for path in sorted(folder.glob("*.safetensors"))
    )


def read_costs(key: CostKey) -> CostTable | None:
    """The table measured earlier, or None; a damaged file counts as none."""
    try:
        return _parse(json.loads(key.path.read_text())["table"])
    except (OSError, ValueError, KeyError, TypeError, SettingsError):
        return None


def write_costs(key: CostKey, table: CostTable) -> None:
    """Keep a table for the next start; a folder that cannot be written is no error."""
    record = {"target": key.target, "draft": key.draft, "dtype": key.dtype,
              "device": key.device, "num_drafts": key.num_drafts, "table": table.to_json()}
    try:
        key.path.parent.mkdir(parents=True, exist_ok=True)
        key.path.write_text(json.dumps(record))
    except OSError:
        return


def list_costs() -> list[dict[str, Any]]:
    """All readable records, newest first, for ``vllm-dspark doctor``."""
    folder = cache_folder() / "costs"
    paths = sorted(folder.glob("*.json"), key=lambda path: -path.stat().st_mtime)
    records = []
    for path in paths:
        try:
            records.append(json.loads(path.read_text()))
        except (OSError, ValueError):
            continue
    return records


def _parse(raw: dict[str, Any]) -> CostTable:
    return CostTable(
        tuple(raw["requests"]),
        tuple(raw["rows"]),
        tuple(raw["contexts"]),
        tuple(tuple(tuple(line) for line in plane) for plane in raw["verify_ms"]),
        tuple(raw["draft_ms"]),
    )
