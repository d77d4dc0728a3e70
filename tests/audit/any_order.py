"""Whether what leaves a job depends on how its rows lay: every byte of every release.

    python -m tests.audit.any_order --jobs 200 [--seed N]

Jobs are those of `tests.audit.same_releases`. Each is run on its rows as they were drawn, and again
on the same rows otherwise: those of different units are mixed anew (each unit's own stay in order,
which decides what its bounds let pass), in other files and row groups, with texts in dictionaries
or not, from memory or from disk, in other micro-batches, on other threads, sorted in memory or on
disk, prepared ahead or not, in one table of units or in parts.

Compared are the releases with their metadata, as Arrow writes them, all files of sinks (Parquet,
CSV, JSON, a database of SQLite) and the page of the dashboard. Where positions are public (steps of
so many rows), rows are mixed within a step. Data that a script names itself stay as they are, and
so do rows that are looked at: which row of a unit a look picks follows from a word for each unit as
it comes, so that what it says has one law for all orders, and not one value.
"""

from __future__ import annotations

import argparse
import itertools
import re
import sqlite3
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import streamveil as sv
from streamveil import engines, terminal
from streamveil.audit.laid_open import replaced
from streamveil.core.noise import SeededNoise
from streamveil.dashboard import write
from streamveil.dataflow import grouping
from streamveil.plan import SinkSpec
from streamveil.release_metadata import numbers_of
from streamveil.runtime import schedule
from streamveil.runtime.run import Pace, run
from tests.audit import same_releases

SECRET = 7
FORMATS = ("parquet", "csv", "json")
SMALL = (  # sizes from which on rows and units are treated otherwise
    (schedule, "SPILL_BYTES", 500), (schedule, "MOST_WAITING", 5), (grouping, "LARGE", 2),
    (engines, "LARGE", 4), (engines, "WORTH_THREADS", 2),
)  # fmt: skip


def mixed_anew(rng, owners: list[Any]) -> np.ndarray:
    """An order of rows in which those of each owner are as they were."""
    places, rows = defaultdict(list), defaultdict(list)
    for row, place in enumerate(rng.permutation(len(owners)).tolist()):
        places[owners[row]].append(place)
        rows[owners[row]].append(row)
    order = np.empty(len(owners), np.int64)
    for owner, own in rows.items():
        order[np.sort(places[owner])] = own
    return order


def moved(rng, job: same_releases.Job, table: pa.Table) -> pa.Table:
    """The same rows in another order that the query cannot tell from the first."""
    if job["stream"] == "rows":  # a changing table
        names = ("id",) if "id = id" in job["text"] else ("id", "city", "age")
        owners = list(zip(*(table[name].to_pylist() for name in names), strict=True))
    else:
        owners = [name if name is None else name.lower() for name in table["user"].to_pylist()]
        if "look_share = 0," not in job["text"]:
            return table
    by_rows = re.search(r"EMIT EVERY (\d+) ROWS", job["text"])
    every = int(by_rows[1]) if by_rows else len(owners)
    steps = range(0, len(owners), every)
    order = [at + mixed_anew(rng, owners[at : at + every]) for at in steps]
    return table.take(pa.array(np.concatenate(order)))


def written(rng, table: pa.Table, folder: Path) -> None:
    """Rows in a few files, in row groups of any size, some columns of texts in dictionaries."""
    for name in table.column_names:
        if pa.types.is_string(table.schema.field(name).type) and rng.random() < 0.5:
            place = table.column_names.index(name)
            table = table.set_column(place, name, table[name].dictionary_encode())
    ends = [0, *np.sort(rng.integers(0, len(table) + 1, int(rng.integers(4)))), len(table)]
    folder.mkdir()
    for nth, (first, end) in enumerate(itertools.pairwise(ends)):
        size = int(rng.integers(3, 60))
        part = table.slice(first, end - first)
        pq.write_table(part, folder / f"{nth}.parquet", row_group_size=size)


