"""Does a micro-batch cost the same however large the state is, and how large is the state?

Expected: cost per micro-batch follows the batch, not the state, up to cache effects (a table that
no longer fits the cache costs one memory access per record): flat within 1.5 from 100 thousand to
100 million users. Growing stalls no micro-batch: beyond 2^15 units a table is divided, and its
parts grow one after the other. A restart reads the checkpoint once and repeats what is in the
log. A tiny micro-batch costs a constant. A release costs what it shows: so much per shown group,
much less per hidden one, however many users there are.

    python benchmarks/scale.py [--users 100000 1000000 10000000] [--bounds "C=32"] [--memory 4GB]
                               [--repeats 5] [--any-key]
    python benchmarks/scale.py --releases
    python benchmarks/scale.py --stream clicks-10000000-0.0-int.parquet  (`throughput.py` makes it)
    python benchmarks/scale.py --plot

Every size runs in processes of its own, of which the median one is kept. Users arrive in
micro-batches of 100,000 new ones (that is the growth that is measured), then micro-batches of
500,000 records of uniform users, each with a release. Only the number of users differs: a user has
three keys at any size (his first one and two drawn by the heavy-tailed law of the click stream),
every key is met while users arrive, and users beyond the number of keys arrive with the thousand
keys that are shown anyway, so that more users do not show more groups. With `--any-key` a record's
key is drawn anew instead: then fewer users have more keys each (26 at 100 thousand users), and keys
beyond the number of users are new to the job. No user reaches C = 32, and the selection sets no
further bound, so that nearly all records are accepted at every size; of 100 thousand users many
reach a squared sum of 128, so that 0.7 are. What a release costs is measured apart (`--releases`),
over the numbers of shown and of hidden groups.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from saved import save
from streamveil.batch import Batch
from streamveil.commands.common import size_of
from streamveil.compiler.group_by import compile_plan
from streamveil.connectors.sinks import FilesSink
from streamveil.core.accounting import Budget
from streamveil.dataflow.stages import BOUNDED
from streamveil.engines import LARGE, within
from streamveil.plan import Aggregate, Bounding, Clock, KeyColumn, Plan, SourceSpec
from streamveil.runtime.job import Job, Work
from streamveil.runtime.progress import peak_bytes, resident_bytes
from streamveil.runtime.secret import Randomness
from streamveil.runtime.store import SCRATCH
from streamveil.types import Array, Float64, Int64
from throughput import machine, private

RESULTS = Path(__file__).parent / "results" / "scale.json"
FIGURE = Path(__file__).parents[1] / "docs" / "figures" / "scale.png"
BATCH, TINY, LOAD = 500_000, 100, 100_000
LARGE_BATCHES, TINY_BATCHES = 3, 60  # between the first and the last
HEAD = 1_000  # keys that all but the first users arrive with
OWN = 3  # keys of a user
GROUPS = ((1_000, 0), (1_000, 1_000_000), (50_000, 0), (150_000, 0))  # shown, hidden
COST = "ms of CPU per batch of 500,000"
UNITS_PER_SHOWN, STRIDE = 180, 7_919
SPREAD = 4_000_037  # users, a prime: rows of a key differ in their user
SECRET = Randomness(secret=bytes(32))
LIMIT = Budget(epsilon=6, delta=1e-9)
Ints: TypeAlias = Int64[Array, " rows"]
Floats: TypeAlias = Float64[Array, " rows"]
BOUNDS = {"C=32": Bounding(max_rows=32), "quadratic B=128": Bounding(quadratic=128)}


class Timed:
    """An operator that notes when folds start, what they and releases take, and the state's size.

    From the start of a fold to the next all threads do one fold, one release and one commit.
    """

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.starts: list[float] = []  # CPU time of the process
        self.folds: list[float] = []
        self.releases: list[float] = []
        self.commits: list[float] = []
        self.units: list[int] = []
        self.unit_bytes: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def fold(self, state: Any, batch: Batch, noise: Any) -> Any:
        self.starts.append(time.process_time())
        started = time.thread_time()
        delta = self.inner.fold(state, batch, noise)
        self.folds.append(time.thread_time() - started)
        self.units.append(sum(table.units for table in state.units.values()))
        self.unit_bytes.append(sum(table.nbytes for table in state.units.values()))
        return delta

    def release(self, state: Any, step: int, noise: Any) -> Any:
        started = time.thread_time()
        made = self.inner.release(state, step, noise)
        self.releases.append(time.thread_time() - started)
        return made


def plan(bounding: Bounding) -> Plan:
    return Plan(
        name="scale", unit="user", keys=(KeyColumn(name="key", expression="key"),),
        source=SourceSpec(name="made", kind="memory"), bounding=bounding,
        aggregates=(Aggregate(name="n", function="count"),),
        clock=Clock(kind="rows", every=BATCH, steps=100), budget=LIMIT,
        options={"selection": "gaussian"},
    )  # fmt: skip


def batch(users: Any, keys: Any, number: int, step: int = 0) -> Batch:
    """A micro-batch of the first step; with a step, one that closes it."""
    table = pa.table({"user": users, "key": keys})
    return Batch(table, max(step, 1), step > 0, json.dumps(number))


def loading(users: int, keys: int) -> Iterator[Batch]:
    """Every user once; no step closes."""
    for number, start in enumerate(range(0, users, LOAD)):
        place = np.arange(start, min(start + LOAD, users))
        yield batch(place, first_key(place, keys), number)


def first_key(users: Ints, keys: int) -> Ints:
    """The keys that users arrive with."""
    return np.where(users < keys, users, users % HEAD)


def heavy_key(uniform: Floats, keys: int) -> Ints:
    """Keys of the heavy-tailed law's shape."""
    tail = (1 - uniform) ** (-1 / 0.4) - 1
    return np.minimum(tail * 1000, 2.0**62).astype(np.int64) % keys


