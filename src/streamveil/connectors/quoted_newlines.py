"""Rows of CSV that go on over line breaks until their quotes are closed, in bounded memory.

A row takes no other with it, however long it is: one longer than a limit is told, not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import BinaryIO

import numpy as np
import pyarrow.compute as pc

from streamveil.connectors.long_lines import KEPT, Long, blocks
from streamveil.connectors.text import DELIMITER, Lines, Places, paired

MARK = b"\x1a"  # begins what stands for a line break in a text, or for itself
MARKS = {MARK: MARK + b"m", b"\n": MARK + b"n", b"\r": MARK + b"r"}
OPEN = b'"'  # what stands for what came before, within a quoted text


def rows_over_lines(file: BinaryIO, size: int, most: int, delimiter: str) -> Iterator[bytes | Long]:
    """What `blocks` gives, for rows: runs of rows, each in a line of its own, its breaks marked.

    A row of more than `most` bytes is told by itself. One that the file does not end goes on to
    the end of the file and is malformed. Where lines are cut into blocks changes nothing.
    """
    begun = b""  # lines of a row that goes on
    over: Long | None = None  # such a row that is too long already
    fresh, within = (
        Quotes(delimiter),
        Quotes(delimiter),
    )  # behind a long line that begins a row, or goes on

    def seen(part: bytes) -> None:
        fresh.pass_over(part)
        within.pass_over(part)

    fresh.begin()
    within.begin(OPEN)
    for block in blocks(file, size, most, seen):
        if isinstance(block, Long):
            quotes = within if begun or over else fresh
            over = grown(over or longer(begun), block.start, block.size + 1)
            begun = b""
            if not quotes.open:
                yield ended(over)
                over = None
            fresh.begin()
            within.begin(OPEN)
            continue
        if over:
            lines = block.splitlines(keepends=True)
            closing = closing_lines(bare(lines), delimiter)
            end = sum(map(len, lines[: closing[0] + 1])) if len(closing) else len(block)
            over = grown(over, block[:end])
            if not len(closing):
                continue
            yield ended(over)
            over, block = None, block[end:]
        rows, begun = joined_rows(begun + block, most, delimiter)
        yield from rows
        if len(begun) > most:
            over, begun = longer(begun), b""
    if over:
        yield ended(over)
    elif begun:
        yield marked(begun)


def longer(lines: bytes) -> Long:
    """A row that is too long, of which there are these lines, and more."""
    return Long(lines[:KEPT], len(lines))


def grown(row: Long, lines: bytes, size: int | None = None) -> Long:
    """The same with more lines, of which there may be a beginning alone."""
    whole = row.size == len(row.start)
    start = row.start + lines[: KEPT - len(row.start)] if whole else row.start
    return Long(start, row.size + (len(lines) if size is None else size))


def ended(row: Long) -> Long:
    """The same without the last line's end."""
    return row._replace(start=row.start.removesuffix(b"\n"), size=row.size - 1)


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
        final = int(closing[place])
        at, whole = int(starts[final + 1]), int(starts[final]) + len(texts[final])
        if whole - start <= most:
            row += [marked(block[start:whole]), block[whole:at]]
            continue
        made += [b"".join(row), ended(longer(block[start:at]))]
        row = []
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
    """Whether a text is open behind a line that is told in parts."""

    def __init__(self, delimiter: str) -> None:
        self._fields = whole_fields(delimiter)
        self.begin()

    def begin(self, before: bytes = b"") -> None:
        """Begin a line, behind what has the state of such bytes."""
        self._before = before

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
