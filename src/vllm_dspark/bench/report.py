"""Results -> one HTML file that needs nothing else; the numbers are those of ``table``."""

from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from typing import Any

from vllm_dspark.bench import svg
from vllm_dspark.bench.table import (
    CELL_HEAD,
    MEMORY_DOMAINS,
    RATIO_HEAD,
    TABLES,
    cell_rows,
    clients_of,
    memory_rows,
    ratio_rows,
    title,
)
from vllm_dspark.errors import SettingsError

Result = Mapping[str, Any]
PARTS = ("verify", "absorb", "block", "markov")


def render_html(results: Sequence[Result]) -> str:
    """All results as one page.

    Raises:
        SettingsError: for JSON that no command of ours wrote.
    """
    for result in results:
        if result.get("kind") not in TABLES:
            raise SettingsError(
                f"a result of kind {result.get('kind')!r} is unknown: give files that `bench` or "
                "`parity text` wrote with -o"
            )
    style = (resources.files("vllm_dspark.bench") / "report.css").read_text()
    body = "".join(f"<section>{_section(result)}</section>" for result in results)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="data:,">'
        f"<title>vllm-dspark report</title><style>{style}</style></head>"
        f"<body><h1>vllm-dspark: speed and parity</h1>{_summary(results)}{body}</body></html>\n"
    )


def _summary(results: Sequence[Result]) -> str:
    """How many ratios win, lose, or say nothing; failures first."""
    ratios = [one for result in results for one in result.get("ratios", ())]
    drafted = [one for one in ratios if one["arm"].startswith("DSpark")]
    counts = {"faster": 0, "slower": 0, "undecided": 0, "refused": 0}
    for one in drafted:
        verdict = "refused" if one["ratio"] is None else one["ratio"]["verdict"]
        counts[verdict if verdict in counts else "undecided"] += 1
    text = ""
    if drafted:
        text = (
            f"<p>DSpark is faster in {counts['faster']}, <span class='bad'>slower in "
            f"{counts['slower']}</span>, undecided in {counts['undecided']} and refused for "
            f"unequal outputs in {counts['refused']} of {len(drafted)} comparisons below.</p>"
        )
    failed = [result for result in results if result.get("passed") is False]
    if failed:
        text += "<p class='warn'>Parity failed: see the table of differences.</p>"
    return text


def _section(result: Result) -> str:
    body = {
        "steps": _steps,
        "offline": _bench,
        "serve": _bench,
        "parity": _parity,
    }[result["kind"]](result)
    return f"<h2>{escape(title(result))}</h2>{_origin(result)}{body}"


