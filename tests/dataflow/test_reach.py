"""No value, bound or quantum moves a lane further than its noise is charged for: refused or cut."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

import streamveil as sv
from streamveil.batch import Batch
from streamveil.calendars import Cells
from streamveil.compiler.group_by import compile_plan
from streamveil.core.noise import SilentNoise
from streamveil.core.sensitivity import Lane, lane_move, within_reach
from streamveil.dataflow.windows import periods_apart
from streamveil.engines.spark import stages
from streamveil.errors import PlanError
from streamveil.kinds import COUNTS, VALUED
from streamveil.plan import (
    Aggregate,
    Bounding,
    Clock,
    KeySet,
    SourceSpec,
    Window,
    combined_plan,
)
from streamveil.plan.combine import combine_rows
from tests.dataflow.streams import compiled, plan_of
from tests.schedules import fixed_schedule

LARGEST = 2**63 - 1
EDGES = [float(LARGEST), float(-LARGEST), 2.0**62, 2.0**53 + 2, 1e140, -1e140, 1e-140, 1e19, 0.0]
ENDS = st.sampled_from(EDGES) | st.floats(-1e140, 1e140)
QUANTA = st.none() | st.sampled_from([1.0, 1e-140, 1e140]) | st.floats(1e-140, 1e140)
WILD = [1e300, -1e300, 1.7e308, -1.7e308, 5e-324, float(LARGEST), -(2.0**63), 2.0**62, 1e19, 0.5]
VALUES = st.lists(st.sampled_from(WILD) | st.floats(allow_nan=False, allow_infinity=False),
                  min_size=1, max_size=8)  # fmt: skip


@st.composite
def aggregates(draw):
    function = draw(st.sampled_from([*VALUED, *COUNTS]))
    expression = None if function == "count_units" else "v"
    if function in COUNTS:
        return Aggregate(name="a", function=function, expression=expression)
    low, high = sorted((draw(ENDS), draw(ENDS)))
    options = {"fan": 2, "levels": 3} if function == "quantile" else {}
    return Aggregate(name="a", function=function, expression=expression, low=low, high=high,
                     quantum=draw(QUANTA), options=options)  # fmt: skip


def row_plan(aggregate, **changes):
    return plan_of(
        source=SourceSpec(name="s", kind="memory"), clock=Clock(kind="rows", every=1, steps=1),
        key_set=KeySet(public=(("a",), ("b",))), aggregates=(aggregate,),
        bounding=Bounding(max_rows=6, max_rows_per_group=2), **changes,
    )  # fmt: skip


def moved_by(operator, table):
    """How far one unit moves each lane of every group, and each tree level: sums of squares."""
    state = operator.init()
    operator.fold(state, Batch(table, 1, True, ""), SilentNoise())
    held = state.windows[0].table
    pending = held.pending[: held.keys].astype(object)
    lanes = operator.aggregation.lanes
    for place, lane in enumerate(lanes):
        if lane.kind == "node" and lane.place:
            continue
        level = range(place, place + (lane.fan**lane.level if lane.kind == "node" else 1))
        yield lane, sum(abs(int(row[at])) ** 2 for row in pending for at in level)


def repeated(values, rows):
    """One unit's rows, many more than any bound counts, over two groups."""
    cells = (values * rows)[:rows]
    return pa.table({"u": np.ones(rows, np.int64), "k": (["a", "b", "a"] * rows)[:rows],
                     "v": pa.array(cells, pa.float64())})  # fmt: skip


@settings(max_examples=150)
@given(aggregates(), VALUES, st.integers(1, 60))
@example(Aggregate(name="a", function="sum", expression="v", low=0.0, high=float(LARGEST),
                   quantum=1.0), [2000.0], 60)  # fmt: skip
@example(Aggregate(name="a", function="variance", expression="v", low=-1e70, high=1e70), WILD, 60)
def test_one_unit_moves_no_lane_further_than_charged_whatever_its_rows(aggregate, values, rows):
    try:
        operator = compile_plan(row_plan(aggregate))
    except PlanError:
        return
    for lane, squared in moved_by(operator, repeated(values, rows)):
        moved, _ = lane_move(lane, operator.bounds)
        assert squared <= moved**2


@settings(max_examples=40)
@given(st.lists(st.sampled_from(WILD) | st.integers(-LARGEST, LARGEST), min_size=1, max_size=8),
       st.sampled_from([int, float]))  # fmt: skip
def test_extreme_integers_and_floats_stay_within_the_bounds(values, kind):
    assume(kind is float or all(isinstance(value, int) for value in values))
    column = pa.array([kind(v) for v in values], pa.int64() if kind is int else pa.float64())
    n = len(column)
    operator = compile_plan(
        row_plan(Aggregate(name="a", function="sum", expression="v", low=-5, high=8, quantum=0.5))
    )
    table = pa.table({"u": np.ones(n, np.int64), "k": ["a"] * n, "v": column})
    [(lane, squared)] = moved_by(operator, table)
    assert lane.reach == 16
    assert squared <= (2 * 16) ** 2


