"""Small streams, plans over them, and what SQL says about the rows that bounding lets through."""

from __future__ import annotations

from functools import lru_cache

import duckdb
import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from streamveil.batch import Batch
from streamveil.compiler.group_by import compile_plan
from streamveil.core.accounting import Budget
from streamveil.core.selection.coins import CoinSelection
from streamveil.dataflow.bounding import UnitRows
from streamveil.dataflow.windows import period_closes
from streamveil.plan import (
    Aggregate,
    Bounding,
    Clock,
    KeyColumn,
    KeySet,
    Plan,
    SourceSpec,
    Window,
)
from tests.dataflow.twins import bound

STEPS, EVERY = 6, 10
END = STEPS * EVERY
LOOSE = Budget(mu=60, delta=0.4)  # thresholds of two or three units: small streams show keys


def plan_of(**changes):
    settings = {
        "name": "job",
        "unit": "u",
        "source": SourceSpec(name="s", kind="memory", event_time="ts"),
        "keys": (KeyColumn(name="k", expression="k"),),
        "aggregates": (Aggregate(name="n", function="count"),),
        "clock": Clock(kind="event", every=EVERY, start_us=0, end_us=END, arrival="at"),
        "bounding": Bounding(max_rows=4, max_rows_per_group=1),
        "budget": LOOSE,
    }
    return Plan(**{**settings, **changes})


ROWS = st.lists(
    st.tuples(
        st.integers(0, 12),  # unit
        st.sampled_from("abcd"),  # key
        st.integers(-3, 12),  # value
        st.integers(0, END - 1),  # event time
        st.integers(0, 25),  # delay
    ),
    max_size=120,
)

WINDOWS = st.sampled_from(
    [
        Window(),
        Window(kind="tumble", size_us=20),
        Window(kind="tumble", size_us=15, lateness_us=10),
        Window(kind="hop", size_us=20, slide_us=10, lateness_us=20),
        Window(kind="cumulate", size_us=30, slide_us=10, lateness_us=5),
    ]
)

BOUNDINGS = st.sampled_from(
    [
        Bounding(max_rows=4, max_rows_per_group=1),
        Bounding(max_rows=5, max_rows_per_group=2),
        Bounding(max_rows=3),
        Bounding(quadratic=6),
        Bounding(quadratic=9, max_rows=5),
    ]
)

AGGREGATES = (
    Aggregate(name="n", function="count"),
    Aggregate(name="nv", function="count", expression="v"),
    Aggregate(name="people", function="count_units"),
    Aggregate(name="total", function="sum", expression="v", low=0, high=8),
)


