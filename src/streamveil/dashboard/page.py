"""The page itself: plain HTML with its charts inside, readable without a network or a script."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

import pyarrow as pa

from streamveil.api.answers import answers
from streamveil.api.query import Query
from streamveil.core.accounting.guarantee import rounded_up
from streamveil.dashboard import series
from streamveil.display import html_of
from streamveil.results.answers import Answers
from streamveil.results.charts import Chart, tick
from streamveil.results.draw import svg

STYLE = """
:root { --line: #d9dde2; --soft: #5b6570; --ink: #1c2127; --ok: #3c896d }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: #fff; margin: 0 auto;
  max-width: 1080px; padding: 2rem 1.2rem 4rem }
h1 { font-size: 1.5rem; margin: 0 } h2 { font-size: 1.1rem; margin: 2.2rem 0 .4rem }
p { margin: .3rem 0 } .soft { color: var(--soft) } .note { color: var(--soft); font-size: .88rem }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(190px, 1fr)); gap: .8rem;
  margin: 1.2rem 0 }
.tile { border: 1px solid var(--line); border-radius: 8px; padding: .7rem .9rem }
.tile b { display: block; font-size: 1.25rem; font-weight: 600 }
.bar { height: 8px; border-radius: 4px; background: var(--line); overflow: hidden; margin: .4rem 0 }
.bar i { display: block; height: 100%; background: #1b6ca8 }
table { border-collapse: collapse; width: 100%; font-size: .9rem }
td { font-variant-numeric: tabular-nums }
th { text-align: left; color: var(--soft); font-weight: 500; border-bottom: 1px solid var(--line) }
td, th { padding: .25rem .6rem .25rem 0 } td.n, th.n { text-align: right }
tr:nth-child(even) td { background: #f7f8f9 } .yes { color: var(--ok) }
figure { margin: 0; overflow-x: auto } svg { max-width: 100%; height: auto }
code { font-size: .85rem; overflow-wrap: anywhere }
@media print { body { max-width: none } }
"""


def write(
    source: str | Path,
    out: str | Path,
    ledger: str | Path | None = None,
    query: Query | None = None,
) -> Path:
    """Writes the page of a state directory or a sink's folder; returns where it is.

    Shown are released numbers, what follows from them, and the ledger: all of it public. Of a state
    directory its own ledger is read; for a sink's folder, name one.
    """
    where = Path(ledger) if ledger is not None else Path(source) / "ledger"
    record = series.ledger_record(where / "ledger" if where.is_dir() else where)
    path = Path(out)
    path.write_text(html(answers(source, query=query), record), encoding="utf-8")
    return path


def html(found: Answers, record: dict[str, Any] | None) -> str:
    """The whole page."""
    facts = found.releases.facts or {}
    title = str(facts.get("job", "releases"))
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="soft">{escape(promise(record))}</p>',
        tiles(found, record),
        *(chart_of(chart, facts) for chart in series.charts(found)),
        table_of(*series.last_release(found)),
    ]
    changed = series.changes(found)
    if changed is not None:
        parts.append(table_of("What changed since the release before", *changed))
    if record is not None:
        parts.append(spending(record))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)} · streamveil</title><style>{STYLE}</style></head><body>"
        + "\n".join(parts)
        + "</body></html>\n"
    )


def promise(record: dict[str, Any] | None) -> str:
    """Who is protected, by how much."""
    if record is None:
        return "Released numbers only. No ledger was given, so nothing is said of the budget."
    epsilon = record["epsilon"]
    share = "unbounded" if epsilon is None else rounded_up(epsilon)
    delta = f", delta = {fraction(record['delta']):.3g}"
    who = record["protects"]["phrase"]
    return f"Protected: {who}. Everything released so far loses at most epsilon = {share}{delta}."


def tiles(found: Answers, record: dict[str, Any] | None) -> str:
    """The figures at the top."""
    moments = found.moments
    last = found.releases.table(moments[-1])
    boxes = [
        ("releases", f"{len(moments):,}", f"in {len({m.window for m in moments}):,} window(s)"),
        ("groups in the last", f"{last.num_rows:,}", tick(found.releases, moments[-1])),
    ]
    text = "".join(
        f'<div class="tile">{escape(name)}<b>{escape(value)}</b>'
        f'<span class="note">{escape(more)}</span></div>'
        for name, value, more in boxes
    )
    return f'<div class="tiles">{text}{budget(record)}</div>'


def budget(record: dict[str, Any] | None) -> str:
    """How much of the limit is spent."""
    if record is None or record["epsilon"] is None or record["limit"].get("epsilon") is None:
        return ""
    limit = fraction(record["limit"]["epsilon"])
    share = min(100.0, 100 * record["epsilon"] / limit)
    return (
        f'<div class="tile">budget spent<b>{record["epsilon"]:.3g} of {limit:g}</b>'
        f'<div class="bar"><i style="width:{share:.1f}%"></i></div>'
        '<span class="note">epsilon, charged before the first release</span></div>'
    )


def fraction(text: str) -> float:
    """A number as the ledger writes it."""
    from fractions import Fraction

    return float(Fraction(text))


def chart_of(chart: Chart, facts: dict[str, Any]) -> str:
    """One number over time."""
    level = float(facts.get("confidence", 0.95))
    note = f"{level:.0%} intervals of the noise are shaded."
    note += f" Not in them: {chart.bias}." if chart.bias else ""
    return (
        f"<h2>{escape(chart.name)}, largest groups</h2><figure>{svg(chart)}</figure>"
        f'<p class="note">{escape(note)}</p>'
    )


def table_of(title: str, table: pa.Table, notes: tuple[str, ...]) -> str:
    """Rows with a heading; intervals in one cell."""
    return f"<h2>{escape(title)}</h2>{html_of(table, notes)}"


def _finite(epsilon: float | None) -> str:
    return "no finite epsilon" if epsilon is None else f"epsilon = {rounded_up(epsilon)}"


def spending(record: dict[str, Any]) -> str:
    """The ledger: charges, what is left, a year of a unit, the hash that vouches for it."""
    rows = "".join(
        "<tr>"
        f"<td>{escape(charge['charge'])}</td><td>{escape(charge['summary']['text'])}</td>"
        f"<td>{'all' if charge['range'] is None else escape(str(charge['range']))}</td>"
        f"<td>{escape(str((charge.get('about') or {}).get('charged_at', '')))}</td></tr>"
        for charge in record["charges"]
    )
    year = record["lifetime"].get("user-year")
    longer = (
        f'<p class="note">A unit present in all {year["periods"]} periods of a year loses at most'
        f" {_finite(year['epsilon'])}, delta = {fraction(year['delta']):.3g}.</p>"
        if year else ""
    )  # fmt: skip
    return (
        "<h2>Ledger</h2><table><tr><th>charge</th><th>loss</th><th>range</th><th>charged</th></tr>"
        f'{rows}</table><p class="note">Left: {escape(record["left"]["text"])}.</p>{longer}'
        f'<p class="note">Hash that vouches for all records: <code>{escape(record["head"])}</code>'
        "</p>"
    )
