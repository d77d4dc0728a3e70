"""An operator whose parts contradict each other cannot be made, or its loss follows them."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from fractions import Fraction

import pyarrow as pa
import pytest

import streamveil as sv
from streamveil.calendars.cells import Cells
from streamveil.compiler.group_by import compile_plan
from streamveil.core.sensitivity import Bounds
from streamveil.dataflow.cut_rows import CutCounter

ROWS = pa.schema(
    [("u", pa.int64()), ("k", pa.int64()), ("t", pa.timestamp("us", tz="UTC")), ("v", pa.float64())]
).empty_table()
DELTA = Fraction(1, 10**9)
ONE = Bounds(max_rows=1)


def operator(period=None, keys=None, bounds=None, measures=None, steps=100, **options):
    scope = {"per": period} if period else {}
    stream = sv.memory(ROWS, event_time="t").protect(unit="u", **scope)
    if period:
        stream = stream.window(sv.tumble(period))
    measures = measures or {"n": sv.count(), "s": sv.sum("v", bounds=(-1, 1))}
    timed = {"every": "1 hour", "start": "1970-01-01", "steps": 48}
    every = timed if period else {"every": sv.rows(10**6), "steps": steps}
    query = (
        stream.group_by("k", keys=keys or sv.discover(min_units=1)).agg(**measures)
        .bound(**(bounds or {"max_rows": 6}))
        .release(**every, budget=sv.Budget(epsilon=1, delta=1e-9), look_share=0, **options)
    )  # fmt: skip
    return compile_plan(query.plan)


TABLE = operator(selection="table")
GAUSSIAN = operator(selection="gaussian")
SHARED = operator(selection="gaussian", bounds={"max_rows": 6, "max_rows_per_group": 1},
                  measures={"n": sv.count()})  # fmt: skip
PUBLIC = operator(keys=sv.public([1, 2, 3]))
ROUNDS = operator(preset="dp-sqlp")
TREES = operator(keys=sv.public([1]), measures={"q": sv.median("v", bounds=(0, 1))})
DAILY = operator(period="1 day", selection="gaussian")
WEIGHTED = operator(selection="table", bounds={"max_squared_rows": 8}, entry_weight=0.5,
                    weight_reference=100.0)  # fmt: skip
COUNTED = operator(selection="gaussian", measures={"d": sv.count_distinct("v"), "n": sv.count()})


def totalling(made, **changes):
    return replace(made, totalling=replace(made.totalling, **changes))


def selection(made, **changes):
    return totalling(made, selection=replace(made.totalling.selection, **changes))


def bounds(made, **changes):
    """Other bounds; the test of totals is told too, as whoever plants a fault would do."""
    changed = replace(made.bounds, **changes)
    test = made.totalling.test
    told = None if test is None else replace(test, bounds=changed)
    parts = replace(made.totalling, test=told)
    return replace(made, bounds=changed, totalling=parts)


def counter(made, place, **changes):
    counters = list(made.totalling.counters)
    counters[place] = replace(counters[place], **changes)
    return totalling(made, counters=tuple(counters), test=None)


def of_five(made, place):
    """The counter of a lane made anew for five triggers."""
    short = operator(selection="gaussian", steps=5).totalling.counters
    counters = list(made.totalling.counters)
    counters[place] = short[0]
    return totalling(made, counters=tuple(counters), test=None)


REFUSED = {
    "one group although bounds allow six": lambda: selection(GAUSSIAN, bounds=ONE),
    "one group of a shared counter": lambda: selection(SHARED, bounds=ONE),
    "one slot more than bounds know": lambda: selection(
        TABLE, bounds=replace(TABLE.bounds, slots=TABLE.bounds.slots + 1)
    ),
    "no slot in the bounds of a table": lambda: selection(TABLE, bounds=ONE),
    "coins that begin below no unit": lambda: selection(TABLE, offset=-1),
    "more rows than the selection knows": lambda: bounds(GAUSSIAN, max_rows=7),
    "more rows than the rounds know": lambda: bounds(ROUNDS, max_rows=7),
    "fewer rows of a round": lambda: selection(ROUNDS, bounds=ONE),
    "rounds without a bound on rows": lambda: selection(ROUNDS, bounds=Bounds(quadratic=9)),
    "more slots than the table has": lambda: bounds(TABLE, slots=TABLE.bounds.slots + 1),
    "no slots beside a table": lambda: bounds(TABLE, slots=None),
    "slots without a table": lambda: bounds(PUBLIC, slots=1),
    "a table for fewer triggers": lambda: selection(TABLE, horizon=50),
    "a horizon of five for a hundred triggers": lambda: of_five(PUBLIC, 0),
    "a horizon of five beside a table": lambda: of_five(TABLE, 1),
    "fewer triggers than are released": lambda: totalling(PUBLIC, horizon=5),
    "a schedule of more releases": lambda: replace(
        PUBLIC, schedule=replace(PUBLIC.schedule, steps=1000)
    ),
    "a cut counter of five triggers": lambda: totalling(
        PUBLIC, cut=CutCounter(counter=of_short())
    ),
    "a sum that is read from the counter of units": lambda: totalling(GAUSSIAN, shared=1),
    "rows that are read from the counter of units": lambda: totalling(GAUSSIAN, shared=0),
    "a shared lane under more than one row a group": lambda: bounds(SHARED, per_group=None),
    "a shared lane without a selection": lambda: totalling(PUBLIC, shared=0),
    "a lane without a counter": lambda: totalling(
        PUBLIC, counters=PUBLIC.totalling.counters[:1]
    ),
    "quanta of weight that bounding does not know": lambda: bounds(WEIGHTED, scale=1),
    "other quanta of weight": lambda: totalling(
        WEIGHTED, rule=replace(WEIGHTED.totalling.rule, scale=1, entry=1), test=None
    ),
    "an entry weight above full": lambda: totalling(
        WEIGHTED, rule=replace(WEIGHTED.totalling.rule, entry=10**6), test=None
    ),
    "no weights where bounding counts them": lambda: totalling(WEIGHTED, rule=None, test=None),
    "less noise in a later node of a level": lambda: counter(TREES, -1, sigma=Fraction(1)),
    "a tree without one of its nodes": lambda: totalling(
        TREES, lanes=TREES.totalling.lanes[:-1], counters=TREES.totalling.counters[:-1]
    ),
    "a period that is not protected": lambda: replace(
        DAILY, protects=replace(DAILY.protects, period=None)
    ),
    "a shorter scope than is protected": lambda: replace(
        DAILY, periods=Cells(length_us=DAILY.periods.length_us // 24)
    ),
    "a scope where the whole stream is protected": lambda: replace(
        GAUSSIAN, periods=Cells(length_us=timedelta(days=1) // timedelta(microseconds=1))
    ),
    "public groups beside a selection": lambda: replace(GAUSSIAN, public=PUBLIC.public),
    "neither public groups nor a selection": lambda: replace(PUBLIC, public=None),
    "no unit at all": lambda: replace(PUBLIC, max_units=0),
    "a test of totals for other weights": lambda: totalling(
        WEIGHTED, test=replace(WEIGHTED.totalling.test, rule=None)
    ),
    "a test of totals for other bounds": lambda: totalling(
        TABLE, test=replace(
            TABLE.totalling.test, bounds=replace(TABLE.bounds, max_rows=1))
    ),
}  # fmt: skip


def of_short():
    return operator(selection="gaussian", steps=5).totalling.counters[0]


@pytest.mark.parametrize("planted", REFUSED.values(), ids=REFUSED.keys())
def test_parts_that_disagree_cannot_be_put_together(planted):
    with pytest.raises(ValueError, match=r"disagree|made for other|some slots|rounds need"):
        planted()


def epsilon(made):
    return made.guarantee.epsilon(DELTA)


HALF = {
    "a counter with half its noise": lambda made, place: counter(
        made, place, sigma=made.totalling.counters[place].sigma / 2
    ),
    "bounds of twice the values": lambda made, place: totalling(
        made, test=None, lanes=tuple(
            replace(lane, low=2 * lane.low, high=2 * lane.high) if lane.kind == "sum" else lane
            for lane in made.totalling.lanes
        ),
    ),
    "a finer lattice": lambda made, place: totalling(
        made, test=None, lanes=tuple(
            replace(lane, quantum=lane.quantum / 2) if lane.kind == "sum" else lane
            for lane in made.totalling.lanes
        ),
    ),
    "more rows of a unit": lambda made, place: bounds(made, max_rows=24),
}  # fmt: skip


@pytest.mark.parametrize("planted", HALF.values(), ids=HALF.keys())
def test_where_nothing_disagrees_the_loss_follows_what_is_there(planted):
    assert epsilon(planted(PUBLIC, 1)) > 1.15 * epsilon(PUBLIC)


@pytest.mark.parametrize("made", [TABLE, GAUSSIAN, SHARED, ROUNDS, WEIGHTED, COUNTED, DAILY])
def test_less_noise_in_any_counter_is_charged(made):
    for place in range(len(made.totalling.counters)):
        if place != made.totalling.shared:
            sigma = made.totalling.counters[place].sigma
            changed = counter(made, place, sigma=sigma / 3).loss
            assert changed.gaussian + changed.zcdp > made.loss.gaussian + made.loss.zcdp


def test_what_is_compiled_agrees():
    """And the test can fail: nothing above is refused for another reason."""
    for made in (TABLE, GAUSSIAN, SHARED, PUBLIC, ROUNDS, TREES, DAILY, WEIGHTED, COUNTED):
        assert replace(made) == made
    assert selection(GAUSSIAN, bounds=GAUSSIAN.bounds) == GAUSSIAN
