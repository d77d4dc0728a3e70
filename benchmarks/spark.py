"""How fast is the private group-by on Spark, against Spark's own aggregation without privacy?

Question: records a second on local[2] at micro-batches of a million records, both in the same run
and over the same files, by wall and by CPU time of all processes; the same on local[1]; the fixed
cost of a micro-batch; how state and steps grow from 0.1 to 10 million keys; and where the time
goes. Expected: about the speed of the aggregation without privacy, because Spark moves only packed
columns, and rows are combined before the second shuffle as Spark's own are before the first.

    python benchmarks/spark.py [--part compare] [--master local[2]]
    python benchmarks/spark.py --part keys [--keys 10000000]
    python benchmarks/spark.py --part all     # both, and local[1]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from saved import save
from streamveil.compiler.group_by import compile_plan
from streamveil.connectors.files import FilesSource
from streamveil.core.accounting import Budget
from streamveil.core.noise import SeededNoise
from streamveil.engines.spark import stages
from streamveil.engines.spark.session import session
from streamveil.engines.spark.shards import DELTA, Shards
from streamveil.engines.spark.shuffle import Piece, joined
from streamveil.engines.spark.source_offsets import FilesReading
from streamveil.engines.spark.splits import footers, plan_step
from streamveil.plan import Aggregate, Bounding, Clock, KeyColumn, KeySet, Plan, SourceSpec
from streamveil.runtime.secret import Randomness
from streamveil.runtime.spark import SparkJob
from streamveil.runtime.spark_state import SparkLayout

KEYS, UNITS, SMALL = 1_000_000, 5_000_000, 1_000
SECOND = 1_000_000  # microseconds
MANY = (100_000, 1_000_000, 10_000_000)
OUT = Path(__file__).parent / "results" / "spark.json"
SHARDS = 4
BASELINE = (
    "groupBy(key) in output mode 'complete', Spark's default state store, no state by user: every"
    " step collects all groups to the driver, shown or not, where the private job collects releases"
)


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


def clock() -> tuple[float, float]:
    """Wall time, and CPU seconds of this process and everything it started."""
    return time.perf_counter(), sum(cpu_of(process) for process in family())


def family() -> list[Path]:
    """This process and its descendants."""
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError):
                parents.setdefault(int(fields(folder)[1]), []).append(int(folder.name))
    found, todo = [], [os.getpid()]
    while todo:
        found.append(todo.pop())
        todo += parents.get(found[-1], [])
    return [Path(f"/proc/{process}") for process in found]


def fields(folder: Path) -> list[str]:
    """What the kernel tells of a process, from its state on."""
    return (folder / "stat").read_text().rpartition(")")[2].split()


def cpu_of(folder: Path) -> float:
    """CPU seconds of a process and of its children that have ended."""
    with contextlib.suppress(OSError):
        return sum(map(int, fields(folder)[11:15])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def steps_of(ends: list[tuple[float, float]]) -> list[list[float]]:
    """Wall and CPU seconds of every step."""
    return np.diff(np.array(ends), axis=0).round(3).tolist()


def warm(steps: list[list[float]]) -> list[float]:
    """The median step, wall and CPU, without the first two: code is still being compiled."""
    return np.median(np.array(steps[2:] or steps), axis=0).tolist()


def private(spark, plan: Plan, state: Path) -> list[list[float]]:
    """Wall and CPU seconds of every step."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        job = SparkJob(
            plan, state=state, session=spark, layout=SparkLayout(shards=SHARDS),
            keys=Randomness(noise=SeededNoise(1), insecure=True),
        )  # fmt: skip
    ends = [clock()]
    with job:
        ends += [clock() for _ in job]
    return steps_of(ends)


def plain(spark, folder: Path, checkpoint: Path) -> list[list[float]]:
    """The same query without privacy, by Spark's own streaming aggregation; see `BASELINE`."""
    from pyspark.sql import functions as f

    spark.conf.set("spark.sql.shuffle.partitions", str(SHARDS))
    ends: list[tuple[float, float]] = []

    def publish(frame, _batch) -> None:
        frame.toArrow()
        ends.append(clock())

    rows_of = spark.readStream.schema("user long, key long, value double")
    frame = rows_of.option("maxFilesPerTrigger", 1).parquet(str(folder))
    clamped = f.greatest(f.lit(-1.0), f.least(f.lit(1.0), f.col("value")))
    answer = frame.groupBy("key").agg(f.count("*").alias("n"), f.sum(clamped).alias("total"))
    ends.append(clock())
    query = (
        answer.writeStream.outputMode("complete").foreachBatch(publish)
        .option("checkpointLocation", str(checkpoint)).start()
    )  # fmt: skip
    query.processAllAvailable()
    query.stop()
    return steps_of(ends)


