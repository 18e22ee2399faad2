"""Model names -> local folders."""

from pathlib import Path

from huggingface_hub import snapshot_download

WANTED_FILES = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]


def locate_model(name: str, revision: str | None) -> Path:
    """Return the folder of a model, fetching it from the hub when it is not a local path."""
    folder = Path(name)
    if folder.is_dir():
        return folder
    return Path(snapshot_download(name, revision=revision, allow_patterns=WANTED_FILES))
