"""Release tables as stored, and their marks in the log.

Columns of fixed-size numbers or times without nulls are plain arrays, which a frame narrows; all
others are an Arrow stream. Both together give back the same table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamveil.batch import (
    Release,
    ReleaseColumns,
    computed,
    exact_columns,
    is_near,
    is_real,
    norm,
    norm_of,
)
from streamveil.core.noisy import post_process, values
from streamveil.disk import crc32, filled
from streamveil.runtime import frame
from streamveil.types import Array

Parts = tuple[dict[str, Array], list[memoryview]]  # arrays by column number; schema, other columns


@dataclass(frozen=True)
class Mark:
    """The log's record of a release: its identity, and a check of its content.

    Exact content has a checksum. Real numbers have a norm, which shows changes beyond rounding:
    their last digits may differ when they are computed again on another processor.
    """

    window: int
    trigger: int
    step: int
    size: int  # bytes of what is exact
    crc: int  # over the names of all columns and what is exact
    norm: float  # of the real numbers

    def agrees(self, other: Mark) -> bool:
        """Whether both are marks of the same release."""
        return self == replace(other, norm=self.norm) and is_near(self.norm, other.norm)


class Settled(NamedTuple):
    """Tables as they leave, with the size, checksum and norm of each for its mark."""

    tables: list[pa.Table]
    marks: list[tuple[int, int, float]]


def made_of(operator: Any, drawn: Sequence[Any]) -> list[tuple[Release, Mark]]:
    """The releases that an operator drew, as they leave, with their marks."""
    if not hasattr(operator, "releases_of"):
        return [settled(release) for release in drawn]
    made = []
    for run in operator.releases_of(drawn):
        laid = post_process(settled_columns, run.noisy)
        releases = run.releases(post_process(attrgetter("tables"), laid))
        marks = values(laid).marks
        made += [(one, mark_of(one, known)) for one, known in zip(releases, marks, strict=True)]
    return made


def mark_of(release: Release, known: tuple[int, int, float]) -> Mark:
    """The mark of a release."""
    return Mark(release.window, release.trigger, release.step, *known)


def settled(release: Release) -> tuple[Release, Mark]:
    """A release as it leaves, and its mark.

    Columns that are no plain numbers go through an Arrow stream once. From then on all their bytes,
    also unused ones, stay the same whenever they are written and read again. The bytes of a null
    number are 0, however the column was made.
    """
    laid = post_process(settled_table, release.noisy)
    table, size, crc, near = values(laid)
    if table is not release.table:
        release = replace(release, noisy=post_process(itemgetter(0), laid))
    return release, mark_of(release, (size, crc, near))


def settled_table(table: pa.Table) -> tuple[pa.Table, int, int, float]:
    """A table as it leaves, with its size, checksum and norm."""
    whole = table
    for place, column in enumerate(table.columns):
        if column.null_count and pa.types.is_primitive(column.type):
            whole = whole.set_column(place, table.field(place), nulls_as_zero(column))
    arrays, blobs = to_parts(whole)
    size, crc = 0, 0
    for part in exact_parts(whole, arrays, blobs[1]):
        size, crc = size + len(part), crc32(part, crc)
    return from_parts(arrays, blobs) if len(blobs[1]) else table, size, crc, norm(whole)


def settled_columns(columns: ReleaseColumns) -> Settled:
    """`settled_table` for releases that lie end to end: parts equal in all are made once."""
    odd = (key.null_count or is_real(key.type) for keys in columns.keys for key in keys)
    if any(odd) or any(column.null_count for column in columns.others):
        found = [settled_table(table) for table in columns.tables()]
        return Settled([one[0] for one in found], [one[1:] for one in found])
    ends = np.cumsum(columns.rows).tolist()
    spans = [slice(end - n, end) for end, n in zip(ends, columns.rows, strict=True)]
    head = memoryview(pa.schema(columns.fields).serialize()).cast("B")
    numbers = [plain(pa.chunked_array([column])) for column in columns.others]
    exact = [cells for cells in numbers if cells is not None and cells.dtype.kind != "f"]
    reals = [cells for cells in numbers if cells is not None and cells.dtype.kind == "f"]
    norms = [norm_of([cells[span] for cells in reals]) for span in spans]
    keys, marks = list[tuple[pa.Array, ...]](), list[tuple[int, int, float]]()
    laid = LaidKeys((), (), [], memoryview(b""))
    for own, span, near in zip(columns.keys, spans, norms, strict=True):
        if not marks or any(one is not known for one, known in zip(own, laid.keys, strict=True)):
            laid = LaidKeys.of(own, columns.fields)
        parts = [head, *laid.plain, *(frame.flat_bytes(cells[span]) for cells in exact), laid.rest]
        size, crc = 0, 0
        for part in parts:
            size, crc = size + len(part), crc32(part, crc)
        keys.append(laid.read)
        marks.append((size, crc, near))
    return Settled(replace(columns, keys=keys).tables(), marks)


class LaidKeys(NamedTuple):
    """Key columns as they leave, and their bytes."""

    keys: tuple[pa.Array, ...]  # as they came
    read: tuple[pa.Array, ...]
    plain: list[memoryview]
    rest: memoryview  # a stream of all that are not plain

    @classmethod
    def of(cls, keys: tuple[pa.Array, ...], fields: Sequence[pa.Field]) -> LaidKeys:
        """Of the columns of a release without nulls or real numbers."""
        cells = [plain(pa.chunked_array([key])) for key in keys]
        others = [n for n, one in enumerate(cells) if one is None]
        bytes_of = [frame.flat_bytes(one) for one in cells if one is not None]
        if not others:
            return cls(keys, keys, bytes_of, memoryview(b""))
        schema = pa.schema([fields[n] for n in others])
        rest = to_bytes(pa.Table.from_arrays([keys[n] for n in others], schema=schema))
        read = dict(zip(others, from_bytes(rest).columns, strict=True))
        return cls(keys, tuple(read.get(n, key) for n, key in enumerate(keys)), bytes_of, rest)


def exact_parts(
    table: pa.Table, arrays: dict[str, Array], rest: memoryview
) -> Iterator[memoryview]:
    """The bytes of a table that are the same on every processor: all but computed reals."""
    yield memoryview(table.schema.remove_metadata().serialize()).cast("B")
    real = computed(table.schema)
    yield from (frame.flat_bytes(arrays[n]) for n in arrays if int(n) not in real)
    others = [n for n, _ in enumerate(table.columns) if str(n) not in arrays]
    if not real.isdisjoint(others):
        left = {place for place, n in enumerate(others) if n in real}
        yield to_bytes(exact_columns(table.select(others), left))
    else:
        yield rest


def nulls_as_zero(column: pa.ChunkedArray) -> pa.Array:
    """The column with 0 in the bytes of every null."""
    whole, kind = column.combine_chunks(), column.type
    words = kind if pa.types.is_boolean(kind) else pa.from_numpy_dtype(f"i{kind.bit_width // 8}")
    values = pc.fill_null(whole.view(words), pa.scalar(0, pa.int8()).cast(words))
    return pa.array(values.to_numpy(zero_copy_only=False), mask=np.asarray(pc.is_null(whole))).view(
        kind
    )


def to_parts(table: pa.Table, compression: str | None = None) -> Parts:
    """A table as arrays and blobs; plain columns are not copied."""
    columns = [plain(column) for column in table.columns]
    if any(column.num_chunks != 1 for column in table.columns):
        columns = [None] * len(columns)  # as it is, chunk by chunk
    arrays = {str(n): values for n, values in enumerate(columns) if values is not None}
    others = table.select([n for n, values in enumerate(columns) if values is None])
    others = others.replace_schema_metadata(None)
    rest = to_bytes(others, compression) if others.num_columns else memoryview(b"")
    return arrays, [memoryview(table.schema.serialize()).cast("B"), rest]


def from_parts(arrays: dict[str, Array], blobs: list[memoryview]) -> pa.Table:
    """The table of `to_parts`."""
    schema = pa.ipc.read_schema(pa.py_buffer(blobs[0]))
    others = from_bytes(blobs[1]) if len(blobs[1]) else None
    if others is not None and not arrays:
        return others.replace_schema_metadata(schema.metadata)
    rest = iter(() if others is None else others.columns)
    columns = [
        arrow(field.type, arrays[str(number)]) if str(number) in arrays else next(rest)
        for number, field in enumerate(schema)
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def plain(column: pa.ChunkedArray) -> Array | None:
    """The values of a column as they lie in memory, for a plain type without nulls."""
    dtype = plain_kind(column.type)
    if dtype is None or column.null_count or column.num_chunks != 1:
        return None
    chunk = column.chunk(0)
    values = chunk.buffers()[1]
    if values is None:  # no rows
        return np.empty(0, dtype)
    return np.frombuffer(values, dtype, len(chunk), chunk.offset * dtype.itemsize)


@lru_cache(64)
def plain_kind(kind: pa.DataType) -> np.dtype[Any] | None:
    """How values of a type lie in memory, for a plain one."""
    integer = pa.types.is_integer(kind) or pa.types.is_temporal(kind)
    if not integer and not pa.types.is_float32(kind) and not pa.types.is_float64(kind):
        return None
    if pa.types.is_interval(kind):
        return None
    unsigned = pa.types.is_unsigned_integer(kind)
    letter = "f" if pa.types.is_floating(kind) else "u" if unsigned else "i"
    return np.dtype(f"<{letter}{kind.bit_width // 8}")


def arrow(kind: pa.DataType, values: Array) -> pa.Array:
    """The column of some plain values."""
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def to_bytes(
    table: pa.Table, compression: str | None = None, own: memoryview | None = None
) -> memoryview:
    """A table as an Arrow stream, in the given memory or in new one."""
    options = pa.ipc.IpcWriteOptions(compression=compression, use_threads=False)

    def write(out: pa.NativeFile) -> None:
        with pa.ipc.new_stream(out, table.schema, options=options) as writer:
            writer.write_table(table)

    return filled(write, own)


def from_bytes(data: bytes | memoryview) -> pa.Table:
    """The table of an Arrow stream."""
    with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
        return reader.read_all()
