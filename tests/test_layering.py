"""Rules about the source text that no linter states for us."""

import ast
from pathlib import Path

SRC = Path(__file__).parent.parent / "src" / "vllm_dspark"


def patched_names(source: str) -> list[tuple[int, str]]:
    """Find assignments to an attribute of an imported name, e.g. ``nn.Linear.f = g``.

    Returns:
        (line, text) for each such assignment.
    """
    tree = ast.parse(source)
    imported = {
        (alias.asname or alias.name).split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    found = []
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign) else []
        for target in targets:
            root = target
            while isinstance(root, ast.Attribute):
                root = root.value
            if root is target or not isinstance(root, ast.Name):
                continue
            if root.id in imported:
                found.append((node.lineno, ast.unparse(target)))
    return found


def test_only_compat_patches_other_peoples_code() -> None:
    offenders = {
        str(path.relative_to(SRC)): names
        for path in SRC.rglob("*.py")
        if path.name != "compat.py"
        if (names := patched_names(path.read_text()))
    }
    assert offenders == {}


def test_the_rule_sees_a_patch() -> None:
    found = patched_names("import mlx.nn as nn\nnn.Linear.__call__ = f\n")
    assert found == [(2, "nn.Linear.__call__")]


SYNCS = {"item", "tolist", "eval", "async_eval"}
MAY_SYNC = {  # files, or whole folders ending in a slash
    "runner/build.py",
    "runner/step.py",
    "runner/measure.py",
    "checkpoints/",
    "training/",
    "demo/",
    "cli/doctor.py",
    "parity/",
    "bench/",
    "arms/",
}


def may_sync(name: str) -> bool:
    """Tell whether a file, named from the package's root, may wait for the device."""
    return any(name == place or name.startswith(place) for place in MAY_SYNC)


def sync_calls(source: str) -> list[int]:
    """Lines that make the program wait for the device."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in SYNCS
    ]


def test_the_device_is_waited_for_in_few_places() -> None:
    offenders = {
        name: lines
        for path in SRC.rglob("*.py")
        if not may_sync(name := path.relative_to(SRC).as_posix())
        if (lines := sync_calls(path.read_text()))
    }
    assert offenders == {}


def test_the_rule_sees_a_sync() -> None:
    assert sync_calls("x = y.item()\nmx.eval(x)\n") == [1, 2]


MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60


def too_long(source: str) -> list[str]:
    """Name the functions over the limit, and the file itself if it is."""
    found = ["(file)"] if len(source.splitlines()) > MAX_FILE_LINES else []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if node.end_lineno - node.lineno >= MAX_FUNCTION_LINES:
                found.append(node.name)
    return found


def test_files_and_functions_stay_short() -> None:
    offenders = {
        str(path.relative_to(SRC)): names
        for path in SRC.rglob("*.py")
        if (names := too_long(path.read_text()))
    }
    assert offenders == {}


def test_the_rule_sees_a_long_function() -> None:
    assert too_long("def f():\n" + "    x = 1\n" * 60) == ["f"]


def hidden_names(text: str) -> list[str]:
    """Find addresses of registries: where packages come from is the user's configuration."""
    return [
        name
        for name in ("pypi." + "org", "pythonhosted." + "org", "download.pytorch")
        if name in text
    ]


def test_no_registry_address_is_written_down() -> None:
    root = SRC.parent.parent
    files = [*SRC.rglob("*.py"), *(root / "scripts").iterdir(), root / "pyproject.toml"]
    files += [root / "README.md", root / "Makefile", *(root / "docs").rglob("*.md")]
    assert [str(path) for path in files if path.is_file() and hidden_names(path.read_text())] == []
