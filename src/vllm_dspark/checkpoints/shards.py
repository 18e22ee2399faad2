"""Safetensors files of a folder: what they hold, without reading the tensors, then the tensors."""

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx

from vllm_dspark.checkpoints.fields import read_json
from vllm_dspark.errors import CheckpointError

INDEX_NAME = "model.safetensors.index.json"
FLOAT_DTYPES = ("F32", "F16", "BF16")
DTYPES = (*FLOAT_DTYPES, "U32", "I64", "I32", "BOOL", "U8")
MAX_HEADER_BYTES = 100_000_000


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One entry of a safetensors header.

    Attributes:
        shape: as stored.
        dtype: safetensors' name, e.g. ``BF16``.
        path: the file that holds it.
    """

    shape: tuple[int, ...]
    dtype: str
    path: Path

    @property
    def is_float(self) -> bool:
        return self.dtype in FLOAT_DTYPES


def read_headers(folder: Path) -> dict[str, StoredTensor]:
    """List every tensor of a folder by name; one file, or shards with an index.

    Raises:
        CheckpointError: no weights, a damaged or missing file, a tensor in two files, or an
            index that disagrees with its shards.
    """
    index_path = folder / INDEX_NAME
    if not index_path.exists():
        paths = sorted(folder.glob("*.safetensors"))
        if not paths:
            raise CheckpointError(f"{folder} has no *.safetensors file; give a checkpoint folder")
        return _merge(paths)
    weight_map = read_json(index_path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index_path} has no 'weight_map'; download the checkpoint again")
    stored = _merge(sorted({folder / str(name) for name in weight_map.values()}))
    for name in sorted(set(weight_map) | set(stored)):
        listed, found = weight_map.get(name), stored.get(name)
        if listed is None or found is None or found.path.name != listed:
            raise CheckpointError(
                f"{name} is in {listed or 'no file'} by {INDEX_NAME}, but in "
                f"{found.path.name if found else 'no file'} on disk; download the checkpoint again"
            )
    return stored


def _merge(paths: list[Path]) -> dict[str, StoredTensor]:
    stored: dict[str, StoredTensor] = {}
    for path in paths:
        for name, tensor in _read_header(path).items():
            if name in stored:
                raise CheckpointError(
                    f"{name} is in both {stored[name].path.name} and {path.name}; keep one"
                )
            stored[name] = tensor
    return stored


def _read_header(path: Path) -> dict[str, StoredTensor]:
    """Entries of one file's header; the file's length must fit what the header promises."""
    try:
        with path.open("rb") as file:
            prefix = file.read(8)
            size = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else MAX_HEADER_BYTES
            raw = json.loads(file.read(size)) if size < MAX_HEADER_BYTES else None
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} does not exist; download the checkpoint again") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} is not a safetensors file ({error})") from error
    if not isinstance(raw, dict):
        raise CheckpointError(f"{path} is not a safetensors file; download the checkpoint again")
    raw.pop("__metadata__", None)
    try:
        entries = {name: _entry(path, name, entry) for name, entry in raw.items()}
        expected = 8 + size + max((entry["data_offsets"][1] for entry in raw.values()), default=0)
    except (KeyError, TypeError, IndexError) as error:
        raise CheckpointError(f"{path} has a damaged header ({error!r})") from error
    if path.stat().st_size != expected:
        raise CheckpointError(
            f"{path} has {path.stat().st_size} bytes, its header promises {expected}; "
            "download the checkpoint again"
        )
    return entries


def _entry(path: Path, name: str, entry: Mapping[str, Any]) -> StoredTensor:
    dtype = entry["dtype"]
    if dtype not in DTYPES:
        raise CheckpointError(
            f"{name} in {path} is stored as {dtype}; 16- and 32-bit floats and MLX's quantised "
            "form can be read: convert the draft"
        )
    return StoredTensor(tuple(entry["shape"]), dtype, path)


def open_tensors(stored: Mapping[str, StoredTensor]) -> dict[str, mx.array]:
    """Open the listed tensors; MLX reads each one when it is first used."""
    arrays: dict[str, mx.array] = {}
    for path in sorted({tensor.path for tensor in stored.values()}):
        loaded = mx.load(str(path))
        assert isinstance(loaded, dict)
        arrays.update(loaded)
    return {name: arrays[name] for name in stored}
