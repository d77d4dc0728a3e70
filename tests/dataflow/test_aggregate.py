"""The key stage equals a dictionary of sums, and replaying its new keys rebuilds it exactly."""

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamveil.dataflow.aggregate import (
    KeyRows,
    KeyTable,
    Recognised,
    Strangers,
    add_counts,
    add_rows,
    enter,
    find_keys,
    key_stage,
    recognise,
    recognise_some,
)
from streamveil.dataflow.hashing import name_column
from streamveil.dataflow.keys import encode_keys
from streamveil.dataflow.rows import groups_of
from streamveil.dataflow.unit_kernels import COUNTED, NEW
from tests.dataflow.twins import key_rows

KEY = bytes(range(32))


def feed(table, keys, lanes):
    column = pa.array(keys)
    names = name_column(column, KEY)
    start = table.keys
    found = key_stage(table, names)
    encoded = encode_keys([column.take(pa.array(found.fresh))], len(found.fresh))
    table.name_keys(start, encoded)
    add_rows(table, found.rows, KeyRows(lanes, np.zeros((len(keys), 0), np.int64)))
    return names[found.fresh], encoded, found


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 90), st.integers(-9, 9)), max_size=80), max_size=4)
)
def test_sums_per_key_equal_a_dictionary(batches):
    table, wanted = KeyTable.empty(2), Counter()
    for batch in batches:
        keys = np.array([key for key, _ in batch], np.int64)
        values = np.array([value for _, value in batch], np.int64)
        feed(table, keys, np.stack([np.ones(len(keys), np.int64), values], axis=1))
        for key, value in batch:
            wanted[key, "n"] += 1
            wanted[key, "v"] += value
    rows = np.arange(table.keys)
    keys = [int.from_bytes(k.as_py()[1:], "big") - 2**63 for k in table.key_bytes(rows)]
    assert len(set(keys)) == len(keys)
    for key, (n, v) in zip(keys, table.pending[: table.keys].tolist(), strict=True):
        assert (n, v) == (wanted[key, "n"], wanted[key, "v"])


@pytest.mark.parametrize("chunk", [500, 30_000])
def test_new_keys_alone_rebuild_the_same_table(chunk):
    keys = np.random.default_rng(3).integers(0, 50_000, 90_000)
    one, two = KeyTable.empty(1), KeyTable.empty(1)
    for i in range(0, len(keys), chunk):
        part = keys[i : i + chunk]
        lanes = np.ones((len(part), 1), np.int64)
        names, encoded, found = feed(one, part, lanes)
        two.add_keys(names, encoded)
        add_rows(two, found.rows, KeyRows(lanes, np.zeros((len(part), 0), np.int64)))
        np.testing.assert_array_equal(find_keys(two, name_column(pa.array(part), KEY)), found.rows)
    for name in KeyTable.NAMES:
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))
    assert (find_keys(one, name_column(pa.array([-1, 10**9]), KEY)) == -1).all()


@given(st.integers(0, 2**32), st.integers(1, 400), st.integers(1, 60), st.integers(1, 4))
def test_rows_are_numbered_by_first_appearance_even_where_names_collide(seed, n, keys, apart):
    """Names share a slot, and the half of the name a slot holds, and the other 64 bits."""
    rng = np.random.default_rng(seed)
    half = rng.integers(0, apart, (keys, 2)).astype(np.uint64)
    all_names = (half << np.uint64(40)) + (
        np.arange(keys, dtype=np.uint64)[:, None] // np.uint64(2)
    )
    names = np.ascontiguousarray(all_names[rng.integers(0, keys, n)])
    accepted = rng.random(n) < 0.7
    table, known = KeyTable.empty(1), {}
    for i in range(0, n, 50):
        here, mine = names[i : i + 50], accepted[i : i + 50]
        rows = find_keys(table, here)
        assert rows.tolist() == [known.get(name, -1) for name in map(tuple, here.tolist())]
        fresh = enter(table, here, mine, rows)
        wanted, sources = key_rows(here, mine, known)
        assert rows[mine].tolist() == [r for r, kept in zip(wanted, mine, strict=True) if kept]
        assert fresh.tolist() == sources
        assert table.keys == len(known)


