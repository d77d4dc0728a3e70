"""The key stage equals a dictionary of sums, and replaying its new keys rebuilds it exactly."""

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamveil.operators.aggregate import KeyRows, KeyTable, add_rows, find_keys, key_stage
from streamveil.operators.hashing import name_column
from streamveil.operators.keys import encode_keys

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