ENDLESS = [
    f"COUNT(x, contribution_bounds_per_group => (0, {LARGEST})) AS n",
    f"COUNT(x, contribution_bounds_per_group => (0, {LARGEST + 1})) AS n",
    f"COUNT(x, contribution_bounds_per_group => (0, {LARGEST - 1})) AS n",
    f"COUNTIF(x > 0, contribution_bounds_per_group => (0, {LARGEST})) AS n",
    f"COUNT(*, contribution_bounds_per_group => (1, {LARGEST})) AS n",
    f"COUNT(*, contribution_bounds_per_group => (0, {LARGEST})) AS n, "
    "SUM(x, contribution_bounds_per_group => (0, 9)) AS s",
]
ROWS = pa.table({"id": np.repeat([1, 2], [2000, 5]), "g": ["a"] * 2005, "x": np.ones(2005)})


def asked(select):
    return sv.sql(
        "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, delta = 1e-9, "
        "privacy_unit_column = id, max_groups_contributed = 1, public_groups = ['a']) "
        f"g, {select} FROM t GROUP BY g",
        {"t": ROWS},
    ).plan


@pytest.mark.parametrize("select", ENDLESS)
def test_a_bound_that_is_no_bound_is_refused_by_name(select):
    with pytest.raises(PlanError, match=r"'n' with bounds .*(?s:.*)to fix  tighter bounds"):
        asked(select)


@pytest.mark.parametrize("low", [-1e19, 1])
def test_a_count_per_unit_without_bound_is_refused_in_python(low):
    asking = sv.memory(ROWS).protect(unit="id").group_by("g", keys=sv.public([("a",)]))
    with pytest.raises(PlanError, match="tighter bounds"):
        _ = (
            asking.agg(n=sv.count("x", per_unit=(low, 1e19)))
            .bound(max_rows=1)
            .release(budget=sv.Budget(epsilon=1, delta=1e-9))
            .plan
        )


@settings(max_examples=60)
@given(st.sampled_from(["COUNT(x", "COUNTIF(x > 0", "COUNT(*", "SUM(x", "AVG(x"]),
       ENDS, ENDS, st.integers(1, 3000))  # fmt: skip
@example("COUNT(x", 0.0, float(LARGEST), 2000)
@example("SUM(x", -1e19, 1e19, 2000)
def test_combined_rows_move_no_lane_further_than_charged(call, one, other, rows):
    low, high = sorted((one, other))
    bounds = f"contribution_bounds_per_group => ({low!r}, {high!r})"
    try:
        plan = asked(
            f"{call}, {bounds}) AS n, SUM(x, contribution_bounds_per_group => (0, 9)) AS s"
        )
        operator = compile_plan(combined_plan(plan))
    except PlanError:
        return
    table = pa.table({"id": np.ones(rows, np.int64), "g": ["a"] * rows, "x": [1e300] * rows})
    usable = combine_rows(plan, table).rows
    for lane, squared in moved_by(operator, usable):
        moved, _ = lane_move(lane, operator.bounds)
        assert squared <= moved**2


@given(st.sampled_from(["sum", "square"]), ENDS, ENDS, ENDS, st.integers(-480, 480), VALUES)
def test_a_lane_is_refused_or_keeps_its_exact_ends(kind, one, other, centre, size, values):
    low, high = sorted((one, other))
    try:
        lane = Lane(kind=kind, low=low, high=high, centre=centre, quantum=Fraction(2) ** size)
    except PlanError:
        widest = max(abs(Fraction(end) - Fraction(centre)) for end in (low, high))
        assert (widest ** (1 + (kind == "square"))) / Fraction(2) ** size >= 2**61
        return
    with np.errstate(all="ignore"):  # of products of wild numbers; casts warn, and warnings fail
        found = [int(one) for one in lane.quanta(np.array(values))]
    assert all(lane.ends[0] <= one <= lane.ends[1] for one in found)
    assert max(abs(end) for end in lane.ends) <= lane.reach < 2**62


@given(ENDS, ENDS, ENDS, st.integers(-480, 480), VALUES)
def test_a_row_without_a_value_is_within_the_ends_of_a_lane_of_all_rows(
    one, other, centre, size, values
):
    low, high = sorted((one, other))
    settings = {"low": low, "high": high, "centre": centre, "quantum": Fraction(2) ** size}
    try:
        lane = Lane(kind="sum", of_all=True, **settings)
    except PlanError:
        return
    with np.errstate(all="ignore"):
        found = [int(one) for one in lane.quanta(np.array(values))]
    assert all(lane.ends[0] <= one <= lane.ends[1] for one in (*found, lane.absent))
    assert max(abs(end) for end in lane.ends) <= lane.reach < 2**62
    exact = -Fraction(centre) / lane.quantum
    assert abs(lane.absent - exact) <= Fraction(1, 2)


