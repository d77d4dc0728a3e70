"""What does overlapping reading, computing and syncing gain, and which micro-batch size is best?

The same job (the click stream of `throughput.py`) with the reader and the committer in threads of
their own or not; on the disk as it is, and on a disk whose syncs take longer (a sleep is added to
each, as on network storage); and over sizes of the micro-batch. Repeats of all ways are interleaved
and ratios taken within a repeat, so that a slow minute of the machine meets all of them.

Expected: on two free cores the wall time falls to that of the folding thread, by what reading and
committing cost; the CPU time stays. A sync that sleeps is hidden wholly as long as it is shorter
than a fold. Below some 10,000 rows the constant cost of a commit dominates.

    python benchmarks/overlap.py [--users 400000] [--repeats 7] [--data DIR]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from clicks import Clicks
from saved import save
from streamveil.plan import Bounding
from streamveil.runtime import job as jobs
from throughput import machine, private

RESULTS = Path(__file__).parent / "results" / "overlap.json"
SIZES = (100, 1_000, 10_000, 100_000, 300_000, 600_000, 1_000_000)
SLOWER_SYNC_MS = (0, 20, 100)
MOST_BATCHES = 300  # of small ones


class Inline:
    """A committer that does not overlap."""

    def __init__(self, *_: Any) -> None:
        pass

    def submit(self, action: Any, *arguments: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(action(*arguments))
        return done

    def shutdown(self) -> None:
        pass


class Direct:
    """A reader that does not read ahead."""

    waiting = False

    def __init__(self, items: Iterator[Any]) -> None:
        self.items = items

    def __iter__(self) -> Iterator[Any]:
        return self.items

    def done(self) -> None:
        pass

    def close(self) -> None:
        pass


WAYS: dict[str, dict[str, Any]] = {
    "nothing overlaps": {"Prefetch": Direct, "ThreadPoolExecutor": Inline},
    "reading overlaps": {"ThreadPoolExecutor": Inline},
    "committing overlaps": {"Prefetch": Direct},
    "both overlap": {},
}


@contextmanager
def replaced(parts: dict[str, Any]) -> Iterator[None]:
    kept = {name: getattr(jobs, name) for name in parts}
    for name, part in parts.items():
        setattr(jobs, name, part)
    try:
        yield
    finally:
        for name, part in kept.items():
            setattr(jobs, name, part)


@contextmanager
def slower_sync(seconds: float) -> Iterator[None]:
    """Adds a wait to every sync of the log."""
    real = os.fdatasync

    def slow(fd: int) -> None:
        real(fd)
        time.sleep(seconds)

    os.fdatasync = slow
    try:
        yield
    finally:
        os.fdatasync = real


Times = dict[str, float]


def timed(data: Path, rows: int, batch: int, every: int) -> Times:
    """Wall time, CPU time of all threads, and CPU time of the folding thread."""
    with tempfile.TemporaryDirectory(dir=data.parent) as name:
        wall, cpu, main = time.perf_counter(), time.process_time(), time.thread_time()
        private(data, Path(name), rows, every, Bounding(max_rows=32), batch)
        return {"wall s": time.perf_counter() - wall, "cpu s": time.process_time() - cpu,
                "folding thread, cpu s": time.thread_time() - main}  # fmt: skip


def medians(runs: list[Times]) -> Times:
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


def compare(path: Path, rows: int, repeats: int, wait_ms: int) -> dict[str, Times]:
    """All ways, interleaved; each with its wall time over that of no overlap in the same repeat."""
    runs: dict[str, list[Times]] = {way: [] for way in WAYS}
    for _ in range(repeats):
        for way, parts in WAYS.items():
            with replaced(parts), slower_sync(wait_ms / 1e3):
                runs[way].append(timed(path, rows, 200_000, 200_000))
    base = [run["wall s"] for run in runs["nothing overlaps"]]
    found = {}
    for way, times in runs.items():
        ratios = sorted(run["wall s"] / one for run, one in zip(times, base, strict=True))
        found[way] = {**medians(times), "wall over none": statistics.median(ratios),
                      "least": ratios[0], "most": ratios[-1]}  # fmt: skip
        print(f"sync + {wait_ms} ms, {way}: {json.dumps(found[way])}")
    return found


def sizes(path: Path, rows: int, repeats: int) -> dict[str, Times]:
    """Cost over the size of a micro-batch; of small ones only so many, one release at the end."""
    found = {}
    for size in SIZES:
        taken = min(rows, MOST_BATCHES * size)
        part = path.with_name(f"first-{taken}.parquet")
        pq.write_table(pq.read_table(path).slice(0, taken), part)
        runs = [timed(part, taken, size, max(taken, size)) for _ in range(repeats)]
        part.unlink()
        cpu = medians(runs)["cpu s"]
        found[str(size)] = {"cpu us per record": 1e6 * cpu / taken,
                            "cpu ms per batch": 1e3 * cpu / -(-taken // size)}  # fmt: skip
        print(size, found[str(size)])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=400_000)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--data", type=Path, default=None)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    folder = options.data or Path(tempfile.mkdtemp())
    path = folder / f"clicks-{options.users}-0.0-int.parquet"
    if not path.exists():
        Clicks(users=options.users).write(path)
    rows = pq.ParquetFile(path).metadata.num_rows
    timed(path, rows, 600_000, 600_000)  # compile
    load = os.getloadavg()[0]
    ways = {f"sync + {ms} ms": compare(path, rows, options.repeats, ms) for ms in SLOWER_SYNC_MS}
    result: dict[str, Any] = {
        "machine": {**machine(), "load before": load, "load after": os.getloadavg()[0]},
        "records": rows, "ways": ways,
        "sizes": sizes(path, rows, max(1, options.repeats // 2)),
    }  # fmt: skip
    RESULTS.parent.mkdir(exist_ok=True)
    save(RESULTS, result, indent=2)


if __name__ == "__main__":
    main()
