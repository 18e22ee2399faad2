"""The GGUF that the demo model's folder was made from."""

from pathlib import Path
from typing import Any

import gguf
import pytest

SOURCE_NAME = "gguf/SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="session")
def gguf_reader(demo_dir: Path) -> gguf.GGUFReader:
    return gguf.GGUFReader(demo_dir / SOURCE_NAME)


@pytest.fixture(scope="session")
def fields(gguf_reader: gguf.GGUFReader) -> dict[str, Any]:
    return {name: field.contents() for name, field in gguf_reader.fields.items()}
