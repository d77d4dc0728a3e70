"""How fast is the private group-by on Spark, against Spark's own aggregation without privacy?

Question: records a second on local[2] at micro-batches of a million records, both in the same run
and over the same files; the fixed cost of a micro-batch; state bytes per key and unit; and where
the time goes. Expected: at least half the speed of the aggregation without privacy, because rows
cross into Python twice and are sorted by unit once more.

    python benchmarks/spark.py [--steps 5] [--rows 1000000]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from streamveil.connectors.files import FilesSource
from streamveil.engines.compile import compile_plan
from streamveil.engines.spark import stages
from streamveil.engines.spark.columns import unpack
from streamveil.engines.spark.moving import Piece, joined
from streamveil.engines.spark.session import session
from streamveil.engines.spark.shards import Shards
from streamveil.engines.spark.splits import Reading, footers, plan_step
from streamveil.privacy.budget import Budget
from streamveil.privacy.noise import SeededNoise
from streamveil.queries.plan import Aggregate, Bounding, Clock, KeyColumn, KeySet, Plan, SourceSpec
from streamveil.runtime.keys import Keys
from streamveil.runtime.spark import SparkJob
from streamveil.runtime.spark_state import Layout

KEYS, UNITS, SMALL = 1_000_000, 5_000_000, 1_000
OUT = Path(__file__).parent / "results" / "spark.json"
SHARDS = 4


def write(folder: Path, steps: int, rows: int, seed: int) -> None:
    """One file per step: Zipf-Mandelbrot keys, uniform units, as in DP-SQLP's experiments."""
    rng = np.random.default_rng(seed)
    weight = 1 / (np.arange(KEYS) + 1000.0) ** 1.4
    edges = np.cumsum(weight / weight.sum())
    folder.mkdir(parents=True)
    for step in range(steps):
        table = pa.table({
            "user": rng.integers(0, UNITS, rows),
            "key": np.searchsorted(edges, rng.random(rows)),
            "value": rng.normal(size=rows),
        })  # fmt: skip
        pq.write_table(table, folder / f"{step:03d}.parquet", row_group_size=250_000)


def plan_of(folder: Path, rows: int, steps: int) -> Plan:
    """COUNT and SUM by key, released every `rows` records."""
    return Plan(
        name="bench", unit="user", keys=(KeyColumn(name="key", expression="key"),),
        source=SourceSpec(name="s", kind="files", options={"path": str(folder)}),
        key_set=KeySet(min_units=20), bounding=Bounding(max_rows=32, max_rows_per_group=1),
        aggregates=(
            Aggregate(name="n", function="count"),
            Aggregate(name="total", function="sum", expression="value", low=-1.0, high=1.0),
        ),
        clock=Clock(kind="rows", every=rows, steps=steps), budget=Budget(epsilon=6, delta=1e-9),
    )  # fmt: skip


def private(spark, folder: Path, work: Path, rows: int, steps: int) -> tuple[list[float], Path]:
    """Seconds of every step."""
    state = work / f"state-{rows}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        job = SparkJob(
            plan_of(folder, rows, steps), state=state, session=spark, layout=Layout(shards=SHARDS),
            keys=Keys(noise=SeededNoise(1), insecure=True),
        )  # fmt: skip
    ends = [time.perf_counter()]
    with job:
        ends += [time.perf_counter() for _ in job]
    return np.diff(ends).tolist(), state


def plain(spark, folder: Path, work: Path, rows: int) -> list[float]:
    """The same query without privacy, by Spark's own streaming aggregation."""
    from pyspark.sql import functions as f

    spark.conf.set("spark.sql.shuffle.partitions", str(SHARDS))
    ends: list[float] = []

    def publish(frame, _batch) -> None:
        frame.toArrow()
        ends.append(time.perf_counter())

    rows_of = spark.readStream.schema("user long, key long, value double")
    frame = rows_of.option("maxFilesPerTrigger", 1).parquet(str(folder))
    clamped = f.greatest(f.lit(-1.0), f.least(f.lit(1.0), f.col("value")))
    answer = frame.groupBy("key").agg(f.count("*").alias("n"), f.sum(clamped).alias("total"))
    ends.append(time.perf_counter())
    query = (
        answer.writeStream.outputMode("complete").foreachBatch(publish)
        .option("checkpointLocation", str(work / f"plain-{rows}")).start()
    )  # fmt: skip
    query.processAllAvailable()
    query.stop()
    return np.diff(ends).tolist()


