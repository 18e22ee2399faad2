"""Results -> Markdown tables, the same numbers that the HTML report shows."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from vllm_dspark.errors import SettingsError

Rows = Sequence[Sequence[str]]
MIB = 1 << 20


def markdown(head: Sequence[str], rows: Rows) -> list[str]:
    """One table."""
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows)]


def spread(one: Mapping[str, float], digits: int = 1, unit: str = "") -> str:
    """Median and extremes in a cell."""
    median, low, high = (f"{one[name]:.{digits}f}" for name in ("median", "low", "high"))
    return f"{median}{unit}" if low == high else f"{median}{unit} ({low} to {high})"


def clients_of(count: int) -> str:
    """Say how many clients: "1 client", "4 clients"."""
    return f"{count} client{'' if count == 1 else 's'}"


def describe_origin(result: Mapping[str, Any]) -> list[str]:
    """Where a result comes from: command, machine, versions."""
    machine, versions = result["machine"], result["versions"]
    listed = ", ".join(f"{name} {version}" for name, version in versions.items())
    lines = [
        f"Command: `{result['command']}`  ",
        f"Machine: {machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"{machine['system']}, MLX on {machine['device']}, BLAS {machine['blas']}  ",
        f"Date: {result['date']}, commit {result['commit'] or 'unknown'}  ",
        f"Versions: {listed}  ",
    ]
    if result.get("other_cores") is not None:
        quiet = result["other_cores"] <= 0.15
        lines.append(
            f"Other programs used {result['other_cores']} cores meanwhile"
            + ("." if quiet else ": **not a quiet machine, do not quote these figures.**")
        )
    return lines


def describe_check(cell: Mapping[str, Any]) -> str:
    """How a cell's outputs compare with the reference's."""
    check = cell["check"]
    if check is None:
        return cell["note"]
    text = f"{check['exact']} exact"
    if check["top_k"]:
        text += f", {check['top_k']} near-ties"
    return text + (f", **{check['failures']} FAILED**" if check["failures"] else "")


def cell_rows(cells: Sequence[Mapping[str, Any]]) -> Rows:
    """Rows of the table of rates."""
    return [
        (
            one["workload"],
            str(one["clients"]),
            one["arm"],
            spread(one["tokens_per_s"]),
            spread(one["first_p50_ms"], 0),
            spread(one["first_p95_ms"], 0),
            spread(one["per_token_ms"]),
            spread(one["done_p95_ms"], 0),
            spread(one["length"], 2),
            f"{one['cached_share']['median']:.0%}",
            describe_check(one),
        )
        for one in cells
    ]


CELL_HEAD = (
    "workload", "clients", "arm", "tokens/s", "first token p50, ms", "p95, ms",
    "per token, ms", "completion p95, ms", "tokens/round", "cached", "outputs",
)  # fmt: skip


def ratio_rows(ratios: Sequence[Mapping[str, Any]]) -> Rows:
    """Rows of the table of ratios; a losing one says so."""
    rows = []
    for one in ratios:
        ratio = one["ratio"]
        text = f"refused: {one['refused']}" if ratio is None else spread(ratio, 2, "x")
        verdict = "" if ratio is None else ratio["verdict"]
        outside = "none measured"
        if one["strongest"]:
            outside = f"{one['strongest']} {one['strongest_rate']:.1f}"
        rows.append(
            (
                one["workload"],
                str(one["clients"]),
                f"{one['arm']} / {one['over']}",
                text,
                f"**{verdict}**" if verdict == "slower" else verdict,
                f"{one['rate']:.1f} / {one['over_rate']:.1f}",
                outside,
            )
        )
    return rows


RATIO_HEAD = (
    "workload", "clients", "ratio of", "ratio", "verdict", "tokens/s", "strongest outside",
)  # fmt: skip


def position_rows(cells: Sequence[Mapping[str, Any]]) -> Rows:
    """Acceptance per position of the arms that draft."""
    drafted = [one for one in cells if one["rates"]]
    return [
        (one["workload"], str(one["clients"]), one["arm"], spread(one["length"], 2))
        + tuple(f"{rate:.2f}" for rate in one["rates"])
        for one in drafted
    ]


MEMORY_DOMAINS = {
    "mlx_active_bytes": "MLX active",
    "mlx_peak_bytes": "MLX peak",
    "mlx_cache_bytes": "MLX cache",
    "resident_bytes": "resident",
    "kv_bytes": "KV pages",
    "kv_tokens": "KV tokens",
}


def memory_rows(memory: Sequence[Mapping[str, Any]]) -> Rows:
    """One row per arm; MiB, except the tokens."""
    return [
        (one["arm"],)
        + tuple(
            ""
            if one.get(name) is None
            else str(one[name])
            if name == "kv_tokens"
            else f"{one[name] / MIB:.0f} MiB"
            for name in MEMORY_DOMAINS
        )
        for one in memory
    ]


def bench_tables(result: Mapping[str, Any]) -> list[str]:
    """All tables of ``bench offline`` and ``bench serve``."""
    lines = ["", *markdown(RATIO_HEAD, ratio_rows(result["ratios"]))]
    lines += ["", *markdown(CELL_HEAD, cell_rows(result["cells"]))]
    positions = position_rows(result["cells"])
    if positions:
        width = max(map(len, positions)) - 4
        head = ["workload", "clients", "arm", "tokens/round", *map(str, range(1, width + 1))]
        padded = [[*row, *[""] * (len(head) - len(row))] for row in positions]
        lines += ["", "Share of rounds that accepted drafts 1..n:", "", *markdown(head, padded)]
    lines += ["", *markdown(("arm", *MEMORY_DOMAINS.values()), memory_rows(result["memory"]))]
    lines += [f"\nLeft out: {one}" for one in result.get("skipped", ())]
    return lines


def step_tables(result: Mapping[str, Any]) -> list[str]:
    """All tables of ``bench steps``."""
    names = ("target", "verify", "absorb", "block", "markov", "total", "floor")
    head = ["requests", "drafts", "context", *(f"{name}, ms" for name in names)]
    rows = [
        [str(one[name]) for name in ("requests", "drafts", "context")]
        + [f"{one[f'{name}_ms']:.2f}" for name in names]
        + [f"{one['break_even']:.2f}", f"{one['floor_break_even']:.2f}"]
        for one in result.get("steps", ())
    ]
    lines = [f"\nMemory is read at {result['bandwidth_gb_s']} GB/s (measured)."]
    alone = [
        [str(one["requests"]), str(one["context"]), f"{one['ms']:.2f}",
         f"{one['floor_ms']:.2f}", f"{one['tokens_per_s']:.1f}"]
        for one in result["targets"]
    ]  # fmt: skip
    lines += ["", *markdown(["requests", "context", "target alone, ms", "floor, ms",
                             "tokens/s"], alone)]  # fmt: skip
    if rows:
        lines += ["", *markdown([*head, "break-even tokens/step", "at the floor"], rows)]
    return [*lines, *_plain_table(result.get("mlx_lm"))]


def _plain_table(found: Mapping[str, Any] | None) -> list[str]:
    if found is None:
        return []
    rows = [
        ("decode, 1 client", spread(found["decode_tokens_per_s"]),
         spread(found["mlx_lm_decode_tokens_per_s"]), spread(found["decode_ratio"], 2)),
        ("8 clients over 1", spread(found["eight_tokens_per_s"]), "",
         spread(found["eight_over_one"], 2)),
    ]  # fmt: skip
    rows += [
        (f"prefill of {one['rows']}", spread(one["tokens_per_s"]),
         spread(one["mlx_lm_tokens_per_s"]), spread(one["ratio"], 2))
        for one in found["prefill"]
    ]  # fmt: skip
    return ["", *markdown(("", "ours, tokens/s", "mlx_lm, tokens/s", "ratio"), rows)]


def parity_tables(result: Mapping[str, Any]) -> list[str]:
    """All tables of ``parity text``."""
    gate = result["gate"]
    rows = [
        (one["arm"], one["reference"], f"{one['exact']} of {one['prompts']}", str(one["top_k"]),
         f"**{one['failures']}**" if one["failures"] else "0", _worst_margin(one))
        for one in result["comparisons"]
    ]  # fmt: skip
    head = ("arm", "against", "exact", "top-k", "failed", "widest margin")
    lines = ["", *markdown(head, rows), ""]
    lines += [f"PROBLEM: {text}  " for text in result["problems"]]
    verdict = "passed" if result["passed"] else "**FAILED**"
    lines.append(
        f"Gate {gate['precision']}: a first differing token passes among the top {gate['top_k']} "
        f"with a margin of at most {gate['max_margin']} ({gate['reason']}). Result: {verdict}."
    )
    return lines


def _worst_margin(one: Mapping[str, Any]) -> str:
    margins = [gap["margin"] for gap in one["differences"] if gap["margin"] is not None]
    return f"{max(margins):.2e}" if margins else ""


TABLES = {
    "steps": step_tables,
    "offline": bench_tables,
    "serve": bench_tables,
    "parity": parity_tables,
}


def render_markdown(results: Sequence[Mapping[str, Any]]) -> str:
    """All results as one Markdown text.

    Raises:
        SettingsError: for JSON that no command of ours wrote.
    """
    lines = []
    for result in results:
        if result.get("kind") not in TABLES:
            raise SettingsError(
                f"a result of kind {result.get('kind')!r} is unknown: give files that `bench` or "
                "`parity text` wrote with -o"
            )
        lines += [f"## {title(result)}", "", *describe_origin(result)]
        lines += [*TABLES[result["kind"]](result), ""]
    return "\n".join(lines)


MARK = re.compile(r"(<!-- results: (\w+) -->\n).*?(<!-- end of results -->)", re.DOTALL)


def fill(text: str, results: Sequence[Mapping[str, Any]]) -> str:
    """Put tables between the marks of a document.

    ``<!-- results: KIND -->`` up to ``<!-- end of results -->``; KIND is a result's kind, or
    ``summary`` for the ratios of all results. Marks without a result keep what they hold.
    """
    by_kind: dict[str, list[Mapping[str, Any]]] = {}
    for result in results:
        by_kind.setdefault(result["kind"], []).append(result)

    def replace(match: re.Match[str]) -> str:
        kind = match[2]
        if kind == "summary":
            body = _summary([one for one in results if one.get("ratios")])
        else:
            body = render_markdown(by_kind.get(kind, ()))
        return f"{match[1]}\n{body}\n{match[3]}" if body.strip() else match[0]

    return MARK.sub(replace, text)


SUMMARY_ARM = "DSpark async"
SUMMARY_OVER = ("target-only async", "target-only sync", "mlx_lm")


def _summary(results: Sequence[Mapping[str, Any]]) -> str:
    """One row per workload and number of clients: servers where measured, else in process."""
    served = [one for one in results if one["kind"] == "serve"]
    lines = []
    for result in served or results:
        head = ["workload", "clients", "DSpark, tokens/s", *(f"/ {name}" for name in SUMMARY_OVER)]
        lines += [*describe_origin(result), ""]
        lines += [*markdown([*head, "strongest outside, tokens/s"], _summary_rows(result)), ""]
    return "\n".join(lines)


def _summary_rows(result: Mapping[str, Any]) -> Rows:
    ratios = [one for one in result["ratios"] if one["arm"] == SUMMARY_ARM]
    rows = []
    for workload, clients in dict.fromkeys((one["workload"], one["clients"]) for one in ratios):
        here = {
            one["over"]: one
            for one in ratios
            if (one["workload"], one["clients"]) == (workload, clients)
        }
        first = next(iter(here.values()))
        outside = (
            f"{first['strongest']} {first['strongest_rate']:.1f}" if first["strongest"] else ""
        )
        cells = [_short_ratio(here.get(name)) for name in SUMMARY_OVER]
        rows.append((workload, str(clients), f"{first['rate']:.1f}", *cells, outside))
    return rows


def _short_ratio(one: Mapping[str, Any] | None) -> str:
    if one is None:
        return ""
    if one["ratio"] is None:
        return "refused"
    text = f"{one['ratio']['median']:.2f}x"
    verdict = one["ratio"]["verdict"]
    if verdict == "slower":
        return f"**{text} slower**"
    return text if verdict == "faster" else f"{text} ({verdict})"


def title(result: Mapping[str, Any]) -> str:
    """Heading of one result."""
    return {
        "steps": "Where a step's time goes",
        "offline": "Engines in process",
        "serve": "Servers under one client program",
        "parity": "Parity of greedy texts",
    }[result["kind"]]
