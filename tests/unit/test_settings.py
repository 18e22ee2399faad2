"""Environment: read in one place, never overruled."""

import os

import pytest

from vllm_dspark.settings import read_environment, set_environment_defaults


def test_a_users_value_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_SWITCH", "mine")
    set_environment_defaults({"SOME_SWITCH": "ours"})
    assert os.environ["SOME_SWITCH"] == "mine"


def test_an_unset_name_gets_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_SWITCH", "")
    monkeypatch.delenv("SOME_SWITCH")
    set_environment_defaults({"SOME_SWITCH": "ours"})
    assert os.environ["SOME_SWITCH"] == "ours"


def test_the_forced_openblas_kernel_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    assert read_environment().openblas_coretype == "Haswell"
