"""Lines of CSV as rows of fields, not yet of any type; and which lines are no rows.

One line is one row, and affects no other row. No line ends a job, or appears in a message.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import compress
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from streamveil.connectors.rejected_rows import is_text
from streamveil.types import Array, Int64

Places = Int64[Array, " lines"]  # which lines, from 0


class Lines(NamedTuple):
    """Some lines of a file."""

    rows: pa.Table  # their fields, as text or bytes
    malformed: Places  # lines that are no rows
    all: Callable[[], list[bytes]]  # the lines themselves, without their ends; b"" is neither
    size: int | None = None  # bytes of the one line that is here: it was too long to be read

    def of_rows(self) -> Places:
        """Which line each row is."""
        full = np.array([bool(line) for line in self.all()], np.bool_)
        full[self.malformed] = False
        return np.flatnonzero(full)


DELIMITER = ","
DELIMITERS = ";\t|"  # others that programs write
BOM = b"\xef\xbb\xbf"


class HeaderError(ValueError):
    """A line of names that names nothing; the text says why, without the line."""


@cache
def paired_form(delimiter: str) -> str:
    """The pattern of lines with every quote closed."""
    end = re.escape(delimiter)
    field = f'(?:"(?:[^"]|"")*"(?:[^"{end}][^{end}]*)?|[^"{end}][^{end}]*|)'
    return f"^{field}(?:{end}{field})*$"


@cache
def quoted_form(delimiter: str) -> re.Pattern[bytes]:
    """Quoted fields, without a step back, which takes memory."""
    return re.compile(rb'(^|%s)"(?:[^"]++|"")*+"' % re.escape(delimiter.encode()))


def csv_names(header: bytes, delimiter: str = DELIMITER) -> list[str]:
    r"""The names in the first line of a CSV file.

    >>> csv_names(b'\xef\xbb\xbfuser,"a ""b"", c"\r\n')
    ['user', 'a "b", c']
    """
    line = header.removeprefix(BOM).removesuffix(b"\n").removesuffix(b"\r")
    if not line.strip():
        raise HeaderError("has no header line: its first line must name the columns")
    if not is_text(line) or b"\0" in line:
        raise HeaderError("is no UTF-8 text.\n  to fix  convert it: iconv -f ... -t UTF-8")
    if b"\r" in line:
        raise HeaderError(
            "ends its lines with a carriage return alone.\n"
            "  to fix  end them with a line feed: tr '\\r' '\\n'"
        )
    if not paired([line], delimiter)[0].as_py():
        raise HeaderError(
            "has a header with a quote too many, or a line break in a name.\n"
            "  to fix  give its columns names of one line"
        )
    read = pyarrow.csv.read_csv(
        pa.BufferReader(line + b"\n"), pyarrow.csv.ReadOptions(use_threads=False),
        pyarrow.csv.ParseOptions(delimiter=delimiter),
    )  # fmt: skip
    names = list(read.column_names)
    other = next((one for one in DELIMITERS if len(names) == 1 and one in names[0]), None)
    if other is not None and other != delimiter and b'"' not in line:
        raise HeaderError(
            f"has one column, whose name holds {other!r}.\n"
            f"  to fix  delimiter = {other!r} if that ends its fields; else quote the name"
        )
    return names


def csv_rows(
    block: bytes,
    names: list[str],
    wanted: list[str],
    typed: Sequence[str] = (),
    delimiter: str = DELIMITER,
) -> Lines:
    r"""The wanted fields of whole lines, as bytes; an empty one is null.

    In `typed` columns, which hold no texts, words for nothing (NA, NULL, nan) are null as well.

    Arrow alone would read on over line breaks between quotes: a line with one quote too many would
    swallow the following rows, whoever's they are. Here only that line is malformed.

    >>> found = csv_rows(b'1,"a\n2,"b""c"\n\n3\n4,d\n', ["n", "t"], ["t"])
    >>> found.rows["t"].to_pylist(), found.malformed.tolist(), found.of_rows().tolist()
    ([b'b"c', b'd'], [0, 3], [1, 4])
    """
    rest, left = block, None
    if b'"' in rest:
        rest, left = sifted(rest, left, partial(paired, delimiter=delimiter))
    if not is_text(rest):  # Arrow cannot even count a line that it has to show and cannot
        fine = partial(showable, fields=len(names), delimiter=delimiter)
        rest, left = sifted(rest, left, fine)
    numbers: list[int] = []  # of lines with too many fields or too few, from 1, empty ones left out

    def note(row: Any) -> str:
        numbers.append(row.number)
        return "skip"

    if rest.startswith(BOM):  # Arrow takes one away, and with it a line that has nothing else
        rest = BOM + rest
    if rest.strip(b"\r\n"):
        table = pyarrow.csv.read_csv(
            pa.BufferReader(rest),
            read_options=pyarrow.csv.ReadOptions(
                column_names=names, block_size=len(rest) + 1, use_threads=False
            ),
            parse_options=pyarrow.csv.ParseOptions(
                delimiter=delimiter, invalid_row_handler=note
            ),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types={name: pa.binary() for name in names}, include_columns=wanted,
                strings_can_be_null=True, null_values=[""],
            ),
        )  # fmt: skip
        for name in typed:
            table = without_words(table, name)
    else:
        table = pa.table({name: pa.array([], pa.binary()) for name in wanted})
    return Lines(table, malformed_of(block, rest, left, numbers), block.splitlines)


@cache
def nulls() -> pa.Array:
    """The words that some programs write for a missing value."""
    return pa.array([text.encode() for text in pyarrow.csv.ConvertOptions().null_values])


def without_words(table: pa.Table, name: str) -> pa.Table:
    """The table with null for the words that some programs write for a missing number."""
    column = table.column(name)
    said = pc.is_in(column, nulls())
    if not pc.any(said).as_py():
        return table
    nothing = pa.scalar(None, column.type)
    place = table.column_names.index(name)
    return table.set_column(place, name, pc.if_else(said, nothing, column))


def sifted(
    block: bytes, left: Places | None, fine: Callable[[list[bytes]], Sequence[bool]]
) -> tuple[bytes, Places | None]:
    """The lines that are fine, and which of all lines they are (None: all)."""
    lines = block.splitlines()
    keep = np.asarray(fine(lines), np.bool_)
    if keep.all():
        return block, left
    places = np.arange(len(lines)) if left is None else left
    return b"".join(line + b"\n" for line in compress(lines, keep)), places[keep]


def malformed_of(block: bytes, rest: bytes, left: Places | None, numbers: list[int]) -> Places:
    """Which lines of a block are no rows: those not left, and some of the rest by their numbers."""
    if left is None and not numbers:
        return np.zeros(0, np.int64)
    gone = np.ones(len(block.splitlines()), np.bool_)
    places = np.arange(len(gone)) if left is None else left
    gone[places] = False
    if numbers:
        full = places[np.fromiter(map(bool, rest.splitlines()), np.bool_, len(places))]
        gone[full[np.array(numbers, np.int64) - 1]] = True
    return np.flatnonzero(gone)


def paired(lines: list[bytes], delimiter: str = DELIMITER) -> pa.Array:
    """Which lines have every quote closed."""
    return pc.match_substring_regex(pa.array(lines, pa.large_binary()), paired_form(delimiter))


def showable(lines: list[bytes], fields: int, delimiter: str = DELIMITER) -> list[bool]:
    """Which lines are UTF-8, or else have the right number of fields."""
    return [is_text(line) or fields_in(line, delimiter) == fields for line in lines]


def fields_in(line: bytes, delimiter: str = DELIMITER) -> int:
    r"""How many fields a line with paired quotes has.

    >>> fields_in(b'1,"a,b"\xff,'), fields_in(b'1;"a;b"\xff,', ";")
    (3, 2)
    """
    return quoted_form(delimiter).sub(rb"\1", line).count(delimiter.encode()) + 1
