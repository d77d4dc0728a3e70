"""Units with many rows: how they are counted, expected and bounded."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamveil as sv
from streamveil.compiler.by_unit import (
    ByUnit,
    by_rows,
    even_groups,
    shape_of,
)
from streamveil.compiler.design_choice import SQUARED
from streamveil.compiler.error_forecast import admit
from streamveil.compiler.expected_stream import ExpectedStream, concentrated, draw_stream
from streamveil.compiler.group_by import compile_plan
from streamveil.plan import Bounding
from streamveil.plan.check import check_plan
from streamveil.plan.look import CONCENTRATION, HISTOGRAM, LAWS, MANY_ROWS, told
from tests.compiler.test_error_forecast import planned

PLACES = 1 << 16  # of items that `count_different` tells apart without sorting


def shape(groups_of_units):
    rows = ByUnit(np.uint32)
    for unit, groups in enumerate(groups_of_units):
        rows.add(np.full(len(groups), unit, np.uint32), np.asarray(groups, np.uint32))
    return shape_of(rows, np.zeros(rows.units, np.uint64))


@pytest.mark.parametrize("far", [1, PLACES])  # items that share a place are sorted
def test_many_rows_are_told_by_the_equal_groups_with_as_many_squares(far):
    rng = np.random.default_rng(5)
    units = [rng.zipf(1.5, rows).clip(1, 40) * far for rows in (64, 200, 1_000)]
    squares = [(np.unique(some, return_counts=True)[1] ** 2).sum() for some in units]
    expected = [round(len(some) ** 2 / one) for some, one in zip(units, squares, strict=True)]
    assert shape(units).entered.tolist() == expected
    few = [some[:MANY_ROWS] for some in units]
    assert shape(few).entered.tolist() == [len(np.unique(some)) for some in few]


@given(st.integers(1, 10**5), st.integers(1, 10**5))
def test_what_a_unit_tells_is_at_most_one_and_gives_its_groups_back(rows, groups):
    """A logarithm that grows evenly between powers of two is off by 6 % of a group at most."""
    groups, unit = min(groups, rows), shape([[0]])
    unit = unit._replace(rows=np.array([rows], np.uint32), entered=np.array([groups], np.uint32))
    units, told_of = by_rows(unit, rows, 256)
    assert units.sum() == 1
    assert 0 <= told_of.sum() <= 256
    if rows > MANY_ROWS:
        found = even_groups(np.array([float(rows)]), np.array([told_of[-1] / 256]))[0]
        assert 0.9 * groups <= found <= 1.15 * groups * rows ** (2 / 256)


LIMITS = (st.sampled_from([2.0, 7.0, 40.0, np.inf]), st.sampled_from([1.0, 5.0, np.inf]),
          st.sampled_from([3.0, 11.0, np.inf]), st.sampled_from([1.0, 2.0, np.inf]))  # fmt: skip


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6)), min_size=1, max_size=8), *LIMITS)
def test_rows_that_stand_for_several_are_bounded_like_these(drawn, squared, each, most, groups):
    """But for those of a row that the bound on squares would cut in two: less than one of each."""
    group, times = (np.array(some) for some in zip(*drawn, strict=True))
    limits = np.array([squared, np.inf, each, most, groups])

    def kept(group, times):
        first = np.array([list(group).index(one) for one in group])
        shown, weight = np.zeros(len(group), np.bool_), np.ones(len(group))
        ends = np.array([len(group)])
        return (admit(ends, first, times.astype(float), shown, weight, limits)[0] * times).sum()

    one_by_one = kept(np.repeat(group, times), np.ones(times.sum(), int))
    if squared == np.inf:
        assert kept(group, times) == pytest.approx(one_by_one)
    else:
        assert abs(kept(group, times) - one_by_one) <= len(set(group.tolist())) + 1


def units_like(pattern, rng, rows, groups):
    if pattern == "one of its own":
        return np.full(rows, rng.integers(groups))
    if pattern == "all alike":
        return rng.integers(0, groups, rows)
    own = rng.integers(0, groups, 6)
    return own[np.minimum(rng.geometric(0.4, rows) - 1, 5)]


@pytest.mark.parametrize("pattern", ["one of its own", "all alike", "six of its own"])
@pytest.mark.parametrize("rows", [300, 5_000])
def test_expected_streams_keep_to_as_few_groups_as_units_do(pattern, rows):
    """Within 30 % of the root of squares, which bounds must allow: it was ten times off."""
    rng, groups = np.random.default_rng(8), 40
    units = [units_like(pattern, rng, rows, groups) for _ in range(60)]
    some, told_of = by_rows(shape(units), rows, 256)
    many = float(2 * told_of.sum() / some.sum() / 256 - 1)
    stream = ExpectedStream(
        units=3e3, rows=rows, groups=groups, steep=0.0, histogram=((rows, rows, 1.0),),
        concentration=(0.0, many, 0.001),
    )  # fmt: skip
    drawn = draw_stream(concentrated(stream, many))
    lengths = np.diff(drawn.ends, prepend=0)
    unit = np.repeat(np.arange(len(lengths)), lengths)
    found = np.bincount(np.unique([unit, drawn.first], axis=1, return_inverse=True)[1],
                        drawn.times)  # fmt: skip
    squares = (found**2).sum() / len(lengths)
    true = np.mean([(np.bincount(some) ** 2.0).sum() for some in units])
    assert squares**0.5 == pytest.approx(true**0.5, rel=0.3)


def test_a_concentration_that_no_drawn_unit_has_changes_nothing():
    """A bin of 64 rows stood out where hardly a unit has as many: a mean of nothing."""
    stream = ExpectedStream(
        units=3e3, rows=8.0, groups=40, histogram=((8, 8, 1.0),), concentration=(0.8, 0.6, 0.1)
    )
    found = concentrated(stream, 0.6)
    assert found == replace(stream, concentration=None, repeats=found.repeats)
    assert 0 < found.repeats < 1


def test_units_of_one_row_beside_units_of_many_are_no_error():
    """No row of theirs repeats a group: sums that are equal but for rounding ended every sixth job
    over such rows, after its look."""
    for share in np.arange(1, 60) / 1_000:
        stream = ExpectedStream(
            units=5e3, rows=1 + 99 * share, groups=20, concentration=(0.0, 0.1, 0.1),
            histogram=((1, 1, 1 - share), (86, 108, share)),
        )  # fmt: skip
        assert 0 <= concentrated(stream, 0.1).repeats <= 1


@pytest.mark.parametrize(("concentration", "steps"), [(1.0, 1), (1.0, 24), (0.45, 1)])
def test_a_bound_leaves_room_for_units_with_many_rows(concentration, steps):
    """No bound allowed more than 181 rows: of units with 1,440 rows seven in eight were cut."""
    known = {"expected_rows": 1_240.0, "expected_most_rows": 1_450.0, "expected_units": 30_000.0,
             "expected_repeats": 0.99, HISTOGRAM: [[1024, 1447, 1.0]],
             LAWS: [[24.0, 0.0, 0.0, 0.0]], CONCENTRATION: [0.0, concentration, 0.001]}  # fmt: skip
    made = compile_plan(told(planned(steps=steps), known, [])).bounds
    groups = 24 if concentration < 1 else 1
    assert made.l2_squared >= 1_300**2 / groups
    assert made.l2_squared <= 4 * 1_447**2 / groups


def test_every_bound_that_a_query_may_choose_can_be_given():
    """Fails where a query may choose 2^31 squared rows, and is refused when it is given them."""
    for most in SQUARED:
        plan = replace(planned(), bounding=Bounding(quadratic=round(most)))
        check_plan(plan)
    assert compile_plan(plan).bounds.quadratic == SQUARED[-1]


def test_a_unit_with_many_rows_is_in_the_answer():
    """Of 3,000 units with 400 rows each, in one group of four: nearly all rows, at epsilon 3."""
    rng = np.random.default_rng(3)

    unit = np.repeat(np.arange(3_000), 400)
    table = pa.table({"u": unit, "g": rng.integers(0, 4, 3_000)[unit]})
    found = sv.sql(
        "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 3, delta = 1e-6,"
        " privacy_unit_column = u) g, COUNT(*) AS n FROM t GROUP BY g", t=table,
    ).to_arrow()  # fmt: skip
    assert sum(found["n"].to_pylist()) > 0.9 * len(unit)
