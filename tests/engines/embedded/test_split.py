"""Dividing a unit table changes no decision, and its parts grow one after the other."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamveil import engines
from streamveil.core.sensitivity import Bounds
from streamveil.dataflow.bounding import Passed, UnitRows, UnitTable, unit_stage
from streamveil.dataflow.unit_kernels import WORDS
from streamveil.engines import (
    GROWTH,
    PARTS,
    SAMPLE,
    PartedTable,
    Room,
    split,
    unseen,
)
from tests.dataflow.test_bounding import FIRSTS, assert_decides, cut, make_rows, rules
from tests.dataflow.test_unit_layout import CROWDED, assert_can_be_found
from tests.dataflow.twins import remembered

ANYWHERE = Path("/nonexistent")


def empty(bounds: Bounds) -> UnitTable:
    return UnitTable.empty(bounds, "all")


@given(rules(), st.integers(0, 2**32), st.integers(1, 400), st.integers(1, 300), FIRSTS)
def test_a_table_divided_anywhere_decides_as_before(bounds, seed, n, units, firsts):
    rows = make_rows(seed, n, units, 40, bounds.scale)
    table = UnitTable.empty(bounds, firsts)
    before = unit_stage(table, cut(rows, 0, n // 2), bounds)
    parted = PartedTable.of(table, Room(None, ANYWHERE), UnitTable.empty(bounds, firsts))
    assert parted.units == table.units
    after = parted.bound(cut(rows, n // 2, n), bounds)
    both = Passed(*(np.append(*columns) for columns in zip(before, after, strict=True)))
    assert_decides(both, rows, bounds, firsts)


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
        assert_can_be_found(held)
        assert held.units <= 0.88 * held.capacity
        assert held.granules[0] <= held.granules[1]
        facts = remembered(held)
        assert all(name % PARTS == part for name in facts)
        seen |= facts
    assert seen == remembered(table)
    assert len(seen) == table.units


@pytest.mark.parametrize("threads", [2, 3, 5, 99])
@pytest.mark.parametrize(
    ("bounds", "firsts"),
    [(Bounds(quadratic=40, slots=9, scale=2), "hidden"), (Bounds(max_rows=9), "all"),
     (Bounds(max_rows=2**17, per_group=400), "none")],
)  # fmt: skip
def test_threads_leave_every_bit_of_every_part_as_it_was(bounds, firsts, threads, monkeypatch):
    monkeypatch.setattr(engines, "WORTH_THREADS", 2_000)
    rows, found = make_rows(3, 50_000, 9_000, 300, bounds.scale), []
    for many in (1, threads):
        parted = PartedTable(Room(None, ANYWHERE, many), UnitTable.empty(bounds, firsts))
        passed = [parted.bound(cut(rows, start, end), bounds)
                  for start, end in ((0, 20_000), (20_000, 21_000), (21_000, 50_000))]  # fmt: skip
        held = [table[name].tobytes() for table in map(parted.arrays, range(PARTS))
                for name in UnitTable.NAMES]  # fmt: skip
        answers = [column.tobytes() for some in passed for column in some]
        found.append((held, answers, parted.room.resident))
    assert found[0] == found[1]


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
    assert max(grown[late]) < 0.06, "the parts do not, although each grows by half"
    assert parted.nbytes < 2 * plain.nbytes


def one_row_each(names: Any) -> UnitRows:
    n = len(names)
    ones = np.ones(n, np.uint8)
    return UnitRows(names, np.zeros(n, np.uint16), ones, np.zeros(n, np.bool_))


def fresh_names(seed: int, n: int) -> Any:
    return np.random.default_rng(seed).integers(1, 2**64, n, np.uint64, endpoint=False)


@pytest.mark.parametrize(
    ("n", "units", "crowd"),
    [(200_000, 60_000, "spread"), (200_000, 190_000, "spread")]
    + [(n, 900, crowd) for n in (5, 3_000, 40_000) for crowd in CROWDED],
)
def test_units_to_come_are_counted_by_a_sample(n, units, crowd):
    bounds = Bounds(max_rows=9)
    names = CROWDED[crowd](fresh_names(1, units))
    table = empty(bounds)
    unit_stage(table, one_row_each(names[: units // 3]), bounds)
    asked = names[np.random.default_rng(2).integers(0, units, n)]
    new = len(set(asked.tolist()) - set(names[: units // 3].tolist()))
    found = unseen(asked, np.array(table.head), WORDS[table.shape.layout])
    if n < 1 << SAMPLE:
        assert found == new
    assert found <= n
    if units > 1 << SAMPLE:
        assert 0.9 * new < found < 1.03 * new


@pytest.mark.parametrize("before", [0, 3_000, 150_000])
def test_parts_grow_at_most_once_more_in_rows_that_bring_many_units(before, monkeypatch):
    bounds, grown = Bounds(max_rows=9), Counter()
    names = fresh_names(3, 600_000)
    parted = PartedTable(Room(None, ANYWHERE), empty(bounds))
    parted.bound(one_row_each(names[:before]), bounds)
    grow = UnitTable.grow
    monkeypatch.setattr(UnitTable, "grow", lambda t, what: (grown.update([id(t)]), grow(t, what)))
    assert parted.bound(one_row_each(names), bounds).accepted.all()
    assert len(grown) < 0.2 * PARTS
    assert set(grown.values()) <= {1}
    assert parted.units == 600_000
    assert 21 < parted.nbytes / parted.units < 24
    for part in range(PARTS):
        assert_can_be_found(parted.tables[part])


def test_divided_units_take_less_than_24_bytes_at_any_time():
    bounds, sizes = Bounds(max_rows=9), []
    names = fresh_names(4, 400_000)
    parted = PartedTable(Room(None, ANYWHERE), empty(bounds))
    for start in range(0, 400_000, 5_000):
        parted.bound(one_row_each(names[start : start + 5_000]), bounds)
        sizes.append(parted.nbytes / parted.units)
    assert max(sizes[8:]) < 24
    assert {table.shape.growth for table in parted.tables if table} == {GROWTH}