def own_key(users: Ints, which: Ints, keys: int) -> Ints:
    """The keys of users by number; the first one is that they arrive with."""
    mixed = (users * OWN + which).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    uniform = (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return np.where(which == 0, first_key(users, keys), heavy_key(uniform, keys))


def running(users: int, keys: int, rows: int, batches: int, any_key: bool) -> Iterator[Batch]:
    """Uniform users, so that no cache helps; a key of the user's own, or any."""
    rng = np.random.default_rng(1)
    for number in range(batches):
        who, which = rng.integers(0, users, rows), rng.integers(0, OWN, rows)
        key = heavy_key(rng.random(rows), keys) if any_key else own_key(who, which, keys)
        yield batch(who, key, number, number + 1 if rows == BATCH else 0)


def filling(shown: int, hidden: int) -> Iterator[Batch]:
    """Groups with enough users to be shown, then groups of one user; no step closes."""
    rows = shown * UNITS_PER_SHOWN + hidden
    for number, start in enumerate(range(0, rows, BATCH)):
        place = np.arange(start, min(start + BATCH, rows))
        many = place < shown * UNITS_PER_SHOWN
        key = np.where(many, place % shown, place - shown * (UNITS_PER_SHOWN - 1))
        yield batch(place * STRIDE % SPREAD, key, number)


def touching(keys: int, batches: int) -> Iterator[Batch]:
    """Uniform users and keys; every micro-batch closes a step."""
    rng = np.random.default_rng(2)
    for number in range(batches):
        users = rng.integers(0, SPREAD, BATCH)
        yield batch(users, rng.integers(0, keys, BATCH), number, number + 1)


def drive(folder: Path, work: Work, feed: Iterator[Batch]) -> None:
    """Runs a feed through the job of a folder."""
    with Job(folder, replace(work, feed=lambda _: feed), SECRET) as job:
        job._commit = timed_commit(job, work.operator)  # type: ignore[method-assign]
        for _ in job:
            pass
        del job._commit  # or it would keep the job, and all its state


def timed_commit(job: Job, timed: Any) -> Any:
    """Committing (log, archive, sink) with its CPU time noted; it overlaps the next fold."""
    commit = job._commit

    def call(*arguments: Any) -> Any:
        started = time.thread_time()
        done = commit(*arguments)
        timed.commits.append(time.thread_time() - started)
        return done

    return call


def restart(folder: Path, work: Work) -> dict[str, float]:
    """CPU seconds from nothing to a job that is ready, and what there was to read."""
    logged = sum(path.stat().st_size for path in folder.glob("log-*"))
    started = time.process_time()
    with Job(folder, work, SECRET) as job:
        return {
            "restart, s of CPU": time.process_time() - started,
            "of it repeating the log, s": job._effort,
            "log, bytes": logged,
        }


def sizes(folder: Path, work: Work) -> dict[str, int]:
    """Bytes of the state's arrays, by the first word of their names, and the operator's counts."""
    with Job(folder, work, SECRET) as job:
        arrays = work.operator.save(job._state)
        total: dict[str, int] = {}
        for name, array in arrays.items():
            word = "".join(c for c in name.split("/")[0] if c.isalpha())
            total[word] = total.get(word, 0) + array.nbytes
        return {**{f"bytes {k}": v for k, v in total.items() if v > 1000}, **job.counters()}


def growth(timed: Timed) -> dict[str, Any]:
    """How the micro-batches of the loading compare, and the bytes per user on the way."""
    ms = 1e3 * np.array(timed.folds[1:])
    units, size = np.array(timed.units), np.array(timed.unit_bytes)
    some = np.unique(np.geomspace(1, len(units), 60).astype(int)) - 1
    worst = 1 + int(ms.argmax()) if len(ms) else 0
    return {
        "median ms": float(np.median(ms)) if len(ms) else None,
        "99th percentile ms": float(np.quantile(ms, 0.99)) if len(ms) else None,
        "largest ms": 1e3 * timed.folds[worst], "at units": int(units[worst]),
        "trace": [[int(units[i]), round(1e3 * timed.folds[i], 2), round(size[i] / units[i], 2)]
                  for i in some],
    }  # fmt: skip


def prepared(folder: Path, bounds: str, memory: int | None) -> tuple[Timed, Work]:
    """A job without rows, in the process as it is now."""
    grouped = compile_plan(plan(BOUNDS[bounds]))
    timed: Any = Timed(within(grouped, memory, resident_bytes(), folder / SCRATCH))
    return timed, Work(
        name="scale", fingerprint="scale", operator=timed, feed=lambda _: iter(()), limit=LIMIT
    )


def measure(
    users: int, keys: int, bounds: str, memory: int | None, any_key: bool
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "first"  # compiles what is not
        drive(folder, prepared(folder, bounds, memory)[1], loading(2 * LARGE, keys))
        folder = Path(name) / "measured"
        timed, work = prepared(folder, bounds, memory)
        drive(folder, work, loading(users, keys))
        grown = growth(timed)
        drive(folder, work, iter(list(running(users, keys, BATCH, LARGE_BATCHES + 2, any_key))))
        large = np.diff(timed.starts[-LARGE_BATCHES - 1 :])
        parts = [x[-LARGE_BATCHES - 1 : -1] for x in (timed.folds, timed.releases, timed.commits)]
        drive(folder, work, iter(list(running(users, keys, TINY, TINY_BATCHES + 2, any_key))))
        tiny = np.diff(timed.starts[-TINY_BATCHES - 1 :])
        rows = users + (LARGE_BATCHES + 2) * BATCH + (TINY_BATCHES + 2) * TINY
        per_user = timed.unit_bytes[-1] / users
        again = restart(folder, work)
        state = sizes(folder, work)
        return {
            "users": users, "keys": keys, "any key": any_key, "memory limit": memory,
            COST: ms(large), "of it folding": ms(parts[0]),
            "of it releasing": ms(parts[1]), "of it committing": ms(parts[2]),
            "slowest of them, ms": 1e3 * float(large.max()),
            "ms of CPU per batch of 100": 1e3 * float(np.median(tiny)),
            "accepted": 1 - state.get(BOUNDED, 0) / rows,
            "bytes per user, one row each": grown["trace"][-1][2], "bytes per user": per_user,
            "bytes per key": state.get("bytes window", 0) / max(1, state["keys"]),
            "growth": grown, **again,
            "files, bytes": sum(p.stat().st_size for p in folder.iterdir() if p.is_file()),
            "peak memory, bytes": peak_bytes(), **state,
        }  # fmt: skip


def ms(seconds: Any) -> float:
    """The median, in milliseconds."""
    return 1e3 * float(np.median(seconds))


def release(shown: int, hidden: int) -> dict[str, Any]:
    """What micro-batches of 500,000 records cost besides their folds, written to Parquet."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "measured"
        timed, work = prepared(folder, "C=32", None)
        work = replace(work, sink=FilesSink(str(folder / "out"), "parquet"))
        drive(folder, work, filling(shown, hidden))
        drive(folder, work, iter(list(touching(shown + hidden, LARGE_BATCHES + 4))))
        parts = [x[-LARGE_BATCHES - 2 :] for x in (timed.folds, timed.releases, timed.commits)]
        found = sizes(folder, work)
        return {
            "shown": found["shown keys"], "hidden": found["keys"] - found["shown keys"],
            "fold, ms": ms(parts[0]), "release, ms": ms(parts[1]),
            "log, archive and sink, ms": ms(parts[2]),
        }  # fmt: skip


def per_group(cases: list[dict[str, Any]]) -> dict[str, float]:
    """Milliseconds per 100,000 shown and hidden groups, by least squares beside a constant."""
    counts = np.array([[1, case["shown"] / 1e5, case["hidden"] / 1e5] for case in cases])
    made: dict[str, float] = {}
    for part in ("release, ms", "log, archive and sink, ms"):
        cost = np.linalg.lstsq(counts, np.array([case[part] for case in cases]), rcond=None)[0]
        made |= {f"{part} per 100,000 shown": float(cost[1])}
        made |= {f"{part} per 100,000 hidden": float(cost[2])}
    return made


def stream(data: Path) -> dict[str, Any]:
    """A whole click stream from Parquet through the durable engine, once: 100 releases to files."""
    rows = pq.ParquetFile(data).metadata.num_rows
    every = -(-rows // 100)
    with tempfile.TemporaryDirectory() as name:
        wall, cpu = time.perf_counter(), time.process_time()
        private(data, Path(name), rows, every, BOUNDS["C=32"])
        spent = {"wall s": time.perf_counter() - wall, "cpu s": time.process_time() - cpu}
        cpu = time.process_time()
        private(data, Path(name), rows, every, BOUNDS["C=32"])
        return {
            "records": rows, "batch": every, **spent,
            "records per CPU second": rows / spent["cpu s"],
            "starting again at the end, cpu s": time.process_time() - cpu,
            "peak memory, bytes": peak_bytes(),
            "releases": len(list((Path(name) / "out").rglob("*.parquet"))),
            "files, bytes": sum(p.stat().st_size for p in (Path(name) / "state").iterdir()),
        }  # fmt: skip


def apart(*arguments: str) -> dict[str, Any]:
    """One measurement in a process of its own."""
    command = [sys.executable, __file__, *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def middle(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The run that is the median one by its large micro-batches, and how far apart all are."""
    by = sorted(runs, key=lambda run: run[COST])
    costs = [run[COST] for run in by]
    return {**by[len(by) // 2], "runs": len(by), "of them, ms": costs}


def draw(result: dict[str, Any]) -> None:
    """Cost per batch, cost while growing and bytes per user, over users; what releases cost."""
    import matplotlib as mpl
    from matplotlib import pyplot as plt

    mpl.use("Agg")
    figure, axes = plt.subplots(1, 4, figsize=(16, 3.8))
    for word, colour in zip(BOUNDS, ("C0", "C1"), strict=True):
        runs = [result[word][n] for n in sorted(result.get(word, {}), key=int)]
        runs = [run for run in runs if "of it folding" in run]
        if not runs:
            continue
        users = [run["users"] for run in runs]
        for size, marker in (("500,000", "o-"), ("100", "s--")):
            axes[0].plot(users, [run[f"ms of CPU per batch of {size}"] for run in runs], marker,
                         color=colour, label=f"{word}, {size} records")  # fmt: skip
        folding = [run["of it folding"] for run in runs]
        axes[0].plot(users, folding, "^:", color=colour, label=f"{word}, of 500,000 the fold")
        trace = np.array(runs[-1]["growth"]["trace"])
        if len(trace) < 3:
            continue
        axes[1].plot(trace[1:, 0], trace[1:, 1], ".-", color=colour, label=word)
        axes[1].axhline(runs[-1]["growth"]["largest ms"], color=colour, ls=":", lw=1)
        axes[2].plot(trace[1:, 0], trace[1:, 2], ".-", color=colour, label=f"{word}, one row each")
        axes[2].plot(users, [run["bytes per user"] for run in runs], "D", color=colour,
                     label=f"{word}, after all batches")  # fmt: skip
    draw_releases(axes[3], result.get("releases", {}).get("cases", []))
    titles = ("CPU per micro-batch, ms", "CPU of a fold of 100,000 new users, ms", "bytes per user")
    for place, title in enumerate(titles):
        axes[place].set(xscale="log", xlabel="users", title=title, ylim=(0, None))
        axes[place].grid(alpha=0.3)
        axes[place].legend(fontsize=7)
    axes[0].set(yscale="log", ylim=(0.005, 2000))
    axes[2].set(yscale="log", ylim=(10, 500))
    axes[1].text(0.98, 0.02, "dotted: the slowest of all", transform=axes[1].transAxes,
                 ha="right", fontsize=7)  # fmt: skip
    figure.tight_layout()
    figure.savefig(FIGURE, dpi=130)


def draw_releases(place: Any, cases: list[dict[str, Any]]) -> None:
    """What a micro-batch costs by the numbers of groups: bars of its parts."""
    names = [f"{case['shown'] / 1e3:,.0f} + {case['hidden'] / 1e3:,.0f}" for case in cases]
    below = np.zeros(len(cases))
    for part in ("fold, ms", "release, ms", "log, archive and sink, ms"):
        here = np.array([case[part] for case in cases])
        place.barh(names, here, left=below, label=part.removesuffix(", ms"))
        below += here
    place.set(ylabel="thousand groups: shown + hidden", title="CPU per batch of 500,000, ms")
    place.grid(alpha=0.3, axis="x")
    if cases:
        place.set(xlim=(0, 1.7 * below.max()))
        place.legend(fontsize=7, loc="upper right")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, nargs="+", default=[100_000, 1_000_000, 10_000_000])
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=5, help="processes for each size")
    parser.add_argument("--any-key", action="store_true", help="keys of records drawn anew")
    parser.add_argument("--bounds", nargs="+", choices=BOUNDS, default=list(BOUNDS))
    parser.add_argument("--memory", help="a limit such as 4GB: units beyond it are swept")
    parser.add_argument("--stream", type=Path, help="run this click stream once, and nothing else")
    parser.add_argument("--releases", action="store_true", help="only what releases cost")
    parser.add_argument("--plot", action="store_true", help="only draw what was measured")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--groups", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.groups:
        print(json.dumps(release(*options.groups)))
        return
    if options.one:
        memory = None if options.memory is None else size_of(options.memory)
        users, bounds = options.users[0], options.bounds[0]
        print(json.dumps(measure(users, options.keys, bounds, memory, options.any_key)))
        return
    result: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if options.stream:
        result["whole stream"] = {**stream(options.stream), "machine": machine()}
        print(json.dumps(result["whole stream"]))
        save(RESULTS, result)
    if options.releases:
        cases = [apart("--groups", *map(str, groups)) for groups in GROUPS]
        now = {**machine(), "load": os.getloadavg()[0]}
        result["releases"] = {**per_group(cases), "cases": cases, "machine": now}
        print(json.dumps(result["releases"], indent=1))
        save(RESULTS, result)
    only = options.plot or options.stream or options.releases
    for word in [] if only else options.bounds:
        for users in options.users:
            asked = ["--one", "--users", str(users), "--keys", str(options.keys), "--bounds", word]
            asked += ["--memory", options.memory] if options.memory else []
            asked += ["--any-key"] if options.any_key else []
            found = middle([apart(*asked) for _ in range(options.repeats)])
            found["machine"] = {**machine(), "load": os.getloadavg()[0]}
            print(json.dumps({key: value for key, value in found.items() if key != "growth"}))
            print(json.dumps({**found["growth"], "trace": None}))
            name = word if options.memory is None else f"{word}, memory {options.memory}"
            name += ", any key" if options.any_key else ""
            result.setdefault(name, {})[str(users)] = found
            RESULTS.parent.mkdir(exist_ok=True)
            save(RESULTS, result)
    draw(result)


if __name__ == "__main__":
    main()