def operators(folder: Path, rows: int, steps: int) -> dict[str, float]:
    """Seconds of each stage's own code for the last of a few steps, one core, without Spark."""
    plan, noise = plan_of(folder, rows, steps), SeededNoise(1)
    operator, source = compile_plan(plan), FilesSource(str(folder))
    reading, groups = FilesReading(source.schema(), plan.clock, None), footers(source, None)
    unit, key, spent = operator.init(), operator.init(), {}
    key.types = (pa.int64(),)
    nothing = stages.PublishedGroups({}, 1, restarts=False)
    for step in range(1, min(steps, 3) + 1):
        marks = [time.perf_counter()]
        parts = [reading.rows(split.text(), step) for split in plan_step(groups, plan.clock, step)]
        marks.append(time.perf_counter())
        admitted = [(stages.admit(operator, part.table, step, noise, SHARDS)[0], part.place)
                    for part in parts]  # fmt: skip
        marks.append(time.perf_counter())
        cells = [Piece(at, rows).to_bytes() for shards, at in admitted for rows in shards]
        marks.append(time.perf_counter())
        pieces = joined([Piece.from_bytes(cell) for cell in cells])
        marks.append(time.perf_counter())
        bounded = stages.bound(operator, unit, pieces, nothing, 1)
        marks.append(time.perf_counter())
        delta = stages.gather(operator, key, bounded.rows[0], noise, (0, 1, step))
        marks.append(time.perf_counter())
        operator.release(key, step, noise)
        marks.append(time.perf_counter())
        shards = Shards(str(folder.parent / "alone"))
        deltas = {"unit": bounded.delta, "key": delta}
        sizes = [shards.put(name, 0, step, DELTA, ({}, did)).size for name, did in deltas.items()]
        marks.append(time.perf_counter())
        whole = [shards.write(name, 0, step, step, operator.save(held))
                 for name, held in (("unit", unit), ("key", key))]  # fmt: skip
        marks.append(time.perf_counter())
        before = [shards.read(name, 0, step - 1) for name in deltas]
        old_unit, old_key = (operator.load(b.arrays) if b else operator.init() for b in before)
        old_key.types = key.types
        marks.append(time.perf_counter())
        stages.bound_again(operator, old_unit, bounded.delta, step)
        stages.gather_again(operator, old_key, delta, noise, (0, 1, step))
        marks.append(time.perf_counter())
        names = ("read", "admit", "to bytes", "from bytes", "bound", "gather", "release",
                 "write deltas", "write bases", "read bases", "repeat from deltas")  # fmt: skip
        spent = dict(zip(names, np.diff(marks).round(4).tolist(), strict=True))
        spent |= {
            "bytes to unit stage": sum(map(len, cells)), "bytes of deltas": sizes,
            "rows to key stage": len(bounded.rows[0]),
            "bytes per unit": whole[0] / operator.counters(unit)["units"],
            "bytes per key": whole[1] / max(operator.counters(key)["keys"], 1),
        }  # fmt: skip
    return spent


def state_of(state: Path) -> dict[str, int]:
    """Bytes on storage by stage and kind of file; a state that grows fast has no base yet."""
    found: dict[str, int] = {}
    for path in sorted((state / "shards").rglob("*.*")):
        name = f"{path.parent.parent.name} {path.suffix[1:]}"
        found[name] = found.get(name, 0) + path.stat().st_size
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--part", choices=["compare", "keys", "all"], default="compare")
    parser.add_argument("--keys", type=int, nargs="+", default=MANY)
    given = parser.parse_args()
    if given.part == "all":  # each part in a process of its own: Spark starts once in each
        for part, master in (
            ("compare", "local[2]"),
            ("compare", "local[1]"),
            ("keys", "local[2]"),
        ):
            command = [sys.executable, __file__, "--part", part, "--master", master]
            subprocess.run([*command, "--steps", str(given.steps)], check=True)
        return
    work = Path(tempfile.mkdtemp(prefix="streamveil-bench-"))
    load = os.getloadavg()[0]
    try:
        spark = session(given.master)
        if given.part == "compare":
            made = compare(spark, work, given)
        else:
            made = growth(spark, work, given.keys)
    finally:
        shutil.rmtree(work)
    name = given.part if given.part == "keys" else given.master
    made["machine"] = {
        "cores": os.cpu_count(), "python": platform.python_version(), "pyspark": spark.version,
        "master": given.master, "load before": load, "load after": os.getloadavg()[0],
    }  # fmt: skip
    known = json.loads(OUT.read_text()) if OUT.exists() else {}
    if name == "keys":  # the sizes may be measured one by one
        made = known.get(name, {}) | made
    save(OUT, {**known, name: made}, indent=2)
    print(json.dumps(made, indent=2))


