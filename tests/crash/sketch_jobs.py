"""Sketch jobs to kill: texts found per day and user-day, and given pages over the whole stream."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from streamveil.plan import Aggregate, Bounding, Clock, KeySet, Plan, Window
from streamveil.runtime.job import Work
from tests.crash import streams


def heavy_plan() -> Plan:
    """The most frequent pages of a day, three triggers a day."""
    found = {"k": 3, "text_length": 2, "memory": 2_000_000}
    return replace(
        streams.visits_plan(streams.visits()), name="heavy", keys=(), key_set=KeySet(),
        aggregates=(Aggregate(name="n", function="heavy_hitters",
                              expression="SUBSTR(page, 6)", options=found),),
        bounding=Bounding(max_rows=4),
    )  # fmt: skip


def frequency_plan() -> Plan:
    """Two given pages over the whole stream, every 400 rows."""
    return replace(
        heavy_plan(), name="frequency", period_us=None, window=Window(),
        key_set=KeySet(public=(("page 1",), ("page 2",))),
        aggregates=(Aggregate(name="n", function="approx_frequency", expression="page",
                              options={"memory": 100_000}),),
        clock=Clock(kind="rows", every=400, steps=7),
    )  # fmt: skip


@cache
def work_of_plan(name: str) -> Work:
    """Compiled once."""
    from streamveil.runtime.run import Pace, work_of

    plan = {"heavy": heavy_plan, "frequency": frequency_plan}[name]()
    return work_of(plan, pace=Pace(max_rows=streams.BATCH))
