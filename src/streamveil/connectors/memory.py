"""An Arrow table (or anything Arrow can read: pandas, Polars, a dict of lists) as a source."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from streamveil.connectors.base import Chunk, select, slices
from streamveil.errors import SourceError


class MemorySource:
    """Rows of one table, in table order. The position is a row number."""

    bounded = True

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
            yield Chunk(rows, json.dumps(start))


def as_table(data: Any) -> pa.Table:
    """An Arrow table from Arrow, a dict of columns, or an object with the Arrow C interface."""
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if isinstance(data, dict):
        return pa.table(data)
    if hasattr(data, "__arrow_c_stream__"):
        return pa.table(data)
    raise SourceError(f"cannot read a {type(data).__name__} as an Arrow table")
