"""What sources share whose tables keep rows in Parquet files, and their past in versions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

from streamveil.connectors.base import Chunk
from streamveil.connectors.fit import FittedRows
from streamveil.connectors.names import shown
from streamveil.connectors.rejected_rows import with_last_places
from streamveil.errors import SourceError

AT_ONCE = 50_000  # rows


class LakeSource:
    """Rows of the files of a table's versions. `what`: which table it is, for messages."""

    def __init__(self, what: str, *, bounded: bool) -> None:
        self.what, self.bounded = what, bounded
        self.traced = False  # see `connectors.rejected_rows`
        self.names: list[str] = []  # of the files, as they were begun; where it is traced

    def chunks(
        self, file: str, parts: Iterator[FittedRows], size: int, here: Any, behind: Any
    ) -> Iterator[Chunk]:
        """The rows of one file of `size` rows.

        Positions: `here` is the one from which it is read, `behind` the one after its last row.
        """
        if self.traced:
            self.names.append(shown(file))
        for part in parts:
            rows = part.rows
            if self.traced:
                rows = with_last_places(rows, len(self.names) - 1, part.end)
            place = behind if part.end == size else replace(here, row=part.end)
            yield Chunk(rows, json.dumps(asdict(place)), part.rejected)

    def another(self, more: str = "") -> SourceError:
        """What to say of a table that has the name of the first one."""
        return SourceError(
            f"{self.what} is not the one that this job began with{more}.\n"
            "  to fix  restore that table, or start a new state, which is charged"
        )

    def takes_away(self, version: str, how: str) -> SourceError:
        """What to say of a version that does not only add rows."""
        return SourceError(
            f"{version} of {self.what} takes away rows or writes them anew ({how}); what was read"
            " of them cannot be taken back.\n"
            "  to fix  follow a table that is only appended to, such as the table of raw rows that"
            " this one is made from, or start a new state, which is charged"
        )
