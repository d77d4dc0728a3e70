"""Releases as Parquet: for each column an encoding that suits noisy answers; any reader reads them.

    integers, times   differences, packed (DELTA_BINARY_PACKED): keys are sorted, counters are small
    floating point    a dictionary where few values repeat (standard deviations); else bytes of one
                      rank together (BYTE_STREAM_SPLIT), since noise has no values to repeat
    text, bytes       a dictionary where values repeat; else shared beginnings (DELTA_BYTE_ARRAY)
    all others        Arrow's defaults

How a column is written depends on a sample of what is published anyway. Minima and maxima are left
out: one file is one release, found by its name, and noise has no useful ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

SAMPLE = 1024  # rows looked at
REPEATED = 4  # a dictionary pays when the sample has this many rows per value
PACKED, SPLIT, SHARED = "DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT", "DELTA_BYTE_ARRAY"


def to_parquet(table: pa.Table) -> pa.Buffer:
    """The bytes of a Parquet file."""
    out = pa.BufferOutputStream()
    pq.write_table(table, out, **settings(table))
    return out.getvalue()


def settings(table: pa.Table) -> dict[str, Any]:
    """How each column is written."""
    names = [field.name for field in table.schema]
    if len({*names}) < len(names) or any("." in name for name in names):
        return {}  # names that do not address a column
    sample = table
    if table.num_rows > SAMPLE:
        sample = table.take(pa.array(np.linspace(0, table.num_rows - 1, SAMPLE).astype(np.int64)))
    encodings = {name: encoding(sample[name]) for name in names}
    known = {name: word for name, word in encodings.items() if word is not None}
    return {
        "use_dictionary": [name for name in names if name not in known],
        "column_encoding": known or None,
        "write_statistics": False,
    }


def encoding(sample: pa.ChunkedArray) -> str | None:
    """The encoding of a column; None: a dictionary, or Arrow's choice."""
    kind = sample.type
    if pa.types.is_integer(kind) or is_time(kind):
        return PACKED
    split = pa.types.is_float32(kind) or pa.types.is_float64(kind)
    if not split and not is_text(kind):
        return None
    if len(pc.unique(sample)) * REPEATED <= len(sample):
        return None
    return SPLIT if split else SHARED


def is_time(kind: pa.DataType) -> bool:
    """Whether Parquet has integers for a type of times."""
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_time(kind))


def is_text(kind: pa.DataType) -> bool:
    """Whether Parquet has byte arrays of any length for a type."""
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
    )
