"""The charts and tables of the page, as plain values for its script: released numbers only."""

from __future__ import annotations

from datetime import UTC, datetime
from fractions import Fraction
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from streamveil.accounts.deployment import record
from streamveil.accounts.ledger import Ledger
from streamveil.batch import Moment
from streamveil.display import first_known, key_label, rows_of
from streamveil.errors import PlanError
from streamveil.release_metadata import read_facts
from streamveil.results.answers import Answers
from streamveil.results.charts import Chart, Line, chart, chosen, tick
from streamveil.results.draw import runs
from streamveil.results.releases import Releases

Records = dict[str, dict[str, Any]]  # ledgers by the name of their answer; '' if there is only one

# ---- tables of the page

ROWS = 25  # of a table


class PageTable(NamedTuple):
    """Groups with a number and its interval, below a heading."""

    heading: str
    table: pa.Table
    notes: tuple[str, ...]


def tables_of(answers: Answers) -> list[PageTable]:
    """The largest groups and largest changes of the last release that shows any group.

    Groups are ordered by the first number that is not null, changes by their size in deviations.
    The first release has no table of changes.
    """
    at, old = answers.last_shown, ""
    name = first_known(answers.releases.table(at), answers.releases.answers)
    if at != answers.moments[-1]:
        old = f" at {tick(answers.releases, at)}: no release since then shows any group"
    found = answers.top(name, ROWS, at)
    heading = f"Largest groups{old or ' now'}"
    tables = [PageTable(heading, found.table.slice(0, ROWS), found.notes)]
    try:
        found = answers.difference(name, at)
    except PlanError:
        return tables
    sd = np.maximum(found.table[name + "_sd"].to_numpy(), 1e-300)
    size = np.abs(found.table[name].to_numpy()) / sd
    order = np.argsort(-size, kind="stable")[:ROWS]
    heading = f"What changed{old or ' since the release before'}"
    return [*tables, PageTable(heading, found.table.take(pa.array(order)), found.notes)]


def ledger_records(source: str | Path, ledger: str | Path | None) -> Records:
    """The named ledger, or the state's own (one for each of several answers), if there is one."""
    where = Path(source) / "ledger" if ledger is None else Path(ledger)
    path = where / "ledger" if where.is_dir() else where
    if path.is_file():
        return {"": ledger_record(path)}
    parts = [] if ledger is not None else sorted(Path(source).glob("*/ledger"))
    return {part.parent.name: ledger_record(part) for part in parts if part.is_file()}


def ledger_record(path: Path) -> dict[str, Any]:
    """The deployment record of a ledger, with what was spent after each charge."""
    with Ledger.load(path) as ledger:
        found, delta = record(ledger), ledger.limit.quoted_delta
        for charge, loss in zip(found["charges"], ledger.so_far(), strict=True):
            epsilon = loss.epsilon(delta)
            charge["so_far"] = epsilon if isfinite(epsilon) else None
        return found


# ---- values of the page's charts

PANELS = 12  # groups of a chart
NO_ANSWER = (
    "Not published: the group had too few people for a private decision to publish it, or none. "
    "The releases do not tell which."
)
CUT = "cut share"


def page_of(found: Answers, records: Records) -> tuple[dict[str, Any], list[PageTable]]:
    """Everything that is drawn, and the tables below it."""
    releases = found.releases
    if not releases.answers:
        raise PlanError(
            "these releases hold no number that has an interval, so there is nothing to draw.\n"
            "  to fix  name the state directory of the job, which keeps the numbers behind them"
        )
    tables = tables_of(found)
    name = first_known(releases.table(found.last_shown), releases.answers)
    moments = chosen(releases.moments)
    level = float((releases.facts or {}).get("confidence", 0.95))
    drawn = [chart(releases, name, moments, PANELS) for name in releases.answers]
    more = [made for made in (cut_share(releases, moments),) if made is not None]
    drawn_rows = [
        intervals(one.heading, one.table, name, signed=signed)
        for one, signed in zip(tables, (False, True), strict=False)
    ]
    view: dict[str, Any] = {
        "version": version_of(found, records),
        "charts": [one_chart(made, level) for made in (*drawn, *more)],
        "largest": drawn_rows[0],
        "movers": drawn_rows[1] if len(drawn_rows) > 1 else None,
        "spent": {name: spent(record) for name, record in records.items()},
    }
    return view, tables


def version_of(found: Answers, records: Records) -> str:
    """A text that changes if there is something new to show."""
    last = found.moments[-1]
    heads = ".".join(record["head"] for record in records.values())
    return f"{len(found.moments)}.{last.window}.{last.trigger}.{heads}"


