"""What does it cost to read files by the event clock, in order and by way of the disk?

The click stream of `throughput.py`, in row groups of 600,000 records that are in order of time, in
100 steps: rows are read, given their steps, and dropped. In order, each row group is read when a
step needs it; by way of the disk, all rows are written to buckets of steps first (as happens where
row groups state no order). Each run is a process of its own; CPU includes its start.

Expected: the detour writes and reads again 24 bytes a record, most of it time of the system.

    python benchmarks/replay.py [--users 10000000] [--repeats 3] [--data DIR]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow.parquet as pq

from clicks import DAY_US, Clicks
from saved import save
from streamveil.connectors.files import FilesSource
from streamveil.plan import Clock
from streamveil.runtime import schedule

RESULTS = Path(__file__).parent / "results" / "replay.json"
STEPS = 100
WAYS = ("in order", "by way of the disk")


def drained(data: str, way: str) -> dict[str, float]:
    """One replay in this process."""
    if way != WAYS[0]:
        schedule.MOST_WAITING = 0
    clock = Clock(kind="event", every=DAY_US // STEPS, start_us=0, end_us=DAY_US, steps=STEPS)
    replay = schedule.MicroBatches(
        FilesSource(data), clock, columns=["user", "key", "ts"], event_time="ts"
    )
    rows = sum(batch.rows.num_rows for batch in replay.batches())
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "rows": rows, "user": used.ru_utime, "system": used.ru_stime,
        "cpu": used.ru_utime + used.ru_stime, "peak MB": used.ru_maxrss / 1024,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=10_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--data", type=Path, help="keep the generated file here")
    parser.add_argument("--once", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.once:
        print(json.dumps(drained(*options.once)))
        return
    folder = options.data or Path(tempfile.mkdtemp())
    path = folder / f"clicks-{options.users}-0.0-int.parquet"
    if not path.exists():
        Clicks(users=options.users).write(path)
    runs: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for _ in range(options.repeats):
        for way in WAYS:
            asked = [sys.executable, __file__, "--once", str(path), way]
            done = subprocess.run(asked, capture_output=True, check=True)
            runs[way].append(json.loads(done.stdout))
    middle = {
        way: {name: statistics.median(run[name] for run in some) for name in some[0]}
        for way, some in runs.items()
    }
    rows = pq.ParquetFile(path).metadata.num_rows
    for way, found in middle.items():
        found["ns of CPU a record"] = found["cpu"] / rows * 1e9
        print(f"{way:20s} {found['cpu']:6.2f} s of CPU, {found['peak MB']:7,.0f} MB")
    ratio = middle[WAYS[1]]["cpu"] / middle[WAYS[0]]["cpu"]
    print(f"by way of the disk costs {ratio:.2f} times as much")
    found = {"load": os.getloadavg()[0], "repeats": options.repeats, "ways": middle, "ratio": ratio}
    save(RESULTS, found, indent=2)


if __name__ == "__main__":
    main()
