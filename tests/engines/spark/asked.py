"""More generated streams and queries in SQL: sketches, changing tables, combined rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from streamveil.plan import Plan
from streamveil.sql.sql import parse_script
from tests.engines.spark.streams import Case

SIX_HOURS = "start = '1970-01-01', end = '1970-01-01 06:00:00', arrival = seen"
TUMBLE = "TUMBLE(TABLE s, DESCRIPTOR(ts), size => INTERVAL 2 HOUR)"
BY_TIME, BY_ROWS = "EMIT EVERY INTERVAL 2 HOUR", "EMIT EVERY 270 ROWS"
WORDS = ("+", "-", "U", "x")
CITIES = (0.2, 0.6, 0.1, 0.1)  # how often each comes; the last is in no domain


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One generated stream and the query over it, as `streams.Case`."""

    name: str
    seed: int
    select: str
    over: str = "s"
    emit: str = BY_TIME
    options: str = ""
    changes: bool = False  # rows insert into a table and delete from it
    text: bool = False
    rows: int = 900
    shards: int = 3

    def write(self, folder: Path) -> Path:
        """Two Parquet files with small row groups."""
        if self.changes:
            return changed(folder, self.seed, self.rows)
        return Case(name=self.name, seed=self.seed, text=self.text, rows=self.rows).write(folder)

    def plan(self, data: Path, out: Path | None = None) -> Plan:
        """The query."""
        return replace(parse_script(self.script(data, out)).query.plan, name=self.name)

    def script(self, data: Path, out: Path | None) -> str:
        """The query as a user writes it."""
        from_files = f"source = 'files', path = '{data}', event_time = ts"
        made = f"CREATE STREAM s WITH ({from_files});"
        unit = "delta = 1e-6, privacy_unit_column = unit, "
        if self.changes:
            made = (
                "CREATE TABLE s (city CHECK (city IN ('Lima', 'Oslo', 'Rome')),"
                f" age CHECK (age BETWEEN 0 AND 4)) WITH ({from_files},"
                " changelog = 'insert-delete', operation = op, id = id, lives = 9);"
            )
            unit = "delta = 1e-6, expected_size = 300, accept_error = TRUE, "
        sink, into = "", ""
        if out is not None:
            sink = f"CREATE SINK out WITH (sink = 'files', path = '{out}');"
            into = "INSERT INTO out"
        asked = self.select.replace("{from}", f"FROM {self.over}")
        return (
            f"{made} {sink} {into} SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ({unit}"
            f" epsilon = 12{self.options}) {asked} {self.emit};"
        )


def changed(folder: Path, seed: int, rows: int) -> Path:
    """Change data with updates, odd operations, unknown ids and values outside the domains."""
    rng = np.random.default_rng(seed)
    odd = rng.random(rows) < 0.02
    times = np.sort(rng.integers(0, 6 * 3_600_000_000, rows))
    columns = {
        "op": pa.array(rng.choice(WORDS, rows, p=[0.6, 0.25, 0.13, 0.02])),
        "id": pa.array(rng.integers(0, rows // 4, rows), mask=odd),
        "city": pa.array(rng.choice(["Lima", "Oslo", "Rome", "Bonn"], rows, p=CITIES)),
        "age": pa.array(rng.integers(0, 6, rows), mask=odd[::-1].copy()),
        "ts": pa.array(times).cast(pa.timestamp("us", "UTC")),
        "seen": pa.array(times).cast(pa.timestamp("us", "UTC")),
    }  # fmt: skip
    folder.mkdir(parents=True)
    table, cut = pa.table(columns), rows // 3
    pq.write_table(table.slice(0, cut), folder / "a.parquet", row_group_size=170)
    pq.write_table(table.slice(cut), folder / "b.parquet", row_group_size=170)
    return folder


LIMIT, TIMED, STEPS = ", max_rows_contributed = 3", f", {SIX_HOURS}", ", steps = 4"
LATE = ", lateness = INTERVAL 1 HOUR"
TOP = "HEAVY_HITTERS(key, k => 5, memory => 200000, bits => 13) AS n {from}"
PART = ", privacy_unit_period = INTERVAL 2 HOUR"
TEXTS = "HEAVY_HITTERS(key, k => 4, memory => 1700000, text_length => 12) AS n {from}"
GIVEN = "APPROX_FREQUENCY(key) AS n {from}"
CELLS = "city, age, COUNT(*) AS n, COUNTIF(age < 2) AS young {from} GROUP BY CUBE(city, age)"
TOTALS = (
    "{by}, COUNT(*, contribution_bounds_per_group => (0, 4)) AS n,"
    " SUM(value, contribution_bounds_per_group => (-3, 3)) AS total,"
    " AVG(value, contribution_bounds_per_group => (-2, 2)) AS mean {from} GROUP BY {by}"
)

PLAIN = Asked(name="plain", seed=11, over=TUMBLE, options=LIMIT + TIMED + LATE,
              select="key, COUNT(*) AS n {from} GROUP BY key")  # fmt: skip
ASKED = [
    Asked(name="top_rows", seed=1, select=TOP, options=LIMIT + STEPS, emit=BY_ROWS),
    Asked(name="top_windows", seed=2, select=TOP, options=LIMIT + TIMED + LATE + PART, over=TUMBLE),
    Asked(name="top_text", seed=3, select=TEXTS, options=LIMIT + TIMED, text=True, shards=2),
    Asked(name="given", seed=4, select=GIVEN, over=TUMBLE, shards=4,
          options=LIMIT + TIMED + LATE + ", public_groups = [3, 1, 40]"),
    Asked(name="given_text", seed=5, select=GIVEN, text=True, emit=BY_ROWS,
          options=LIMIT + STEPS + ", public_groups = ['kéy 2', 'kéy 1', 'other']"),
    Asked(name="table", seed=6, select=CELLS, options=STEPS, changes=True, emit=BY_ROWS),
    Asked(name="table_times", seed=7, select=CELLS, options=TIMED, changes=True, shards=2),
    Asked(name="table_often", seed=8, changes=True, options=", steps = 30", rows=700,
          select="city, COUNT(*) AS n {from} WHERE age > 0 GROUP BY city",
          emit="EMIT EVERY 30 ROWS"),
    Asked(name="table_values", seed=12, changes=True, options=STEPS + ", max_changes = 3",
          select="city, COUNT(DISTINCT MOD(age, 4)) AS n {from} GROUP BY ROLLUP(city)",
          emit=BY_ROWS),
    Asked(name="combined", seed=9, select=TOTALS.replace("{by}", "key"), emit="",
          options=", max_groups_contributed = 2"),
    Asked(name="combined_text", seed=10, select=TOTALS.replace("{by}", "key, other"),
          emit="", text=True, shards=4, options=", max_groups_contributed = 3"),
]  # fmt: skip
