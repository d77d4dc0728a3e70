"""Files of CSV and of JSON lines, read as whole lines in bounded memory; some may be no rows.

A line longer than a limit is passed over: only its start and its size are reported. So one person's
line can neither fill the memory nor end the job each time it is read.
"""

from __future__ import annotations

import io
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO, ClassVar, NamedTuple, TypeVar, cast

import numpy as np
import pyarrow as pa

from streamveil.connectors import slices
from streamveil.connectors.file_reader import FilePart, Numbers, Reader, ReadPosition, RejectedLines
from streamveil.connectors.long_lines import SKIPPED, Long, blocks, cut_at_returns, first_line
from streamveil.connectors.manifest import COMPRESSIONS, guarded, shown
from streamveil.connectors.quoted_newlines import rows_over_lines, with_all_breaks
from streamveil.connectors.rejected_rows import (
    MALFORMED,
    MISFIT,
    TOO_LONG,
    fit,
    is_text_or_bytes,
    misfits,
)
from streamveil.connectors.text import HeaderError, Lines, csv_names, csv_rows
from streamveil.errors import SourceError

# ---- whole lines of a file of text, compressed or not

THREADS = min(2, os.cpu_count() or 1)
S = TypeVar("S")
T = TypeVar("T")
MAGIC = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd")  # gzip, Zstandard


def opened(path: Path) -> BinaryIO:
    """The text of a file whose name tells how it is compressed, if it is."""
    compression = COMPRESSIONS.get(path.suffix.lower())
    if compression is not None:
        packed = guarded(path, lambda: pa.CompressedInputStream(pa.OSFile(str(path)), compression))
        return io.BufferedReader(cast(io.RawIOBase, packed), SKIPPED)
    file = guarded(path, lambda: path.open("rb"))
    if guarded(path, lambda: file.peek(4)).startswith(MAGIC):
        file.close()
        raise SourceError(
            f"'{shown(path.name)}' is compressed, and its name does not say so.\n"
            "  to fix  let it end in .gz or .zst (such as visits.csv.gz)"
        )
    return file


def ahead(make: Callable[[S], T], of: Iterable[S]) -> Iterator[T]:
    """The result of `make` for each, in order; other threads make the next ones meanwhile.

    The first one is made by the calling thread: most files have no other.
    """
    with ThreadPoolExecutor(THREADS) as pool:
        waiting: deque[Future[T]] = deque()
        for number, one in enumerate(of):
            if not number:
                yield make(one)
                continue
            waiting.append(pool.submit(make, one))
            if len(waiting) > THREADS:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


# ---- formats whose rows are lines


class TextReader(Reader):
    """A format whose rows are lines: `lines` returns the function that makes rows of them."""

    BYTES: ClassVar[int] = 1 << 20  # bytes
    has_header: ClassVar[bool] = False

    def lines(self, path: Path, wanted: pa.Schema) -> Callable[[bytes], Lines]:
        """The function that makes rows of whole lines of a file. Malformed lines are counted."""
        raise NotImplementedError

    def read(
        self, path: Path, wanted: pa.Schema, start: ReadPosition, max_rows: int
    ) -> Iterator[FilePart]:
        """See `Reader.read`."""
        if guarded(path, path.stat).st_size == 0:
            return
        read = self.lines(path, wanted)
        with opened(path) as file:
            if self.has_header:
                guarded(path, lambda: first_line(file, self.most_line))
            first = 1 + self.has_header if self.traced else None
            yield from Fitting(wanted, max_rows, first).parts(self._pieces(path, file, read), start)

    def blocks(self, file: BinaryIO) -> Iterator[bytes | Long]:
        """Runs of whole rows, each in a line of its own."""
        return blocks(file, self.BYTES, self.most_line)

    def _pieces(
        self, path: Path, file: BinaryIO, read: Callable[[bytes], Lines]
    ) -> Iterator[Lines]:
        """Lines of a file of text, some at a time; those that are too long by themselves."""
        found = self.blocks(file)

        def lines(block: bytes | Long) -> Lines:
            if isinstance(block, Long):
                one = np.zeros(1, np.int64)
                return Lines(read(b"").rows, one, lambda: [block.start], block.size)
            return guarded(path, partial(read, block))

        some: Iterator[bytes | Long] = iter(lambda: guarded(path, partial(next, found, None)), None)
        return ahead(lines, some)