@given(st.integers(0, 2**32), st.integers(0, 300), st.integers(-(2**62), 2**62))
def test_recognising_equals_plain_look_ups(seed, n, window):
    rng = np.random.default_rng(seed)
    names = rng.integers(0, 2**64, (80, 2), np.uint64)
    table = KeyTable.empty(1)
    table.add_names(names[:40])
    asked = names[rng.integers(0, 80, n)]
    weights = np.append(rng.integers(0, 3, 40), 0).astype(np.uint8)
    known = recognise(table, asked, window, weights, 7)
    np.testing.assert_array_equal(known.rows, find_keys(table, asked))
    shown = np.where(known.rows < 0, 0, weights[known.rows])
    np.testing.assert_array_equal(known.hidden, shown == 0)
    np.testing.assert_array_equal(known.weight, np.where(shown == 0, 7, shown))
    np.testing.assert_array_equal(known.group, groups_of(asked, np.full(n, window)))


@given(st.integers(0, 2**32), st.integers(0, 200))
def test_counting_adds_what_the_lanes_ask_for(seed, n):
    rng = np.random.default_rng(seed)
    table, found = KeyTable.empty(4), rng.integers(0, 50, n)
    first = rng.choice(np.array([0, NEW, NEW | COUNTED], np.uint8), n)
    lanes = np.array([0, 2]), np.array([COUNTED, NEW]), np.array([1, 3])
    add_counts(table, found, first, lanes)
    wanted = np.zeros((50, 4), np.int64)
    np.add.at(wanted[:, 0], found, first == NEW | COUNTED)
    np.add.at(wanted[:, 1], found, 1)
    np.add.at(wanted[:, 2], found, first > 0)
    wanted[:, 3] = wanted[:, 1]
    np.testing.assert_array_equal(table.pending[:50], wanted)


@given(st.integers(0, 2**32), st.integers(0, 300))
def test_rows_without_keys_are_listed_and_entered_where_they_are(seed, n):
    """What the fold does with names in place equals entering all rows."""
    rng = np.random.default_rng(seed)
    names = rng.integers(0, 2**64, (80, 2), np.uint64)
    listed, plain, weights = KeyTable.empty(1), KeyTable.empty(1), np.zeros(80, np.uint8)
    for _ in range(4):
        asked, accepted = names[rng.integers(0, 80, n)], rng.random(n) < 0.4
        room = Recognised.empty(n), (np.empty(n, np.int32),)
        met = recognise_some(listed, asked, (3, 7), weights, room)
        missing = met.places
        for found, wanted in zip(room[0], recognise(plain, asked, 3, weights, 7), strict=True):
            np.testing.assert_array_equal(found, wanted)
        np.testing.assert_array_equal(missing, np.flatnonzero(room[0].rows < 0))
        rows = find_keys(plain, asked)
        wanted = enter(plain, asked, accepted, rows)
        fresh = enter(listed, asked, accepted, room[0].rows, met)
        np.testing.assert_array_equal(missing[fresh], wanted)
        np.testing.assert_array_equal(room[0].rows, rows)
        compact = np.arange(len(missing), dtype=np.int32)
        again = Recognised.empty(n).rows
        again[:] = np.where(accepted, -1, rows)
        own = np.full(len(missing), -1, np.int32)
        few = Strangers(missing, compact, asked[missing], own, compact)
        assert len(enter(listed, few.names, accepted, again, few)) == 0
        np.testing.assert_array_equal(again[missing], rows[missing])


@given(st.integers(0, 2**32), st.integers(0, 300))
def test_rows_of_one_name_that_is_looked_up_once_get_what_each_would_get(seed, n):
    """The twin: every row with its own name. Which row brings a key is the same, too."""
    rng = np.random.default_rng(seed)
    names = rng.integers(0, 2**64, (60, 2), np.uint64)
    once, each = KeyTable.empty(1), KeyTable.empty(1)
    for _ in range(4):
        which, accepted = rng.integers(0, 60, n).astype(np.int32), rng.random(n) < 0.4
        rows, wanted = np.full(n, -1, np.int32), find_keys(each, names[which])
        own, every = find_keys(once, names), np.arange(n, dtype=np.int32)
        met = Strangers(every, which, names, own, np.arange(60, dtype=np.int32))
        fresh = enter(once, names, accepted, rows, met)
        np.testing.assert_array_equal(fresh, enter(each, names[which], accepted, wanted))
        np.testing.assert_array_equal(rows[accepted], wanted[accepted])
        for name in KeyTable.NAMES:
            np.testing.assert_array_equal(getattr(once, name), getattr(each, name), name)
