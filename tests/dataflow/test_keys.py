"""Key bytes read back to the same values and sort as the values do."""

import datetime as dt
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamveil.dataflow.keys import decode_keys, encode_keys, encode_rows, sort_keys

CELLS = {
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.string(): st.text(max_size=6),
    pa.binary(): st.binary(max_size=6),
    pa.float64(): st.floats(allow_nan=False).map(lambda x: x + 0.0),
    pa.bool_(): st.booleans(),
    pa.date32(): st.dates(),
    pa.timestamp("us", "UTC"): st.datetimes(
        dt.datetime(1900, 1, 1),  # noqa: DTZ001 (hypothesis adds the zone)
        dt.datetime(2100, 1, 1),  # noqa: DTZ001
        timezones=st.just(dt.UTC),
    ),
}


@st.composite
def tables(draw):
    kinds = draw(st.lists(st.sampled_from(list(CELLS)), min_size=1, max_size=3))
    n = draw(st.integers(0, 8))
    return kinds, [
        draw(st.lists(st.none() | CELLS[kind], min_size=n, max_size=n)) for kind in kinds
    ]


@given(tables())
def test_reads_back_and_sorts_as_values(table):
    kinds, cells = table
    columns = [pa.array(column, kind) for column, kind in zip(cells, kinds, strict=True)]
    rows = list(zip(*cells, strict=True))
    keys = encode_keys(columns, len(rows))
    back = decode_keys(keys, tuple(kinds))
    assert [c.to_pylist() for c in back] == [c.to_pylist() for c in columns]
    assert len(set(keys.to_pylist())) == len(set(rows))

    def rank(row):
        cells = [cell.encode() if isinstance(cell, str) else cell for cell in row]
        return [(cell is not None, cell) for cell in cells]

    ordered = [rows[i] for i in sort_keys(keys)]
    for left, right in pairwise(ordered):
        assert rank_le(rank(left), rank(right))


def rank_le(left, right):
    for (a_full, a), (b_full, b) in zip(left, right, strict=True):
        if (a_full, a if a_full else 0) != (b_full, b if b_full else 0):
            return (a_full, b_full) == (False, True) or (a_full == b_full and a < b)
    return True


def test_no_columns_is_one_empty_key():
    assert encode_keys([], 2).to_pylist() == [b"", b""]
    assert decode_keys(encode_keys([], 1), ()) == []


@pytest.mark.parametrize("kind", [pa.string(), pa.int64()])
def test_slices_are_read_at_their_place(kind):
    column = pa.array([1, 2, 3]).cast(kind).slice(1)
    assert decode_keys(encode_keys([column], 2), (kind,))[0].to_pylist() == column.to_pylist()


def test_sorting_is_by_bytes():
    keys = pa.array([b"\xff", b"", b"a\0", b"a"], pa.large_binary())
    np.testing.assert_array_equal(sort_keys(keys), [1, 3, 2, 0])


@given(
    st.lists(st.one_of(st.none(), st.text(max_size=9)), min_size=1),
    st.booleans(),
    st.sampled_from([pa.string(), pa.large_string(), pa.binary()]),
    st.data(),
)
def test_some_rows_have_the_bytes_they_have_among_all(values, nulls, kind, data):
    values = values if nulls else [value or "" for value in values]
    start = data.draw(st.integers(0, len(values) - 1))
    column = pa.array(values, pa.string()).cast(kind).slice(start)
    rows = np.array(data.draw(st.lists(st.integers(0, len(column) - 1))), np.int64)
    for columns in ([column], [column, column]):
        taken = [each.take(pa.array(rows)) for each in columns]
        assert encode_rows(columns, rows).equals(encode_keys(taken, len(rows)))


def test_what_is_called_text_and_is_none_is_shown_with_replacements():
    raw = pa.array([b"\xff", b"b", None], pa.binary())
    column = pa.Array.from_buffers(pa.string(), 3, raw.buffers(), raw.null_count)
    assert decode_keys(encode_keys([column], 3), (pa.string(),))[0].to_pylist() == [
        "\ufffd",
        "b",
        None,
    ]
