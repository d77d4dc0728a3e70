"""What a step costs, apart from rows: replays of many small steps.

    python benchmarks/triggers.py [--steps 1000] [--repeats 3]

Every job counts in a process of its own: CPU, user and system, from its first release to its last,
for each step. 20 groups that are public, a Parquet sink. *count*: one COUNT, ten rows a step;
*rows*: the same with 100 rows a step; *alone*: the same as count, every step published by itself;
*quantile*: a median instead. The median of the repeats is kept in `results/triggers.json`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from saved import save

KEYS, SECOND = 20, 1_000_000
COUNT = "COUNT(*) AS n"
MEDIAN = "PERCENTILE_CONT(ms, 0.5, contribution_bounds_per_row => (0, 10)) AS n"
JOBS = {"count": (COUNT, 10), "rows": (COUNT, 100), "alone": (COUNT, 10), "quantile": (MEDIAN, 10)}
QUERY = """CREATE STREAM s WITH (source = 'files', path = '{folder}/rows.parquet',
  event_time = 'at');
CREATE SINK out WITH (sink = 'files', path = '{folder}/out');
INSERT INTO out SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 4, delta = 1e-6,
  privacy_unit_column = user, max_rows_contributed = 4, public_groups = {keys},
  start = TIMESTAMP '2026-01-01 00:00:00', end = TIMESTAMP '{end}')
  page, {asked} FROM s GROUP BY page EMIT EVERY INTERVAL 1 SECOND;"""


def one(name: str, steps: int) -> float:
    """Milliseconds of CPU for each step of a job."""
    from streamveil.runtime import run as running
    from streamveil.sql.sql import parse_script

    if name == "alone":
        running.together = lambda *_: None  # type: ignore[assignment]
    asked, rows = JOBS[name]
    rng, n = np.random.default_rng(1), steps * rows
    start = 1_767_225_600 * SECOND
    table = pa.table({
        "at": pa.array(np.arange(n) * SECOND // rows + start, pa.timestamp("us", tz="UTC")),
        "user": rng.integers(0, n // 2, n), "page": rng.integers(0, KEYS, n),
        "ms": rng.random(n) * 10,
    })  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        pq.write_table(table, f"{folder}/rows.parquet")
        end = np.datetime64(start + steps * SECOND, "us").astype("datetime64[s]").item()
        text = QUERY.format(folder=folder, keys=[*range(KEYS)], asked=asked, end=end)
        with running.run(parse_script(text, {}).query.plan, state=f"{folder}/s.veil") as job:
            next(job)
            before = time.process_time()
            for _ in job:
                pass
            return (time.process_time() - before) / steps * 1000


def main() -> None:
    """Runs all jobs in turn."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--one", choices=JOBS)
    given = parser.parse_args()
    if given.one:
        print(one(given.one, given.steps))
        return
    seen: dict[str, list[float]] = {name: [] for name in JOBS}
    for _ in range(given.repeats):
        for name, found in seen.items():
            command = [sys.executable, __file__, "--one", name, "--steps", str(given.steps)]
            found.append(float(subprocess.run(command, check=True, capture_output=True).stdout))
    step = {name: round(median(found), 3) for name, found in seen.items()}
    share = {name: round(found / step["count"], 2) for name, found in step.items()}
    result: dict[str, Any] = {"steps": given.steps, "repeats": given.repeats}
    result |= {"ms a step": step, "of count": share, "all": seen}
    save(Path(__file__).with_name("results") / "triggers.json", result)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
