"""A buffer of tables with one schema that may be larger than memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import IO, Any

import pyarrow as pa

from streamveil.errors import SourceError

SPILL_BYTES = 1 << 26  # what is more goes to a file without a name


class SpillBuffer:
    """Tables in the order in which they were added.

    >>> buffer = SpillBuffer()
    >>> buffer.add(pa.table({"n": [1]}))
    >>> [table.num_rows for table in buffer]
    [1]
    """

    def __init__(self) -> None:
        self._tables: list[pa.Table] = []
        self._bytes = 0
        self._file: IO[bytes] | None = None
        self._writer: Any = None

    def add(self, table: pa.Table) -> None:
        """Puts a table on the buffer."""
        self._tables.append(table)
        self._bytes += table.nbytes
        if self._bytes > SPILL_BYTES:
            self._spill()

    def _spill(self) -> None:
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="streamveil-")  # noqa: SIM115
                self._writer = pa.ipc.new_stream(self._file, self._tables[0].schema)
            for table in self._tables:
                self._writer.write_table(table)
        except OSError as error:
            raise SourceError(f"cannot set rows aside on disk: {error.strerror}") from None
        self._tables, self._bytes = [], 0

    def __iter__(self) -> Iterator[pa.Table]:
        """All tables; none can be added after."""
        if self._file is not None:
            self._writer.close()
            self._file.seek(0)
            for batch in pa.ipc.open_stream(self._file):
                yield pa.Table.from_batches([batch])
        yield from self._tables
