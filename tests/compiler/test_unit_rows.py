"""Rows by unit, read in parts and set aside on disk: as all of them in memory would be."""

import numpy as np
import pyarrow as pa
import pytest

import streamveil as sv
from streamveil.compiler import by_unit
from streamveil.compiler.by_unit import middle_of_each, shape_of
from streamveil.compiler.numbered_rows import usable_rows
from streamveil.compiler.numbering import Numbering, taken
from streamveil.plan.combine import numbered

RNG = np.random.default_rng(7)


def some(values, kind, rows, nulls):
    column = pa.array(np.asarray(values)[RNG.integers(0, len(values), rows)])
    column = column.cast(kind)
    absent = RNG.random(rows) < nulls
    return pa.array([None if gone else one for one, gone in zip(column.to_pylist(), absent,
                     strict=True)], kind)  # fmt: skip


@pytest.mark.parametrize("nulls", [0.0, 0.1])
def test_numbers_of_parts_are_those_of_the_whole(nulls):
    rows = 12_000
    columns = [some(np.arange(9_000), pa.int64(), rows, nulls),
               some([f"page {n}" for n in range(40)], pa.string(), rows, nulls),
               some([0.5, -1.5, np.nan], pa.float64(), rows, nulls)]  # fmt: skip
    for chosen in (columns, columns[:1], columns[1:2]):
        counted, found = Numbering(), []
        for start in range(0, rows, 1_700):
            found.append(counted.numbers([column.slice(start, 1_700) for column in chosen]))
        expected = numbered(chosen)
        assert np.concatenate(found).tolist() == expected.tolist()
        assert len(counted) == expected.max() + 1


@pytest.mark.parametrize("kept", [by_unit.KEPT_BYTES, 100_000])
def test_rows_in_parts_say_what_the_whole_says(kept, monkeypatch):
    """With little memory most blocks go by way of the disk; units are of two parts."""
    monkeypatch.setattr(by_unit, "KEPT_BYTES", kept)
    rows, few = 150_000, 20_000
    user = np.r_[np.arange(80_000), RNG.integers(0, 90_000, rows - 80_000 - few), [3] * few]
    table = pa.table({"user": user, "key": RNG.integers(0, 30, rows), "x": RNG.normal(0, 9, rows)})
    query = sv.memory(table, name="t").protect("user").group_by("key")
    plan = query.agg(x=sv.sum("x", bounds=(-5, 5))).release(budget=sv.Budget(mu=1, delta=1e-9)).plan
    parts = [table.slice(start, 9_999) for start in range(0, rows, 9_999)]
    groups, [values] = taken(plan, plan, ["x"], parts)
    whole = usable_rows(plan, table, 1.0)
    words = RNG.integers(0, 2**64, groups.rows.units, np.uint64)
    shape = shape_of(groups.rows, words)
    counts = np.bincount(whole.scope)
    assert (shape.rows == counts).all()
    order = np.argsort(whole.scope, kind="stable")
    starts = np.cumsum(counts) - counts
    place = np.minimum((words / 2.0**64 * counts).astype(int), counts - 1)
    assert (shape.cell == whole.cell[order[starts + place]]).all()
    pairs = np.unique(whole.scope * 30 + whole.cell)
    assert (shape.entered == np.bincount(pairs // 30)).all()
    assert groups.groups == whole.cell.max() + 1
    assert (groups.first == np.abs(whole.value[order[starts]])).all()
    middle = table["x"].to_numpy()[order[starts + counts // 2]]
    assert (middle_of_each(values.rows) == middle).all()
