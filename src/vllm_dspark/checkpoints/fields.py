"""Typed reading of a config.json, with errors that name the key."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vllm_dspark.errors import CheckpointError

_REQUIRED = object()


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file.

    Raises:
        CheckpointError: the file is missing, is not JSON, or is not an object.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} does not exist; give a checkpoint folder") from error
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON ({error})") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds a {type(content).__name__}, expected an object")
    return content


class Fields:
    """The keys of one JSON object, read by type.

    A key that is null counts as absent. Every reader raises CheckpointError when the key is
    absent and no default is given, or when its value has another type.

    Args:
        values: the object.
        where: how messages name it, e.g. ``config.json``.
    """

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._values = values
        self._where = where

    def __contains__(self, key: str) -> bool:
        return self._values.get(key) is not None

    def integer(self, key: str, default: Any = _REQUIRED) -> Any:
        """An int; floats, strings and booleans are refused."""
        value = self.any(key, default)
        return self._typed(key, value, default, int, "an integer")

    def number(self, key: str, default: Any = _REQUIRED) -> Any:
        """An int or float, as float."""
        value = self._typed(key, self.any(key, default), default, (int, float), "a number")
        return float(value) if isinstance(value, int) else value

    def flag(self, key: str, default: Any = _REQUIRED) -> Any:
        """A boolean."""
        value = self.any(key, default)
        if value is not default and not isinstance(value, bool):
            raise self._wrong(key, value, "true or false")
        return value

    def text(self, key: str, default: Any = _REQUIRED) -> Any:
        """A string."""
        return self._typed(key, self.any(key, default), default, str, "a string")

    def items(self, key: str, kind: type, default: Any = _REQUIRED) -> Any:
        """A list whose elements all have one type, as a tuple."""
        value = self._typed(key, self.any(key, default), default, list, "a list")
        if value is default:
            return value
        if any(not isinstance(item, kind) or isinstance(item, bool) for item in value):
            raise self._wrong(key, value, f"a list of {kind.__name__}")
        return tuple(value)

    def object(self, key: str, default: Any = _REQUIRED) -> "Fields":
        """A nested object; an absent one with default {} reads as empty."""
        value = self._typed(key, self.any(key, default), None, dict, "an object")
        return Fields(value, f"{self._where}: {key}")

    def any(self, key: str, default: Any = _REQUIRED) -> Any:
        """Whatever stands there."""
        value = self._values.get(key)
        if value is not None:
            return value
        if default is _REQUIRED:
            raise CheckpointError(
                f"{self._where} has no {key!r}, which a draft needs; add it or export again"
            )
        return default

    def _typed(self, key: str, value: Any, default: Any, kind: Any, words: str) -> Any:
        if value is default and default is not _REQUIRED:
            return value
        if not isinstance(value, kind) or isinstance(value, bool):
            raise self._wrong(key, value, words)
        return value

    def _wrong(self, key: str, value: Any, words: str) -> CheckpointError:
        return CheckpointError(f"{self._where} has {key!r} = {value!r}, expected {words}")
