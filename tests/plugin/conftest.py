"""Fixtures of the tests that start vLLM."""

from collections.abc import Iterator
from typing import Any

import pytest
from engines import engine

COMPACT_JSON = {"backend": "xgrammar", "disable_any_whitespace": True}
"""A small model would fill its answer with the blank lines that JSON allows."""


@pytest.fixture(scope="package")
def sync_llm() -> Iterator[Any]:
    """A roomy engine without async scheduling, shared by the folder's tests."""
    with engine(max_logprobs=-1, structured_outputs_config=COMPACT_JSON) as llm:
        yield llm


@pytest.fixture(scope="package")
def async_llm() -> Iterator[Any]:
    """The same engine with async scheduling, vLLM's default."""
    with engine(
        max_logprobs=-1, structured_outputs_config=COMPACT_JSON, async_scheduling=True
    ) as llm:
        yield llm


@pytest.fixture(params=["sync", "async"])
def llm(request: pytest.FixtureRequest) -> Any:
    """Both engines, one after the other."""
    return request.getfixturevalue(f"{request.param}_llm")
