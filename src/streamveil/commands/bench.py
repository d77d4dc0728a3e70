"""streamveil bench: what this machine does, in half a minute."""

from __future__ import annotations

import json
import os
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import typer
from rich.progress import Progress, SpinnerColumn, TextColumn
from rich.table import Table

from streamveil.errors import PlanError
from streamveil.terminal import Terminal, label, say

REPEATS = 3
DRAWS, KEYS, TRIGGERS = 1_000_000, 200_000, 20
PER_USER = 5.7  # records
SMALL = 200  # tiny batches


def bench(
    records: Annotated[int, typer.Option(help="Of the stream that is counted.")] = 1_000_000,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Measures this machine: records per CPU second, nanoseconds per noisy draw, cost of a commit.

    A short version of the repository's benchmarks, on made-up data in a temporary folder. Times
    are CPU time, the median of three; only the commit is wall time, as it waits for the disk.
    """
    if records < 10_000:
        raise PlanError("--records must be at least 10,000 for a figure that means something")
    found: dict[str, Any] = {"machine": machine()}
    with Progress(SpinnerColumn(), TextColumn("{task.description}"), transient=True,
                  console=Terminal(stderr=True)) as bar:  # fmt: skip
        task = bar.add_task("")
        for name, measure in MEASURES.items():
            bar.update(task, description=name)
            found[name] = measure(records)
    if as_json:
        say(json.dumps(found, indent=2))
        return
    shown = Table(title=label(found.pop("machine")))
    for column, side in (("what", "left"), ("figure", "right"), ("unit", "left")):
        shown.add_column(column, justify="right" if side == "right" else "left")
    for name, (value, unit) in found.items():
        shown.add_row(name, f"{value:,.1f}" if value < 1000 else f"{value:,.0f}", unit)
    Terminal(soft_wrap=True).print(shown)


def machine() -> str:
    """The machine and what counts on it."""
    import streamveil

    return (
        f"streamveil {streamveil.__version__}, Python {platform.python_version()},"
        f" {platform.machine()}, {os.cpu_count()} CPUs"
    )


def cpu(work: Callable[[], object], repeats: int = REPEATS) -> float:
    """Median CPU seconds, after one run that compiles and fills tables."""
    work()
    spent = []
    for _ in range(repeats):
        started = time.process_time()
        work()
        spent.append(time.process_time() - started)
    return median(spent)


def draws(records: int) -> tuple[float, str]:
    """Rounded Gaussians, exact, from the operating system's cipher."""
    from streamveil.core.noise.keyed import KeyedNoise
    from streamveil.core.noise.samplers import rounded_gaussian

    centre, at = np.zeros(DRAWS), KeyedNoise.fresh().at("bench", 1)
    return cpu(lambda: rounded_gaussian(at, centre, 50.0)) / DRAWS * 1e9, "ns"


def counter_step(records: int) -> tuple[float, str]:
    """One step of the default counter for many keys, noise included."""
    from streamveil.core.noise.keyed import KeyedNoise, Place
    from streamveil.counters import BltCounter

    counter, noise = BltCounter(horizon=1000, sigma=50), KeyedNoise.fresh()
    increments = np.ones(KEYS, np.int64)
    ids = np.arange(2 * KEYS, dtype=np.uint64).reshape(-1, 2)

    def step() -> None:
        counter.step(counter.init(KEYS), increments, Place(noise, "bench"), ids)

    return cpu(step) / KEYS * 1e9, "ns per key"


def pipeline(records: int, triggers: int = TRIGGERS) -> float:
    """CPU seconds per record of the whole durable pipeline on the click stream of DP-SQLP."""
    import streamveil as sv
    from streamveil.datasets import Clicks

    users = max(100, int(records / PER_USER))
    table = Clicks(users=users, keys=max(100, users // 10)).table()
    query = (
        sv.memory(table, name="clicks").protect("user").group_by("key").agg(n=sv.count())
        .bound(max_rows=32, max_rows_per_group=1)
        .release(every=sv.rows(-(-table.num_rows // triggers)), steps=triggers,
                 budget=sv.Budget(epsilon=6, delta=1e-9), selection="gaussian")
    )  # fmt: skip

    def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            for _ in query.run(state=str(Path(folder) / "state")):
                pass

    return cpu(run) / float(table.num_rows)


def private(records: int) -> tuple[float, str]:
    """Bounding, discovered keys, noise, log and releases."""
    return 1 / pipeline(records), "records per CPU second"


def plain(records: int) -> tuple[float, str]:
    """The same count without privacy or durability: Arrow's hash aggregation, once."""
    from streamveil.datasets import Clicks

    users = max(100, int(records / PER_USER))
    table = Clicks(users=users, keys=max(100, users // 10)).table()
    spent = cpu(lambda: table.group_by("key").aggregate([([], "count_all")]))
    return table.num_rows / spent, "records per CPU second"


def commit(records: int) -> tuple[float, str]:
    """One durable write of a small record: what a tiny micro-batch waits for, at least."""
    with tempfile.NamedTemporaryFile() as file:
        spent = []
        for _ in range(SMALL):
            started = time.perf_counter()
            file.write(b"x" * 1000)
            file.flush()
            os.fdatasync(file.fileno())
            spent.append(time.perf_counter() - started)
    return median(spent) * 1e3, "ms"


MEASURES: dict[str, Callable[[int], tuple[float, str]]] = {
    "noise: one exact rounded Gaussian": draws,
    "counter: one step, noise included": counter_step,
    f"group-by: durable, {TRIGGERS} releases": private,
    "group-by: Arrow, not private, once": plain,
    "disk: one durable commit": commit,
}
