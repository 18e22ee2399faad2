"""What a step costs: measured milliseconds by requests, rows per request and context."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vllm_dspark.errors import SettingsError

Cell = tuple[int, int, int]
"""(requests, rows of each request, context length)."""


def _place(axis: Sequence[float], value: float) -> tuple[int, float]:
    """Index of the interval that holds value, and how far into it; clamped at the ends."""
    if len(axis) == 1 or value <= axis[0]:
        return 0, 0.0
    index = min(bisect_right(axis, value) - 1, len(axis) - 2)
    return index, (value - axis[index]) / (axis[index + 1] - axis[index])


def interpolate(axis: Sequence[float], values: Sequence[float], at: float) -> float:
    """Linear interpolation; beyond the last point the last slope goes on."""
    index, share = _place(axis, at)
    if len(axis) == 1:
        return values[0]
    return values[index] + share * (values[index + 1] - values[index])


@dataclass(frozen=True, slots=True)
class CostTable:
    """Milliseconds of the parts of a step.

    Attributes:
        requests, rows, contexts: ascending axes.
        verify_ms: per context, per request count, per row count: one target step with absorption.
        draft_ms: per request count: the block pass and the walk.
    """

    requests: tuple[int, ...]
    rows: tuple[int, ...]
    contexts: tuple[int, ...]
    verify_ms: tuple[tuple[tuple[float, ...], ...], ...]
    draft_ms: tuple[float, ...]

    def __post_init__(self) -> None:
        for name in ("requests", "rows", "contexts"):
            axis = getattr(self, name)
            if not axis or any(a >= b for a, b in zip(axis, axis[1:], strict=False)):
                raise SettingsError(
                    f"the cost table's {name} are {list(axis)}, must be ascending; "
                    "delete the cached table and measure again"
                )

    def verify(self, num_requests: int, num_rows: float, context: float) -> float:
        """Milliseconds of a target step of num_requests with num_rows rows in all."""
        per_request = num_rows / num_requests
        by_context = [
            interpolate(
                self.requests,
                [interpolate(self.rows, row, per_request) for row in plane],
                num_requests,
            )
            for plane in self.verify_ms
        ]
        return interpolate(self.contexts, by_context, context)

    def draft(self, num_requests: int) -> float:
        """Milliseconds of drafting for num_requests."""
        return interpolate(self.requests, self.draft_ms, num_requests)

    def to_json(self) -> dict[str, Any]:
        """The table as plain lists."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def make_table(
    verify: Mapping[Cell, float], draft: Mapping[int, float]
) -> CostTable:
    """Build a table from measured cells; rising rows, requests and contexts never get cheaper.

    Cells that were not measured are filled from the nearest smaller one, scaled by its rows.
    """
    requests = tuple(sorted(draft))
    rows = tuple(sorted({cell[1] for cell in verify}))
    contexts = tuple(sorted({cell[2] for cell in verify}))
    planes: list[list[list[float]]] = []
    for depth, context in enumerate(contexts):
        plane: list[list[float]] = []
        for order, count in enumerate(requests):
            line: list[float] = []
            for step, num_rows in enumerate(rows):
                value = verify.get((count, num_rows, context))
                floors = [line[step - 1]] if step else []
                floors += [plane[order - 1][step]] if order else []
                floors += [planes[depth - 1][order][step]] if depth else []
                if value is None:
                    value = _guess(verify, count, num_rows, context)
                line.append(max([value, *floors]))
            plane.append(line)
        planes.append(plane)
    draft_ms, highest = [], 0.0
    for count in requests:
        highest = max(highest, draft[count])
        draft_ms.append(highest)
    frozen = tuple(tuple(tuple(line) for line in plane) for plane in planes)
    return CostTable(requests, rows, contexts, frozen, tuple(draft_ms))


def _guess(verify: Mapping[Cell, float], requests: int, rows: int, context: int) -> float:
    """Cost of an unmeasured cell: that of the measured one with most rows below it, scaled."""
    below = [
        cell for cell in verify
        if cell[0] <= requests and cell[1] <= rows and cell[2] <= context
    ]
    best = max(below, key=lambda cell: (cell[0] * cell[1], cell[2]))
    return verify[best] * (requests * rows) / (best[0] * best[1])