def batches(rows, cuts=(1,)):
    """Micro-batches by step; each step is cut into pieces."""
    arrived = [(u, k, v, ts, ts + delay) for u, k, v, ts, delay in rows if ts + delay < END]
    for step in range(1, STEPS + 1):
        mine = [row for row in arrived if row[4] // EVERY == step - 1]
        pieces = cuts[(step - 1) % len(cuts)]
        edges = np.linspace(0, len(mine), pieces + 1).astype(int)
        for piece in range(pieces):
            part = mine[edges[piece] : edges[piece + 1]]
            columns = list(zip(*part, strict=True)) or [()] * 5
            kinds = (pa.int64(), pa.string(), pa.int64(), pa.int64(), pa.int64())
            table = pa.table(
                {
                    name: pa.array(c, t)
                    for name, c, t in zip(("u", "k", "v", "ts", "at"), columns, kinds, strict=True)
                }
            )
            yield Batch(table, step, piece == pieces - 1, "")


def run(operator, stream, noise):
    """Every release, and the state at the end."""
    state, releases = operator.init(), []
    for batch in stream:
        operator.fold(state, batch, noise)
        if batch.closes_step:
            releases += operator.release(state, batch.step, noise)
    return releases, state


def arrivals(operator, rows, step, public):
    """The (unit, key, value, window, period) pairs of one step, by plain loops."""
    schedule = operator.schedule
    for u, k, v, ts, delay in rows:
        if ts + delay >= END or (ts + delay) // EVERY + 1 != step:
            continue
        if public is not None and k not in public:
            continue
        for window in [0] if schedule.whole else range(-10, 20):
            start, end = (0, END) if schedule.whole else schedule.bounds(window)
            if not start <= ts < end:
                continue
            last = schedule.last_step(window)
            period = 0 if operator.periods is None else operator.periods.number(ts)
            closes = (
                None
                if operator.periods is None
                else period_closes(schedule, period, operator.periods)
            )
            if (
                step <= last
                and schedule.first_step(window) <= step + 1
                and (closes is None or step <= closes)
            ):
                yield u, k, v, window, period


def bounded(operator, rows, public=None):
    """(unit, key, value, window, step, period) of every accepted pair without noise, and what is
    shown after each step: {(window, key): weight}. Plain loops, step by step."""
    aggregation, rule = operator.aggregation, operator.aggregation.rule
    pairs, weights, hidden, shown, history = [], [], [], {}, {}
    kept = []
    for step in range(1, STEPS + 1):
        for u, k, v, window, period in arrivals(operator, rows, step, public):
            pairs.append((u, k, v, window, step, period))
            entry = 1 if rule is None else rule.entry
            weights.append(shown.get((window, k), entry))
            hidden.append((window, k) not in shown)
        units = {pair: i + 1 for i, pair in enumerate(sorted({(p[0], p[5]) for p in pairs}))}
        groups = {pair: i for i, pair in enumerate(sorted({(p[3], p[1]) for p in pairs}))}
        accepted, _, counted = bound(
            UnitRows(
                np.array([units[p[0], p[5]] for p in pairs], np.uint64),
                np.array([groups[p[3], p[1]] for p in pairs], np.uint16),
                np.array(weights, np.uint8),
                np.array(hidden, bool),
            ),
            operator.bounds,
        )
        kept = [pair for pair, fine in zip(pairs, accepted, strict=True) if fine]
        entered = {pair for pair, one in zip(pairs, counted, strict=True) if one}
        if aggregation.selection is not None:
            for window in operator.schedule.active(step):
                trigger = operator.schedule.trigger(window, step)
                for key in {p[1] for p in kept if p[3] == window}:
                    mine = [p for p in kept if (p[3], p[1]) == (window, key)]
                    limit = aggregation.selection.threshold(trigger)
                    people = len({(p[0], p[5]) for p in mine if p in entered})
                    enough = people > limit or (
                        isinstance(aggregation.selection, CoinSelection) and people == limit
                    )
                    test = aggregation.test
                    if test is not None and trigger in test.triggers:
                        units = len({(p[0], p[5]) for p in mine})
                        valid = sum(p[2] is not None for p in mine)
                        total = {"rows": len(mine), "valid": valid, "units": units}
                        enough = enough or total[test.lane.kind] > test.threshold(trigger)
                    if (window, key) not in shown and enough:
                        shown[window, key] = 1 if rule is None else rule.entry
                    if (window, key) in shown and rule is not None:
                        over = max(trigger / aggregation.triggers, 1 / rule.growth)
                        forecast = max(len(mine) / over, rule.reference)
                        wanted = int(rule.entry * np.cbrt(rule.reference / forecast))
                        shown[window, key] = max(1, min(shown[window, key], wanted))
        history[step] = dict(shown)
    return kept, history


def sql(kept, window, step, query):
    """Runs `query` over the accepted rows of a window up to a step (a table named `kept`)."""
    mine = [(u, k, v, p) for u, k, v, w, s, p in kept if w == window and s <= step]
    columns = list(zip(*mine, strict=True)) or [()] * 4
    kinds = (pa.int64(), pa.string(), pa.int64(), pa.int64())
    table = pa.table(
        {
            name: pa.array(c, t)
            for name, c, t in zip(("u", "k", "v", "p"), columns, kinds, strict=True)
        }
    )
    database = one_database()
    database.register("kept", table)
    return database.execute(query).fetchall()


@lru_cache(maxsize=1)
def one_database():
    """One engine for all examples: opening it costs more than the queries."""
    return duckdb.connect(config={"threads": 1})


def compiled(**changes):
    return compile_plan(plan_of(**changes))


PUBLIC = KeySet(public=(("a",), ("c",), ("z",)))
