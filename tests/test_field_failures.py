"""The page of known failures names tests that exist."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "field-failures.md"


def functions(path: Path) -> set[str]:
    """Names of the functions that a file defines."""
    tree = ast.parse(path.read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_named_test_is_where_the_page_says() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE.read_text())
    assert len(named) > 40
    assert [pair for pair in named if pair[1] not in functions(ROOT / pair[0])] == []