@pytest.mark.parametrize(
    "more", [{"kind": "square", "of_all": True}, {"kind": "units", "of_all": True},
             {"kind": "valid", "of_all": True, "high": 2.0}, {"kind": "valid", "high": 1.0}],
)  # fmt: skip
def test_only_sums_and_counts_are_of_all_rows(more):
    with pytest.raises(ValueError, match="count"):
        Lane(**more)


@pytest.mark.parametrize("engine", ["embedded", "spark"])
def test_increments_that_are_wrong_are_cut_before_they_enter_totals(engine, monkeypatch):
    """A planted fault in the row stage of every lane of values: the last gate holds."""
    operator = compile_plan(
        row_plan(Aggregate(name="a", function="variance", expression="v", low=-5, high=8))
    )
    table, noise, state = repeated([7.0], 9), SilentNoise(), operator.init()
    monkeypatch.setattr(
        Lane, "quanta", lambda lane, values: np.full(len(values), -(2**61), np.int64)
    )
    if engine == "embedded":
        operator.fold(state, Batch(table, 1, True, ""), noise)
        arrived = [state.windows[0].table.pending]
    else:
        [admitted], _ = stages.admit(operator, table, 1, noise, 1)
        made = stages.bound(operator, state, admitted, stages.PublishedGroups({}, 1, False), 1)
        arrived = [part["lanes"] for part in made.rows]
    reach = [lane.reach for lane in operator.plain_lanes]
    rows_that_count = 2  # of one unit in one group
    for lanes in arrived:
        assert (np.abs(lanes) <= rows_that_count * np.array(reach)).all()


def test_the_gate_leaves_what_is_within_reach_alone():
    lane = Lane(kind="sum", low=-3.0, high=5.0)
    inside = np.arange(-5, 6)[:, None]
    assert within_reach([lane], inside.copy()).tolist() == inside.tolist()
    assert within_reach([lane], np.array([[-(2**63)], [2**63 - 1]])).tolist() == [[-5], [5]]


@pytest.mark.parametrize("slide", [15, 20, 40])
def test_windows_with_gaps_are_no_schedule(slide):
    with pytest.raises(ValueError, match="at most as far apart"):
        fixed_schedule(every_us=5, size_us=10, slide_us=slide)


def test_periods_meet_in_windows_that_overlap():
    assert periods_apart(fixed_schedule(every_us=5, size_us=10, slide_us=10), Cells(length_us=20))
    assert not periods_apart(
        fixed_schedule(every_us=5, size_us=10, slide_us=5), Cells(length_us=20)
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"aggregates": (Aggregate(name="n", function="sum", expression="v", low=0, high=2.0**63,
                                  quantum=1.0),)},
        {"window": Window(kind="hop", size_us=10, slide_us=20)},
        {"bounding": Bounding(max_rows=10**9 + 1)},
        {"aggregates": ()},
    ],
)  # fmt: skip
def test_a_plan_that_nobody_checked_is_checked_when_it_is_compiled(changes):
    with pytest.raises(PlanError):
        compiled(**changes)


@pytest.mark.parametrize("changes", [{}, {"clock": Clock(kind="rows", every=9)}])
def test_a_plan_without_an_end_is_compiled_once_it_was_asked_for(changes):
    assert compiled(**changes).schedule.whole


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(
    ("rows", "right"),
    [([3_000, 3_000, 3_000], 2), ([70_000], 0), ([3_000, 140_000], 1), ([-7_000, 140_000], 1)],
)
def test_a_sum_that_64_bits_do_not_hold_stops_the_job_and_is_never_released(
    rows, right, sign, monkeypatch
):
    monkeypatch.setattr("streamveil.compiler.group_by.refuse_large_sums", lambda reach: None)
    monkeypatch.setattr("streamveil.plan.check.refuse_large_sums", lambda reach: None)
    large = 2.0**47
    value = Aggregate(name="a", function="sum", expression="v", low=-large, high=large, quantum=1.0)
    once = Bounding(max_rows=1)
    plan = replace(row_plan(value), clock=Clock(kind="rows", every=1, steps=4), bounding=once)
    operator, noise = compile_plan(plan), SilentNoise()
    state, units, answers = operator.init(), 0, []

    def run(step, n):
        moved, more = sign * np.sign(n) * large, abs(n)
        columns = {"u": np.arange(units, units + more), "k": ["a"] * more, "v": [moved] * more}
        operator.fold(state, Batch(pa.table(columns), step, True, ""), noise)
        return [one.to_arrow()["a"][0].as_py() for one in operator.release(state, step, noise)]

    for step, n in enumerate(rows[:right], 1):
        answers += run(step, n)
        units += abs(n)
        assert answers[-1] == sign * sum(rows[:step]) * large
    with pytest.raises(PlanError, match="64 bits"):
        run(right + 1, rows[right])
