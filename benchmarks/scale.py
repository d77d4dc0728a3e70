"""Does a micro-batch cost the same however large the state is, and how large is the state?

Expected: cost per micro-batch follows the batch, not the state, up to cache effects (a table that
no longer fits the cache costs one memory access per record): flat within 1.5 from 100 thousand to
100 million users. Bytes per user: 16 to 17 at a full table, more right after a doubling. A restart
reads the checkpoint once and repeats what is in the log. A tiny micro-batch costs a constant.

    python benchmarks/scale.py [--users 100000 1000000 10000000] [--repeats 5]
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from streamveil.batch import Batch
from streamveil.engines.compile import compile_plan
from streamveil.privacy.budget import Budget
from streamveil.queries.plan import Aggregate, Bounding, Clock, KeyColumn, Plan, SourceSpec
from streamveil.runtime.job import Job, Work
from streamveil.runtime.keys import Keys
from throughput import machine

RESULTS = Path(__file__).parent / "results" / "scale.json"
BATCH, TINY, LOAD = 600_000, 100, 1_000_000
SECRET = Keys(secret=bytes(32))


def plan(bounding: Bounding) -> Plan:
    return Plan(
        name="scale", unit="user", keys=(KeyColumn(name="key", expression="key"),),
        source=SourceSpec(name="made", kind="memory"), bounding=bounding,
        aggregates=(Aggregate(name="n", function="count"),),
        clock=Clock(kind="rows", every=BATCH, steps=100), budget=Budget(epsilon=6, delta=1e-9),
    )  # fmt: skip


def batch(users: Any, keys: Any, number: int, *, closes: bool = False) -> Batch:
    table = pa.table({"user": users, "key": keys})
    return Batch(table, number, closes, json.dumps(number))


def loading(users: int, keys: int) -> Iterator[Batch]:
    """Every user and every key at least once; no step closes."""
    every = max(users, keys)
    for start in range(0, every, LOAD):
        place = np.arange(start, min(start + LOAD, every))
        yield batch(place % users, place % keys, 1)


def running(users: int, keys: int, rows: int, batches: int) -> Iterator[Batch]:
    """Uniform users, so that no cache helps; keys of the heavy-tailed law's shape."""
    rng = np.random.default_rng(1)
    for _ in range(batches):
        heavy = (rng.pareto(0.4, rows) * 1000).astype(np.int64) % keys
        yield batch(rng.integers(0, users, rows), heavy, 1)


def drive(folder: Path, work: Work, feed: Iterator[Batch]) -> list[float]:
    """Runs a feed through the job of a folder; CPU seconds of each micro-batch, commit included."""
    made = list(feed)  # making the data is not measured
    marks: list[float] = []
    whole = replace(work, feed=lambda _: iter(made))
    with Job(folder, whole, SECRET, progress=lambda _: marks.append(time.process_time())) as job:
        marks.append(time.process_time())
        for _ in job:
            pass
    return list(np.diff(marks))


def restart(folder: Path, work: Work) -> float:
    """CPU seconds from nothing to a job that is ready."""
    started = time.process_time()
    with Job(folder, replace(work, feed=lambda _: iter(())), SECRET):
        return time.process_time() - started


def sizes(folder: Path, work: Work) -> dict[str, int]:
    """Bytes of the state's arrays, by the first word of their names, and the operator's counts."""
    with Job(folder, replace(work, feed=lambda _: iter(())), SECRET) as job:
        arrays = work.operator.save(job._state)
        total: dict[str, int] = {}
        for name, array in arrays.items():
            word = "".join(c for c in name.split("/")[0] if c.isalpha())
            total[word] = total.get(word, 0) + array.nbytes
        return {**{f"bytes {k}": v for k, v in total.items() if v > 1000}, **job.counters()}


def measure(users: int, keys: int, bounding: Bounding, repeats: int) -> dict[str, Any]:
    work = Work(
        name="scale",
        fingerprint="scale",
        operator=compile_plan(plan(bounding)),
        feed=lambda _: iter(()),
        limit=Budget(epsilon=6, delta=1e-9),
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "state"
        drive(folder, work, loading(users, keys))
        large = drive(folder, work, running(users, keys, BATCH, repeats + 1))[1:]
        tiny = drive(folder, work, running(users, keys, TINY, 50))[10:]
        state = sizes(folder, work)
        found = {
            "users": users, "keys": keys,
            "ms of CPU per batch of 600,000": 1e3 * statistics.median(large),
            "ms of CPU per batch of 100": 1e3 * statistics.median(tiny),
            "bytes per user": state.get("bytes unit", 0) / users,
            "bytes per key": state.get("bytes window", 0) / keys,
            "restart, s of CPU": restart(folder, work),
            "files, bytes": sum(p.stat().st_size for p in folder.iterdir()), **state,
        }  # fmt: skip
        print(json.dumps(found))
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, nargs="+", default=[100_000, 1_000_000, 10_000_000])
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    known = {"C=32": Bounding(max_rows=32), "quadratic B=128": Bounding(quadratic=128)}
    parser.add_argument("--bounds", nargs="+", choices=known, default=list(known))
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    result: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    result["machine"] = machine()
    for word in options.bounds:
        for users in options.users:
            found = measure(users, options.keys, known[word], options.repeats)
            result.setdefault(word, {})[str(users)] = found
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