def operators(folder: Path, rows: int, steps: int) -> dict[str, float]:
    """Seconds of each stage's own code for the last of a few steps, one core, without Spark."""
    plan, noise = plan_of(folder, rows, steps), SeededNoise(1)
    operator, source = compile_plan(plan), FilesSource(str(folder))
    reading, groups = Reading(source.schema(), plan.clock, None), footers(source, None)
    unit, key, spent = operator.init(), operator.init(), {}
    key.types = (pa.int64(),)
    nothing = stages.Shown({}, 1, restarts=False)
    for step in range(1, min(steps, 3) + 1):
        marks = [time.perf_counter()]
        parts = [reading.rows(split, step) for split in plan_step(groups, plan.clock, step)]
        marks.append(time.perf_counter())
        admitted = [(stages.admit(operator, rows, step, noise, SHARDS)[0], at[0])
                    for rows, at in parts]  # fmt: skip
        marks.append(time.perf_counter())
        cells = [Piece(int(at), rows).to_bytes() for shards, at in admitted for rows in shards]
        marks.append(time.perf_counter())
        pieces = joined([Piece.from_bytes(cell) for cell in cells])
        marks.append(time.perf_counter())
        bounded, _ = stages.bound(operator, unit, pieces, nothing, 1)
        marks.append(time.perf_counter())
        stages.gather(operator, key, bounded[0], noise, (0, 1, step))
        marks.append(time.perf_counter())
        operator.release(key, step, noise)
        marks.append(time.perf_counter())
        state = Shards(str(folder.parent / "alone"))
        for name, held in (("unit", unit), ("key", key)):
            state.write(name, 0, step, operator.save(held))
        marks.append(time.perf_counter())
        unit, key = (operator.load(state.read(name, 0, step)) for name in ("unit", "key"))
        marks.append(time.perf_counter())
        names = ("read", "admit", "to bytes", "from bytes", "bound", "gather", "release",
                 "write state", "read state")  # fmt: skip
        spent = dict(zip(names, np.diff(marks).tolist(), strict=True))
        spent |= {"bytes to unit stage": sum(map(len, cells)), "rows to key stage": len(bounded[0])}
    return spent


def state_of(state: Path) -> dict[str, float]:
    """Bytes on disk of the version before the last step, which closes the window and drops keys."""
    found: dict[str, float] = {}
    for stage in ("unit", "key"):
        newest = min((state / "shards" / stage).iterdir())
        found[f"{stage} bytes"] = sum(path.stat().st_size for path in newest.iterdir())
        count = 0
        for path in newest.iterdir():
            _, saved = unpack(path.read_bytes())
            count += sum(int(saved[name][0]) for name in saved if name.endswith("meta"))
        found[f"{stage}s"] = count
        found[f"bytes per {stage}"] = found[f"{stage} bytes"] / max(count, 1)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--master", default="local[2]")
    given = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="streamveil-bench-"))
    try:
        write(work / "data", given.steps, given.rows, 1)
        write(work / "small", 5, SMALL, 2)
        result = measure(session(given.master), work, given)
    finally:
        shutil.rmtree(work)
    OUT.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


def measure(spark, work: Path, given) -> dict[str, object]:
    """Everything, the two compared runs one after the other."""
    load = os.getloadavg()[0]
    bare = plain(spark, work / "data", work, given.rows)
    own, state = private(spark, work / "data", work, given.rows, given.steps)
    fixed, _ = private(spark, work / "small", work, SMALL, 5)
    bare_fixed = plain(spark, work / "small", work, SMALL)
    warm = statistics.median(own[1:]), statistics.median(bare[1:])
    return {
        "machine": {"cores": os.cpu_count(), "python": platform.python_version(),
                    "pyspark": spark.version, "master": given.master, "load before": load,
                    "load after": os.getloadavg()[0]},
        "seed": 1, "rows per step": given.rows, "shards": SHARDS,
        "private seconds per step": own, "plain seconds per step": bare,
        "private records per second, warm": given.rows / warm[0],
        "plain records per second, warm": given.rows / warm[1],
        "share of plain speed": warm[1] / warm[0],
        "fixed seconds per step, private": statistics.median(fixed[2:]),
        "fixed seconds per step, plain": statistics.median(bare_fixed[2:]),
        "operators alone, one core": operators(work / "data", given.rows, given.steps),
        "state": state_of(state),
    }  # fmt: skip


if __name__ == "__main__":
    main()