def one_chart(made: Chart, level: float) -> dict[str, Any]:
    """A chart: small multiples over one axis of time, or the reason why there is none."""
    x = places_of(made)
    return {
        "name": made.name, "timed": bool(made.times), "ticks": list(made.ticks), "x": x,
        "level": f"{level:.4g} interval", "share": made.name == CUT, "hiddenBecause": NO_ANSWER,
        "breaks": [(x[at] + x[at - 1]) / 2 for at in made.breaks],
        "lines": [] if made.unknown else [one_line(line, made, x) for line in made.lines],
        "unknown": made.unknown,
    }  # fmt: skip


def places_of(made: Chart) -> list[float]:
    """The place of each release on the axis: its time in milliseconds on the query's clocks.

    Without times it is the number of the release, with room between windows.
    """
    if made.times:
        return [time.replace(tzinfo=UTC).timestamp() * 1000 for time in made.times]
    return [float(place) for place in made.turns]


def one_line(line: Line, made: Chart, x: list[float]) -> dict[str, Any]:
    """One group: points where it is shown, and stretches in which it is not."""
    points, hidden = list[dict[str, Any]](), list[dict[str, float]]()
    for number, run in enumerate(runs(np.isnan(line.value), made.breaks)):
        first, last = int(run[0]), int(run[-1])
        if np.isnan(line.value[first]):
            before, after = x[max(first - 1, 0)], x[min(last + 1, len(x) - 1)]
            ends = {"from": (before + x[first]) / 2, "to": (after + x[last]) / 2}
            if hidden and hidden[-1]["to"] == ends["from"]:  # the window before ended hidden
                ends["from"] = hidden.pop()["from"]
            hidden.append(ends)
            continue
        points += [
            {"x": x[at], "tick": made.ticks[at], "run": number, "alone": len(run) == 1,
             "v": plain(line.value[at]), "lo": plain(line.low[at]), "hi": plain(line.high[at])}
            for at in run
        ]  # fmt: skip
    return {"label": line.label, "points": points, "hidden": hidden}


def cut_share(releases: Releases, moments: list[Moment]) -> Chart | None:
    """The noisy share of rows that the bounds cut; None if releases do not tell it.

    Its intervals have no lower end.
    """
    facts = [read_facts(releases.table(one).schema) or {} for one in moments]
    cuts = [{} if one.get("uncut") else one.get("cut") or {} for one in facts]
    if not any("share" in cut for cut in cuts):
        return None
    share, high = (
        np.array([cut.get(name, np.nan) for cut in cuts]) for name in ("share", "share_high")
    )
    whole = chart(releases, releases.answers[0], moments, 0)
    line = Line("rows over the bounds", share, share, np.where(np.isnan(high), share, high))
    return Chart(CUT, whole.ticks, whole.times, whole.breaks, (line,), "")


def intervals(title: str, table: pa.Table, name: str, *, signed: bool) -> dict[str, Any]:
    """Groups with a number and its interval; `signed`: its sign is what matters."""
    keys = [one for one in table.column_names[: table.column_names.index(name)]]
    labels = unique([key_label(row, keys) for row in rows_of(table.select(keys))]) if keys else [
        "all"
    ] * table.num_rows  # fmt: skip
    columns = [table[name + end].to_pylist() for end in ("", "_low", "_high")]
    rows = [
        {"label": label, "v": plain(v), "lo": plain(lo), "hi": plain(hi)}
        for label, v, lo, hi in zip(labels, *columns, strict=True)
        if plain(v) is not None
    ]
    return {"title": title, "name": name, "rows": rows, "signed": signed}


def unique(labels: list[str]) -> list[str]:
    """Labels that are all different, for an axis: long keys may be cut to the same text.

    >>> unique(["a", "b", "a"])
    ['a', 'b', 'a (2)']
    """
    seen: dict[str, int] = {}
    made = []
    for label in labels:
        seen[label] = seen.get(label, 0) + 1
        made.append(label if seen[label] == 1 else f"{label} ({seen[label]})")
    return made


def spent(record: dict[str, Any]) -> dict[str, Any] | None:
    """Epsilon after each charge, and the limit; None for one charge, or charges without a time."""
    points = []
    for charge in record["charges"]:
        at, so_far = moment_of((charge.get("about") or {}).get("charged_at")), charge.get("so_far")
        if at is None or so_far is None:
            return None
        points.append({"at": at, "spent": so_far, "name": charge["charge"]})
    limit = record["limit"].get("epsilon")
    if len(points) < 2:
        return None
    return {"points": points, "limit": None if limit is None else float(Fraction(limit))}


def moment_of(text: str | None) -> float | None:
    """A time in ISO 8601, in milliseconds since 1970."""
    try:
        return datetime.fromisoformat(text or "").timestamp() * 1000
    except ValueError:
        return None


def plain(value: Any) -> float | None:
    """A number for JSON; null if JSON does not have it."""
    return float(value) if value is not None and isfinite(value) else None
