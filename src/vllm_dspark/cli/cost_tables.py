"""Shows the cost tables that the draft planner has measured on this machine."""

from typing import Any

from vllm_dspark.runner.cost_cache import list_costs


def describe_costs() -> list[str]:
    """One paragraph per measured pair, newest first; one line when there is none."""
    records = list_costs()
    if not records:
        return ["planner: no step costs measured yet (enable_adaptive_verification measures them)"]
    return [line for record in records for line in _describe(record)]


def _describe(record: dict[str, Any]) -> list[str]:
    table = record["table"]
    lines = [
        f"planner: step costs in ms, {record['device']}, {record['dtype']}",
        f"  target {record['target']}",
        f"  draft  {record['draft']}, K = {record['num_drafts']}",
    ]
    for context, plane in zip(table["contexts"], table["verify_ms"], strict=True):
        rows = " ".join(f"{count:>8}" for count in table["rows"])
        lines.append(f"  context {context:>5}, rows per request: {rows}    draft")
        for count, line, draft_ms in zip(
            table["requests"], plane, table["draft_ms"], strict=True
        ):
            cells = " ".join(f"{value:8.1f}" for value in line)
            lines.append(f"  {count:>4} requests {'':>20}{cells} {draft_ms:8.1f}")
    return lines