def compare(spark, work: Path, given) -> dict[str, object]:
    """Both runs over the same files, the one without privacy before and after the other."""
    write(work / "data", given.steps, given.rows, 1)
    write(work / "small", 8, SMALL, 2)
    plan, small = (
        plan_of(work / name, rows, steps)
        for name, rows, steps in (("data", given.rows, given.steps), ("small", SMALL, 8))
    )
    before = plain(spark, work / "data", work / "plain")
    own = private(spark, plan, work / "state")
    after = plain(spark, work / "data", work / "plain again")
    fixed = private(spark, small, work / "small state")
    bare_fixed = plain(spark, work / "small", work / "plain small")
    mine, theirs = warm(own), np.mean([warm(before), warm(after)], axis=0).tolist()
    return {
        "seed": 1, "baseline": BASELINE, "rows per step": given.rows, "shards": SHARDS,
        "seconds of every step [wall, CPU], private": own,
        "seconds of every step [wall, CPU], plain": [before, after],
        "records per second, private": given.rows / mine[0],
        "records per second, plain": given.rows / theirs[0],
        "share of the baseline's speed [wall, CPU]": [theirs[0] / mine[0], theirs[1] / mine[1]],
        "seconds of a small step [wall, CPU], private": warm(fixed),
        "seconds of a small step [wall, CPU], plain": warm(bare_fixed),
        "operators alone, one core": operators(work / "data", given.rows, given.steps),
        "state": state_of(work / "state"),
    }  # fmt: skip


def growth(spark, work: Path, many: Iterable[int]) -> dict[str, object]:
    """State and the time of a step over so many keys.

    Three steps bring the keys, two meet as many again, and eight bring a thousand rows: what
    these cost is what the state costs. A last step closes the window and is left out.
    """
    made: dict[str, object] = {}
    for keys in many:
        load = os.getloadavg()[0]
        folder, state = work / f"keys-{keys}", work / f"state-{keys}"
        sizes = growing(folder, keys)
        plan = replace(
            plan_of(folder, 1, 1),
            clock=Clock(kind="event", every=SECOND, start_us=0, end_us=(len(sizes) + 1) * SECOND,
                        arrival="seen"),
        )  # fmt: skip
        steps = private(spark, plan, state)[: len(sizes)]
        small = np.median(np.array(steps[7:]), axis=0).round(3).tolist()
        made[str(keys)] = {
            "rows of every step": sizes, "seconds of every step [wall, CPU]": steps,
            "seconds of a small step [wall, CPU]": small, "state": state_of(state),
            "load before": load, "load after": os.getloadavg()[0],
        }  # fmt: skip
        shutil.rmtree(state)
        shutil.rmtree(folder)
    return made


def growing(folder: Path, keys: int) -> list[int]:
    """Writes the files of `growth`; the rows of every step."""
    folder.mkdir()
    rng = np.random.default_rng(keys)
    every = -(-keys // 3)
    sizes = [every] * 5 + [SMALL] * 8
    for step, rows in enumerate(sizes):
        new = np.arange(rows) + step * every if step < 3 else rng.integers(0, keys, rows)
        seen = pa.array(np.full(rows, step * SECOND)).cast(pa.timestamp("us", "UTC"))
        table = pa.table({"user": rng.integers(0, keys, rows), "key": new,
                          "value": rng.normal(size=rows), "seen": seen})  # fmt: skip
        pq.write_table(table, folder / f"{step:03d}.parquet", row_group_size=250_000)
    return sizes


if __name__ == "__main__":
    main()
