"""The unit stage equals its plain twin, whatever the split; its declared reach is never passed."""

from collections import Counter
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamveil.core.sensitivity import Bounds
from streamveil.dataflow.bounding import Passed, UnitRows, UnitTable, unit_stage
from streamveil.dataflow.unit_kernels import COUNTED, NEW, REPEATED
from streamveil.errors import PlanError
from tests.dataflow.twins import bound, remembered


@st.composite
def rules(draw):
    kinds = st.sampled_from(["rows", "slots", "group", "quadratic", "weighted", "wide", "few"])
    kind = draw(kinds)
    some = st.integers(1, 6)
    if kind == "rows":
        return Bounds(max_rows=draw(some))
    if kind == "slots":
        return Bounds(max_rows=draw(st.sampled_from([3, 9, 20_000])), slots=draw(st.integers(0, 5)))
    if kind == "group":
        return Bounds(max_rows=draw(some), per_group=draw(some))
    if kind == "quadratic":
        return Bounds(quadratic=draw(st.integers(1, 12)), max_rows=draw(st.none() | some))
    if kind == "few":
        squares = draw(st.none() | st.integers(1, 12))
        return Bounds(
            max_rows=draw(some), per_group=draw(st.none() | some), quadratic=squares,
            groups=draw(st.integers(1, 3)), slots=draw(st.none() | some),
        )  # fmt: skip
    if kind == "wide":
        most = draw(st.sampled_from([300, 2**16, 2**31]))
        return Bounds(max_rows=most, per_group=draw(st.integers(1, most)), slots=draw(some))
    rows, each = draw(st.none() | st.integers(1, 20)), draw(st.none() | st.integers(1, 3))
    return Bounds(
        quadratic=draw(some), max_rows=rows, per_group=each, slots=draw(some), scale=8
    )  # fmt: skip


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
    return rows.part(slice(start, end))


FIRSTS = st.sampled_from(["none", "hidden", "all"])


def assert_decides(passed, rows, bounds, firsts):
    """What the plain twin says: rows that pass, and of those asked for, which are first."""
    accepted, first, counted = bound(rows, bounds)
    np.testing.assert_array_equal(passed.accepted, accepted)
    if firsts != "none":
        asked = rows.hidden | (firsts == "all")
        np.testing.assert_array_equal((passed.first & COUNTED > 0)[asked], counted[asked])
    if firsts == "all":
        np.testing.assert_array_equal(passed.first & NEW > 0, first)


@given(
    rules(), FIRSTS, st.integers(0, 2**32), st.integers(0, 300), st.integers(1, 200),
    st.integers(1, 80),
)  # fmt: skip
def test_equals_the_plain_twin_in_any_split_of_batches(bounds, firsts, seed, n, units, groups):
    rows = make_rows(seed, n, units, groups, bounds.scale)
    table = UnitTable.empty(bounds, firsts)
    parts = [unit_stage(table, cut(rows, i, i + 97), bounds) for i in range(0, n, 97)]
    passed = Passed(*map(np.concatenate, zip(*parts, strict=True))) if n else Passed.none(0)
    assert_decides(passed, rows, bounds, firsts)


@pytest.mark.parametrize("bounds", [Bounds(max_rows=3), Bounds(quadratic=9)])
def test_names_may_lie_apart_in_memory(bounds):
    rows = make_rows(3, 500, 60, 9, bounds.scale)
    apart = np.stack([rows.unit, ~rows.unit], axis=1)[:, 0]
    some = unit_stage(UnitTable.empty(bounds, "all"), rows, bounds)
    again = unit_stage(UnitTable.empty(bounds, "all"), rows._replace(unit=apart), bounds)
    for column, same in zip(some, again, strict=True):
        np.testing.assert_array_equal(column, same)


@given(
    rules(), FIRSTS, st.integers(0, 2**32), st.integers(1, 2_000), st.integers(1, 300),
    st.sampled_from([0, 5 << 60, 2**64 - 2**32]),
)  # fmt: skip
def test_units_that_want_one_bucket_keep_apart(bounds, firsts, seed, n, units, bucket):
    """Rows looked at together find the same free slot; behind the last bucket comes the first."""
    rows = make_rows(seed, n, units, 40, bounds.scale)
    rows = rows._replace(unit=np.uint64(bucket) | rows.unit >> np.uint64(32) | np.uint64(1))
    table = UnitTable.empty(bounds, firsts)
    passed = unit_stage(table, rows, bounds)
    assert_decides(passed, rows, bounds, firsts)
    assert set(remembered(table)) == set(rows.unit[passed.accepted].tolist())


