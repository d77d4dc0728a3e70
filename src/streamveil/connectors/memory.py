"""A table in memory as a source: of Arrow, pandas, Polars, DuckDB, or a dict of lists."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, ClassVar

import pyarrow as pa

from streamveil.batch import as_table
from streamveil.connectors import Chunk, select, slices
from streamveil.connectors.rejected_rows import TracedSource


class MemorySource(TracedSource):
    """Rows of one table, in table order. The position is a row number."""

    bounded = at_hand = True
    is_explained_without: ClassVar = ("table",)  # a query may be explained before it has its rows

    def __init__(self, table: Any) -> None:
        self.table = as_table(table)

    def schema(self) -> pa.Schema:
        """See `Source.schema`."""
        return self.table.schema

    def read(
        self, position: str | None, max_rows: int, columns: list[str] | None = None
    ) -> Iterator[Chunk]:
        """See `Source.read`."""
        names = select(self.table.schema, columns, "the table").names
        table, start = self.table.select(names), json.loads(position or "0")
        for rows in slices(table.slice(start), max_rows):
            start += rows.num_rows
            yield Chunk(self.placed(rows, start), json.dumps(start))
