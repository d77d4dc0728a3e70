"""The page itself: one file of HTML, with a plotting library and released numbers inside.

Tables are plain HTML; a script that comes with the page draws the charts, at any width. Nothing is
loaded from elsewhere, and the page says so to the browser (`POLICY`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from fractions import Fraction
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import pyarrow as pa

from streamveil.api import Query
from streamveil.api.answers import answers
from streamveil.api.script import JointQuery
from streamveil.core.accounting import float_above
from streamveil.core.accounting.guarantee import rounded_up
from streamveil.dashboard.view import NO_ANSWER, PageTable, Records, ledger_records, page_of
from streamveil.display import html_of
from streamveil.results.answers import Answers
from streamveil.results.charts import bias_of, tick

SCRIPTS = ("d3.min.js", "plot.umd.min.js", "view.js")  # in this order; LICENSES.txt says whose
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline' 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'"
)
STYLE = """
:root { --line: #d9dde2; --soft: #5b6570; --ink: #1c2127; --ok: #3c896d; --down: #b4532a;
  --data: #1b6ca8; --paper: #fff; --stripe: #f7f8f9; --hidden: #eef0f2; color-scheme: light dark }
@media screen and (prefers-color-scheme: dark) { :root { --line: #3a424b; --soft: #a3adb8;
  --ink: #e4e8ec; --ok: #5cb894; --down: #e0835a; --data: #5aa9e6; --paper: #15191e;
  --stripe: #1c2127; --hidden: #2a3038 } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  margin: 0 auto; max-width: 1840px; padding: 1.6rem clamp(.8rem, 2.5vw, 2.4rem) 4rem }
h1 { font-size: 1.5rem; margin: 0 } h2 { font-size: 1.1rem; margin: 2rem 0 .4rem }
h3 { font-size: .85rem; font-weight: 600; margin: 0; overflow-wrap: anywhere }
p { margin: .3rem 0; max-width: 75em } .soft { color: var(--soft) }
.note { color: var(--soft); font-size: .88rem }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(190px, 1fr)); gap: .8rem;
  margin: 1.2rem 0; max-width: 1100px }
.tile { border: 1px solid var(--line); border-radius: 8px; padding: .7rem .9rem }
.tile b { display: block; font-size: 1.25rem; font-weight: 600 }
.bar { height: 8px; border-radius: 4px; background: var(--line); overflow: hidden; margin: .4rem 0 }
.bar i { display: block; height: 100%; background: var(--data) }
.panels { display: grid; gap: 1rem 1.4rem;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 330px), 1fr)) }
.sides { display: grid; gap: 0 2.4rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 520px), 1fr)) }
.panels > *, .sides > * { min-width: 0 }
.key { display: inline-block; width: .9em; height: .9em; background: var(--hidden);
  vertical-align: -.1em; border: 1px solid var(--line) }
