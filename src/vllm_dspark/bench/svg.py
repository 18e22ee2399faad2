"""Small charts as inline SVG; colours are CSS variables, so that light and dark both work.

All are 360 units wide, so that their text is readable on a phone without zooming.
"""

from collections.abc import Mapping, Sequence
from html import escape

WIDTH = 360
LEFT, RIGHT = 8, 8
ROW = 34
MAX_LABEL = 54
VALUE = 88  # room for a number at the right end of a row
Rows = Sequence[tuple[str, Sequence[tuple[str, float]]]]


def text(x: float, y: float, words: str, *, kind: str = "", anchor: str = "start") -> str:
    """A label; ``kind`` is a CSS class."""
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {place} class="{kind}">{escape(words)}</text>'


def label_of(words: str) -> str:
    """A row's name, cut to what fits over its bar."""
    return words if len(words) <= MAX_LABEL else words[: MAX_LABEL - 1] + "\u2026"


def rect(x: float, y: float, width: float, height: float, kind: str) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.5):.1f}" height="{height:.1f}" '
        f'rx="2" class="{kind}"/>'
    )


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def chart(height: float, label: str, parts: Sequence[str]) -> str:
    """Wrap parts; ``label`` is read to those who cannot see it."""
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(label)}">'
        + "".join(parts)
        + "</svg>"
    )


def ratio_chart(rows: Sequence[tuple[str, Mapping[str, float], str]], label: str) -> str:
    """Dots with their spread on an axis with a line at 1: (name, spread, verdict)."""
    top = max([2.0, *(one["high"] for _, one, _ in rows)])
    scale = (WIDTH - LEFT - RIGHT - VALUE) / top
    height = ROW * len(rows) + 22
    one = LEFT + scale
    parts = [text(one, height - 6, "1x", anchor="middle")]
    for index, (name, spread, verdict) in enumerate(rows):
        y = ROW * index + 27
        kind = {"faster": "good", "slower": "bad"}.get(verdict, "unsure")
        low, high, middle = (LEFT + spread[key] * scale for key in ("low", "high", "median"))
        parts += [
            text(LEFT, y - 12, label_of(name)),
            line(LEFT, y, LEFT + top * scale, y, "rule"),
            line(one, y - 7, one, y + 7, "axis"),
            line(low, y, high, y, f"whisker {kind}"),
            f'<circle cx="{middle:.1f}" cy="{y}" r="5" class="{kind}"/>',
            text(
                WIDTH - RIGHT, y + 4, f"{spread['median']:.2f}x", kind=f"value {kind}", anchor="end"
            ),
        ]
    return chart(height, label, parts)


def bar_chart(rows: Sequence[tuple[str, float, int]], unit: str, label: str) -> str:
    """Horizontal bars: (name, value, number of its colour)."""
    top = max([value for _, value, _ in rows] or [1.0]) or 1.0
    scale = (WIDTH - LEFT - RIGHT - VALUE) / top
    parts = []
    for index, (name, value, colour) in enumerate(rows):
        y = ROW * index + 14
        parts += [
            text(LEFT, y, label_of(name)),
            rect(LEFT, y + 5, value * scale, 12, f"c{colour}"),
            text(WIDTH - RIGHT, y + 14, f"{value:.1f} {unit}", kind="value", anchor="end"),
        ]
    return chart(ROW * len(rows) + 6, label, parts)


def stacked_chart(
    rows: Rows, marks: Sequence[Sequence[tuple[str, float]]], unit: str, label: str
) -> str:
    """Stacked bars: (name, parts); ``marks`` are lines across a row, e.g. a floor."""
    tops = [sum(value for _, value in parts) for _, parts in rows]
    tops += [value for row in marks for _, value in row]
    top = max([*tops, 1e-9])
    scale = (WIDTH - LEFT - RIGHT - VALUE) / top
    drawn = []
    for index, (name, parts) in enumerate(rows):
        y, x = ROW * index + 14, float(LEFT)
        drawn.append(text(LEFT, y, label_of(name)))
        for colour, (_, value) in enumerate(parts):
            drawn.append(rect(x, y + 5, value * scale, 12, f"c{colour}"))
            x += value * scale
        for _, value in marks[index]:
            at = LEFT + value * scale
            drawn.append(line(at, y + 1, at, y + 19, "mark"))
        total = sum(value for _, value in parts)
        drawn.append(text(WIDTH - RIGHT, y + 14, f"{total:.1f} {unit}", kind="value", anchor="end"))
    return chart(ROW * len(rows) + 6, label, drawn)


def line_chart(series: Sequence[tuple[str, Sequence[float]]], label: str) -> str:
    """Shares 0..1 over positions 1..n, one line each."""
    left, bottom, height = 42, 150, 176
    width = WIDTH - left - RIGHT - 8
    count = max([len(values) for _, values in series] or [1])
    step = width / max(count - 1, 1)
    parts = []
    for share in (0.0, 0.5, 1.0):
        y = bottom - share * 136
        parts += [line(left, y, WIDTH - RIGHT, y, "rule")]
        parts += [text(left - 6, y + 4, f"{share:.0%}", anchor="end")]
    parts += [
        text(left + step * index, height - 8, str(index + 1), anchor="middle")
        for index in range(count)
    ]
    for colour, (_, values) in enumerate(series):
        points = [(left + step * index, bottom - value * 136) for index, value in enumerate(values)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" class="l{colour % 6}"/>')
        parts += [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" class="c{colour % 6}"/>' for x, y in points
        ]
    return chart(height, label, parts)


def legend(names: Sequence[str]) -> str:
    """Names beside their colours."""
    items = "".join(
        f'<li><svg viewBox="0 0 12 12" class="key">{rect(0, 0, 12, 12, f"c{index % 6}")}</svg>'
        f"{escape(name)}</li>"
        for index, name in enumerate(names)
    )
    return f'<ul class="legend">{items}</ul>'
