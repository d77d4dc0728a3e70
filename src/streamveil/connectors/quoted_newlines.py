"""Rows of CSV that go on over line breaks until their quotes are closed, in bounded memory.

A row takes no other with it, however long it is: one longer than a limit is reported, not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import BinaryIO

import numpy as np
import pyarrow.compute as pc

from streamveil.connectors.long_lines import KEPT, Long, blocks, cut_at_returns
from streamveil.connectors.text import DELIMITER, Lines, Places, paired

MARK = b"\x1a"  # begins what stands for a line break in a text, or for itself
MARKS = {MARK: MARK + b"m", b"\n": MARK + b"n", b"\r": MARK + b"r"}
OPEN = b'"'  # what stands for what came before, within a quoted text


def rows_over_lines(file: BinaryIO, size: int, most: int, delimiter: str) -> Iterator[bytes | Long]:
    """What `blocks` gives, for rows: runs of rows, each in a line of its own, its breaks marked.

    A row of more than `most` bytes is told by itself. One that the file does not end goes on to
    the end of the file and is malformed. Where lines are cut into blocks changes nothing.
    """
    row = GrowingRow(most)
    fresh = Quotes(delimiter)  # behind a long line that begins a row
    within = Quotes(delimiter, OPEN)  # behind one with which a row goes on

    def seen(part: bytes) -> None:
        fresh.pass_over(part)
        within.pass_over(part)

    for block in cut_at_returns(blocks(file, size, most, seen), size):
        if isinstance(block, Long):
            quotes = within if row else fresh
            row.add(block.start, block.size + 1)
            if not quotes.open:
                yield row.end()
            fresh.begin()
            within.begin()
            continue
        if row:
            end = closed_at(block, delimiter)
            row.add(block[:end])
            if end is None:
                continue
            yield row.end()
            block = block[end:]
        rows, rest = joined_rows(block, most, delimiter)
        yield from rows
        if rest:
            row.add(rest)
    if row:
        yield row.left()


class GrowingRow:
    """A row that goes on: its lines, or of one that is too long the beginning."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._parts: list[bytes] = []
        self._size = 0

    def __bool__(self) -> bool:
        return self._size > 0

    def add(self, lines: bytes, size: int | None = None) -> None:
        """Go on with lines, or with the beginning of lines of this size."""
        if self._size == sum(map(len, self._parts)):
            self._parts.append(lines)
        self._size += len(lines) if size is None else size
        if self._size > self._most + len(b"\r\n"):
            self._parts = [b"".join(self._parts)[:KEPT]]

    def end(self) -> bytes | Long:
        """The row, with the end of its last line; begin anew."""
        lines, size = self._taken()
        return row_of(lines, self._most) if len(lines) == size else longer(lines, size)

    def left(self) -> bytes | Long:
        """The same of a row that the file does not end."""
        lines, size = self._taken()
        return marked(lines) if size <= self._most else longer(lines, size)

    def _taken(self) -> tuple[bytes, int]:
        lines, size = b"".join(self._parts), self._size
        self._parts, self._size = [], 0
        return lines, size


def row_of(lines: bytes, most: int) -> bytes | Long:
    """The row of these lines, in one line; or that it is too long."""
    text = lines.rstrip(b"\r\n")
    return marked(text) + lines[len(text) :] if len(text) <= most else longer(lines, len(lines))


def longer(lines: bytes, size: int) -> Long:
    """A row that is too long, of whose lines there may be the beginning alone."""
    return Long(lines[:KEPT].removesuffix(b"\n"), size - 1)


def closed_at(block: bytes, delimiter: str) -> int | None:
    """Behind which line a text is closed that is open before these; None if it goes on."""
    lines = block.splitlines(keepends=True) if b'"' in block else []
    closing = closing_lines(bare(lines), delimiter)
    return sum(map(len, lines[: closing[0] + 1])) if len(closing) else None