def query_of(job: same_releases.Job, table: pa.Table | None, folder: Path, *, files: bool) -> Any:
    """The query over rows that lie in a folder or in memory."""
    if table is None:
        return sv.sql(job["text"])
    time = job["event_time"]
    stream = (sv.files(str(folder / "*.parquet"), event_time=time) if files
              else sv.memory(table, event_time=time))  # fmt: skip
    return sv.sql(job["text"], {job["stream"]: stream})


def sinks_in(folder: Path) -> tuple[SinkSpec, ...]:
    """A sink of each kind."""
    own = {form: {"path": str(folder / form), "format": form} for form in FORMATS}
    files = (SinkSpec(name=form, kind="files", options=told) for form, told in own.items())
    told = {"path": str(folder / "lite"), "table": "answers"}
    return (*files, SinkSpec(name="lite", kind="sqlite", options=told))


def left(folder: Path, releases: list[sv.Release]) -> Iterator[tuple[str, Any]]:
    """Everything that left a job, by name."""
    for one in releases:
        out = pa.BufferOutputStream()
        with pa.ipc.new_stream(out, one.table.schema) as stream:
            stream.write_table(one.table)
        yield f"{one.window}, {one.trigger}, {one.step}", out.getvalue().to_pybytes()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != "lite":
            yield str(path.relative_to(folder)), path.read_bytes()
    if (folder / "lite").exists():
        with sqlite3.connect(folder / "lite") as lite:
            yield "lite", list(lite.iterdump())


def outcome(
    job: same_releases.Job, table: pa.Table | None, rng: np.random.Generator | None
) -> dict[str, Any]:
    """What left a job; its rows lie in any way, or plainly where there is no `rng`."""
    with TemporaryDirectory() as made, warnings.catch_warnings(), ExitStack() as stack:
        warnings.simplefilter("ignore")
        folder, pace = Path(made), Pace(max_rows=10_000, threads=1)
        if table is not None:
            written(rng or np.random.default_rng(1), table, folder / "in")
        if rng is not None:
            some = int(rng.choice([3, 17, 60, 250])), int(rng.integers(1, 6))
            pace = Pace(max_rows=some[0], threads=some[1])
            for owner, name, small in SMALL:
                if rng.random() < 0.5:
                    stack.enter_context(replaced(owner, name, small))
        files = rng is None or rng.random() < 0.7
        query = query_of(job, table, folder / "in", files=files)
        plan = replace(query.plan, sinks=sinks_in(folder / "out"))
        noise = SeededNoise(SECRET)
        try:
            found = run(plan, state=folder / "state", noise=noise, insecure=True, pace=pace)
            releases = list(found)
        except sv.StreamveilError as error:
            return {"error": f"{type(error).__name__}: {error}"}
        if releases and numbers_of(releases[0].table.column_names):
            write(folder / "out" / "parquet" / plan.name, folder / "out" / "page.html")
        return dict(left(folder / "out", releases))


def differences(
    job: same_releases.Job, table: pa.Table | None, rng: np.random.Generator, times: int = 1
) -> list[str]:
    """What depends on how the rows of a job lie, by name; 'nothing' where nothing leaves it."""
    first = outcome(job, table, None)
    wrong = [] if first else ["nothing"]
    for _ in range(times):
        other = outcome(job, None if table is None else moved(rng, job, table), rng)
        wrong += [name for name in first | other if first.get(name) != other.get(name)]
    return wrong


def drawn(seed: int, nth: int, times: int = 1) -> list[str]:
    """The same of a drawn job."""
    with TemporaryDirectory() as made:
        job = same_releases.drawn(seed, nth, Path(made))
        table = None
        if job["stream"] is not None:
            table = pq.read_table(Path(made) / f"{job['table']}.parquet")
        wrong = differences(job, table, np.random.default_rng([seed, nth, 1]), times)
    if wrong:
        terminal.say(f"job {nth}: {', '.join(wrong[:5])}\n  {job['text']}")
    return wrong


def main() -> int:
    """Looks at many jobs; 1 where one tells how its rows lay."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=20261126)
    parser.add_argument("--times", type=int, default=2)
    asked = parser.parse_args()
    wrong = sum(bool(drawn(asked.seed, nth, asked.times)) for nth in range(asked.jobs))
    terminal.say(f"{asked.jobs} jobs, {wrong} tell how their rows lay")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
