"""The error tree keeps its promise to callers."""

import pytest

from vllm_dspark import errors


def own_errors() -> list[type[Exception]]:
    found = [value for value in vars(errors).values() if isinstance(value, type)]
    return [error for error in found if error is not errors.DSparkError]


@pytest.mark.parametrize("error", own_errors())
def test_each_error_is_ours_and_a_builtins(error: type[Exception]) -> None:
    assert issubclass(error, errors.DSparkError)
    assert issubclass(error, ValueError | RuntimeError)
