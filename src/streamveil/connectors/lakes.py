"""Common parts of sources whose tables keep rows in Parquet files, and their past in versions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple, TypeVar

from streamveil.connectors import Chunk
from streamveil.connectors.manifest import shown
from streamveil.connectors.rejected_rows import FittedRows, TracedSource
from streamveil.errors import SourceError

AT_ONCE = 50_000  # rows
T = TypeVar("T")


class FileRows(NamedTuple):
    """The rows of a file that are left."""

    name: str
    size: int  # rows in all
    parts: Iterator[FittedRows]


class LakeSource(TracedSource):
    """Rows of the files of a table's versions. `what`: which table it is, for messages."""

    def __init__(self, what: str, *, bounded: bool) -> None:
        self.what, self.bounded = what, bounded
        self.names: list[str] = []

    def chunks(
        self, files: Sequence[T], place: Any, last: Any, read: Callable[[T, int], FileRows]
    ) -> Iterator[Chunk]:
        """The rows of the files of a version, from a place in one of them on.

        `last`: the place behind them all. `read`: the rows of a file behind its first so many.
        """
        for number, one in list(enumerate(files))[place.file :]:
            here = place if number == place.file else replace(place, file=number, row=0)
            behind = last if number + 1 == len(files) else replace(here, file=number + 1, row=0)
            file = read(one, here.row)
            if self.traced:
                self.names.append(shown(file.name))
            for part in file.parts:
                at = behind if part.end == file.size else replace(here, row=part.end)
                rows = self.placed(part.rows, part.end)
                yield Chunk(rows, json.dumps(asdict(at)), part.rejected)

    def another(self, more: str = "") -> SourceError:
        """The error for another table under the name of the first one."""
        return SourceError(
            f"{self.what} is not the one that this job began with{more}.\n"
            "  to fix  restore that table, or start a new state, which is charged"
        )

    def takes_away(self, version: str, how: str) -> SourceError:
        """The error for a version that does not only add rows."""
        return SourceError(
            f"{version} of {self.what} takes away rows or writes them anew ({how}); what was read"
            " of them cannot be taken back.\n"
            "  to fix  follow a table that is only appended to, such as the table of raw rows that"
            " this one is made from, or start a new state, which is charged"
        )
