"""What is copied of a Parquet file is all that reading some of its columns takes."""

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamveil.connectors import remote
from streamveil.connectors.remote import spans

ROWS = 900
DRAWN = np.random.default_rng(5)
TABLE = pa.table({
    "n": DRAWN.integers(0, 1 << 40, ROWS), "few": DRAWN.integers(0, 3, ROWS).astype(str),
    "text": [None if n % 7 == 0 else "x" * (n % 50) for n in range(ROWS)],
    "list": [[n, None] * (n % 3) for n in range(ROWS)],
    "part": [{"a": n, "b": str(n)} for n in range(ROWS)], "all null": pa.nulls(ROWS, pa.int64()),
    "user.id": range(ROWS), "user.more": [{"a": n} for n in range(ROWS)],
})  # fmt: skip


def copied(data, columns):
    """With what a copy leaves out made something else."""
    made = bytearray(b"\xff" * len(data))
    found, tail = spans(pa.BufferReader(data), len(data), columns)
    for start, end in found:
        made[start:end] = data[start:end]
    made[len(data) - len(tail) :] = tail
    return bytes(made)


@settings(max_examples=30)
@given(
    st.sets(st.sampled_from(TABLE.column_names)), st.sampled_from(["NONE", "SNAPPY", "ZSTD"]),
    st.booleans(), st.integers(50, 2000), st.sampled_from(["1.0", "2.0"]),
    st.sampled_from([8, 9_000]),
)  # fmt: skip
def test_the_columns_are_the_same_whatever_the_rest_is(columns, packed, shared, group, pages, tail):
    made = io.BytesIO()
    pq.write_table(
        TABLE, made, compression=packed, use_dictionary=shared, row_group_size=group,
        data_page_version=pages, data_page_size=700,
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:  # else one span is all of so small a file
        patch.setattr(remote, "GAP", 0)
        patch.setattr(remote, "TAIL", tail)
        data = copied(made.getvalue(), columns)
    found = pq.ParquetFile(pa.BufferReader(data)).read([*columns])
    assert found.equals(TABLE.select(found.column_names)) or not columns
    assert len(columns) > 3 or tail > 8 or b"\xff" * 9 in data


@pytest.mark.parametrize("data", [b"", b"PAR1", b"no end", b"PAR1" * 9, b"\xff" * 99 + b"PAR1"])
def test_of_what_is_no_parquet_file_all_is_copied(data):
    assert copied(data, ["n"]) == data
