"""A source whose rows are combined per unit and group before anything else sees them."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pyarrow as pa

from streamveil.connectors.base import Chunk, Source, select
from streamveil.queries.combine import combine_rows
from streamveil.queries.plan import Plan


class CombinedSource:
    """All rows of a bounded source, combined; see `queries.combine`. Held in memory.

    A resumed read combines again: the same rows in the same order give the same result.
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
        """See `Source.read`. The position is a number of combined rows."""
        tables, rejected = [self.inner.schema().empty_table()], dict[str, int]()
        for chunk in self.inner.read(None, max_rows):
            tables.append(chunk.rows)
            for reason, rows in chunk.rejected.items():
                rejected[reason] = rejected.get(reason, 0) + rows
        combined = combine_rows(self.plan, pa.concat_tables(tables))
        combined = combined.select(select(combined.schema, columns, "the combined rows").names)
        start = json.loads(position or "0")
        for row in range(start, combined.num_rows, max_rows):
            part = combined.slice(row, max_rows)
            yield Chunk(part, json.dumps(row + part.num_rows), {} if row else rejected)