@given(rules(), FIRSTS, st.integers(0, 2**32), st.integers(0, 400), st.integers(1, 30))
def test_remembers_what_later_decisions_need_and_no_more(bounds, firsts, seed, n, units):
    rows = make_rows(seed, n, units, 40, bounds.scale)
    table = UnitTable.empty(bounds, firsts)
    accepted = unit_stage(table, rows, bounds).accepted
    found = remembered(table)
    assert set(found) == set(rows.unit[accepted].tolist())
    sums = {unit: Counter() for unit in found}
    rows_of, inside = Counter(), set()
    counted = bound(rows, bounds)[2][accepted].tolist()
    for unit, group, weight, hidden, slot in zip(
        *(column[accepted].tolist() for column in rows), counted, strict=True
    ):
        rows_of[unit] += 1
        if slot and hidden:
            inside.add((unit, group))
        if table.shape.remembered == 2 or (
            table.shape.remembered == 1 and hidden and (unit, group) in inside
        ):
            sums[unit][group] += weight
    for unit, (totals, taken, groups) in found.items():
        assert set(groups) == set(sums[unit])
        if table.shape.width:
            assert groups == sums[unit]
            squares = sum(held**2 for held in groups.values())
        if bounds.quadratic is not None:
            assert totals[-1] == squares
        if bounds.max_rows is not None:
            assert totals[0] == rows_of[unit]
        if bounds.slots is not None:
            assert taken <= bounds.slots


@pytest.mark.parametrize("bounds", [Bounds(max_rows=9, per_group=2), Bounds(quadratic=20, scale=4)])
def test_large_tables_grow_and_any_partition_by_unit_agrees(bounds):
    rows = make_rows(5, 200_000, 60_000, 500, bounds.scale)
    accepted, first, _ = bound(rows, bounds)
    whole = unit_stage(UnitTable.empty(bounds, "all"), rows, bounds)
    np.testing.assert_array_equal(whole.accepted, accepted)
    np.testing.assert_array_equal(whole.first & NEW > 0, first)
    inside, repeated = set(), []
    pairs = zip(rows.unit.tolist(), rows.group.tolist(), strict=True)
    for pair, passes in zip(pairs, accepted.tolist(), strict=True):
        repeated.append(not passes and pair in inside)
        inside |= {pair} if passes else set()
    np.testing.assert_array_equal(whole.first & REPEATED > 0, repeated)
    for shard in range(3):
        mine = rows.unit % np.uint64(3) == shard
        part = unit_stage(UnitTable.empty(bounds, "all"), rows.part(mine), bounds)
        np.testing.assert_array_equal(part.accepted, accepted[mine])
        np.testing.assert_array_equal(part.first & NEW > 0, first[mine])


@given(rules(), st.integers(0, 2**32), st.integers(1, 300))
def test_accepted_rows_alone_rebuild_the_same_table(bounds, seed, n):
    rows = make_rows(seed, n, 40, 10, bounds.scale)
    one, two = (UnitTable.empty(bounds, "all") for _ in range(2))
    for i in range(0, n, 50):
        batch = cut(rows, i, i + 50)
        kept = unit_stage(one, batch, bounds).accepted
        again = unit_stage(two, batch.part(kept), bounds)
        assert again.accepted.all()
    for name in UnitTable.NAMES:
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))


@given(rules(), st.data())
def test_a_unit_fills_one_group_and_enters_groups_as_far_as_is_derived(bounds, data):
    """What the test of totals is sized for, to the row, also where rows weigh less than one."""
    weight, n = data.draw(st.integers(1, bounds.scale)), 300
    most = {"group": bounds.most_in_group(weight), "groups": bounds.most_groups(weight)}
    for name, groups in (("group", np.ones(n)), ("groups", np.arange(1, n + 1))):
        rows = UnitRows(
            np.ones(n, np.uint64), groups.astype(np.uint16), np.full(n, weight, np.uint8),
            np.ones(n, bool),
        )  # fmt: skip
        passed = unit_stage(UnitTable.empty(bounds, "all"), rows, bounds).accepted
        assert passed.sum() == min(n, most[name])


