"""The unit stage equals its plain twin, whatever the split; its declared reach is never passed."""

from collections import Counter
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamveil.errors import PlanError
from streamveil.operators.bounding import Bounds, UnitRows, UnitTable, unit_stage
from tests.operators.twins import bound


@st.composite
def rules(draw):
    kind = draw(st.sampled_from(["rows", "group", "quadratic", "weighted"]))
    some = st.integers(1, 6)
    if kind == "rows":
        return Bounds(max_rows=draw(some))
    if kind == "group":
        return Bounds(max_rows=draw(some), per_group=draw(some))
    if kind == "quadratic":
        return Bounds(quadratic=draw(st.integers(1, 12)), max_rows=draw(st.none() | some))
    return Bounds(quadratic=draw(some), slots=draw(some), scale=8)


def make_rows(seed, n, units, groups, scale):
    rng = np.random.default_rng(seed)
    names = rng.integers(1, 2**64, units, np.uint64, endpoint=False)
    group = rng.integers(0, groups, n).astype(np.uint16)
    return UnitRows(
        names[rng.integers(0, units, n)],
        group,
        rng.integers(1, scale + 1, n).astype(np.uint8) if scale > 1 else np.ones(n, np.uint8),
        group % 2 == 0,
    )


def cut(rows, start, end):
    return UnitRows(*(column[start:end] for column in rows))


@given(rules(), st.integers(0, 2**32), st.integers(0, 300), st.integers(1, 200), st.integers(1, 80))
def test_equals_the_plain_twin_in_any_split_of_batches(bounds, seed, n, units, groups):
    rows = make_rows(seed, n, units, groups, bounds.scale)
    table = UnitTable.empty(bounds, by_group=True)
    parts = [unit_stage(table, cut(rows, i, i + 97), bounds) for i in range(0, n, 97)]
    accepted, first = bound(rows, bounds)
    np.testing.assert_array_equal(
        np.concatenate([p.accepted for p in parts] or [accepted]), accepted
    )
    np.testing.assert_array_equal(np.concatenate([p.first for p in parts] or [first]), first)


@pytest.mark.parametrize("bounds", [Bounds(max_rows=9, per_group=2), Bounds(quadratic=20, scale=4)])
def test_large_tables_grow_and_any_partition_by_unit_agrees(bounds):
    rows = make_rows(5, 200_000, 60_000, 500, bounds.scale)
    accepted, first = bound(rows, bounds)
    whole = unit_stage(UnitTable.empty(bounds, by_group=True), rows, bounds)
    np.testing.assert_array_equal(whole.accepted, accepted)
    np.testing.assert_array_equal(whole.first, first)
    for shard in range(3):
        mine = rows.unit % np.uint64(3) == shard
        part = unit_stage(
            UnitTable.empty(bounds, by_group=True), UnitRows(*(c[mine] for c in rows)), bounds
        )
        np.testing.assert_array_equal(part.accepted, accepted[mine])
        np.testing.assert_array_equal(part.first, first[mine])


@given(rules(), st.integers(0, 2**32), st.integers(1, 300))
def test_accepted_rows_alone_rebuild_the_same_table(bounds, seed, n):
    rows = make_rows(seed, n, 40, 10, bounds.scale)
    one, two = (UnitTable.empty(bounds, by_group=True) for _ in range(2))
    for i in range(0, n, 50):
        batch = cut(rows, i, i + 50)
        kept = unit_stage(one, batch, bounds).accepted
        again = unit_stage(two, UnitRows(*(c[kept] for c in batch)), bounds)
        assert again.accepted.all()
    for name in UnitTable.NAMES:
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))


@pytest.mark.parametrize(
    "bounds",
    [
        Bounds(max_rows=5),
        Bounds(max_rows=5, per_group=2),
        Bounds(quadratic=5),
        Bounds(max_rows=4, quadratic=9),
        Bounds(max_rows=6, per_group=4),
    ],
)
def test_no_stream_of_one_unit_reaches_further_than_declared(bounds):
    reached, units = 0, 0
    for stream in product(range(3), repeat=7):  # every order of 7 rows over 3 groups
        rows = UnitRows(
            np.ones(7, np.uint64),
            np.array(stream, np.uint16),
            np.ones(7, np.uint8),
            np.ones(7, bool),
        )
        passed = unit_stage(UnitTable.empty(bounds, by_group=True), rows, bounds)
        counts = Counter(np.array(stream)[passed.accepted].tolist())
        reached = max(reached, sum(n * n for n in counts.values()))
        units = max(units, int(passed.first.sum()))
    assert reached <= bounds.l2_squared
    assert units <= bounds.units_l2_squared
    assert reached == bounds.l2_squared or bounds.quadratic  # tight where it is a plain rule


@pytest.mark.parametrize("chunk", [7_000, 40_000])
def test_large_batches_rebuild_the_same_table(chunk):
    """Visits in table order crowd one end; where it grows must not depend on rejected rows."""
    bounds = Bounds(max_rows=2, per_group=1)
    rows = make_rows(9, 80_000, 60_000, 3, 1)
    one, two = (UnitTable.empty(bounds, by_group=True) for _ in range(2))
    for i in range(0, 80_000, chunk):
        batch = cut(rows, i, i + chunk)
        kept = unit_stage(one, batch, bounds).accepted
        unit_stage(two, UnitRows(*(c[kept] for c in batch)), bounds)
    for name in UnitTable.NAMES:
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))
    assert one.units > 0.2 * len(one.unit)


def test_refuses_a_rule_that_bounds_nothing():
    with pytest.raises(PlanError, match="nothing bounds"):
        Bounds(per_group=1)


def test_memory_per_unit_is_as_stated():
    bounds = Bounds(max_rows=32, per_group=1)
    rows = make_rows(1, 300_000, 50_000, 60_000, 1)
    table = UnitTable.empty(bounds, by_group=True)
    unit_stage(table, rows, bounds)
    assert table.nbytes / table.units < 120  # 16 bytes / load + blocks for 6 groups
