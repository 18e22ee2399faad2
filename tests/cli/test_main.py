"""The dispatcher: help, unknown commands, errors."""

import os
import subprocess
import sys

import pytest

from vllm_dspark import __version__
from vllm_dspark.cli import main as cli
from vllm_dspark.errors import SettingsError


def test_every_command_is_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert all(name in text for name in cli.COMMANDS)


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert __version__ in capsys.readouterr().out


def test_an_unknown_command_lists_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["cure"])
    assert stop.value.code == 2
    assert "doctor" in capsys.readouterr().err


def test_commands_compute_float32_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLX_ENABLE_TF32", "")
    monkeypatch.delenv("MLX_ENABLE_TF32")
    monkeypatch.setattr("vllm_dspark.cli.doctor.run", lambda _args: 0)
    assert cli.main(["doctor"]) == 0
    assert os.environ["MLX_ENABLE_TF32"] == "0"


def test_our_errors_print_their_sentence_and_exit_2(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_args: object) -> int:
        raise SettingsError("the moon is 3, must be 0..1")

    monkeypatch.setattr("vllm_dspark.cli.doctor.run", fail)
    assert cli.main(["doctor"]) == 2
    assert capsys.readouterr().err == "vllm-dspark doctor: the moon is 3, must be 0..1\n"


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from vllm_dspark.cli.main import build_parser; build_parser(); "
        "print({'mlx', 'torch', 'vllm', 'gguf', 'numpy'} & set(sys.modules))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "set()"
