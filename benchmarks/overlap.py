"""What does overlapping reading, computing and syncing gain, and which micro-batch size is best?

The same job (the click stream of `throughput.py`) with the reader and the committer in threads of
their own or not, and over sizes of the micro-batch. Expected: with two cores the wall time falls by
what reading and committing take (a quarter), the CPU time stays; below some 10,000 rows the
constant cost of a commit dominates, above some 300,000 nothing is gained.

    python benchmarks/overlap.py [--users 400000] [--repeats 5] [--data DIR]
"""

from __future__ import annotations

import argparse
import json
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

from streamveil.datasets import Clicks
from streamveil.queries.plan import Bounding
from streamveil.runtime import job as jobs
from throughput import machine, private

RESULTS = Path(__file__).parent / "results" / "overlap.json"
SIZES = (10_000, 30_000, 100_000, 300_000, 600_000, 1_000_000)


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


def timed(data: Path, rows: int, batch: int, every: int, repeats: int) -> dict[str, float]:
    walls, cpus = [], []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory(dir=data.parent) as name:
            wall, cpu = time.perf_counter(), time.process_time()
            private(data, Path(name), rows, every, Bounding(max_rows=32), batch)
            walls.append(time.perf_counter() - wall)
            cpus.append(time.process_time() - cpu)
    return {"wall s": statistics.median(walls), "cpu s": statistics.median(cpus)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=400_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--data", type=Path, default=None)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    folder = options.data or Path(tempfile.mkdtemp())
    path = folder / f"clicks-{options.users}-0.0-int.parquet"
    if not path.exists():
        Clicks(users=options.users).write(path)
    rows = pq.ParquetFile(path).metadata.num_rows
    timed(path, rows, 600_000, 600_000, 1)  # compile
    result: dict[str, Any] = {"machine": machine(), "records": rows, "ways": {}, "sizes": {}}
    for way, parts in WAYS.items():
        with replaced(parts):
            result["ways"][way] = timed(path, rows, 600_000, 600_000, options.repeats)
        print(way, result["ways"][way])
    for size in SIZES:
        result["sizes"][size] = timed(path, rows, size, 1_000_000, max(1, options.repeats // 2))
        print(size, result["sizes"][size])
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