class CsvReader(TextReader):
    """CSV with a header line. Every field is read as text, then fitted.

    Arrow's threads take no part: one that still held a block when the process ends would abort it.
    """

    BYTES = 1 << 22
    has_header = True

    def schema(self, path: Path) -> pa.Schema:
        """The header's names; text unless declared."""
        with opened(path) as file:
            header = guarded(path, lambda: first_line(file, self.most_line))
        try:
            if header is None:
                raise HeaderError(f"has a header of more than {self.most_line:,} bytes")
            names = csv_names(header, self.delimiter)
        except HeaderError as error:
            raise SourceError(f"'{shown(path.name)}' {error}") from None
        return pa.schema([(name, pa.string()) for name in names])

    def lines(self, path: Path, wanted: pa.Schema) -> Callable[[bytes], Lines]:
        """See `TextReader`. A line with the wrong number of fields is no row."""
        own = self.schema(path)
        self._require(own, wanted, path)
        typed = [field.name for field in wanted if not is_text_or_bytes(field.type)]
        read = partial(
            csv_rows, names=own.names, wanted=wanted.names, typed=typed, delimiter=self.delimiter
        )
        return (lambda block: with_all_breaks(read(block))) if self.quoted_newlines else read

    def blocks(self, file: BinaryIO) -> Iterator[bytes | Long]:
        """See `TextReader`."""
        if not self.quoted_newlines:
            return cut_at_returns(super().blocks(file), self.BYTES)
        return rows_over_lines(file, self.BYTES, self.most_line, self.delimiter)


class JsonReader(TextReader):
    """JSON lines: one object a line. Columns must be declared."""

    def schema(self, path: Path) -> pa.Schema:
        """Always declared: reading it from values would let one row decide everybody's types."""
        if self.declared is None:
            raise SourceError(
                f"JSON lines carry no types ('{shown(path.name)}').\n"
                "  to fix  declare the columns: CREATE STREAM name (column TYPE, …) WITH (…), "
                "or columns={'column': 'TYPE'}"
            )
        return self.declared

    def lines(self, path: Path, wanted: pa.Schema) -> Callable[[bytes], Lines]:
        """See `TextReader`. A line that is no JSON object is no row."""
        from streamveil.connectors.json_lines import json_block  # only for files of JSON

        return partial(json_block, wanted=wanted)


READERS: dict[str, type[Reader]] = {"csv": CsvReader, "json": JsonReader}


class Origin(NamedTuple):
    """Lines of a file, and which of them the rows are that come next."""

    first: int  # number of the first line
    lines: list[bytes]
    rows: Numbers

    size: int | None  # see `Lines`

    def rejected_lines(self, reason: str, which: Numbers) -> RejectedLines:
        """Some of the lines, as rejected rows."""
        lines = [self.lines[line] for line in which]
        return RejectedLines(reason, which + self.first, lines, self.size)

    def after(self, rows: int) -> Origin:
        """The same behind some rows."""
        return self._replace(rows=self.rows[rows:])


@dataclass(frozen=True)
class Fitting:
    """From lines of text to parts of rows."""

    wanted: pa.Schema
    max_rows: int
    first: int | None  # number of the first line; None: nobody asks where rows come from

    def parts(self, pieces: Iterable[Lines], start: ReadPosition) -> Iterator[FilePart]:
        """The parts after a place; malformed lines go with the next rows, or without any."""
        skip, told, malformed, line = start.row, start.malformed, 0, self.first
        for piece in pieces:
            odd = piece.malformed[len(piece.malformed) if told is None and skip else 0 :]
            odd = odd[max(0, (told or 0) - malformed) :]
            malformed += len(piece.malformed)
            rest, skip = piece.rows.slice(skip), max(0, skip - piece.rows.num_rows)
            origin = None
            if line is not None:
                gone = piece.rows.num_rows - rest.num_rows
                origin = Origin(line, piece.all(), piece.of_rows()[gone:], piece.size)
                line += len(origin.lines)
            for part in slices(rest, self.max_rows) if rest.num_rows else [rest][: len(odd)]:
                reason = MALFORMED if piece.size is None else TOO_LONG
                yield self._part(part, (reason, odd), max(malformed, told or 0), origin)
                odd, origin = odd[:0], origin and origin.after(part.num_rows)

    def _part(
        self, part: pa.Table, unread: tuple[str, Numbers], malformed: int, origin: Origin | None
    ) -> FilePart:
        (reason, odd), (rows, rejected) = unread, fit(part, self.wanted)
        if len(odd):
            rejected = {**rejected, reason: len(odd)}
        if origin is None:
            return FilePart(rows, rejected, malformed)
        mine = origin.rows[: part.num_rows]
        wrong = mine[misfits(part, rows)] if rejected else mine[:0]
        found = [origin.rejected_lines(reason, odd), origin.rejected_lines(MISFIT, wrong)]
        return FilePart(rows, rejected, malformed, mine + origin.first, found)
