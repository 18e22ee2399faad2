"""The project's files agree with each other."""

import tomllib
from pathlib import Path

from vllm_dspark import __version__

ROOT = Path(__file__).parent.parent


def test_the_version_is_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == __version__
    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_the_default_model_folder_is_the_set_ups() -> None:
    from vllm_dspark.cli.fetch_demo import DEFAULT_DIRECTORY

    assert f"MODEL_DIR={DEFAULT_DIRECTORY}\n" in (ROOT / "scripts" / "setup.sh").read_text()


def test_the_readme_names_every_package() -> None:
    readme = (ROOT / "README.md").read_text()
    packages = [path.parent.name for path in (ROOT / "src" / "vllm_dspark").glob("*/__init__.py")]
    assert [name for name in packages if f" {name}/" not in readme] == []
