"""Rejected rows: those that cannot be used, as they came and with their place in the source.

A `TracedSource` returns them with its rows when asked to, and its rows have one more column: the
place of each. Other sources give only the reasons, and rejected rows that were well-formed.

Columns are read as their wanted types; a cell that does not fit becomes null and is counted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from copy import copy
from decimal import Decimal, InvalidOperation
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamveil.batch import plain, whole
from streamveil.connectors import Source, as_they_lie, floored, micros, slices
from streamveil.display import rows_of
from streamveil.errors import INNER
from streamveil.types import Array, Bool, Int64

PLACE = f"{INNER}place"  # column of a traced row: number of its file, and of itself there
NUMBER_BITS = 40
MOST_LINE = 1 << 16  # bytes of a line that are kept
MALFORMED = "malformed row"
TOO_LONG = "line too long"
MISFIT = "field of the wrong type (read as null)"

Numbers = Int64[Array, " rows"]


class TracedSource:
    """A source that can tell from where each of its rows comes."""

    traced: ClassVar[bool] = False  # whether it does: see `traced`
    names: Sequence[str] = ()  # of its files, as they are begun; none where it has no files

    def placed(self, rows: pa.Table, end: int) -> pa.Table:
        """The last ones of the first `end` rows of the newest file, where wanted with places."""
        if not self.traced:
            return rows
        file, numbers = max(len(self.names) - 1, 0), np.arange(end - rows.num_rows, end) + 1
        return with_places(rows, file, numbers)


def traced(source: Source) -> Source:
    """The same source with the places of its rows, and with what it cannot read."""
    if isinstance(source, TracedSource):
        source = copy(source)
        object.__setattr__(source, "traced", True)  # some are frozen
    return source


def with_places(rows: pa.Table, file: int, numbers: Numbers) -> pa.Table:
    """Rows with the column of their places."""
    return rows.append_column(PLACE, pa.array((file << NUMBER_BITS) + numbers, pa.int64()))


def schema_of(columns: pa.Schema) -> pa.Schema:
    """The schema of rejected rows, where rows have these columns."""
    plain = [
        pa.field(f.name, f.type.value_type if pa.types.is_dictionary(f.type) else f.type)
        for f in columns
        if f.name != PLACE
    ]
    return pa.schema([
        ("reason", pa.string()),
        ("file", pa.string()),
        ("number", pa.int64()),  # of the line in a file of text, of the row elsewhere; from 1
        ("line", pa.binary()),  # what was no row, or had a field that did not fit: as it came
        ("bytes", pa.int64()),  # of the line, if it was cut
        ("row", pa.struct(plain)),  # what was a row: its columns that were read
    ])  # fmt: skip


def rejected_lines(
    columns: pa.Schema,
    file: str,
    reason: str,
    numbers: Numbers,
    lines: list[bytes],
    size: int | None = None,
) -> pa.Table:
    """Rejected lines, by their numbers in a file. Long ones are cut.

    `size`: bytes of a line of which no more than its start was kept.
    """  # fmt: skip
    schema = schema_of(columns)
    return pa.table([
        pa.repeat(reason, len(lines)), pa.repeat(file, len(lines)), pa.array(numbers, pa.int64()),
        pa.array([line[:MOST_LINE] for line in lines], pa.binary()),
        pa.array([len(line) if size is None else size for line in lines], pa.int64()),
        pa.nulls(len(lines), schema.field("row").type),
    ], schema)  # fmt: skip


def rejected_table(reason: str, rows: pa.Table, files: list[str]) -> pa.Table:
    """Rejected rows. `files`: those of the source, by number; none where it has no files."""
    schema, n = schema_of(rows.schema), rows.num_rows
    kind = schema.field("row").type
    row = pa.StructArray.from_arrays(
        [whole(rows.column(field.name).cast(field.type)) for field in kind], fields=list(kind)
    ) if len(kind) else pa.array([{}] * n, kind)  # fmt: skip
    file, number = pa.nulls(n, pa.string()), pa.nulls(n, pa.int64())
    if PLACE in rows.column_names:
        places = np.asarray(rows.column(PLACE))
        number = pa.array(places & ((1 << NUMBER_BITS) - 1), pa.int64())
        if files:
            file = pa.array(files, pa.string()).take(pa.array(places >> NUMBER_BITS))
    line, size = pa.nulls(n, pa.binary()), pa.nulls(n, pa.int64())
    return pa.table([pa.repeat(reason, n), file, number, line, size, row], schema)


def beside(rejected_rows: pa.Table, columns: pa.Schema) -> pa.Table:
    """Rejected rows beside rows of other columns than the source has: as lines."""
    schema, rows = schema_of(columns), whole(rejected_rows.column("row"))
    told, known = rejected_rows.column("line").to_pylist(), np.flatnonzero(rows.is_valid())
    lines = as_lines(pa.Table.from_struct_array(rows.drop_null()))
    for at, line in zip(known.tolist(), lines, strict=True):
        told[at] = line[:MOST_LINE]
    place = schema.get_field_index("line")
    return rejected_rows.set_column(
        place, schema.field(place), pa.array(told, pa.binary())
    ).set_column(
        len(schema) - 1, schema.field("row"), pa.nulls(len(rows), schema.field("row").type)
    )


def misfits(before: pa.Table, after: pa.Table) -> Bool[Array, " rows"]:
    """Which rows have a field that did not fit its type."""
    found = np.zeros(after.num_rows, np.bool_)
    for name in after.column_names:
        lost = pc.and_(pc.is_null(after.column(name)), pc.is_valid(before.column(name)))
        found |= np.asarray(lost)
    return found


def as_lines(rows: pa.Table) -> list[bytes]:
    """Rows that were no lines, as such."""
    return [json.dumps(row, default=str).encode() for row in rows_of(rows)]


TIME = pa.timestamp("us", tz="UTC")


Cast: TypeAlias = Callable[[pa.ChunkedArray, pa.DataType], pa.ChunkedArray]


def fit(
    table: pa.Table, wanted: pa.Schema, as_type: Cast | None = None
) -> tuple[pa.Table, dict[str, int]]:
    """Casts every column to its wanted type; what does not fit becomes null and is counted."""
    arrays, lost = [], 0
    for field in wanted:
        column = table.column(field.name)
        if column.type != field.type:
            cast = (as_type or cast_or_null)(column, field.type)
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
            yield FittedRows(*fit(part, wanted, whole_or_null), row, part)


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


def is_number(kind: pa.DataType) -> bool:
    """Whether a column takes numbers."""
    kinds = pa.types
    return bool(kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_decimal(kind))


def cast_or_null(column: pa.ChunkedArray, target: pa.DataType) -> pa.ChunkedArray:
    """`column` as `target`, with null where a value cannot be read."""
    try:
        return parse(column, target)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
        pass  # some value does not fit; find which without letting it into a message
    values = column.combine_chunks()
    if len(values) <= 1:
        return pa.chunked_array([pa.nulls(len(values), target)], target)
    odd = hopeless(values, target)
    if pc.any(odd).as_py():  # at once, as a whole file may be written otherwise
        rest = pc.if_else(odd, pa.scalar(None, values.type), values)
        return cast_or_null(pa.chunked_array([rest]), target)
    half = len(values) // 2  # bisection: a few bad values cost a few logarithms of casts
    parts = [cast_or_null(pa.chunked_array([part]), target)
             for part in (values.slice(0, half), values.slice(half))]  # fmt: skip
    return pa.chunked_array([chunk for part in parts for chunk in part.chunks], target)


PADDED = r"^\s|\s$|^\+|^-?0[0-9xX]|^-0$"  # another text of the same number
NUMBER = r"^\s*[-+]?(?:[0-9.][0-9a-zA-Z.+-]*|(?i:inf|infinity|nan))\s*$"
DAY = r"^\s*[-+]?[0-9]{4}"  # how one begins, and a time


def hopeless(values: pa.Array, target: pa.DataType) -> pa.Array:
    """Which texts cannot be read as a type, as far as their form shows it; no other values.

    >>> hopeless(pa.array(["1.5", "1,5", None, "1x", "NaN"]), pa.float64()).to_pylist()
    [False, True, False, False, False]
    """
    kinds = pa.types
    if is_text_or_bytes(values.type):
        if is_number(target):
            return pc.invert(pc.fill_null(pc.match_substring_regex(values, NUMBER), True))  # noqa: FBT003
        if kinds.is_timestamp(target) or kinds.is_date(target):
            return pc.invert(pc.fill_null(pc.match_substring_regex(values, DAY), True))  # noqa: FBT003
        if kinds.is_binary(values.type) and kinds.is_string(target):
            return pa.array([text is not None and not is_text(text) for text in values.to_pylist()])
    return pa.repeat(False, len(values))  # noqa: FBT003


def is_text(data: bytes) -> bool:
    """Whether bytes are UTF-8."""
    return text_or_none(data) is not None


def text_or_none(data: bytes) -> str | None:
    r"""Bytes as text; None where they are not UTF-8: with signs in their place, two could be alike.

    >>> text_or_none(b"M\xc3\xbcller"), text_or_none(b"M\xfcller")
    ('Müller', None)
    """
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def whole_or_null(column: pa.ChunkedArray, target: pa.DataType) -> pa.ChunkedArray:
    """`cast_or_null`, and null where a whole number would become another one.

    Arrow refuses that for integers, and rounds decimals, texts and wider reals. Whole numbers name
    privacy units: two units could count as one and share an allowance, if a file's column has
    another type than the first file's. So could two texts of one number, such as 7 and 007.

    >>> ids = pa.chunked_array([["9007199254740993", "9007199254740992", "0.1", "007"]])
    >>> whole_or_null(ids, pa.float64()).to_pylist()
    [None, 9007199254740992.0, 0.1, None]
    """
    if pa.types.is_dictionary(target):
        return cast_or_null(whole_or_null(column, target.value_type), target)
    if is_text_or_bytes(column.type) and is_number(target):
        odd = pc.fill_null(pc.match_substring_regex(column, PADDED), fill_value=False)
        column = pc.if_else(odd, pa.scalar(None, column.type), column)
    made = cast_or_null(column, target)
    if pa.types.is_boolean(target) and (
        pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
    ):
        before = column.cast(pa.float64()) if pa.types.is_floating(column.type) else column
        other = pc.not_equal(made.cast(before.type), before)
    elif pa.types.is_floating(target) and pa.types.is_floating(column.type):
        before = column.cast(pa.float64())
        other = pc.and_(pc.not_equal(made.cast(pa.float64()), before),
                        pc.equal(pc.floor(before), before))  # fmt: skip
    elif pa.types.is_floating(target) and not pa.types.is_integer(column.type):
        large = pc.greater_equal(pc.abs(made.cast(pa.float64())), float(EXACT[target]))
        found = np.zeros(len(made), np.bool_)
        for place in np.flatnonzero(np.asarray(pc.fill_null(large, fill_value=False))).tolist():
            found[place] = is_another_whole(column[place].as_py(), made[place].as_py())
        other = pa.array(found)
    else:
        return made
    return pc.if_else(pc.fill_null(other, fill_value=False), pa.scalar(None, target), made)


def is_another_whole(before: Any, after: float) -> bool:
    """Whether a decimal, or the text of a number, is whole and not this number."""
    try:
        number = Decimal(before.decode() if isinstance(before, bytes) else before)
    except InvalidOperation:  # Arrow reads what Python does not
        return True
    return number == number.to_integral_value() and number != after


EXACT = {pa.float16(): 2**11, pa.float32(): 2**24, pa.float64(): 2**53}  # whole numbers up to it


def parse(column: pa.ChunkedArray, target: pa.DataType) -> pa.ChunkedArray:
    """One strict cast; text to times takes ISO 8601, times to coarser ones round down.

    Integers that are times count microseconds since 1970, whatever the unit of the others.
    """
    if pa.types.is_binary(column.type) and target != pa.binary():
        return parse(column.cast(pa.string()), target)  # refuses what is not UTF-8
    if pa.types.is_timestamp(target):
        if pa.types.is_string(column.type):
            return in_unit(as_they_lie(instants(column)), target)
        if pa.types.is_timestamp(column.type):
            return in_unit(micros(column, ""), target)
        if pa.types.is_int64(column.type):
            return in_unit(column, target)
    if pa.types.is_int64(target) and pa.types.is_timestamp(column.type):
        return micros(column, "")
    if pa.types.is_dictionary(target):  # Arrow encodes texts alone by a cast
        return column.cast(target.value_type).dictionary_encode().cast(target)
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
