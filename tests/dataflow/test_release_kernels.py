"""The loops of the release stage against plain twins, and the caches of shown keys."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamveil.core.selection.coins import put_times, take_asked, take_units
from streamveil.dataflow.aggregate import KeyTable
from streamveil.dataflow.keys import decode_keys, encode_keys, sort_keys
from streamveil.dataflow.outputs import Output, Totals
from streamveil.dataflow.published_keys import KeyCache, sorted_keys
from streamveil.dataflow.release_kernels import (
    interleave,
    mark_keys,
    plain_cells,
    take_cells,
    take_lanes,
    take_names,
)

FAR = 2**31 - 1
SEEDS = st.integers(0, 2**32 - 1)


@given(SEEDS, st.integers(0, 60))
def test_units_move_to_their_totals(seed, keys):
    rng = np.random.default_rng(seed)
    pending = rng.integers(0, 3, (keys, 2))
    units, shift = (rng.integers(*ends, keys).astype(np.int32) for ends in ((0, 6), (-1, 3)))
    opens = rng.choice([2, 5, 9, FAR], keys).astype(np.int32)
    trigger, least = 5, 4
    new, wanted, undrawn, able = pending[:, 0].copy(), units.copy(), [], []
    for key in range(keys):
        if new[key] and opens[key] >= trigger:
            wanted[key] += new[key]
            if shift[key] < 0 and wanted[key] >= least:
                undrawn.append(key)
            elif shift[key] >= 0 and wanted[key] - shift[key] >= least:
                able.append(key)
    found = np.empty((2, keys), np.int32)
    counts = take_units(pending[:, 0], (units, shift, opens), trigger, least, *found)
    np.testing.assert_array_equal(units, wanted)
    assert [found[i, :n].tolist() for i, n in enumerate(counts)] == [undrawn, able]
    assert not pending[:, 0].any()


@given(SEEDS, st.integers(0, 90), st.integers(0, 2))
def test_sums_and_names_of_some_keys_are_taken(seed, shown, first):
    rng = np.random.default_rng(seed)
    pending, names = rng.integers(-9, 9, (100, 3)), rng.integers(0, 2**63, (100, 2)).astype("u8")
    rows = rng.permutation(100)[:shown]
    rest, taken = pending.copy(), np.empty((3 - first, shown), np.int64)
    take_lanes(pending.reshape(-1), rows, first, 3, taken)
    np.testing.assert_array_equal(taken, rest[rows, first:].T)
    rest[rows, first:] = 0
    np.testing.assert_array_equal(pending, rest)
    found = np.empty((shown, 2), np.uint64)
    take_names(names.reshape(-1), rows, found)
    np.testing.assert_array_equal(found, names[rows])
    held = rng.integers(-9, 99, (2, 100)).astype(np.int32)
    asked, counts = np.empty((shown, 2), np.uint64), np.empty((2, shown), np.int64)
    take_asked(names.reshape(-1), tuple(held), rows.astype(np.int32), asked, counts)
    np.testing.assert_array_equal(asked, names[rows])
    np.testing.assert_array_equal(counts, held[:, rows])


@given(SEEDS)
def test_opening_times_are_written_and_new_ones_listed(seed):
    rng = np.random.default_rng(seed)
    opens = rng.choice([3, FAR], 40).astype(np.int32)
    rows, times = rng.permutation(40)[:25].astype(np.int32), rng.choice([4, FAR, 2**62], 25)
    before, soon = opens.copy(), np.empty(25, np.int64)
    found = put_times(opens, rows, times, FAR, soon)
    wanted = before.copy()
    wanted[rows] = np.minimum(times, FAR)
    np.testing.assert_array_equal(opens, wanted)
    listed = rows[(before[rows] == FAR) & (times < FAR)]
    np.testing.assert_array_equal(soon[:found], listed)


@pytest.mark.parametrize("step", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("non_negative", [False, True])
@pytest.mark.parametrize("function", ["sum", "count"])
def test_plain_totals_in_key_order_have_the_bits_of_the_answer(function, non_negative, step):
    rng = np.random.default_rng(5)
    estimate, variance = rng.normal(2, 30, (2, 999)) * 0.1, rng.uniform(0, 50, (2, 999))
    totals, order = Totals(estimate, variance), rng.permutation(999).astype(np.int32)
    output = Output(name="n", function=function, lanes=(1,), non_negative=non_negative, step=step)
    plain, found = output.answer(totals, 0.9), output.in_order(totals, order, 0.9)
    value = np.rint(plain.value).astype(np.int64) if function == "count" else plain.value
    for one, other in zip((value, plain.sd, plain.low, plain.high),
                          (found.value, found.sd, found.low, found.high), strict=True):  # fmt: skip
        assert one[order].tobytes() == other.tobytes()
    assert (found.low.min() < 0) == (not non_negative)
    rest = np.empty((3, 999))  # a wrong order is noticed
    plain_cells(
        estimate[1], variance[1], order[::-1].copy(), 1.0, step, -np.inf, False, value, rest
    )
    assert not np.array_equal(rest[0], found.sd)


@pytest.mark.parametrize("function", ["avg", "variance", "stddev"])
def test_other_answers_are_those_of_each_key(function):
    rng = np.random.default_rng(6)
    totals = Totals(rng.normal(50, 9, (3, 70)), rng.uniform(0, 9, (3, 70)))
    order = rng.permutation(70).astype(np.int32)
    output = Output(name="a", function=function, lanes=(2, 0, 1), low=-3, high=4)
    plain, found = output.answer(totals, 0.9), output.in_order(totals, order, 0.9)
    assert plain.value[order].tobytes() == found.value.tobytes()
    assert plain.high[order].tobytes() == found.high.tobytes()


BYTES = st.lists(st.binary(max_size=12).map(lambda b: b.replace(b"\2", b"")), unique=True)


@given(BYTES, SEEDS)
def test_the_bytes_of_some_keys_are_taken(cells, seed):
    rows = np.random.default_rng(seed).integers(0, max(len(cells), 1), 2 * len(cells))
    ends = np.cumsum([0, *map(len, cells)])
    starts, data = np.empty(len(rows) + 1, np.int64), np.frombuffer(b"".join(cells), np.uint8)
    taken = take_cells(data, ends, rows, starts).tobytes()
    found = [taken[start:stop] for start, stop in pairwise(starts.tolist())]
    assert found == [cells[row] for row in rows]


@given(BYTES)
def test_marks_sort_as_far_as_they_go(cells):
    keys = encode_keys([pa.array(cells, pa.binary())], len(cells))
    offsets = np.frombuffer(keys.buffers()[1], np.int64, len(keys) + 1)
    data = np.frombuffer(keys.buffers()[2] or b"\0", np.uint8)
    marks = mark_keys(data, offsets)
    order = sort_keys(keys)
    assert (np.diff(marks[order].astype(object)) >= 0).all()
    for cell, mark in zip(keys.to_pylist(), marks.tolist(), strict=True):
        first = int.from_bytes(cell[1:9].ljust(8, b"\0"), "big") >> 1
        assert mark == (cell[0] << 63) + first


@given(st.lists(st.text("ab", max_size=11), unique=True, max_size=60), st.integers(0, 30))
def test_keys_are_sorted_by_their_bytes_however_many_begin_alike(texts, same):
    texts += [f"a common beginning {i}" for i in range(same)]
    encoded = encode_keys([pa.array(texts, pa.string())], len(texts))
    order, marks = sorted_keys(encoded)
    np.testing.assert_array_equal(order, sort_keys(encoded))
    assert (np.diff(marks.astype(object)) >= 0).all()


@given(SEEDS, st.integers(0, 30), st.integers(0, 30))
def test_interleaving_is_sorting_of_both(seed, old, new):
    items = np.random.default_rng(seed).permutation(100)
    first, second = np.sort(items[:old]), np.sort(items[old : old + new])
    both = np.empty(old + new, np.int64)
    interleave(first, second, np.searchsorted(first, second), both)
    np.testing.assert_array_equal(both, np.sort(items[: old + new]))


COLUMNS = {
    "integers": ([3, -5, 2**40, None, 0, 255, 256, 2**40 + 1], pa.int64()),
    "small": ([3, -5, 7, 1, 0, 25, 26, 2], pa.int16()),
    "floats": ([0.5, -0.25, None, 3.0, 1e300, -1e300, 2.0, 0.0], pa.float64()),
    "text": (["", "a", "a long prefix 1", "a long prefix 2", "a\0", None, "b", "zz"], pa.string()),
    "times": ([1, 5, 3, 2, 9, 8, 7, 6], pa.timestamp("us")),
}


KINDS = [("integers",), ("text",), ("small",), ("times",), ("floats", "text"), ("text", "integers")]


@pytest.mark.parametrize("kinds", [*KINDS, ()], ids=str)
@pytest.mark.parametrize("cuts", [(8,), (0, 8), (3, 4, 8), (1, 2, 3, 5, 6, 8)], ids=str)
def test_keys_shown_bit_by_bit_are_ordered_as_if_at_once(kinds, cuts):
    columns = [pa.array(*COLUMNS[kind]) for kind in kinds]
    types, count = tuple(column.type for column in columns), 8 if kinds else 1
    encoded = encode_keys(columns, count)
    rng = np.random.default_rng(len(cuts))
    table = KeyTable.empty(1)
    names = rng.integers(1, 2**63, (count, 2)).astype(np.uint64)
    table.add_keys(names, encoded)
    rows, shown = rng.permutation(count), KeyCache()
    opened = np.repeat(np.arange(len(cuts)), np.diff(cuts, prepend=0))
    for trigger, cut in enumerate(cuts):
        here = rows[:cut]
        cohorts = np.array([range(trigger + 1), np.diff(cuts, prepend=0)[: trigger + 1]])
        shown.sort(table, here, cohorts, types)
        keys, order, found = table.key_bytes(here), shown.order, shown.columns
        np.testing.assert_array_equal(order, sort_keys(keys))
        np.testing.assert_array_equal(shown.opened, opened[:cut][order])
        wanted = decode_keys(keys.take(pa.array(sort_keys(keys))), types) if types else []
        assert [column.to_pylist() for column in found] == [c.to_pylist() for c in wanted]
        assert [column.type for column in found] == list(types)
        np.testing.assert_array_equal(shown.names_of(table, here), names[here])