@pytest.mark.parametrize(
    "bounds",
    [
        Bounds(max_rows=5),
        Bounds(max_rows=5, per_group=2),
        Bounds(quadratic=5),
        Bounds(max_rows=4, quadratic=9),
        Bounds(max_rows=6, per_group=4),
        Bounds(max_rows=5, groups=1),
        Bounds(max_rows=6, per_group=2, groups=2),
        Bounds(quadratic=9, groups=2),
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
        passed = unit_stage(UnitTable.empty(bounds, "all"), rows, bounds)
        counts = Counter(np.array(stream)[passed.accepted].tolist())
        reached = max(reached, sum(n * n for n in counts.values()))
        units = max(units, int((passed.first & NEW > 0).sum()))
    assert reached <= bounds.l2_squared
    assert units <= bounds.units_l2_squared
    assert reached == bounds.l2_squared or bounds.quadratic  # tight where it is a plain rule


@pytest.mark.parametrize("chunk", [7_000, 40_000])
def test_large_batches_rebuild_the_same_table(chunk):
    """Visits in table order crowd one end; where it grows must not depend on rejected rows."""
    bounds = Bounds(max_rows=2, per_group=1)
    rows = make_rows(9, 80_000, 60_000, 3, 1)
    one, two = (UnitTable.empty(bounds, "all") for _ in range(2))
    for i in range(0, 80_000, chunk):
        batch = cut(rows, i, i + chunk)
        kept = unit_stage(one, batch, bounds).accepted
        unit_stage(two, batch.part(kept), bounds)
    for name in UnitTable.NAMES:
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))
    assert one.units > 0.5 * one.capacity


@pytest.mark.parametrize(
    "bounds",
    [Bounds(max_rows=9, slots=2), Bounds(max_rows=2**15, slots=2), Bounds(quadratic=9, slots=2)],
)
@pytest.mark.parametrize("firsts", ["hidden", "all"])
def test_a_row_without_a_slot_counts_for_values_and_not_for_the_selection(bounds, firsts):
    """Slots pay for the selection alone; the values pay by rows, or by squares of rows."""
    group = np.array([0, 1, 2, 3, 2, 1], np.uint16)  # the unit has slots in 0 and 1
    rows = UnitRows(np.ones(6, np.uint64), group, np.ones(6, np.uint8), np.ones(6, bool))
    passed = unit_stage(UnitTable.empty(bounds, firsts), rows, bounds)
    assert passed.accepted.tolist() == [True] * 6 or bounds.quadratic == 9
    assert passed.accepted[:5].all()  # 1 + 1 + 4 + 1 of 9 squared rows
    assert (passed.first & COUNTED > 0).tolist() == [True, True, False, False, False, False]
    if firsts == "all":
        assert (passed.first & NEW > 0).tolist() == [True] * 4 + [False] * 2


def test_refuses_a_rule_that_bounds_nothing():
    with pytest.raises(PlanError, match="nothing bounds"):
        Bounds(per_group=1)


def test_memory_per_unit_is_as_stated():
    rows = make_rows(1, 300_000, 50_000, 60_000, 1)
    few, many = Bounds(max_rows=32, slots=3), Bounds(quadratic=128, slots=3, scale=21)
    for bounds, most in ((few, 24), (many, 24 + 1.6 * 3 * 6)):  # 6 groups a unit
        table = UnitTable.empty(bounds, "hidden")
        unit_stage(table, rows, bounds)
        assert table.nbytes / table.units < most


@pytest.mark.parametrize("bounds", [Bounds(quadratic=128), Bounds(max_rows=32)])
def test_units_of_few_groups_take_24_bytes_while_the_table_grows(bounds):
    one, again = (make_rows(seed, 60_000, 60_000, 60_000, 1) for seed in (1, 2))
    names = np.arange(1, 60_001, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    table, sizes = UnitTable.empty(bounds, "all"), []
    for start in range(0, 60_000, 1_000):
        for rows in (one, again, one):  # two groups each
            part = cut(rows._replace(unit=names), start, start + 1_000)
            assert unit_stage(table, part, bounds).accepted.all()
        sizes.append(table.nbytes / table.units)
    assert table.units == 60_000
    assert max(sizes[5:]) < 24
    assert max(sizes[5:]) > 1.15 * min(sizes[5:]), "seen before and after growing"
