"""The jobs that are killed: the toy, the private group-by, and a changing table with questions."""

from __future__ import annotations

import atexit
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from streamveil.connectors.sinks import FilesSink
from streamveil.core.accounting import Budget
from streamveil.plan import (
    Aggregate,
    Bounding,
    Clock,
    KeyColumn,
    KeySet,
    Plan,
    SourceSpec,
    TableSource,
    Window,
)
from streamveil.runtime.grouping import Together
from streamveil.runtime.job import Work
from streamveil.runtime.rejects import Routing
from streamveil.runtime.store import SCRATCH
from streamveil.sql.sql import parse_script
from streamveil.sql.table import points_where
from tests.runtime import toy

HOUR_US = 3_600_000_000
DAY_US = 24 * HOUR_US
ROWS, DAYS, STEP_US = 3_000, 2, 8 * HOUR_US
BATCH = 250
SWEPT_BYTES = 8_000  # of unit tables in memory


def lasting(name: str) -> Path:
    """A folder for as long as this process is there; of its forks none removes it."""
    folder = Path(tempfile.mkdtemp(prefix=f"streamveil-{name}-"))
    atexit.register(rmtree, folder, ignore_errors=True)
    return folder


@cache
def visits() -> str:
    """Two files of visits over two days, with late, null and odd rows; made once per process."""
    folder = lasting("visits")
    rng = np.random.default_rng(3)
    arrival = np.sort(rng.integers(0, DAYS * DAY_US, ROWS))
    event = np.maximum(arrival - rng.integers(0, 2 * HOUR_US, ROWS), 0)
    table = pa.table({
        "user": pa.array([None if i % 97 == 0 else f"user {u}" for i, u in
                          enumerate(rng.integers(0, 400, ROWS))]),
        "page": pa.array([None if i % 89 == 0 else f"page {p}" for i, p in
                          enumerate(rng.geometric(0.2, ROWS))]),
        "ms": pa.array(rng.normal(500, 400, ROWS)),
        "ts": pa.array(event).cast(pa.timestamp("us", "UTC")),
        "seen": pa.array(arrival).cast(pa.timestamp("us", "UTC")),
    })  # fmt: skip
    for number in range(2):
        part = table.slice(number * ROWS // 2, ROWS // 2)
        pq.write_table(part, folder / f"{number}.parquet", row_group_size=400)
    return str(folder)


def visits_plan(path: str) -> Plan:
    """Counts and means per page and day, three triggers a day, protected per user-day."""
    return Plan(
        name="visits", unit="user", period_us=DAY_US,
        source=SourceSpec(name="visits", kind="files", options={"path": path}, event_time="ts"),
        keys=(KeyColumn(name="page", expression="page"),), key_set=KeySet(min_units=2),
        aggregates=(
            Aggregate(name="n", function="count"),
            Aggregate(name="ms", function="avg", expression="ms", low=0.0, high=2000.0),
        ),
        window=Window(kind="tumble", size_us=DAY_US),
        clock=Clock(kind="event", every=STEP_US, start_us=0, end_us=DAYS * DAY_US, arrival="seen"),
        bounding=Bounding(max_rows=8, max_rows_per_group=2),
        budget=Budget(epsilon=20, delta=1e-6),
    )  # fmt: skip


@cache
def visits_work(*, kept: bool = False) -> Work:
    """Compiled once; a compiled plan is a pure value. `kept`: rejected rows, somewhere."""
    from streamveil.runtime.run import Pace, work_of  # numba only where it is used

    rejects = "elsewhere" if kept else None
    return work_of(visits_plan(visits()), pace=Pace(max_rows=BATCH), rejects=rejects)


def looked_work(folder: Path) -> Work:
    """The same visits per user, of known pages: a look, kept in the state, chooses the bound."""
    from streamveil.runtime.run import Pace, prepared

    plan = replace(
        visits_plan(visits()), period_us=None, bounding=Bounding(), options={"look_share": 0.1},
        key_set=KeySet(public=tuple((f"page {p}",) for p in range(1, 9))),
    )  # fmt: skip
    settings = {"noise": toy.SEEDED.noise, "insecure": True, "pace": Pace(max_rows=BATCH)}
    return prepared(plan, state=folder / "state", **settings)[0]


def toy_work(batches: int, rows: int, per_step: int) -> Work:
    """A toy job of some size."""
    return toy.work(toy.Stream(batches, rows, per_step))


PEOPLE = """
CREATE TABLE people (city CHECK (city IN ('a', 'b', 'c', 'd')), old CHECK (old IN (TRUE, FALSE)))
WITH (source = rows, changelog = 'insert-delete', operation = op, id = id);
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 20, delta = 1e-6, expected_size = 700,
                                          steps = 6, ask_share = 0.8)
  city, COUNT(*) AS n FROM people GROUP BY ROLLUP (city) EMIT EVERY 200 ROWS
"""
QUESTIONS = (
    "old",
    "city = 'a' AND NOT old",
    "old",
    "city IN ('a', 'b') AND old",
    "city = 'a'",
    "city = 'c' AND NOT old",
)


@cache
def people() -> str:
    """Two files of people who come and go; nearly all of them are old and live in a."""
    folder = lasting("people")
    rng = np.random.default_rng(5)
    ids = np.concatenate([np.arange(1000), rng.permutation(1000)[:200]])
    table = pa.table({
        "op": pa.array(["+"] * 1000 + ["-"] * 200), "id": pa.array(ids),
        "city": pa.array(np.array(["a", "b", "c", "d"])[rng.choice(4, 1200, p=[0.9, 0.1, 0, 0])]),
        "old": pa.array(rng.random(1200) < 0.97),
    })  # fmt: skip
    table = table.take(pa.array(np.argsort(np.where(np.arange(1200) < 1000, ids, ids + 250),
                                           kind="stable")))  # fmt: skip
    for number in range(2):
        pq.write_table(table.slice(number * 600, 600), folder / f"{number}.parquet")
    return str(folder)


@cache
def people_plan(text: str = PEOPLE) -> Plan:
    """A changing table from SQL."""
    spec = SourceSpec(name="rows", kind="files", options={"path": people()})
    return parse_script(text, {"rows": spec}).query.plan


VALUES = PEOPLE.replace("COUNT(*)", "COUNT(DISTINCT MOD(id, 40))").replace(
    "ask_share = 0.8", "max_changes = 2, accept_error = TRUE"
)


@cache
def people_work(*, values: bool = False) -> Work:
    """Compiled once. `values`: of their ids are counted, and not people."""
    from streamveil.runtime.run import Pace, work_of

    return work_of(people_plan(VALUES if values else PEOPLE), pace=Pace(max_rows=70))


@cache
def questions(name: str) -> list[np.ndarray]:
    """What is asked of a job when it has run: the points of the questions."""
    if name != "people":
        return []
    source = people_plan().source
    assert isinstance(source, TableSource)
    return [points_where(source, text) for text in QUESTIONS]


JOINED = """
CREATE STREAM clicks WITH (source = 'files', path = '{folder}/clicks', follow = TRUE,
                           event_time = 'ts');
CREATE STREAM seen WITH (source = 'files', path = '{folder}/seen', follow = TRUE,
                         event_time = 'ts');
CREATE TABLE people WITH (source = 'files', path = '{folder}/people', follow = TRUE);
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 20, delta = 1e-6, privacy_unit_column = user,
    join_rows = 2, join_within = INTERVAL 3 HOUR, max_rows_contributed = 4,
    start = '1970-01-01', steps = 3, clock = 'wall')
  c.kind, p.kind AS of, COUNT(*) AS n
FROM clicks c JOIN seen s ON c.user = s.user JOIN people p ON c.user = p.user
GROUP BY kind, of EMIT EVERY INTERVAL 1 HOUR
"""


@cache
def joined() -> tuple[Plan, Any]:
    """Three followed folders of rows of the same people, and the operator of their join."""
    from streamveil.compiler import operator_of

    folder, rng = lasting("joined"), np.random.default_rng(7)
    for name in ("clicks", "seen", "people"):
        (folder / name).mkdir()
        table = pa.table({
            "user": rng.integers(0, 60, 400), "kind": rng.integers(0, 2, 400),
            "ts": pa.array(rng.integers(0, 5 * HOUR_US, 400), pa.timestamp("us", "UTC")),
        })  # fmt: skip
        for number in range(3):
            path = folder / name / f"{number}.parquet"
            pq.write_table(table.slice(number * 150, 150), path, row_group_size=50)
    plan = parse_script(JOINED.format(folder=folder)).query.plan
    return plan, operator_of(plan)


def joined_work() -> Work:
    """A join on live data; its sources are opened anew, as in a new process."""
    from streamveil.runtime.run import Pace, work_of

    plan, operator = joined()
    return work_of(plan, engine=lambda _: operator, pace=Pace(max_rows=70))


def sketch_work(name: str) -> Work:
    """A sketch job."""
    from tests.crash.sketch_jobs import work_of_plan  # built from what is above

    return work_of_plan(name)


JOBS: dict[str, Callable[[], Work]] = {
    "toy": lambda: toy_work(8, 20, 2),
    "long toy": lambda: toy_work(60, 50, 3),
    "large toy": lambda: toy_work(8, 20, 2),  # whose every write counts as a large one
    "visits": visits_work,
    "swept visits": visits_work,  # units in partitions, most of them on disk
    "divided visits": visits_work,  # units in partitions that are saved after several micro-batches
    "picky toy": lambda: toy_work(8, 20, 2),  # whose rejected rows are kept
    "picky visits": lambda: visits_work(kept=True),
    "grouped toy": lambda: toy_work(18, 20, 3),  # whose releases are published four by four
    "grouped visits": visits_work,  # the same
    "people": people_work,
    "values": lambda: people_work(values=True),
    "joined": joined_work,
    "heavy": lambda: sketch_work("heavy"),
    "frequency": lambda: sketch_work("frequency"),
}
GROUPED = {"grouped toy": Together(4, 6), "grouped visits": Together(4, 6)}
RELEASES = {
    "toy": 4, "picky toy": 4, "picky visits": 6, "long toy": 20,
    "large toy": 4, "visits": 6, "swept visits": 6, "divided visits": 6,
    "grouped toy": 2, "grouped visits": 3,  # files
    "looked visits": 6,
    "people": 6 + len(QUESTIONS), "values": 6, "joined": 3, "heavy": 6, "frequency": 7,
}  # fmt: skip


class Packing(FilesSink):
    """Files of several releases, which the state keeps as well."""

    keeps = False  # type: ignore[assignment]  # so that the archive is written


def work(name: str, folder: Path) -> Work:
    """A job that publishes files into a folder."""
    made = looked_work(folder) if name == "looked visits" else JOBS[name]()
    changes: dict[str, Any] = {"sink": FilesSink(str(folder / "out"), "json")}
    if name in ("swept visits", "divided visits"):
        limit = SWEPT_BYTES if name == "swept visits" else None
        changes["operator"] = swept(made.operator, folder / "state" / SCRATCH, limit)
    if name in GROUPED:
        changes |= {"sink": Packing(str(folder / "out")), "together": GROUPED[name]}
    if name.startswith("picky"):
        routing = made.rejects or Routing(directory=folder, columns=toy.COLUMNS)
        changes["rejects"] = replace(routing, directory=folder / "aside")
    return Work(**{**vars(made), **changes})


def swept(operator: Any, scratch: Path, limit: int | None = SWEPT_BYTES) -> Any:
    """The same operator with so little memory that units are swept from disk."""
    from streamveil.engines import Room, embedded

    return embedded(operator, Room(limit, scratch))
