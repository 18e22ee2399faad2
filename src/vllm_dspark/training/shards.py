"""Rows on disk: safetensors files that appear whole, one after the other."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from vllm_dspark.errors import CheckpointError

MANIFEST = "data.json"


@dataclass(frozen=True, slots=True)
class Rows:
    """Streams of tokens.

    Attributes:
        tokens: [N, T] int32.
        mask: [N, T] uint8; 0 no answer, 1 an answer's token, 2 one inside a repetition.
        is_greedy: [N] bool, the row's answers are the target's greedy ones.
    """

    tokens: np.ndarray
    mask: np.ndarray
    is_greedy: np.ndarray

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, rows: Any) -> "Rows":  # noqa: ANN401 - whatever numpy indexes with
        return Rows(self.tokens[rows], self.mask[rows], self.is_greedy[rows])


def shard_name(index: int) -> str:
    """File name of shard 0, 1, ..."""
    return f"rows-{index:05d}.safetensors"


def write_shard(folder: Path, index: int, rows: Rows) -> None:
    """Write one shard; readers never see half of it."""
    narrow = np.uint16 if rows.tokens.max(initial=0) < 2**16 else np.int32
    part = folder / f".{shard_name(index)}.part"
    save_file(
        {
            "tokens": rows.tokens.astype(narrow),
            "mask": rows.mask.astype(np.uint8),
            "is_greedy": rows.is_greedy.astype(np.uint8),
        },
        part,
    )
    part.replace(folder / shard_name(index))


def read_shard(path: Path) -> Rows:
    """Read one shard.

    Raises:
        CheckpointError: it is not one.
    """
    try:
        stored = load_file(path)
        return Rows(
            stored["tokens"].astype(np.int32), stored["mask"], stored["is_greedy"].astype(bool)
        )
    except (OSError, KeyError, ValueError) as error:
        raise CheckpointError(
            f"{path} is not a shard of training rows ({error}); make it again with train data"
        ) from error


def list_shards(folder: Path) -> list[Path]:
    """Finished shards, in order, up to the first gap."""
    found = []
    while (path := folder / shard_name(len(found))).is_file():
        found.append(path)
    return found


def write_manifest(folder: Path, content: Mapping[str, Any]) -> None:
    """Say what a folder's rows are, or check that it already says the same.

    Raises:
        CheckpointError: the folder holds rows made with other settings.
    """
    path = folder / MANIFEST
    if path.is_file() and (there := read_manifest(folder)) != content:
        changed = [name for name in content if there.get(name) != content[name]]
        raise CheckpointError(
            f"{folder} holds rows made with another {', '.join(changed) or 'version'}; give the "
            "same settings to go on with them, or another folder"
        )
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def read_manifest(folder: Path) -> dict[str, Any]:
    """What the rows of a folder are.

    Raises:
        CheckpointError: it holds none.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise CheckpointError(f"{folder} has no {MANIFEST}; make rows there with train data")
    return json.loads(path.read_text(encoding="utf-8"))
