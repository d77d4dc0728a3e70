"""Does the cost of a job grow faster than what it counts?

One job, by SQL from Parquet to Parquet, in which one number is multiplied by four at a time: units
(of three rows each), groups to discover, triggers, windows, aggregates, rows that come late.
Everything else stays. Each size runs in a process of its own, of which the CPU from the first batch
to the last release counts. The *exponent* is that of the last step: log of the growth of the cost
over log 4, at most 1 if the cost is proportional. Expected: units and aggregates near 1, the others
below, since rows and releases cost something whatever those numbers are.

    python benchmarks/growth.py [--repeats 3] [--only units groups ...]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from math import log
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from saved import save

RESULTS = Path(__file__).parent / "results" / "growth.json"
DAY = 86_400_000_000  # microseconds
START = 1_767_225_600_000_000
QUERY = """CREATE STREAM s WITH (source = 'files', path = '{folder}/rows.parquet',
  event_time = 'ts');
CREATE SINK out WITH (sink = 'files', path = '{folder}/out');
INSERT INTO out SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 4, delta = 1e-6,
  privacy_unit_column = user, max_rows_contributed = 8, arrival = at, {late}
  start = TIMESTAMP '2026-01-01 00:00:00', end = TIMESTAMP '2026-01-02 00:00:00')
  {window} page, {asked} FROM {rows} GROUP BY {window} page EMIT EVERY INTERVAL {every} SECOND;"""
SIZES: dict[str, list[int]] = {  # what is multiplied
    "units": [100_000, 400_000, 1_600_000],
    "groups": [10_000, 40_000, 160_000],
    "triggers": [60, 240, 960],
    "windows": [15, 60, 240],
    "aggregates": [1, 4, 16],
    "late rows": [10_000, 40_000, 160_000],
}
USUAL = {"units": 100_000, "groups": 1_000, "triggers": 60, "windows": 1, "aggregates": 1}


def one(what: str, size: int) -> float:
    """Seconds of CPU of the job where one number has this size."""
    from streamveil.runtime.run import run
    from streamveil.sql.sql import parse_script

    has = {**USUAL, "late rows": 0, what: size}
    if what == "windows":
        has["triggers"] = max(SIZES[what])
    if what == "late rows":
        has["windows"] = 12
    rng, n = np.random.default_rng(1), 3 * has["units"]
    ts = np.sort(rng.integers(0, DAY, n)) + START
    at = ts.copy()
    late = rng.choice(n, has["late rows"], replace=False)
    at[late] = np.minimum(at[late] + DAY // 12, START + DAY - 1)
    times = {name: pa.array(of, pa.timestamp("us", tz="UTC")) for name, of in
             (("ts", ts), ("at", at))}  # fmt: skip
    table = pa.table(times | {"user": rng.integers(0, has["units"], n),
                              "page": rng.integers(0, has["groups"], n),
                              "ms": rng.random(n) * 10}).sort_by("at")  # fmt: skip
    sums = [f"SUM(ms + {place}, contribution_bounds_per_row => (0, {place + 10})) AS s{place}"
            for place in range(1, has["aggregates"])]  # fmt: skip
    size_of_window = DAY // has["windows"] // 1_000_000
    windowed = has["windows"] > 1
    with tempfile.TemporaryDirectory() as folder:
        pq.write_table(table, f"{folder}/rows.parquet", row_group_size=1 << 18)
        text = QUERY.format(
            folder=folder, asked=", ".join(["COUNT(*) AS n", *sums]),
            window="window_start," if windowed else "",
            rows="TUMBLE(TABLE s, DESCRIPTOR(ts), size => "
                 f"INTERVAL {size_of_window} SECOND)" if windowed else "s",
            late=f"lateness = INTERVAL {DAY // 12_000_000} SECOND," if has["late rows"] else "",
            every=DAY // has["triggers"] // 1_000_000,
        )  # fmt: skip
        with run(parse_script(text, {}).query.plan, state=f"{folder}/s.veil") as job:
            before = time.process_time()
            for _ in job:
                pass
            return time.process_time() - before


def main() -> None:
    """Runs all sizes in turn and keeps costs and exponents."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(one(given.one[0], int(given.one[1])))
        return
    result: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for what in given.only:
        seen: dict[int, list[float]] = {size: [] for size in SIZES[what]}
        for _ in range(given.repeats):
            for size, found in seen.items():
                command = [sys.executable, __file__, "--one", what, str(size)]
                found.append(float(subprocess.run(command, check=True, stdout=-1).stdout))
        costs = [median(found) for found in seen.values()]
        result[what] = {
            "sizes": SIZES[what], "seconds of CPU": [round(cost, 3) for cost in costs],
            "exponent": round(log(costs[-1] / costs[-2]) / log(4), 2), "load": os.getloadavg()[0],
        }  # fmt: skip
        print(what, result[what], flush=True)
        save(RESULTS, result, indent=2)


if __name__ == "__main__":
    main()
