"""Where does the time of a private, durable micro-batch go?

CPU time per record of every stage, over all threads, for the click stream of `throughput.py`; makes
`docs/figures/where-time-goes.png`. Expected: the unit stage is the largest part, since it is the
one with a cache miss per record in a table that follows the number of users. With `--full`, also
of 59 million integer records of 10 million users and 100 releases, where releasing and publishing
weigh as much as folding. With `--user`, of the job of `as_run.py` instead, behind its imports: with
its look, 100 steps of the event clock and default settings.

    python benchmarks/where.py [--users 1000000] [--full | --user] [--data DIR]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import isgenerator
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pyarrow.parquet as pq
from matplotlib import pyplot as plt

import as_run
from clicks import Clicks
from saved import save
from streamveil import engines
from streamveil.compiler import by_unit, numbering
from streamveil.compiler.by_unit import ByUnit
from streamveil.dataflow import grouping, stages
from streamveil.engines import EmbeddedGroupBy
from streamveil.plan import Bounding
from streamveil.runtime import changed_query, job, noisy_bins, run, survey
from streamveil.runtime.schedule import MicroBatches
from streamveil.runtime.store import Store
from streamveil.sql.sql import parse_script
from throughput import machine, private

mpl.use("Agg")
HERE = Path(__file__).parent
FIGURE = HERE.parent / "docs" / "figures" / "where-time-goes.png"
RESULT = HERE / "results" / "where.json"
PARTS: list[tuple[str, Any, tuple[str, ...]]] = [
    ("look: draw a sample of units", numbering.NumberedUnits, ("of",)),
    ("look: number units and groups", numbering._Words, ("numbers",)),
    ("look: rows by unit", ByUnit, ("add",)),
    ("look: histograms of units", survey,
     ("shape_of", "histograms", "groups_by_size", "rows_by_bucket")),
    ("look: histograms of units", by_unit, ("order_by_unit", "count_different")),  # as above
    ("look: laws of groups", noisy_bins, ("likely_laws",)),
    ("choose a design", changed_query, ("fits",)),
    ("choose a design", run, ("work_of",)),
    ("cut into batches", MicroBatches, ("batches",)),
    ("name units", grouping, ("prepare_batch",)),
    ("look up keys", stages, ("recognised",)),
    ("unit stage", EmbeddedGroupBy, ("bound",)),
    ("unit stage", engines, ("share_of", "decide", "make_room")),  # in other threads, too
    ("witness", stages, ("pass_witnessed",)),
    ("key stage", stages, ("enter_keys", "remember", "keep", "add")),
    ("rest of the fold", EmbeddedGroupBy, ("fold",)),
    ("release", job.Job, ("_draw", "_settle")),
    ("log record, fsync", Store, ("commit",)),
    ("publish", job.Job, ("_send",)),
    ("checkpoint", Store, ("_write",)),
    ("copy for a checkpoint", job.Job, ("_snapshot",)),
]  # fmt: skip
REST = "read Parquet and the rest"
FULL = "int, 10 million users"
spent: dict[str, float] = defaultdict(float)
open_calls = threading.local()  # per thread, the CPU time of timed calls inside each open one


def timed(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, or generator, whose own CPU time is counted."""

    def call(*arguments: Any, **named: Any) -> Any:
        with counted(part):
            made = function(*arguments, **named)
        return each(made) if isgenerator(made) else made

    def each(items: Iterator[Any]) -> Iterator[Any]:
        while True:
            with counted(part):
                item = next(items, None)
            if item is None:
                return
            yield item

    return call


@contextmanager
def counted(part: str) -> Iterator[None]:
    """Counts CPU time of this thread: that of parts within it is theirs."""
    inner: list[float] = open_calls.__dict__.setdefault("inner", [])
    started = time.thread_time()
    inner.append(0.0)
    try:
        yield
    finally:
        took = time.thread_time() - started
        spent[part] += took - inner.pop()
        if inner:
            inner[-1] += took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=1_000_000)
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--ids", nargs="+", default=["int", "text"])
    parser.add_argument("--full", action="store_true", help="also 59 million records, 100 releases")
    parser.add_argument("--user", action="store_true", help="the job of as_run.py, and no other")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    for part, owner, names in PARTS:
        for name in names:
            setattr(owner, name, timed(part, getattr(owner, name)))
    folder = options.data or Path(tempfile.mkdtemp())
    if options.user:
        return keep({"as a user": as_user(folder, options.users)})
    found = {ids: measured(folder, options.users, ids) for ids in options.ids}
    if options.full:
        found[FULL] = measured(folder, 10_000_000, "int", triggers=100)
    keep({"users": options.users, **found})
    result = json.loads(RESULT.read_text())
    draw({name: result[name] for name in ("int", "text", FULL) if name in result})
    return None


