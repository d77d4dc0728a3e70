"""A source whose rows are combined per unit and group before anything else sees them."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pyarrow as pa

from streamveil.connectors.base import Chunk, Source, select
from streamveil.connectors.checksum import crc32
from streamveil.queries.combine import combine_rows
from streamveil.queries.plan import Plan
from streamveil.runtime.schedule import changed


class CombinedSource:
    """All rows of a bounded source, combined; see `queries.combine`. Held in memory.

    A resumed read combines again: the same rows in the same order give the same result, and other
    rows are refused, since positions of combined rows would mean others.
    """

    bounded = True

    def __init__(self, inner: Source, plan: Plan) -> None:
        self.inner, self.plan = inner, plan

    def schema(self) -> pa.Schema:
        """See `Source.schema`."""
        return combine_rows(self.plan, self.inner.schema().empty_table()).schema

    def read(
        self, position: str | None, max_rows: int, columns: list[str] | None = None
    ) -> Iterator[Chunk]:
        """See `Source.read`. The position is a number of combined rows and a checksum of all."""
        tables, rejected = [self.inner.schema().empty_table()], dict[str, int]()
        for chunk in self.inner.read(None, max_rows):
            tables.append(chunk.rows)
            for reason, rows in chunk.rejected.items():
                rejected[reason] = rejected.get(reason, 0) + rows
        combined = combine_rows(self.plan, pa.concat_tables(tables))
        combined = combined.select(select(combined.schema, columns, "the combined rows").names)
        mark = checksum(combined)
        at = json.loads(position or "0")
        start, known = at if isinstance(at, list) else (at, mark)  # older positions have no mark
        if known != mark:
            raise changed()
        for row in range(start, combined.num_rows, max_rows):
            part = combined.slice(row, max_rows)
            yield Chunk(part, json.dumps([row + part.num_rows, mark]), {} if row else rejected)


def checksum(table: pa.Table) -> int:
    """Of all values, however they lie in memory."""
    mark = 0
    for batch in table.combine_chunks().to_batches():
        mark = crc32(batch.serialize(), mark)
    return mark
