"""How often each of some keys occurs, by a private sketch of streamveil, in 24 KB."""

import pyarrow.parquet as pq
from asking import run_weekly

import streamveil as sv
from streamveil.core.accounting import Neighbours


def ask(path, epsilon, delta, _groups, _rows, names):
    """The lines between the marks are what a user writes."""
    # begin
    keys = pq.read_table(path)["key"]
    sketch = sv.sketches.LazySketch(
        kind="count-min",
        width=800,
        horizon=len(keys),
        protects=Neighbours(relation="event-change"),
        budget=sv.Budget(epsilon=epsilon, delta=delta),
    ).open()
    sketch.update(keys)
    estimates = sketch.published().estimate(names)
    # end
    return [dict(zip(names, estimates.tolist(), strict=True))]


run_weekly(ask)
