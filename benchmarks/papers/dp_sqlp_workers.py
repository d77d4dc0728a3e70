"""Figure 9's other axis: time of a micro-batch against the number of workers, on Spark.

A worker is one task slot of Spark (a core): it takes whole shards of the units, then whole shards
of the keys, so that the work of a micro-batch divides by hash, as in the publication. Every step
also has costs that do not divide: Spark's planning, logging and publishing.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from dp_sqlp_streams import Stream

import streamveil as sv
from streamveil.core.accounting import Budget
from streamveil.core.noise import SeededNoise
from streamveil.engines.spark.session import session
from streamveil.runtime.secret import Randomness
from streamveil.runtime.spark import SparkJob, SparkLayout

SHARDS, STEPS = 4, 5


def write(folder: Path, stream: Stream, rows: int) -> None:
    """One file per step, the first rows of a stream."""
    folder.mkdir()
    for step in range(STEPS):
        part = slice(step * rows, (step + 1) * rows)
        columns = {"user": stream.users[part], "key": stream.keys[part]}
        table = pa.table({name: np.asarray(c).astype(np.int64) for name, c in columns.items()})
        pq.write_table(table, folder / f"{step:03d}.parquet", row_group_size=-(-rows // SHARDS))


def seconds(spark: Any, folder: Path, state: Path, stream: Stream, rows: int) -> list[float]:
    """Wall time of every step after the first, in which workers start."""
    query = (
        sv.files(str(folder / "*.parquet")).protect(unit="user")
        .group_by("key", keys=sv.discover(min_units=1)).agg(n=sv.count())
        .release(every=sv.rows(rows), steps=STEPS, budget=Budget(epsilon=6, delta=1e-9),
                 **stream.expected)
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        job = SparkJob(query.plan, state=state, session=spark, layout=SparkLayout(shards=SHARDS),
                       keys=Randomness(noise=SeededNoise(1), insecure=True))  # fmt: skip
    ends = [time.perf_counter()]
    with job:
        ends += [time.perf_counter() for _ in job]
    return np.diff(ends).tolist()[1:]


def measure(stream: Stream, sizes: list[int], workers: list[int]) -> Iterator[dict[str, Any]]:
    """Every size of micro-batch with every number of workers."""
    work = Path(tempfile.mkdtemp(prefix="streamveil-workers-"))
    try:
        for rows in sizes:
            write(work / str(rows), stream, rows)
        for count in workers:
            spark = session(f"local[{count}]")
            for rows in sizes:
                found = seconds(spark, work / str(rows), work / f"{count}-{rows}", stream, rows)
                print(f"{count} workers, {rows:,} rows a batch: median"
                      f" {statistics.median(found):.2f} s", flush=True)  # fmt: skip
                yield {"experiment": "workers", "arm": "ours", "workers": count, "rows": rows,
                       "shards": SHARDS, "median_s": statistics.median(found),
                       "least_s": min(found), "most_s": max(found)}  # fmt: skip
            spark.stop()
    finally:
        shutil.rmtree(work)
