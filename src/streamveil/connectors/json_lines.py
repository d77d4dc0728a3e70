"""JSON lines as rows of fields; and which lines are not rows.

What a line means is decided by reading it alone, in Python. Arrow reads whole blocks eight times as
fast, but its result is used only where it must be the same: every line is one object, and every
value has the type of its column. Any other block is divided until its odd lines are read alone.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from functools import partial
from itertools import compress
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.json

from streamveil.connectors.rejected_rows import is_text, parse
from streamveil.connectors.text import Lines
from streamveil.json_text import MOST_DEPTH, MOST_VALUES, is_excessive
from streamveil.types import Array, Int64

PARTS = 8  # of a block that Arrow does not read
LEAST = 4096  # bytes of a block that is not divided
NATIVE = (pa.int64(), pa.float64(), pa.bool_())  # types that Arrow and a cast of text read alike
ROW = re.compile(r"in row (\d+)")  # at the end of what Arrow says
LONELY = re.compile(rb"Inf(?!inity)|-NaN")  # numbers for Arrow, and for nobody else
NO_TEXT = "\ud800"  # stands for a field that fits no type: null, and counted
NEWLINE, RETURN, OPEN, CLOSE = b"\n\r{}"


class LinePiece(NamedTuple):
    """Some lines of a block."""

    rows: pa.Table
    malformed: Int64[Array, " some"]  # from 0
    lines: int


def json_block(block: bytes, wanted: pa.Schema) -> Lines:
    r"""The wanted fields of whole lines: each column as text, or as it is wanted.

    >>> wanted = pa.schema([("n", pa.int64()), ("t", pa.string())])
    >>> found = json_block(b'{"n": 1}\n[]\n\n{"n": "2", "t": 3}\n', wanted)
    >>> found.rows.to_pylist(), found.malformed.tolist()
    ([{'n': 1, 't': None}, {'n': 2, 't': '3'}], [1])
    """
    pieces = list(parsed(block, wanted))
    first = np.cumsum([0, *(piece.lines for piece in pieces)])
    odd = [piece.malformed + at for piece, at in zip(pieces, first, strict=False)]
    rows = joined([piece.rows for piece in pieces], wanted)
    return Lines(rows, np.concatenate(odd), lambda: without_ends(lines_of(block)))


def json_messages(messages: list[bytes], wanted: pa.Schema) -> Lines:
    """As `json_block`, of messages: each is one line, whatever it holds; a blank one is no row."""
    messages = [message if message.strip() else b"null" for message in messages]
    block = b"\n".join(messages)
    if messages and block.count(b"\n") == len(messages) - 1:
        return json_block(block + b"\n", wanted)
    return json_rows(messages, wanted.names)


def parsed(block: bytes, wanted: pa.Schema) -> Iterator[LinePiece]:
    """A block in as few pieces as Arrow reads."""
    todo = [block]
    while todo:
        block = todo.pop()
        try:
            rows = native_rows(block, wanted)
            yield LinePiece(rows, np.zeros(0, np.int64), rows.num_rows)
        except OddError as odd:
            piece = sifted_rows(block, wanted) if odd.line is None else None
            parts = parts_of(block, odd.line, wanted) if piece is None else []
            todo += reversed(parts)
            if piece is not None:
                yield piece
            elif not parts:
                lines = lines_of(block)
                found = json_rows(lines, wanted.names)
                yield LinePiece(typed(found.rows, wanted), found.malformed, len(lines))


def parts_of(block: bytes, odd: int | None, wanted: pa.Schema) -> list[bytes]:
    """A block in several smaller parts; none where its lines are to be read one by one.

    Where Arrow says which line is odd, that line is a part by itself, if the part before it is
    large enough to be worth it.
    """
    if len(block) <= LEAST or block.count(b"\n") < PARTS:
        return []
    lines = lines_of(block)
    if odd is not None and len(lines) > odd >= len(lines) // (2 * PARTS):
        parts = [b"".join(lines[:odd]), b"".join(lines[odd : odd + 1]), b"".join(lines[odd + 1 :])]
        return [part for part in parts if part]
    try:
        native_rows(block[: block.index(b"\n") + 1], wanted)
    except OddError:
        return []  # others are likely to be odd as well
    parts = list(divided(block))
    return parts if len(parts) > 1 else []  # one line may be nearly all of it


def sifted_rows(block: bytes, wanted: pa.Schema) -> LinePiece | None:
    """A block read without the lines that do not look like objects, if none of these is a row."""
    lines = lines_of(block)
    odd = np.array(
        [not (line.startswith(b"{") and line.rstrip(b"\r\n").endswith(b"}")) for line in lines]
    )
    if not odd.any() or odd.all():
        return None
    found = json_rows([*compress(lines, odd)], wanted.names)
    if found.rows.num_rows:
        return None
    rest = json_block(b"".join(compress(lines, ~odd)), wanted)
    malformed = [np.flatnonzero(odd)[found.malformed], np.flatnonzero(~odd)[rest.malformed]]
    return LinePiece(rest.rows, np.sort(np.concatenate(malformed)), len(lines))


def typed(rows: pa.Table, wanted: pa.Schema) -> pa.Table:
    """Rows of text as Arrow would have read them, where every value fits."""
    try:
        columns = [
            parse(rows.column(f.name), f.type) if f.type in NATIVE else rows.column(f.name)
            for f in wanted
        ]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return rows
    return pa.table(columns, wanted.names)


def divided(block: bytes) -> Iterator[bytes]:
    """Parts of about one size, of whole lines."""
    size, begin = len(block) // PARTS, 0
    while begin < len(block):
        end = block.find(b"\n", begin + size) + 1 or len(block)
        yield block[begin:end]
        begin = end


def lines_of(block: bytes) -> list[bytes]:
    """The lines, with their ends."""
    return io.BytesIO(block).readlines()


class OddError(Exception):
    """A block that Arrow might not read line by line; `line`: the odd one, if known."""

    def __init__(self, line: int | None = None) -> None:
        super().__init__()
        self.line = line


def native_rows(block: bytes, wanted: pa.Schema) -> pa.Table:
    """The rows of a block as Arrow reads them; OddError where it might read them differently.

    A line that begins with { and ends with } shares no object with the next one: within an object
    what follows } is no {. So with as many objects as lines, each line is one object.
    """
    if not block.endswith(b"\n"):
        block += b"\n"
    lines = plain_lines(block)
    if not lines:
        raise OddError
    try:
        rows = pyarrow.json.read_json(
            pa.BufferReader(block),
            pyarrow.json.ReadOptions(use_threads=False, block_size=len(block) + 1),
            pyarrow.json.ParseOptions(
                explicit_schema=pa.schema([
                    (f.name, f.type if f.type in NATIVE else pa.string()) for f in wanted
                ]),
                unexpected_field_behavior="ignore",
            ),
        )  # fmt: skip
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowKeyError) as error:
        told = ROW.search(str(error))  # a hint, and no more: any cut gives the same rows
        raise OddError(min(int(told[1]), lines - 1) if told else lines) from None
    if rows.num_rows != lines or rows.schema.names != wanted.names:
        raise OddError(lines)
    if any(map(has_negative_zero, rows.columns)):
        raise OddError(lines)
    return rows


def plain_lines(block: bytes) -> int:
    """How many lines there are; 0 unless each begins and ends as an object that Arrow may read.

    They are text, not nested deeply, and hold nothing that only Arrow reads as a number.
    """
    data = np.frombuffer(block, np.uint8)
    ends = np.flatnonzero(data == NEWLINE)
    last = data[ends - 1]
    if last[0] == RETURN:
        last = np.where(last == RETURN, data[ends - 2], 0)
    if data[0] != OPEN or (last != CLOSE).any() or (data[ends[:-1] + 1] != OPEN).any():
        return 0
    longest = int(np.diff(ends, prepend=-1).max())
    if longest > MOST_VALUES or (longest > 2 * MOST_DEPTH and most_opened(data, ends) > MOST_DEPTH):
        return 0
    if not block.isascii() and not is_text(block):
        return 0
    if (b"I" in block or b"N" in block) and LONELY.search(block):
        return 0
    return len(ends)


def most_opened(data: Array, ends: Array) -> int:
    """The most brackets that a line opens, also in its texts: at least its depth."""
    opened = np.flatnonzero((data | 32) == OPEN)  # [ and { differ in that bit
    return int(np.diff(np.searchsorted(opened, ends), prepend=0).max())


def has_negative_zero(column: pa.ChunkedArray) -> bool:
    """Whether a column of real numbers holds -0, which is 0 where it was written as an integer."""
    if not pa.types.is_floating(column.type):
        return False
    return any(
        bool((np.signbit(values) & (values == 0)).any())
        for values in (chunk.to_numpy(zero_copy_only=False) for chunk in column.chunks)
    )


def joined(pieces: Sequence[pa.Table], wanted: pa.Schema) -> pa.Table:
    """Pieces as one table: as text where one of them is, as bytes where one is no Unicode."""
    pieces = [piece for piece in pieces if piece.num_rows] or list(pieces[:1])
    if len(pieces) == 1:
        return pieces[0]
    columns = []
    for name in wanted.names:
        parts = [piece.column(name) for piece in pieces]
        kinds = {part.type for part in parts}
        if len(kinds) > 1:
            common = pa.binary() if pa.binary() in kinds else pa.string()
            parts = [part.cast(pa.string()).cast(common) if part.type != common else part
                     for part in parts]  # fmt: skip
        columns.append(pa.chunked_array([chunk for part in parts for chunk in part.chunks],
                                        parts[0].type))  # fmt: skip
    return pa.table(columns, wanted.names)


def json_rows(lines: list[bytes], names: list[str]) -> Lines:
    """The named fields of every line that is a JSON object, as text: this decides what it means."""
    fields: dict[str, list[str | None]] = {name: [] for name in names}
    malformed = []
    for place, line in enumerate(lines):
        try:
            found = None if is_excessive(line) else fields_of(line, names)
        except (ValueError, RecursionError):
            found = None
        if found is None:
            if line.strip():
                malformed.append(place)
            continue
        for values, text in zip(fields.values(), found, strict=True):
            values.append(text)
    table = pa.table({name: text_array(values) for name, values in fields.items()})
    return Lines(table, np.array(malformed, np.int64), partial(without_ends, lines))


def without_ends(lines: list[bytes]) -> list[bytes]:
    """Lines without their ends; lines of white space are empty."""
    return [line.rstrip(b"\r\n") if line.strip() else b"" for line in lines]


def fields_of(line: bytes, names: list[str]) -> list[str | None] | None:
    """Fields of a line as text; None where it is no object. Lists and objects are read again.

    A number is text as it is written, since reals would make two ids one. Within a list or an
    object numbers stay numbers, but for those that reals do not hold.

    >>> line = b'{"id": 9007199254740993.0, "list": [1.50, 0.10000000000000000001]}'
    >>> fields_of(line, ["id", "list"])
    ['9007199254740993.0', '[1.5, "0.10000000000000000001"]']
    """
    row = json.loads(line, parse_float=str)
    if not isinstance(row, dict):
        return None
    found = [row.get(name) for name in names]
    if any(isinstance(value, (list, dict)) for value in found):
        whole = json.loads(line, parse_float=real_or_text)
        found = [whole[name] if isinstance(value, (list, dict)) else value
                 for name, value in zip(names, found, strict=True)]  # fmt: skip
    return [json_text(value) for value in found]


def real_or_text(number: str) -> float | str:
    """A number as a real, or as it is written where another number is written as the same real."""
    found = float(number)
    try:
        return found if Decimal(number) == Decimal(repr(found)) else number
    except ArithmeticError:  # an exponent of many digits
        return number


def json_text(value: Any) -> str | None:
    """A field as text."""
    return value if isinstance(value, str) or value is None else json.dumps(value)


def text_array(values: list[str | None]) -> pa.Array:
    """Text; as bytes where some is no Unicode (half a surrogate pair), for `fit` to find."""
    try:
        return pa.array(values, pa.string())
    except UnicodeEncodeError:
        raw = [None if text is None else text.encode("utf-8", "surrogatepass") for text in values]
        return pa.array(raw, pa.binary())
