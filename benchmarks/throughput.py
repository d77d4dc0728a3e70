"""How much do privacy and durability cost the embedded engine?

Whole pipeline from Parquet (bounding, discovered keys, noise, log record and fsync per micro-batch,
releases to Parquet files) on the synthetic click stream of DP-SQLP, against the same aggregation
without privacy and durability: a compiled hash table fed by the same reader (the floor) and DuckDB
in memory. All in one process and one run; records per CPU second over all threads.

Expected: the floor is bound by reading Parquet and one cache miss per record. The private engine
touches a unit table (one miss in a table ten times larger), a key table, and writes a log record
of about 14 bytes, so a factor of 3 is in reach for integers; for text, hashing and decoding
dominate both and the factor is below 2.

Two other engines answer once over all records as well, with their own readers and only the columns
that they need; and with the bounding that a private answer needs, the first 32 rows of each user.

Starting a job (calibrating its noise, creating its state) takes a constant, here spread over few
records; rates are given with it and once started.

With `--json`: how fast are JSON lines read, against `pyarrow.json` with the same columns? Expected:
0.7 to 0.8 of it per CPU second, since a block is read by Arrow after a look at each byte; above it
in time, as the next blocks are read meanwhile.

    python benchmarks/throughput.py [--all | --full | --json] [--ids int text] [--repeats 5]
        [--data DIR]
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import random
import shutil
import statistics
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.json
import pyarrow.parquet as pq
from numba import njit

from clicks import Clicks
from saved import save
from streamveil.connectors.files import FilesSource
from streamveil.core.accounting import Budget
from streamveil.plan import (
    Aggregate,
    Bounding,
    Clock,
    KeyColumn,
    Plan,
    SinkSpec,
    SourceSpec,
)
from streamveil.runtime.run import Pace, run

RESULTS = Path(__file__).parent / "results" / "throughput.json"
STEPS = 100
Measured = dict[str, float]


def clicks(data: Path, work: Path, rows: int, every: int, bounding: Bounding) -> Plan:
    """One release per `every` records."""
    return Plan(
        name="clicks", unit="user", keys=(KeyColumn(name="key", expression="key"),),
        source=SourceSpec(name="clicks", kind="files", options={"path": str(data)}),
        aggregates=(Aggregate(name="n", function="count"),), bounding=bounding,
        clock=Clock(kind="rows", every=every, steps=-(-rows // every)),
        budget=Budget(epsilon=6, delta=1e-9),
        sinks=(SinkSpec(name="out", kind="files", options={"path": str(work / "out")}),),
    )  # fmt: skip


def private(
    data: Path, work: Path, rows: int, every: int, bounding: Bounding, batch: int | None = None
) -> None:
    """The whole private and durable pipeline."""
    run_to_end(clicks(data, work, rows, every, bounding), work, batch or every)


def run_to_end(plan: Plan, work: Path, batch: int) -> None:
    """A job in micro-batches of so many rows."""
    with run(plan, state=work / "state", pace=Pace(max_rows=batch)) as job:
        for _ in job:
            pass


@njit(cache=True)
def count_ints(keys, slots, counts):  # pragma: no cover
    mask = len(slots) - 1
    for key in keys:
        word = np.uint64(key + 1) * np.uint64(0x9E3779B97F4A7C15)
        at = np.int64(word >> np.uint64(40)) & mask
        while slots[at] != key + 1:
            if slots[at] == 0:
                slots[at] = key + 1
                break
            at = (at + 1) & mask
        counts[at] += 1


@njit(cache=True)
def hash_texts(data, offsets, out):  # pragma: no cover
    for i in range(len(out)):
        word = np.uint64(0xCBF29CE484222325)
        at = offsets[i]
        while offsets[i + 1] - at >= 8:
            part = np.uint64(0)
            for j in range(8):
                part |= np.uint64(data[at + j]) << np.uint64(8 * j)
            word = (word ^ part) * np.uint64(0x9E3779B97F4A7C15)
            word ^= word >> np.uint64(32)
            at += 8
        for j in range(at, offsets[i + 1]):
            word = (word ^ np.uint64(data[j])) * np.uint64(0x100000001B3)
        out[i] = np.int64(word >> np.uint64(2))


def batches(data: Path, batch: int, columns: list[str]) -> Any:
    return pq.ParquetFile(data, memory_map=True).iter_batches(batch, columns=columns)


def read_only(data: Path, work: Path, rows: int, batch: int) -> None:
    """Reading alone: what no engine can go below."""
    for part in batches(data, batch, ["user", "key"]):
        part.num_rows  # noqa: B018


def floor(data: Path, work: Path, rows: int, batch: int) -> None:
    """Counts per key, exactly, in memory; a copy of all totals at each trigger."""
    slots, counts = np.zeros(1 << 21, np.int64), np.zeros(1 << 21, np.int64)
    for part in batches(data, batch, ["user", "key"]):
        keys = part.column("key")
        if pa.types.is_string(keys.type):
            _, offsets, text = keys.buffers()
            hashed = np.empty(len(keys), np.int64)
            hash_texts(
                np.frombuffer(text, np.uint8),
                np.frombuffer(offsets, np.int32)[keys.offset :],
                hashed,
            )
        else:
            hashed = keys.to_numpy()
        count_ints(hashed, slots, counts)
        counts.copy()


REBUILD = (
    "CREATE OR REPLACE TABLE totals AS SELECT key, sum(n)::BIGINT AS n FROM"
    " (SELECT key, count(*) AS n FROM batch GROUP BY key UNION ALL FROM totals) GROUP BY key"
)
UPSERT = (
    "INSERT INTO totals SELECT key, count(*) FROM batch GROUP BY key"
    " ON CONFLICT DO UPDATE SET n = totals.n + excluded.n"
)


def duck(merge: str, constraint: str) -> Callable[..., None]:
    """DuckDB in memory: running totals, one aggregation and one merge per micro-batch."""

    def contender(data: Path, work: Path, rows: int, size: int) -> None:
        with duckdb.connect(":memory:") as db:
            ints = pa.types.is_integer(pq.read_schema(data).field("key").type)
            kind = "BIGINT" if ints else "TEXT"
            db.execute(f"CREATE TABLE totals (key {kind} {constraint}, n BIGINT)")
            for part in batches(data, size, ["user", "key"]):
                batch = pa.Table.from_batches([part])  # noqa: F841  (DuckDB finds it by name)
                db.execute(merge)

    return contender


def with_bounds(bounding: Bounding, *, looks: bool = False) -> Callable[..., None]:
    """A private job with given bounds, or one that also looks before it starts."""

    def contender(data: Path, work: Path, rows: int, batch: int) -> None:
        plan = clicks(data, work, rows, batch, bounding)
        run_to_end(plan if looks else replace(plan, options={"look_share": 0}), work, batch)

    return contender


BOUNDED = 32  # rows of a unit, as in "private, C=32"
ONE_SHOT = "SELECT key, count(*) FROM read_parquet('{}') GROUP BY key"
ONE_SHOT_BOUNDED = (
    f"SELECT key, count(*) FILTER (place <= {BOUNDED}) FROM (SELECT key, row_number() OVER"
    " (PARTITION BY user ORDER BY file_row_number) AS place"
    " FROM read_parquet('{}', file_row_number = true)) GROUP BY key"
)


def duck_once(query: str) -> Callable[..., None]:
    """DuckDB over all records at once: its own reader, and only the columns that are asked for."""

    def contender(data: Path, work: Path, rows: int, size: int) -> None:
        with duckdb.connect(":memory:") as db:
            db.execute(query.format(data)).to_arrow_table()

    return contender


def polars_once(*, bounded: bool) -> Callable[..., None]:
    """Polars over all records at once."""

    def contender(data: Path, work: Path, rows: int, size: int) -> None:
        import polars as pl

        records = pl.scan_parquet(data)
        if bounded:
            records = records.filter(pl.int_range(pl.len()).over("user") < BOUNDED)
        records.group_by("key").len().collect()

    return contender


ALL = (400_000, 1_000_000, 10_000_000)  # users
RATE = "records per CPU second"
LOOKING = "private, C=32, with its look"
CONTENDERS: dict[str, Callable[..., None]] = {
    "duckdb once, own reader": duck_once(ONE_SHOT),
    "duckdb once, own reader, bounded": duck_once(ONE_SHOT_BOUNDED),
    "polars once": polars_once(bounded=False),
    "polars once, bounded": polars_once(bounded=True),
    "read only": read_only,
    "floor": floor,
    "duckdb rebuild": duck(REBUILD, ""),
    "duckdb upsert": duck(UPSERT, "PRIMARY KEY"),
    "private, C=32": with_bounds(Bounding(max_rows=32)),
    "private, quadratic B=128": with_bounds(Bounding(quadratic=128)),
    LOOKING: with_bounds(Bounding(max_rows=32), looks=True),
}


def once(contender: Callable[..., None], data: Path, rows: int, batch: int) -> Measured:
    """One run in a directory of its own: CPU over all threads, and wall time."""
    gc.collect()
    with tempfile.TemporaryDirectory(dir=data.parent) as name:
        wall, cpu = time.perf_counter(), time.process_time()
        contender(data, Path(name), rows, batch)
        took = {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}
        return took | published(Path(name))


def published(work: Path) -> Measured:
    """What a private run sent to its sink, and the bytes of its state at the end."""
    files = list((work / "out").rglob("*.parquet"))
    state = [path for path in (work / "state").rglob("*") if path.is_file()]
    return {
        "releases": len(files),
        "published rows": sum(pq.ParquetFile(path).metadata.num_rows for path in files),
        "published bytes": sum(path.stat().st_size for path in files),
        "state bytes": sum(path.stat().st_size for path in state),
    }


def starting(data: Path) -> float:
    """Compiles and warms up; CPU seconds of a private job of 100 records: a constant per job."""
    ids = "int" if pa.types.is_integer(pq.read_schema(data).field("key").type) else "text"
    with tempfile.TemporaryDirectory(dir=data.parent) as name:
        small, tiny = Path(name) / "small.parquet", Path(name) / "tiny.parquet"
        records = Clicks(users=20_000).write(small, ids)
        for contender in CONTENDERS.values():
            once(contender, small, records, records // 2)
        pq.write_table(pq.read_table(small).slice(0, 100), tiny)
        private = CONTENDERS["private, C=32"]
        return statistics.median(once(private, tiny, 100, 600_000)["cpu"] for _ in range(5))


def compare(data: Path, rows: int, batch: int, repeats: int) -> dict[str, Measured]:
    """Medians of interleaved repeats, so that a slow minute of the machine meets everybody.

    Each repeat has an order of its own: memory that the one before gave back costs less to get.
    """
    runs: dict[str, list[Measured]] = {name: [] for name in CONTENDERS}
    start, order = starting(data), random.Random(rows)
    for _ in range(repeats):
        for name in order.sample(list(CONTENDERS), len(CONTENDERS)):
            runs[name].append(once(CONTENDERS[name], data, rows, batch))
    found = {}
    for name, times in runs.items():
        cpu = [one["cpu"] for one in times]
        found[name] = {
            "records per CPU second": rows / statistics.median(cpu),
            "records per second": rows / statistics.median(one["wall"] for one in times),
            "cpu spread": (max(cpu) - min(cpu)) / statistics.median(cpu),
        }
        if name.startswith("private"):
            running = statistics.median(cpu) - start
            found[name] |= {"CPU seconds to start": start, "once started": rows / running}
            found[name] |= {k: v for k, v in times[-1].items() if k not in ("cpu", "wall")}
        print(
            f"  {name:26s} {found[name]['records per CPU second'] / 1e6:7.2f} M/CPU-s "
            f"{found[name]['records per second'] / 1e6:7.2f} M/s  "
            f"spread {found[name]['cpu spread']:.0%}"
        )
        if name.startswith("private"):
            last = times[-1]
            rows_out, mb = last["published rows"], last["published bytes"] / 1e6
            print(f"    published {rows_out:,.0f} rows, {mb:,.1f} MB")
    return found


def machine() -> dict[str, Any]:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent,
        check=False,
    ).stdout.strip()
    packages = ("numpy", "numba", "pyarrow", "duckdb")
    return {
        "commit": commit,
        "cpus": os.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        **{name: version(name) for name in packages},
    }


JSON_LINES = 400_000
JSON_COLUMNS = {"user": "INT64", "page": "STRING", "ms": "FLOAT64", "ok": "BOOL", "ts": "TIMESTAMP"}


def json_lines(path: Path, odd: int) -> None:
    """Writes lines with numbers, texts, a time and a field that nobody reads; `odd`: malformed."""
    rng = random.Random(1)
    spoilt = set(rng.sample(range(JSON_LINES), odd))
    with path.open("w") as file:
        for i in range(JSON_LINES):
            row = {
                "user": i * 7919 % 100_000, "page": f"/page/{i % 1000}",
                "ms": round(rng.random() * 1e4, 3), "ok": i % 3 == 0,
                "ts": f"2026-01-01T{i // 3600 % 24:02}:{i // 60 % 60:02}:{i % 60:02}.123456Z",
                "other": {"a": [1, 2, 3], "b": "xyz"},
            }  # fmt: skip
            line = json.dumps(row)
            if i in spoilt:
                line = line[:30] if i % 2 else line.replace(": ", " ", 1)
            file.write(line + "\n")


def compare_json(folder: Path, repeats: int) -> dict[str, Any]:
    """Shares of the speed of `pyarrow.json`, in time and in CPU time; each repeat shuffled."""
    clean, spoilt = folder / "clean.jsonl", folder / "spoilt.jsonl"
    json_lines(clean, 0)
    json_lines(spoilt, JSON_LINES // 1000)
    source = FilesSource(str(clean), columns=JSON_COLUMNS)
    parse = pyarrow.json.ParseOptions(
        explicit_schema=source.schema(), unexpected_field_behavior="ignore"
    )

    def arrow(threads: bool) -> None:
        options = pyarrow.json.ReadOptions(use_threads=threads)
        assert pyarrow.json.read_json(clean, options, parse).num_rows == JSON_LINES

    def ours(path: Path, rows: int) -> None:
        chunks = FilesSource(str(path), columns=JSON_COLUMNS).read(None, 1 << 20)
        assert sum(chunk.rows.num_rows for chunk in chunks) == rows

    ways = {
        "pyarrow.json, one thread": lambda: arrow(False),
        "pyarrow.json": lambda: arrow(True),
        "streamveil": lambda: ours(clean, JSON_LINES),
        "streamveil, 1 line of 1,000 malformed": lambda: ours(
            spoilt, JSON_LINES - JSON_LINES // 1000
        ),
    }
    seen: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for repeat in range(repeats + 1):
        for name in random.sample(list(ways), len(ways)):
            wall, cpu = time.perf_counter(), time.process_time()
            ways[name]()
            if repeat:
                seen[name].append((time.perf_counter() - wall, time.process_time() - cpu))
    middle = {name: [statistics.median(t) for t in zip(*runs, strict=True)]
              for name, runs in seen.items()}  # fmt: skip
    found: dict[str, Any] = {
        name: {"seconds": wall, "CPU seconds": cpu, "bytes": clean.stat().st_size,
               "slowest": max(t for t, _ in seen[name]), "fastest": min(t for t, _ in seen[name])}
        for name, (wall, cpu) in middle.items()
    }  # fmt: skip
    found["ratios"] = {
        f"{mine}, of {theirs}, {what}": middle[theirs][k] / middle[mine][k]
        for mine in list(ways)[2:] for theirs in list(ways)[:2]
        for k, what in enumerate(("in time", "per CPU second"))
    }  # fmt: skip
    for name, value in found["ratios"].items():
        print(f"  {value:.2f}  {name}")
    return found


def measured(path: Path, repeats: int, *, full: bool) -> dict[str, Any]:
    """All contenders over a file, and the ratios of private jobs to others."""
    rows = pq.ParquetFile(path).metadata.num_rows
    batch = -(-rows // STEPS) if full else 600_000
    print(f"{path.name}: {rows:,} records, micro-batches of {batch:,}")
    found = compare(path, rows, batch, repeats)
    private = [found[name] for name in ("private, C=32", "private, quadratic B=128")]
    duckdb = max(found["duckdb rebuild"][RATE], found["duckdb upsert"][RATE])
    ratios = {}
    for told, kind in (("", RATE), (", once started", "once started")):
        best = max(one[kind] for one in private)
        ratios |= {
            f"of floor{told}": best / found["floor"][RATE],
            f"of DuckDB{told}": best / duckdb,
        }
    for name in ("duckdb once, own reader", "polars once"):
        for told, bounded in (("", ""), (", bounded alike", ", bounded")):
            ratios[f"of {name}{told}"] = found[LOOKING][RATE] / found[f"{name}{bounded}"][RATE]
    print("  " + ", ".join(f"{value:.2f} {name}" for name, value in ratios.items()))
    return {"records": rows, "batch": batch, "found": found, "ratios": ratios}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="10 million users, 59 million records")
    parser.add_argument("--all", action="store_true", help="all sizes that the page shows")
    parser.add_argument("--users", type=int, default=400_000)
    parser.add_argument("--clumpy", type=float, default=0.0)
    parser.add_argument("--ids", nargs="+", default=["int", "text"], choices=["int", "text"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--data", type=Path, help="keep the generated files here")
    parser.add_argument("--json", action="store_true", help="JSON lines, and nothing else")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    folder = options.data or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if options.json:
        found = compare_json(folder, options.repeats)
        kept["JSON lines"] = {"machine": {**machine(), "load": os.getloadavg()[0]}, **found}
        save(RESULTS, kept, indent=2)
        return
    sizes = ALL if options.all else [10_000_000 if options.full else options.users]
    for users in sizes:
        result = kept.setdefault(f"{users} users, clumpy {options.clumpy}", {})
        result["machine"] = {**machine(), "load": os.getloadavg()[0]}
        for ids in options.ids:
            path = folder / f"clicks-{users}-{options.clumpy}-{ids}.parquet"
            if not path.exists():
                Clicks(users=users, clumpy=options.clumpy).write(path, ids)
            result[ids] = measured(path, options.repeats, full=users == ALL[-1])
    RESULTS.parent.mkdir(exist_ok=True)
    save(RESULTS, kept, indent=2)
    if options.data is None:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
