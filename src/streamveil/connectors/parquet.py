"""Releases as Parquet: for each column an encoding that suits noisy answers; any reader reads them.

    integers, times   differences, packed (DELTA_BINARY_PACKED): keys are sorted, counters are small
    floating point    a dictionary where few values repeat (standard deviations); else bytes of one
                      rank together (BYTE_STREAM_SPLIT), since noise has no values to repeat
    text, bytes       a dictionary where values repeat; else shared beginnings (DELTA_BYTE_ARRAY)
    all others        Arrow's defaults

What is packed and what is noise is not compressed: that takes a sixth of the time and spares an
eighth of the bytes. How a column is written depends on a sample of what is published anyway.
Minima and maxima are left out: one file is one release, found by its name, and noise has no useful
ones.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

SAMPLE = 1024  # rows looked at
REPEATED = 4  # a dictionary pays when the sample has this many rows per value
WORTH = 0.75  # what compression must leave at most
PACKED, SPLIT, SHARED = "DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT", "DELTA_BYTE_ARRAY"


def to_parquet(table: pa.Table, own: memoryview | None = None) -> memoryview:
    """The bytes of a Parquet file: in memory of the caller's, where they fit into that."""
    how = settings(table)
    if own is not None:
        with suppress(OSError):  # they do not
            out = pa.FixedSizeBufferWriter(pa.py_buffer(own))
            pq.write_table(table, out, **how)
            return own[: out.tell()]
    out = pa.BufferOutputStream()
    pq.write_table(table, out, **how)
    return memoryview(out.getvalue()).cast("B")


def settings(table: pa.Table) -> dict[str, Any]:
    """How each column is written."""
    names = [field.name for field in table.schema]
    if len({*names}) < len(names) or any("." in name for name in names):
        return {}  # names that do not address a column
    known, compression = {}, dict.fromkeys(names, "none")
    for name, column in zip(names, table.columns, strict=True):
        part = None if is_whole(column.type) else sample(column)
        word = PACKED if part is None else encoding(part)
        if word is not None:
            known[name] = word
        if part is not None and (word != SPLIT or shrinks(part)):
            compression[name] = "snappy"
    return {
        "use_dictionary": [name for name in names if name not in known],
        "column_encoding": known or None,
        "compression": compression,
        "write_statistics": False,
    }


def sample(column: pa.ChunkedArray) -> pa.Array:
    """Some rows of a column, evenly spaced."""
    whole = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if len(whole) <= SAMPLE:
        return whole
    places = np.arange(SAMPLE) * (len(whole) - 1) // (SAMPLE - 1)
    if pa.types.is_floating(whole.type) and not whole.null_count:
        return pa.array(whole.to_numpy()[places])
    return whole.take(pa.array(places))


def encoding(part: pa.Array) -> str | None:
    """The encoding of a column with this sample; None: a dictionary, or Arrow's choice."""
    kind = part.type
    split = pa.types.is_float32(kind) or pa.types.is_float64(kind)
    if not split and not is_text(kind):
        return None
    if len(pc.unique(part)) * REPEATED <= len(part):
        return None
    return SPLIT if split else SHARED


def shrinks(part: pa.Array) -> bool:
    """Whether bytes of one rank together can be compressed, as those of whole numbers can."""
    values = part.drop_null().to_numpy()
    ranks = np.ascontiguousarray(values.view(np.uint8).reshape(-1, values.itemsize).T)
    return len(pa.compress(ranks, "snappy", asbytes=True)) < WORTH * ranks.nbytes


def is_whole(kind: pa.DataType) -> bool:
    """Whether Parquet has integers for a type."""
    return bool(pa.types.is_integer(kind)) or is_time(kind)


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
