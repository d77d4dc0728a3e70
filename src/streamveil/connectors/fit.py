"""Columns as the types they are wanted in; what does not fit becomes null and is counted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from streamveil.connectors.base import as_they_lie, floored, micros, slices
from streamveil.connectors.rejected_rows import MISFIT
from streamveil.frames import plain

TIME = pa.timestamp("us", tz="UTC")


def fit(table: pa.Table, wanted: pa.Schema) -> tuple[pa.Table, dict[str, int]]:
    """Casts every column to its wanted type; what does not fit becomes null and is counted."""
    arrays, lost = [], 0
    for field in wanted:
        column = table.column(field.name)
        if column.type != field.type:
            cast = cast_or_null(column, field.type)
            lost += cast.null_count - column.null_count
            column = cast
        arrays.append(column)
    table = pa.Table.from_arrays(arrays, schema=pa.schema(wanted))
    return table, ({MISFIT: lost} if lost else {})


class FittedRows(NamedTuple):
    """Rows of a file, as the types they are wanted in."""

    rows: pa.Table
    rejected: dict[str, int]
    end: int  # how many rows of the file there are up to here
    before: pa.Table  # the same as they came


def fitted(
    tables: Iterable[pa.Table], first: int, start: int, wanted: pa.Schema, max_rows: int
) -> Iterator[FittedRows]:
    """The rows after the first `start` of a file; `tables` begin after its first `first` rows.

    >>> tables = [pa.table({"n": ["1", "2"]}), pa.table({"n": ["x"]})]
    >>> some = fitted(tables, 10, 11, pa.schema([("n", pa.int64())]), 50)
    >>> [(part.rows["n"].to_pylist(), part.end, len(part.rejected)) for part in some]
    [([2], 12, 0), ([None], 13, 1)]
    """
    row = first
    for table in tables:
        passed = min(max(start - row, 0), table.num_rows)
        row += passed
        for part in slices(plain(table.slice(passed)), max_rows):
            row += part.num_rows
            yield FittedRows(*fit(part, wanted), row, part)


def groups_behind(sizes: Sequence[int], start: int) -> tuple[list[int], int]:
    """Which row groups hold the rows behind the first `start`, and how many rows precede these.

    >>> groups_behind([3, 4, 2], 5), groups_behind([3], 3)
    (([1, 2], 3), ([], 3))
    """
    first = 0
    for group, rows in enumerate(sizes):
        if first + rows > start:
            return [*range(group, len(sizes))], first
        first += rows
    return [], first


def is_text_or_bytes(kind: pa.DataType) -> bool:
    """Whether a column takes fields as they are."""
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def cast_or_null(column: pa.ChunkedArray, target: pa.DataType) -> pa.ChunkedArray:
    """`column` as `target`, with null where a value cannot be read."""
    try:
        return parse(column, target)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        pass  # some value does not fit; find which without letting it into a message
    values = column.combine_chunks()
    if len(values) <= 1:
        return pa.chunked_array([pa.nulls(len(values), target)], target)
    half = len(values) // 2  # bisection: a few bad values cost a few logarithms of casts
    parts = [cast_or_null(pa.chunked_array([part]), target)
             for part in (values.slice(0, half), values.slice(half))]  # fmt: skip
    return pa.chunked_array([chunk for part in parts for chunk in part.chunks], target)


def parse(column: pa.ChunkedArray, target: pa.DataType) -> pa.ChunkedArray:
    """One strict cast; text to times takes ISO 8601, times to coarser ones round down."""
    if pa.types.is_binary(column.type) and target != pa.binary():
        return parse(column.cast(pa.string()), target)  # refuses what is not UTF-8
    if pa.types.is_timestamp(target):
        if pa.types.is_string(column.type):
            return in_unit(as_they_lie(instants(column)), target)
        if pa.types.is_timestamp(column.type):
            return in_unit(micros(column, ""), target)
    return column.cast(target)


def in_unit(values: pa.ChunkedArray, target: pa.DataType) -> pa.ChunkedArray:
    """Microseconds as times of a type, rounded down; Arrow refuses what the type cannot hold.

    >>> times = in_unit(pa.chunked_array([[-1, 1_500_000]]), pa.timestamp("ms"))
    >>> times.cast(pa.int64()).to_pylist()
    [-1, 1500]
    """
    if target.unit == "ns":
        return pc.multiply_checked(values, 1_000).cast(target)
    return floored(values, {"s": 1_000_000, "ms": 1_000, "us": 1}[target.unit]).cast(target)


def instants(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """ISO 8601 as times in UTC: with offsets, or without any, which is UTC.

    Arrow refuses both mixed, which `cast_or_null` tells apart by halving.
    """
    for form in (same, tidied):
        column = form(texts)
        for kind in (TIME, pa.timestamp("us")):
            with suppress(pa.ArrowInvalid):
                return column.cast(kind).cast(TIME)
    raise pa.ArrowInvalid("no time, or several forms")


def same(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Texts as they are."""
    return texts


def tidied(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Texts in the form that Arrow takes: T, Z, a point, no space around, six digits at most."""
    texts = pc.ascii_upper(pc.utf8_trim_whitespace(texts))
    texts = pc.replace_substring_regex(texts, r"(:\d\d),(\d)", r"\1.\2")
    return pc.replace_substring_regex(texts, r"(\.\d{6})\d+", r"\1")
