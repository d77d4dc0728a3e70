"""Where does the time of a private, durable micro-batch go?

CPU time per record of every stage, over all threads, for the click stream of `throughput.py`; makes
`docs/figures/where-time-goes.png`. Expected: the unit stage is the largest part, since it is the
one with a cache miss per record in a table that follows the number of users. With `--full`, also
of 59 million integer records of 10 million users and 100 releases, where releasing and publishing
weigh as much as folding.

    python benchmarks/where.py [--users 1000000] [--full] [--data DIR]
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
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pyarrow.parquet as pq
from matplotlib import pyplot as plt

from clicks import Clicks
from streamveil.dataflow import stages
from streamveil.engines.embedded.group_by import EmbeddedGroupBy
from streamveil.plan.plan import Bounding
from streamveil.runtime import job
from streamveil.runtime.schedule import MicroBatches
from streamveil.runtime.store import Store
from throughput import machine, private

mpl.use("Agg")
HERE = Path(__file__).parent
FIGURE = HERE.parent / "docs" / "figures" / "where-time-goes.png"
RESULT = HERE / "results" / "where.json"
PARTS: list[tuple[str, Any, tuple[str, ...]]] = [
    ("name units", stages, ("prepare",)),
    ("look up keys", stages, ("recognised",)),
    ("unit stage", EmbeddedGroupBy, ("bound",)),
    ("key stage", stages, ("enter_keys", "remember", "keep", "add")),
    ("rest of the fold", EmbeddedGroupBy, ("fold",)),
    ("release", EmbeddedGroupBy, ("release",)),
    ("log record, fsync", Store, ("commit",)),
    ("publish", job.Job, ("_send",)),
    ("checkpoint", Store, ("_write",)),
    ("copy for a checkpoint", job.Job, ("_snapshot",)),
]
FULL = "int, 10 million users"
spent: dict[str, float] = defaultdict(float)
open_calls = threading.local()  # per thread, the CPU time of timed calls inside each open one


def timed(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Counts a function's own CPU time: that of timed functions it calls is theirs."""

    def call(*arguments: Any, **named: Any) -> Any:
        inner: list[float] = open_calls.__dict__.setdefault("inner", [])
        started = time.thread_time()
        inner.append(0.0)
        try:
            return function(*arguments, **named)
        finally:
            took = time.thread_time() - started
            spent[part] += took - inner.pop()
            if inner:
                inner[-1] += took

    return call


def timed_reading(real: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    def batches(self: Any, at: Any) -> Iterator[Any]:
        found = real(self, at)
        while True:
            started = time.thread_time()
            batch = next(found, None)
            spent["cut into batches"] += time.thread_time() - started
            if batch is None:
                return
            yield batch

    return batches


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=1_000_000)
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--ids", nargs="+", default=["int", "text"])
    parser.add_argument("--full", action="store_true", help="also 59 million records, 100 releases")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    for part, owner, names in PARTS:
        for name in names:
            setattr(owner, name, timed(part, getattr(owner, name)))
    MicroBatches._rows = timed_reading(MicroBatches._rows)  # type: ignore[method-assign]
    folder = options.data or Path(tempfile.mkdtemp())
    found = {ids: measured(folder, options.users, ids) for ids in options.ids}
    if options.full:
        found[FULL] = measured(folder, 10_000_000, "int", triggers=100)
    RESULT.parent.mkdir(exist_ok=True)
    kept = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    result = {**kept, "machine": machine(), "users": options.users, **found}
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    draw({name: result[name] for name in ("int", "text", FULL) if name in result})


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
    parts = {part: 1e9 * took / rows for part, took in spent.items()}
    parts["read Parquet and the rest"] = 1e9 * total / rows - sum(parts.values())
    found = {"ns per record": parts, "total": 1e9 * total / rows}
    print(users, ids, json.dumps(found, indent=2))
    return found


def draw(found: dict[str, Any]) -> None:
    names = ["read Parquet and the rest", "cut into batches", *(part for part, _, _ in PARTS)]
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
