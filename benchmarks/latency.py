"""How long does a row of live data wait for its release?

A job follows a folder and releases after each 100 rows: 20 public groups, one COUNT, a Parquet
sink. Each file of 100 rows is put there at a random moment once the release of the one before is
out; the clock runs from when the file has its name to when the caller has the release, which is
durable and in the sink by then. A followed folder is looked at twice a second, and the job waits
in between, so rows wait for a quarter of a second in the median and half a second at most.
*Without waiting* is the same job when it looks again after a millisecond: what it takes itself.

    python benchmarks/latency.py [--releases 300]
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import streamveil as sv
from saved import save
from streamveil.runtime import schedule
from throughput import machine

RESULTS = Path(__file__).parent / "results" / "latency.json"
KEYS, ROWS, WARM = 20, 100, 20
PAUSES = {"a followed folder": schedule.PAUSE, "without waiting": 0.001}


def put(folder: Path, number: int) -> None:
    """A file of 100 rows, whole from when it has its name."""
    place = np.arange(ROWS) + number * ROWS
    table = pa.table({"user": place, "page": place % KEYS})
    pq.write_table(table, folder / f".{number}")
    (folder / f".{number}").rename(folder / f"{number:06d}.parquet")


def waits(folder: Path, releases: int) -> list[float]:
    """Seconds from a file to its release, one after the other."""
    rows = folder / "rows"
    rows.mkdir()
    put(rows, 0)
    query = sv.source("files", "rows", path=str(rows), follow=True).protect(unit="user")
    query = query.group_by("page", keys=sv.public([*range(KEYS)])).agg(n=sv.count())
    asked = (
        query.bound(max_rows=1)
        .to("files", path=str(folder / "out"))
        .release(budget=sv.Budget(epsilon=4, delta=1e-6), every=sv.rows(ROWS), steps=releases)
    )
    out, put_at, found = threading.Event(), [time.perf_counter()], []

    def write() -> None:
        rng = random.Random(releases)
        for number in range(1, releases):
            out.wait()
            out.clear()
            time.sleep(rng.random() * schedule.PAUSE)
            put(rows, number)
            put_at.append(time.perf_counter())

    writer = threading.Thread(target=write)
    writer.start()
    for _ in asked.run(state=folder / "state"):
        found.append(time.perf_counter() - put_at[-1])
        out.set()
    writer.join()
    return found[WARM:]


def main() -> None:
    """Both ways; keeps the percentiles."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--releases", type=int, default=300)
    given = parser.parse_args()
    result: dict[str, Any] = {"machine": {**machine(), "load": os.getloadavg()[0]},
                              "releases": given.releases - WARM}  # fmt: skip
    for name, schedule.PAUSE in PAUSES.items():
        with tempfile.TemporaryDirectory() as folder:
            milliseconds = 1e3 * np.array(waits(Path(folder), given.releases))
        shares = {"p50 ms": 50, "p99 ms": 99}
        result[name] = {what: round(float(np.percentile(milliseconds, share)), 2)
                        for what, share in shares.items()}  # fmt: skip
        print(name, result[name])
    save(RESULTS, result, indent=2)


if __name__ == "__main__":
    main()
