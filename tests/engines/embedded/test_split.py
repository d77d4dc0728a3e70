"""Dividing a unit table changes no decision, and its parts grow one after the other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamveil.engines.embedded.split import split
from streamveil.engines.embedded.tables import PARTS, PartedTable, Room
from streamveil.operators.bounding import Bounds, UnitTable, unit_stage
from tests.operators.test_bounding import FIRSTS, cut, make_rows, rules
from tests.operators.twins import bound, remembered

ANYWHERE = Path("/nonexistent")


def empty(bounds: Bounds) -> UnitTable:
    return UnitTable.empty(bounds, "all")


@given(rules(), st.integers(0, 2**32), st.integers(1, 400), st.integers(1, 300), FIRSTS)
def test_a_table_divided_anywhere_decides_as_before(bounds, seed, n, units, firsts):
    rows = make_rows(seed, n, units, 40, bounds.scale)
    accepted, first = bound(rows, bounds)
    table = UnitTable.empty(bounds, firsts)
    before = unit_stage(table, cut(rows, 0, n // 2), bounds)
    parted = PartedTable.of(table, Room(None, ANYWHERE), UnitTable.empty(bounds, firsts))
    assert parted.units == table.units
    after = parted.bound(cut(rows, n // 2, n), bounds)
    np.testing.assert_array_equal(np.append(before.accepted, after.accepted), accepted)
    if firsts == "all":
        np.testing.assert_array_equal(np.append(before.first, after.first), first)


@pytest.mark.parametrize(
    "bounds",
    [Bounds(quadratic=40, slots=9, scale=2), Bounds(max_rows=9, slots=3), Bounds(max_rows=9),
     Bounds(max_rows=2**17, per_group=400)],
)  # fmt: skip
def test_every_fact_of_a_unit_is_in_one_part(bounds):
    rows = make_rows(3, 50_000, 9_000, 300, bounds.scale)
    table = UnitTable.empty(bounds, "hidden")
    unit_stage(table, rows, bounds)
    seen = {}
    for part, held in enumerate(split(table, PARTS)):
        assert held.units <= 0.88 * held.capacity
        assert held.granules[0] <= held.granules[1]
        facts = remembered(held)
        assert all(name % PARTS == part for name in facts)
        seen |= facts
    assert seen == remembered(table)
    assert len(seen) == table.units


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
    assert max(plain_grown[late]) > 0.1, "the one table grows by a quarter at once"
    assert max(grown[late]) < 0.06, "the parts do not"
    assert parted.nbytes < 2 * plain.nbytes
