"""Rows by unit, read in parts and set aside on disk: as all of them in memory would be."""

import numpy as np
import pyarrow as pa
import pytest

import streamveil as sv
from streamveil.compiler import by_unit
from streamveil.compiler.by_unit import middle_of_each, shape_of
from streamveil.compiler.group_by import event_time
from streamveil.compiler.numbered_rows import UsableRows, usable_rows
from streamveil.compiler.numbering import GroupRows, Numbering, taken
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


@pytest.mark.parametrize(("kept", "threads"), [(by_unit.KEPT_BYTES, 1), (100_000, 1), (100_000, 3)])
def test_rows_in_parts_say_what_the_whole_says(kept, threads, monkeypatch):
    """With little memory most blocks go by way of the disk; units are of two parts."""
    monkeypatch.setattr(by_unit, "KEPT_BYTES", kept)
    rows, few = 150_000, 20_000
    user = np.r_[np.arange(80_000), RNG.integers(0, 90_000, rows - 80_000 - few), [3] * few]
    x = np.where(RNG.random(rows) < 0.6, 0.0, RNG.normal(0, 9, rows))
    table = pa.table({"user": user, "key": RNG.integers(0, 30, rows), "x": x})
    query = sv.memory(table, name="t").protect("user").group_by("key")
    plan = query.agg(x=sv.sum("x", bounds=(-5, 5))).release(budget=sv.Budget(mu=1, delta=1e-9)).plan
    parts = [table.slice(start, 9_999) for start in range(0, rows, 9_999)]
    groups, [values] = taken(plan, plan, ["x"], parts, threads)
    whole = usable_rows(plan, table, 1.0)
    words = RNG.integers(0, 2**64, groups.rows.units, np.uint64)
    shape = shape_of(groups.rows, words, threads)
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
    found, other = middle_of_each(values.rows)
    assert (found[~other] == middle[~other]).all()
    assert not middle[other].any()
    for unit in np.flatnonzero(other)[:50]:
        own = table["x"].to_numpy()[order[starts[unit] : starts[unit] + counts[unit]]]
        assert found[unit] == own[own != 0][np.count_nonzero(own) // 2]


def test_numbers_stay_while_their_table_grows():
    values = RNG.integers(0, 2**63, 100_000)
    counted = Numbering()
    found = [counted.numbers([pa.array(some)]) for some in np.split(values, 10)]
    assert np.concatenate(found).tolist() == numbered([pa.array(values)]).tolist()
    assert counted.numbers([pa.array(values)]).tolist() == np.concatenate(found).tolist()


@pytest.mark.parametrize("items", [[0, 1, 2], [5, 5 + by_unit.PLACES, 2**32 - 1], range(90_000)])
def test_different_items_are_counted_whether_or_not_they_share_a_place(items):
    rows = RNG.integers(1, 40, 3_000)
    held = RNG.choice(np.array(items, np.uint32), rows.sum())
    starts, found = np.append(0, np.cumsum(rows)), np.zeros(len(rows), np.uint32)
    by_unit.count_different(held, starts, found)
    assert found.tolist() == [len({*some.tolist()}) for some in np.split(held, starts[1:-1])]


@pytest.mark.parametrize("unit", ["us", "ms", "s", "ns"])
def test_periods_of_units_are_those_of_the_job(unit):
    """The planted fault: times of a look were read by another function than those of a job, which
    takes all beyond 73,000 years for one. A person with rows there counted once for each day.
    """
    day = 86_400_000_000 // {"us": 1, "ms": 1000, "s": 10**6, "ns": 1}[unit]
    far = {"us": 2**61, "ms": 2**61 // 1000, "s": 2**61 // 10**6, "ns": 0}[unit]
    times = [-1, 0, 1, -day - 1, *(far + k * day for k in range(-3, 50))]
    rows = pa.table({"user": [1] * len(times), "page": [0] * len(times),
                     "ts": pa.array(times, pa.timestamp(unit, "UTC"))})  # fmt: skip
    query = (
        sv.memory(rows, event_time="ts").protect("user", per="1 day")
        .group_by("page", keys=sv.public([0])).agg(n=sv.count()).bound(max_rows=1)
        .release(every="1 day", start="1970-01-01", steps=2, budget=sv.Budget(epsilon=1))
    )  # fmt: skip
    plan = query.plan
    found = UsableRows(plan, rows.schema).of(rows)
    in_job = event_time("ts")(rows)
    assert found.unit[1].equals(pa.array(plan.periods.numbers(np.asarray(in_job))))
    taken = GroupRows(plan, rows.schema, 1)
    taken.add(rows)
    assert taken.rows.units == len(np.unique(np.asarray(in_job) // 86_400_000_000))