def _origin(result: Result) -> str:
    machine = result["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    text = (
        f"<p class='origin'><code>{escape(result['command'])}</code><br>"
        f"{escape(machine['processor'])}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"{escape(machine['system'])}, MLX on {escape(machine['device'])}, BLAS "
        f"{escape(machine['blas'])}; {escape(result['date'])}; commit "
        f"{escape(result['commit'] or 'unknown')}; {escape(versions)}</p>"
    )
    others = result.get("other_cores")
    if others is not None and others > 0.15:
        text += (
            f"<p class='warn'>Other programs used {others} cores meanwhile: this was not a quiet "
            "machine, do not quote these figures.</p>"
        )
    return text


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table that scrolls by itself where it is too wide."""
    cells = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f'<div class="table"><table><tr>{cells}</tr>{body}</table></div>'


def _cell(words: str) -> str:
    kind = ""
    plain = words.replace("**", "")
    if words != plain or plain == "slower" or plain.startswith("refused"):
        kind = "bad"
    elif plain == "faster":
        kind = "good"
    if len(plain) > 48:
        kind = f"{kind} long".strip()
    return f'<td class="{kind}">{escape(plain)}</td>' if kind else f"<td>{escape(plain)}</td>"


def _figure(heading: str, drawing: str, caption: str = "", names: Sequence[str] = ()) -> str:
    keys = svg.legend(names) if names else ""
    note = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return f"<figure><h3>{escape(heading)}</h3>{drawing}{keys}{note}</figure>"


def _places(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, int]]:
    return list(dict.fromkeys((one["workload"], one["clients"]) for one in rows))


def _bench(result: Result) -> str:
    """Charts and tables of ``bench offline`` and ``bench serve``."""
    cells, ratios = result["cells"], result["ratios"]
    figures = _ratio_figures(ratios)
    arms = list(dict.fromkeys(one["arm"] for one in cells))
    for workload, clients in _places(cells):
        here = [one for one in cells if (one["workload"], one["clients"]) == (workload, clients)]
        rows = [
            (one["arm"], one["tokens_per_s"]["median"], arms.index(one["arm"]) % 6) for one in here
        ]
        drawing = svg.bar_chart(rows, "tok/s", f"output tokens per second, {workload}")
        figures.append(_figure(f"Tokens per second: {workload}, {clients_of(clients)}", drawing))
    figures += _position_figures(cells)
    text = f'<div class="grid">{"".join(figures)}</div>'
    text += "<h3>Ratios, each beside its rates</h3>" + _table(RATIO_HEAD, ratio_rows(ratios))
    text += "<h3>All cells</h3>" + _table(CELL_HEAD, cell_rows(cells))
    head = ("arm", *MEMORY_DOMAINS.values())
    text += "<h3>Memory by domain</h3>" + _table(head, memory_rows(result["memory"]))
    if result.get("synthetic"):
        one = result["synthetic"]
        rates = ", ".join(f"{rate:.2f}" for rate in one["survival"])
        text += f"<p>Synthetic acceptance {rates}: {escape(one['source'])}.</p>"
    return text + "".join(f"<p>Left out: {escape(one)}</p>" for one in result.get("skipped", ()))


def _ratio_figures(ratios: Sequence[Mapping[str, Any]]) -> list[str]:
    figures = []
    for pair in dict.fromkeys((one["arm"], one["over"]) for one in ratios):
        mine = [one for one in ratios if (one["arm"], one["over"]) == pair]
        shown = [one for one in mine if one["ratio"] is not None]
        if not shown:
            continue
        rows = [
            (
                f"{one['workload']}, {clients_of(one['clients'])}: {one['rate']:.1f} / "
                f"{one['over_rate']:.1f} tok/s",
                one["ratio"],
                one["ratio"]["verdict"],
            )
            for one in shown
        ]
        name = f"{pair[0]} / {pair[1]}"
        caption = "Dot: median; bar: all repeats. Grey: the arms' rates overlap."
        if len(shown) < len(mine):
            caption += f" {len(mine) - len(shown)} refused: outputs differ."
        figures.append(_figure(name, svg.ratio_chart(rows, name), caption))
    return figures


def _position_figures(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """Acceptance per position, one chart per arm that drafts, at the fewest clients."""
    drafted = [one for one in cells if one["rates"]]
    figures = []
    for arm in dict.fromkeys(one["arm"] for one in drafted):
        mine = [one for one in drafted if one["arm"] == arm]
        fewest = min(one["clients"] for one in mine)
        mine = [one for one in mine if one["clients"] == fewest][:6]
        drawing = svg.line_chart(
            [(one["workload"], one["rates"]) for one in mine], f"acceptance per position, {arm}"
        )
        names = [f"{one['workload']} ({one['length']['median']:.2f} tokens/round)" for one in mine]
        heading = f"Accepted drafts 1..n: {arm}, {clients_of(fewest)}"
        figures.append(_figure(heading, drawing, "Share of rounds, by n.", names))
    return figures


def _steps(result: Result) -> str:
    """Charts and tables of ``bench steps``."""
    figures = []
    for context in dict.fromkeys(one["context"] for one in result.get("steps", ())):
        mine = [one for one in result["steps"] if one["context"] == context]
        rows, marks = [], []
        for one in mine:
            parts = [(name, one[f"{name}_ms"]) for name in PARTS]
            rest = max(one["total_ms"] - sum(value for _, value in parts), 0.0)
            name = (
                f"requests: {one['requests']}, drafts: {one['drafts']}, break-even "
                f"{one['break_even']:.2f} tokens"
            )
            rows.append((name, [*parts, ("rest", rest)]))
            marks.append([("floor", one["floor_ms"]), ("target alone", one["target_ms"])])
        drawing = svg.stacked_chart(rows, marks, "ms", f"parts of a step, context {context}")
        caption = (
            "Parts are timed alone, so they do not add up exactly. Lines: the bandwidth floor, "
            "and a step of the target alone."
        )
        heading = f"A step with drafts, context {context}"
        figures.append(_figure(heading, drawing, caption, [*PARTS, "rest"]))
    rows = [
        (f"requests: {one['requests']}, context {one['context']}",
         [("floor", one["floor_ms"]), ("above it", max(one["ms"] - one["floor_ms"], 0.0))])
        for one in result["targets"]
    ]  # fmt: skip
    drawing = svg.stacked_chart(rows, [[] for _ in rows], "ms", "steps of the target alone")
    caption = f"Memory is read at {result['bandwidth_gb_s']} GB/s (measured)."
    figures.append(_figure("A step of the target alone", drawing, caption, ["floor", "above it"]))
    return f'<div class="grid">{"".join(figures)}</div>{_step_table(result)}'


def _step_table(result: Result) -> str:
    names = ("target", "verify", "absorb", "block", "markov", "total", "floor")
    head = ("requests", "drafts", "context", *(f"{name}, ms" for name in names),
            "break-even", "at the floor")  # fmt: skip
    rows = [
        [str(one[name]) for name in ("requests", "drafts", "context")]
        + [f"{one[f'{name}_ms']:.2f}" for name in names]
        + [f"{one['break_even']:.2f}", f"{one['floor_break_even']:.2f}"]
        for one in result.get("steps", ())
    ]
    return _table(head, rows) if rows else ""


def _parity(result: Result) -> str:
    """Charts and tables of ``parity text``."""
    gate = result["gate"]
    caption = (
        f"Gate {gate['precision']}: a first differing token passes among the top {gate['top_k']} "
        f"with a margin of at most {gate['max_margin']} ({gate['reason']})."
    )
    figures = []
    groups = [one["reference"].split()[0] for one in result["comparisons"]]
    for group in dict.fromkeys(groups):
        mine = [
            one for one, name in zip(result["comparisons"], groups, strict=True) if name == group
        ]
        rows = [
            (one["arm"], [(name, one[name]) for name in ("exact", "top_k", "failures")])
            for one in mine
        ]
        drawing = svg.stacked_chart(rows, [[] for _ in rows], "texts", f"against {group}")
        names = ["exact", "near-tie", "failed"]
        figures.append(_figure(f"Texts against {group}", drawing, caption, names))
    table = _table(
        ("arm", "against", "exact", "near-ties", "failed"),
        [
            (one["arm"], one["reference"], f"{one['exact']} of {one['prompts']}",
             str(one["top_k"]), f"**{one['failures']}**" if one["failures"] else "0")
            for one in result["comparisons"]
        ],
    )  # fmt: skip
    gaps = [
        (one["arm"], one["reference"], gap["prompt"], str(gap["position"]), str(gap["rank"]),
         str(gap["margin"]), "near-tie" if gap["is_tie"] else "**failed**")
        for one in result["comparisons"]
        for gap in one["differences"]
    ]  # fmt: skip
    text = f'<div class="grid">{"".join(figures)}</div>{table}'
    if gaps:
        head = ("arm", "against", "prompt", "token", "rank", "margin", "verdict")
        text += "<h3>Differences</h3>" + _table(head, gaps)
    text += "".join(f"<p class='warn'>{escape(one)}</p>" for one in result["problems"])
    return text + f"<p>Result: {'passed' if result['passed'] else 'failed'}.</p>"
