"""Words that prompts are made of, read from phrases.txt beside this file."""

from functools import cache
from importlib import resources

MATHS_ENDINGS = (
    *[""] * 4, " Explain your steps.", " Show your work.", " Think step by step.",
)  # fmt: skip


@cache
def phrases(section: str) -> tuple[str, ...]:
    """The phrases of one section, e.g. ``openings``."""
    return _sections()[section]


@cache
def _sections() -> dict[str, tuple[str, ...]]:
    text = resources.files(__package__).joinpath("phrases.txt").read_text(encoding="utf-8")
    sections: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("[") and line.endswith("]"):
            lines = sections.setdefault(line[1:-1], [])
        elif line and not line.startswith("#"):
            lines.append(line.replace("\\n", "\n"))
    return {name: tuple(found) for name, found in sections.items()}
