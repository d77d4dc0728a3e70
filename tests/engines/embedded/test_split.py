"""Dividing a unit table changes no decision, and its parts grow one after the other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamveil.engines.embedded.split import block_sizes, restrict, split
from streamveil.engines.embedded.tables import PARTS, PartedTable, Room
from streamveil.operators.bounding import Bounds, UnitTable, unit_stage
from tests.operators.test_bounding import cut, make_rows, rules
from tests.operators.twins import bound

ANYWHERE = Path("/nonexistent")


def empty(bounds: Bounds) -> UnitTable:
    return UnitTable.empty(bounds, by_group=True)


@given(rules(), st.integers(0, 2**32), st.integers(1, 400), st.integers(1, 300), st.booleans())
def test_a_table_divided_anywhere_decides_as_before(bounds, seed, n, units, by_group):
    rows = make_rows(seed, n, units, 40, bounds.scale)
    accepted, first = bound(rows, bounds)
    table = UnitTable.empty(bounds, by_group=by_group)
    before = unit_stage(table, cut(rows, 0, n // 2), bounds)
    parted = PartedTable.of(table, Room(None, ANYWHERE), empty(bounds))
    assert parted.units == table.units
    after = parted.bound(cut(rows, n // 2, n), bounds)
    np.testing.assert_array_equal(np.append(before.accepted, after.accepted), accepted)
    if by_group or bounds.groups_matter:
        np.testing.assert_array_equal(np.append(before.first, after.first), first)


def test_every_fact_of_a_unit_is_in_one_part():
    bounds = Bounds(quadratic=40, slots=9, scale=2)
    rows = make_rows(3, 50_000, 9_000, 300, bounds.scale)
    table = empty(bounds)
    unit_stage(table, rows, bounds)
    seen = {}
    for part, held in enumerate(split(table, PARTS)):
        assert held.units <= 0.8 * len(held.unit)
        assert held.meta[1] <= len(held.pool_group)
        names = facts(held)
        assert all(name % PARTS == part for name in names)
        seen |= names
    assert seen == facts(table)
    assert len(seen) == table.units


def facts(table: UnitTable) -> dict[int, tuple[object, ...]]:
    found = {}
    for slot in np.flatnonzero(table.unit):
        start, used = int(table.block[slot]), int(table.used[slot])
        groups = table.pool_group[start : start + used].tolist()
        sums = table.pool_sum[start : start + used].tolist()
        facts = (int(table.spent[slot]), int(table.slots[slot]))
        found[int(table.unit[slot])] = (facts, tuple(zip(groups, sums, strict=True)))
    return found


def test_blocks_have_the_size_the_kernel_gives_them():
    bounds = Bounds(max_rows=500)
    for groups in (0, 1, 3, 4, 5, 8, 9, 16, 17, 300):
        table = empty(bounds)
        rows = make_rows(1, groups, 1, 1, 1)._replace(group=np.arange(groups, dtype=np.uint16))
        unit_stage(table, rows, bounds)
        free = [table.meta[2 + k] >= 0 for k in range(8)]
        unused = sum(4 << k for k, there in enumerate(free) if there)
        assert table.meta[1] - unused == block_sizes(np.array([groups]))[0]
        assert restrict(table, np.flatnonzero(table.unit)).units == (groups > 0)


@pytest.mark.parametrize("bounds", [Bounds(max_rows=4), Bounds(max_rows=4, per_group=1)])
def test_parts_grow_one_after_the_other(bounds):
    parted = PartedTable(Room(None, ANYWHERE), empty(bounds))
    plain, rng = empty(bounds), np.random.default_rng(2)
    grown, plain_grown, batch = [], [], 4_000
    for _ in range(100):
        rows = make_rows(int(rng.integers(2**32)), batch, batch, 9, 1)
        kept, before = parted.nbytes, plain.nbytes
        parted.bound(rows, bounds)
        unit_stage(plain, rows, bounds)
        grown.append((parted.nbytes - kept) / parted.nbytes)
        plain_grown.append((plain.nbytes - before) / plain.nbytes)
    late = slice(40, None)  # from here on a batch adds a fortieth or less
    assert max(plain_grown[late]) > 0.25, "the one table doubles at once"
    assert max(grown[late]) < 0.15, "the parts do not"
    assert parted.nbytes < 2 * plain.nbytes
