"""The tiny target of the conformance set, and rows that it wrote."""

from pathlib import Path

import mlx.core as mx
import pytest

from vllm_dspark.training.chat import ChatFormat, read_chat_format
from vllm_dspark.training.data import make_data
from vllm_dspark.training.frozen import FrozenTarget, load_frozen
from vllm_dspark.training.settings import DataSettings

TARGET = Path(__file__).parent.parent / "conformance" / "target"


@pytest.fixture(scope="session")
def target() -> FrozenTarget:
    """Six Qwen3 layers of width 96, vocabulary 512."""
    return load_frozen(TARGET, mx.float32)


@pytest.fixture(scope="session")
def chat() -> ChatFormat:
    """The target continues plain text."""
    return read_chat_format(TARGET, "plain")


@pytest.fixture(scope="session")
def rows_folder(
    target: FrozenTarget, chat: ChatFormat, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Two shards of 40 rows with 96 tokens."""
    folder = tmp_path_factory.mktemp("rows")
    settings = DataSettings(
        num_shards=2, rows_per_shard=40, row_length=96, max_question=8, greedy_share=0.7
    )
    make_data(target, chat, folder, settings)
    return folder
