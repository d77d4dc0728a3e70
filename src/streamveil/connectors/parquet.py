"""Releases as Parquet: for each column an encoding that suits noisy answers; any reader reads them.

    integers, times   differences, packed (DELTA_BINARY_PACKED): keys are sorted, counters small;
                      a dictionary where all are equal (triggers)
    floating point    a dictionary where few values repeat (standard deviations); else, where that
                      can be compressed, bytes of one rank together (BYTE_STREAM_SPLIT); else as it
                      is, since noise has no values to repeat
    text, bytes       a dictionary where values repeat; else shared beginnings (DELTA_BYTE_ARRAY)
    all others        Arrow's defaults

Packed columns and noise are not compressed: compression would take a sixth of the time and spare an
eighth of the bytes. How a column is written depends on a sample of published values alone. Minima
and maxima are left out: a file is one release or some consecutive ones, found by its name, and
noise has no useful ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from streamveil.batch import whole
from streamveil.connectors import TEXTS
from streamveil.disk import filled
from streamveil.types import Array

SAMPLE = 1024  # rows looked at
REPEATED = 4  # a dictionary pays when the sample has this many rows per value
WORTH = 0.75  # what compression must leave at most
PACKED, SPLIT, SHARED = "DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT", "DELTA_BYTE_ARRAY"
PLAIN = "PLAIN"
NONE, SNAPPY = "none", "snappy"
KNOWN = {  # types that are read as they were written, whatever is said of Arrow's
    pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.bool_(), pa.string(), pa.binary(),
    pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC"),
}  # fmt: skip
Way = tuple[str | None, str]  # encoding (None: a dictionary, or Arrow's choice) and compression


def to_parquet(
    table: pa.Table, own: memoryview | None = None, beside: dict[bytes, bytes] | None = None
) -> memoryview:
    """The bytes of a Parquet file: in memory of the caller's, where they fit into that.

    `beside`: metadata of the file that is not the table's.
    """
    how = settings(table)
    if beside is not None and all(field.type in KNOWN for field in table.schema):
        how["store_schema"] = False

    def write(out: pa.NativeFile) -> None:
        with pq.ParquetWriter(out, table.schema, **how) as writer:
            writer.write_table(table)
            writer.add_key_value_metadata(beside or {})

    if beside is not None:
        return filled(write, own)
    return filled(lambda out: pq.write_table(table, out, **how), own)


def settings(table: pa.Table) -> dict[str, Any]:
    """How each column is written."""
    names = [field.name for field in table.schema]
    if len({*names}) < len(names) or any("." in name for name in names):
        return {}  # names that do not address a column
    ways = {name: way(column) for name, column in zip(names, table.columns, strict=True)}
    known = {name: encoding for name, (encoding, _) in ways.items() if encoding is not None}
    return {
        "use_dictionary": [name for name in names if name not in known],
        "column_encoding": known or None,
        "compression": {name: compression for name, (_, compression) in ways.items()},
        "write_statistics": False,
    }


def way(column: pa.ChunkedArray) -> Way:
    """How a column is written."""
    kind = column.type
    if kind in TEXTS:
        part = sample(column)
        return None if len(pc.unique(part)) * REPEATED <= len(part) else SHARED, SNAPPY
    if is_whole(kind):
        part = numbers(column)
        same = len(part) > 0 and not column.null_count and bool((part == part[0]).all())
        return None if same else PACKED, NONE
    if not pa.types.is_float32(kind) and not pa.types.is_float64(kind):
        return None, SNAPPY
    part = numbers(column)
    if different(part) * REPEATED <= len(part):
        return None, NONE
    return (SPLIT, SNAPPY) if shrinks(part) else (PLAIN, NONE)


def sample(column: pa.ChunkedArray) -> pa.Array:
    """Some rows of a column, evenly spaced."""
    places = np.arange(0, len(column), 1 + len(column) // SAMPLE)
    return whole(column).take(pa.array(places))


def numbers(column: pa.ChunkedArray) -> Array:
    """The values among some rows of a column of numbers or times."""
    try:
        values = whole(column).to_numpy()  # as they lie in memory
    except pa.ArrowInvalid:  # nulls, or a type that numpy has otherwise
        return np.asarray(sample(column).drop_null().to_numpy(zero_copy_only=False))
    return np.asarray(values[:: 1 + len(values) // SAMPLE])


def different(values: Array) -> int:
    """How many different numbers there are."""
    ordered = np.sort(values)
    return min(1, len(values)) + int(np.count_nonzero(ordered[1:] != ordered[:-1]))


def shrinks(part: Array) -> bool:
    """Whether bytes of one rank together can be compressed, as those of whole numbers can."""
    values = np.ascontiguousarray(part)
    ranks = np.ascontiguousarray(values.view(np.uint8).reshape(-1, values.itemsize).T)
    return len(pa.compress(ranks, SNAPPY, asbytes=True)) < WORTH * ranks.nbytes


def is_whole(kind: pa.DataType) -> bool:
    """Whether Parquet has integers for a type."""
    return bool(pa.types.is_integer(kind)) or is_time(kind)


def is_time(kind: pa.DataType) -> bool:
    """Whether Parquet has integers for a type of times."""
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_time(kind))