def joined_rows(
    block: bytes, most: int, delimiter: str = DELIMITER
) -> tuple[list[bytes | Long], bytes]:
    r"""Whole lines with each row in a line of its own, its other line breaks marked; and a rest.

    The rest begins a row that the next lines may end. Rows of more than `most` bytes are by
    themselves.

    >>> joined_rows(b'1,"a\nb"\n2,c"\n3,"d\n', 99)
    ([b'1,"a\x1anb"\n2,c"\n'], b'3,"d\n')
    >>> with_breaks(b'1,"a\x1anb"')
    b'1,"a\nb"'
    """
    lines = block.splitlines(keepends=True) if b'"' in block else []
    texts = bare(lines)
    open_ = np.flatnonzero(~np.asarray(paired(texts, delimiter), np.bool_))
    if not len(open_):
        return [plain(block)] if block else [], b""
    starts = np.cumsum([0, *map(len, lines)])
    closing = closing_lines(texts, delimiter)
    made: list[bytes | Long] = []
    row: list[bytes] = []
    at = 0
    for first in open_.tolist():
        start = int(starts[first])
        if start < at:  # within a row that began before
            continue
        row.append(plain(block[at:start]))
        place = int(np.searchsorted(closing, first, "right"))
        if place == len(closing):
            break
        at = int(starts[int(closing[place]) + 1])
        whole = row_of(block[start:at], most)
        if isinstance(whole, Long):
            made += [b"".join(row), whole]
            row = []
        else:
            row.append(whole)
    else:
        start = len(block)
        row.append(plain(block[at:]))
    made.append(b"".join(row))
    return [one for one in made if one], block[start:]


def bare(lines: list[bytes]) -> list[bytes]:
    """Lines without their ends."""
    return [line.rstrip(b"\r\n") for line in lines]


def closing_lines(lines: list[bytes], delimiter: str) -> Places:
    """Which lines close a text that is open before them, and open none."""
    return np.flatnonzero(paired([OPEN + line for line in lines], delimiter))


class Quotes:
    """Whether a text is open behind a line that is told in parts, from a state before it."""

    def __init__(self, delimiter: str, first: bytes = b"") -> None:
        self._fields, self._first = whole_fields(delimiter), first
        self.begin()

    def begin(self) -> None:
        """Begin a line."""
        self._before = self._first  # what came before it has the state of these bytes

    @property
    def open(self) -> bool:
        """Whether it is open now."""
        return self._before == OPEN

    def pass_over(self, part: bytes) -> None:
        """Go on behind the next part."""
        field = self._fields.sub(b"", self._before + part, 1)
        text = OPEN_TEXT.match(field)
        if text is None:
            self._before = field and b"x"
        else:
            rest = field[text.end() :]
            self._before = OPEN + rest if rest in (b"", b'"') else b"x"


OPEN_TEXT = re.compile(rb'"(?:[^"]++|"")*+')  # up to a quote that may close it


@cache
def whole_fields(delimiter: str) -> re.Pattern[bytes]:
    """The fields that have ended, without a step back, which takes memory."""
    end = re.escape(delimiter.encode())
    field = rb'(?:"(?:[^"]++|"")*+"[^%s]*+|[^"%s][^%s]*+|)' % (end, end, end)
    return re.compile(rb"(?:%s%s)*+" % (field, end))


def plain(lines: bytes) -> bytes:
    """Lines in which nothing but `MARK` itself is marked."""
    return lines.replace(MARK, MARKS[MARK])


def marked(row: bytes) -> bytes:
    """A row with a mark for each line break in it."""
    for sign, mark in MARKS.items():
        row = row.replace(sign, mark)
    return row


def with_breaks(row: bytes) -> bytes:
    """The row that was marked."""
    for sign, mark in reversed(MARKS.items()):
        row = row.replace(mark, sign)
    return row


def with_all_breaks(found: Lines) -> Lines:
    """The rows of lines that were marked."""
    table = found.rows
    for place, name in enumerate(table.column_names):
        column = table.column(name)
        if pc.any(pc.match_substring(column, MARK)).as_py():
            for sign, mark in reversed(MARKS.items()):
                column = pc.replace_substring(column, mark, sign)
            table = table.set_column(place, name, column)
    return found._replace(rows=table, all=lambda: [with_breaks(line) for line in found.all()])