def keep(found: dict[str, Any]) -> None:
    """Writes what was measured beside what was measured before."""
    kept = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    save(RESULT, {**kept, "machine": machine(), **found}, indent=2)


def as_user(folder: Path, users: int) -> dict[str, Any]:
    """CPU time per record by part, with default settings and with 32 rows a unit, in turn.

    Beside it that of the thread which adds to the state: no number of processors makes a job
    shorter than this. Expected: it was nearly all; now it is what looking up groups, counting and
    releasing take, and its own share of the rest.
    """
    path = folder.absolute() / f"clicks-{users}-0.0-int.parquet"
    if not path.exists():
        Clicks(users=users).write(path)
    rows, found = pq.ParquetFile(path).metadata.num_rows, {}
    for bounds in as_run.BOUNDS:
        with tempfile.TemporaryDirectory(dir=folder) as name:
            text = as_run.query(path, Path(name), bounds)
            spent.clear()
            cpu, own = time.process_time(), time.thread_time()
            with run.run(parse_script(text, {}).query.plan, state=f"{name}/job.veil") as going:
                for _ in going:
                    pass
            found[bounds] = shares(rows, time.process_time() - cpu)
            found[bounds]["one thread"] = 1e9 * (time.thread_time() - own) / rows
        print(bounds, json.dumps(found[bounds], indent=2))
    return {"records": rows, "reading alone": reading(path), **found}


def reading(path: Path) -> float:
    """Nanoseconds of CPU a record that Arrow takes to decode what the job reads, once."""
    file, cpu = pq.ParquetFile(path, memory_map=True), time.process_time()
    for _ in file.iter_batches(1 << 18, columns=["user", "key", "ts"]):
        pass
    return 1e9 * (time.process_time() - cpu) / file.metadata.num_rows


def shares(rows: int, total: float) -> dict[str, Any]:
    """Nanoseconds a record of every part, and of all."""
    parts = {part: 1e9 * took / rows for part, took in spent.items()}
    parts[REST] = 1e9 * total / rows - sum(parts.values())
    return {"ns per record": parts, "total": 1e9 * total / rows}


def measured(folder: Path, users: int, ids: str, triggers: int = 10) -> dict[str, Any]:
    """CPU time per record by part; a run before of as many triggers compiles and calibrates."""
    path = folder / f"clicks-{users}-0.0-{ids}.parquet"
    if not path.exists():
        Clicks(users=users).write(path, ids)
    rows = pq.ParquetFile(path).metadata.num_rows
    every = -(-rows // triggers) if triggers > 10 else min(600_000, -(-rows // triggers))
    with tempfile.TemporaryDirectory(dir=folder) as name:
        first = Path(name) / "first.parquet"
        pq.write_table(pq.ParquetFile(path).read_row_group(0).slice(0, 60_000), first)
        private(first, Path(name), 60_000, 60_000 // -(-rows // every), Bounding(max_rows=32))
        spent.clear()
        cpu = time.process_time()
        private(path, Path(name) / "all", rows, every, Bounding(max_rows=32))
        total = time.process_time() - cpu
    found = shares(rows, total)
    print(users, ids, json.dumps(found, indent=2))
    return found


def draw(found: dict[str, Any]) -> None:
    names = [REST, *dict.fromkeys(part for part, _, _ in PARTS)]
    names = [name for name in names if any(name in one["ns per record"] for one in found.values())]
    figure, axes = plt.subplots(figsize=(9, 1.6 + 0.9 * len(found)))
    for row, (_, measured) in enumerate(found.items()):
        left = 0.0
        for place, part in enumerate(names):
            width = measured["ns per record"].get(part, 0.0)
            colour = plt.get_cmap("tab20")(place)
            axes.barh(row, width, left=left, color=colour, label=part if row == 0 else None)
            left += width
    axes.set_yticks(range(len(found)), [name if " " in name else f"{name} ids" for name in found])
    axes.set_xlabel("CPU time per record, ns, all threads")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.35), ncols=3, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    FIGURE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(FIGURE, dpi=130, bbox_inches="tight")


if __name__ == "__main__":
    main()