.scroll { overflow-x: auto } figure { margin: 0 }
svg { max-width: 100%; height: auto; --plot-background: var(--paper) }
table { border-collapse: collapse; font-size: .9rem }
td { font-variant-numeric: tabular-nums }
th { text-align: left; color: var(--soft); font-weight: 500; border-bottom: 1px solid var(--line) }
td, th { padding: .25rem .9rem .25rem 0 } td.n, th.n { text-align: right }
tr:nth-child(even) td { background: var(--stripe) }
code { font-size: .85rem; overflow-wrap: anywhere } #live { float: right }
@media print { body { max-width: none } }
"""


def write(
    source: str | Path,
    out: str | Path,
    ledger: str | Path | None = None,
    query: Query | JointQuery | None = None,
) -> Path:
    """Writes the page of a state directory or a sink's folder; returns where it is.

    It shows released numbers, values that follow from them, and the ledger: all of it is public. A
    state directory has its own ledger (one for each of several answers); for a sink's folder, name
    one.
    """
    path, records = Path(out), ledger_records(source, ledger)
    path.write_text(html(answers(source, query=query), records), encoding="utf-8")
    return path


def html(found: Answers, records: Records, live: int = 0) -> str:
    """The whole page. `live`: seconds between two questions to its server; 0: it is a file."""
    title, (view, tables) = title_of(found), page_of(found, records)
    inline = "".join(f"<script>{script(name)}</script>" for name in SCRIPTS)
    served = "".join(f'<script src="{name}"></script>' for name in SCRIPTS)
    state = '<span id="live" class="note" aria-live="polite"></span>' if live else ""
    attributes = f' data-live="{live}"' if live else ""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)} · streamveil</title><style>{STYLE}</style></head>"
        f'<body{attributes}>{state}<main id="page">{body(found, records, view, tables)}</main>'
        "<noscript><p>Charts are drawn by a script inside this page.</p></noscript>"
        f'<script type="application/json" id="view">{embedded(view)}</script>'
        f"{served if live else inline}</body></html>\n"
    )


def script(name: str) -> str:
    """A script that comes with the page."""
    return (files("streamveil.dashboard") / "static" / name).read_text(encoding="utf-8")


def embedded(view: dict[str, Any]) -> str:
    """JSON for use inside a page: none of its texts ends an element or opens one."""
    return json.dumps(view, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def title_of(found: Answers) -> str:
    """The name of the job."""
    return str((found.releases.facts or {}).get("job", "releases"))


def body(
    found: Answers, records: Records, view: dict[str, Any], tables: Sequence[PageTable]
) -> str:
    """The visible page, with room for the charts; `view` and `tables` are those of `page_of`."""
    parts = [
        f"<h1>{escape(title_of(found))}</h1>",
        f'<p class="soft">{escape(promise(records))}</p>',
        tiles(found, records),
        *(panels(at, made, found) for at, made in enumerate(view["charts"])),
        '<div class="sides">',
        rows_drawn("largest", view),
        rows_drawn("movers", view),
        "</div>",
        *(table_of(*one) for one in tables),
    ]
    parts += [spending(name, record, drawn=view["spent"][name] is not None)
              for name, record in records.items()]  # fmt: skip
    return "\n".join(parts)


def promise(records: Records) -> str:
    """Who is protected, and by how much; for several answers, also the sum of their losses."""
    if not records:
        return "Released numbers only: without a ledger this page says nothing about the budget."
    losses = [record["epsilon"] for record in records.values()]
    share = "unbounded" if None in losses else rounded_up(added_up(losses))
    delta = float(sum(Fraction(record["delta"]) for record in records.values()))
    who = " and ".join(dict.fromkeys(one["protects"]["phrase"] for one in records.values()))
    several = f", the sum of {len(records)} ledgers" if len(records) > 1 else ""
    return (
        f"The releases hide {who}. Everything released so far costs at most epsilon = {share},"
        f" delta = {rounded_up(delta)}{several}."
    )


def added_up(numbers: Sequence[float]) -> float:
    """The least float that is not below a sum.

    >>> added_up([0.1, 0.2]), added_up([2.5])
    (0.30000000000000004, 2.5)
    """
    return float_above(sum(map(Fraction, numbers), Fraction(0)))


def tiles(found: Answers, records: Records) -> str:
    """The figures at the top."""
    moments = found.moments
    last, windows = found.releases.table(moments[-1]), len({m.window for m in moments})
    boxes = [
        ("releases", f"{len(moments):,}", f"in {windows:,} window{'s' if windows > 1 else ''}"),
        (
            "groups published",
            f"{last.num_rows:,}",
            f"in release {tick(found.releases, moments[-1])}",
        ),
    ]
    text = "".join(
        f'<div class="tile">{escape(name)}<b>{escape(value)}</b>'
        f'<span class="note">{escape(more)}</span></div>'
        for name, value, more in boxes
    )
    budgets = "".join(budget(name, record) for name, record in records.items())
    return f'<div class="tiles">{text}{budgets}</div>'


def budget(name: str, record: dict[str, Any]) -> str:
    """The spent part of the limit, for one of several answers or for all."""
    if record["epsilon"] is None or record["limit"].get("epsilon") is None:
        return ""
    limit = float(Fraction(record["limit"]["epsilon"]))
    share = min(100.0, 100 * record["epsilon"] / limit)
    who = escape(name and f" by {name}")
    return (
        f'<div class="tile">budget spent{who}<b>{record["epsilon"]:.3g} of {limit:g}</b>'
        f'<div class="bar"><i style="width:{share:.1f}%"></i></div>'
        '<span class="note">epsilon, charged before the first release</span></div>'
    )


def panels(place: int, made: dict[str, Any], found: Answers) -> str:
    """Room for one number over time, a panel for each group; or the reason why it is null."""
    lines, numbers = made["lines"], found.releases.answers
    if made["unknown"]:
        return f"<h2>{escape(made['name'])}</h2>{said(made['unknown'] + '.')}"
    boxes = "".join(
        f"<figure><h3>{escape(line['label'])}</h3>"
        f'<div data-draw="panel" data-chart="{place}" data-line="{at}"></div></figure>'
        for at, line in enumerate(lines)
    )
    if made["name"] not in numbers:
        note = (
            "The share of rows over the bounds, which no number counts: a noisy estimate, shaded"
            " up to its upper end. It takes only the first such rows of each unit."
        )
        return f'<h2>Rows over the bounds</h2><div class="panels">{boxes}</div>{said(note)}'
    level = float((found.releases.facts or {}).get("confidence", 0.95))
    note = f"{level:.0%} intervals of {held(found)} are shaded; each panel has a scale of its own."
    bias = bias_of(found.releases, made["name"])
    note += f" {'About them' if told_true(found) else 'Not in them'}: {bias}." if bias else ""
    grey = any(line["hidden"] for line in lines)
    why = f'<p class="note"><span class="key"></span> {escape(NO_ANSWER)}</p>' if grey else ""
    return (
        f'<h2>{escape(made["name"])}, largest groups</h2><div class="panels">{boxes}</div>'
        f"{said(note)}{why}"
    )


def told_true(found: Answers) -> bool:
    """Whether intervals allow for the rows over the contribution bound."""
    return bool((found.releases.facts or {}).get("true_intervals"))


def held(found: Answers) -> str:
    """The words for what intervals cover."""
    return "the noise and of rows over the bound" if told_true(found) else "the noise"


def said(note: str) -> str:
    """A sentence below a chart."""
    return f'<p class="note">{escape(note)}</p>'


def rows_drawn(name: str, view: dict[str, Any]) -> str:
    """Room for groups next to each other, with their intervals."""
    rows = view[name]
    if rows is None or not rows["rows"]:
        return ""
    title = f"{rows['title']}: {rows['name']}"
    note = (
        "Green and red: the change is certain, at the confidence of one interval."
        if rows["signed"] else "Bars are intervals that cover the noise alone; all hold at once."
    )  # fmt: skip
    return (
        f'<figure><h2>{escape(title)}</h2><div data-draw="rows" data-rows="{name}"></div>'
        f"{said(note)}</figure>"
    )


def table_of(title: str, table: pa.Table, notes: tuple[str, ...]) -> str:
    """Rows with a heading; intervals in one cell."""
    return f'<h2>{escape(title)}</h2><div class="scroll">{html_of(table, notes)}</div>'


def _finite(epsilon: float | None) -> str:
    return "no finite epsilon" if epsilon is None else f"epsilon = {rounded_up(epsilon)}"


def spending(name: str, record: dict[str, Any], *, drawn: bool) -> str:
    """A ledger: its charges, the rest, the loss of a unit in a year, and the hash of it all."""
    rows = "".join(
        "<tr>"
        f"<td>{escape(charge['charge'])}</td><td>{escape(charge['summary']['text'])}</td>"
        f"<td>{'all' if charge['range'] is None else escape(str(charge['range']))}</td>"
        f"<td>{escape(str((charge.get('about') or {}).get('charged_at', '')))}</td></tr>"
        for charge in record["charges"]
    )
    year = record["lifetime"].get("user-year")
    room = f'<div data-draw="spent" data-ledger="{escape(name)}"></div>'
    chart = f'<div class="panels">{room}</div>' if drawn else ""
    longer = (
        f'<p class="note">A unit present in all {year["periods"]} periods of a year loses at most'
        f" {_finite(year['epsilon'])}, delta = {rounded_up(float(Fraction(year['delta'])))}.</p>"
        if year else ""
    )  # fmt: skip
    return (
        f"<h2>Ledger{escape(name and f' of {name}')}</h2>{chart}"
        '<div class="scroll"><table><tr><th>charge</th><th>loss</th><th>range</th>'
        "<th>charged</th></tr>"
        f'{rows}</table></div><p class="note">Left: {escape(record["left"]["text"])}.</p>{longer}'
        f'<p class="note">Hash that vouches for all records: <code>{escape(record["head"])}</code>'
        "</p>"
    )
