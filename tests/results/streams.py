"""Jobs whose keys open at different triggers, with exact totals to compare to."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise

import numpy as np
import pyarrow as pa

import streamveil as sv
from streamveil.audit.pipeline import unbroken
from streamveil.batch import Batch
from streamveil.compiler.group_by import compile_plan
from streamveil.core.noise import SeededNoise, SilentNoise

STEP = 10  # microseconds between triggers
TRIGGERS, WINDOWS, KEYS, UNITS = 6, 2, 4_000, 80
STEPS = TRIGGERS * WINDOWS
DESIGNS = {
    "gaussian": {"budget": sv.Budget(mu=0.7, delta=1e-3), "selection": "gaussian"},
    "weights": {"budget": sv.Budget(epsilon=40, delta=1e-3), "selection": "table",
                "weight_reference": 12},
    "public": {"budget": sv.Budget(mu=1, delta=1e-6)},
    "public weights": {"budget": sv.Budget(mu=1, delta=1e-6), "weight_reference": 12},
    "honaker": {"budget": sv.Budget(mu=0.7, delta=1e-3), "selection": "gaussian",
                "counter": "honaker"},
}  # fmt: skip


@lru_cache
def rows() -> pa.Table:
    """Every key gets all its units at once, at a step of its own, and stragglers later on."""
    rng = np.random.default_rng(3)
    parts = []
    for window in range(WINDOWS):
        key = np.repeat(np.arange(KEYS), UNITS)
        start = 1 + key % (TRIGGERS - 1)
        step = np.where(rng.random(len(key)) < 0.9, start, rng.integers(start, TRIGGERS + 1))
        parts.append((key, (window * TRIGGERS + step - 1) * STEP))
    key, at = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(at, kind="stable")
    return pa.table({
        "u": np.arange(len(key)), "k": key[order], "at": pa.array(at[order], pa.timestamp("us")),
        "v": rng.random(len(key)),
    })  # fmt: skip


def query(design: str):
    """The query of a design: a count, two sums that share a lane, a mean."""
    keys = sv.public(list(range(KEYS))) if "public" in design else sv.discover()
    bounds = {"max_squared_rows": 4} if "weights" in design else {"max_rows": 1}
    stream = sv.memory(rows(), event_time="at", name=design).protect("u")
    return (
        stream.window(sv.tumble(f"{TRIGGERS * STEP} microseconds"))
        .group_by("k", keys=keys)
        .agg(n=sv.count(), v=sv.sum("v", bounds=(0, 1)), w=sv.sum("v", bounds=(0, 1)),
             mean=sv.avg("v", bounds=(0, 1)))
        .bound(**bounds)
        .release(every=f"{STEP} microseconds", start="1970-01-01",
                 steps=STEPS, look_share=0, **DESIGNS[design])
    )  # fmt: skip


@lru_cache
def released(design: str, *, silent: bool = False):
    """All releases of a design."""
    table = rows()
    at = table["at"].cast(pa.int64()).to_numpy() // STEP + 1
    edges = np.searchsorted(at, np.arange(1, STEPS + 2))
    batches = [
        Batch(table.slice(start, end - start), step, True, "{}")
        for step, (start, end) in enumerate(pairwise(edges), start=1)
    ]
    noise = SilentNoise() if silent else SeededNoise(11)
    return unbroken(compile_plan(query(design).plan), batches, noise)


@lru_cache
def truth(name: str):
    """{(window, trigger): exact total of every key}."""
    table = rows()
    step = table["at"].cast(pa.int64()).to_numpy() // STEP
    key = table["k"].to_numpy()
    value = np.ones(len(key)) if name == "n" else table["v"].to_numpy()
    found = {}
    for window in range(WINDOWS):
        for trigger in range(1, TRIGGERS + 1):
            kept = (step // TRIGGERS == window) & (step % TRIGGERS < trigger)
            found[window, trigger] = np.bincount(key[kept], value[kept], KEYS)
    return found
