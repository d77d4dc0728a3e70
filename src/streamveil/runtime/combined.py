"""A source whose rows are combined per unit before anything else sees them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path

import pyarrow as pa

from streamveil.connectors import Chunk, Source, changed, hand_on, open_source, select
from streamveil.connectors.rejected_rows import PLACE, beside, rejected_table
from streamveil.dataflow import NOT_FINITE, count
from streamveil.disk import crc32
from streamveil.errors import require_outer
from streamveil.expressions import compile_unit
from streamveil.plan import SourceSpec
from streamveil.plan.combine import Combined
from streamveil.plan.own_rows import Load, OwnRows, OwnSets, own_rows
from streamveil.sql.schema import check_declared


class MappedSource:
    """A source whose rows each become some rows, one by one; read and resumed like the source."""

    def __init__(
        self,
        inner: Source,
        change: Callable[[pa.Table], pa.Table],
        needs: Callable[[pa.Schema, list[str] | None], list[str]],
        sets: int = 1,
    ) -> None:
        self.inner, self.change, self.bounded = inner, change, inner.bounded
        self.needs = needs  # the columns that a change needs, for those that are read after it
        self.sets = sets  # of keys: a row comes once for each

    @property
    def names(self) -> list[str]:
        """The files that are read, if any are."""
        return getattr(self.inner, "names", [])

    def keep_in(self, folder: Path) -> None:
        """Tells the source where the job's state is."""
        hand_on(self.inner, "keep_in", folder)

    def committed(self, position: str | None) -> None:
        """Tells the source what is durable."""
        hand_on(self.inner, "committed", position)

    def schema(self) -> pa.Schema:
        """See `Source.schema`."""
        return self.change(self.inner.schema().empty_table()).schema

    def read(
        self, position: str | None, max_rows: int, columns: list[str] | None = None
    ) -> Iterator[Chunk]:
        """See `Source.read`; a chunk may hold more rows than asked for, by UNNEST."""
        needed = self.needs(self.inner.schema(), columns)
        for chunk in self.inner.read(position, max(max_rows // self.sets, 1), needed):
            rows = self.change(chunk.rows)
            if columns is not None:
                rows = rows.select([*columns, *({PLACE} & {*rows.column_names})])
            told = tuple(beside(table, rows.schema) for table in chunk.rejected_rows)
            yield replace(chunk, rows=rows, rejected_rows=told)


class CombinedSource:
    """All rows of a bounded source, combined (`plan.combine`, `plan.own_rows`). Held in memory.

    A resumed read combines again: the same rows in the same order give the same result. Other rows
    are refused, since positions would then mean other combined rows.
    """

    bounded = True

    def __init__(
        self,
        inner: Source,
        combine: Callable[[pa.Table], Combined],
        wanted: list[str] | None = None,
        made: pa.Schema | None = None,
    ) -> None:
        self.inner, self.combine, self.wanted, self.made = inner, combine, wanted, made

    @property
    def names(self) -> list[str]:
        """The files that are read, if any are."""
        return getattr(self.inner, "names", [])

    def schema(self) -> pa.Schema:
        """See `Source.schema`."""
        if self.made is not None:
            return self.made
        return self.combine(self._read_schema().empty_table()).rows.schema

    def _read_schema(self) -> pa.Schema:
        schema = self.inner.schema()
        return schema if self.wanted is None else select(schema, self.wanted, "the source")

    def read(
        self, position: str | None, max_rows: int, columns: list[str] | None = None
    ) -> Iterator[Chunk]:
        """See `Source.read`. The position is a number of combined rows and a checksum of all."""
        schema = self._read_schema()
        found, rejected, rejected_rows = [], dict[str, int](), list[pa.Table]()
        for chunk in self.inner.read(None, max_rows, self.wanted):
            traced = {PLACE} & {*chunk.rows.column_names}
            found.append(chunk.rows.select([*schema.names, *traced]))
            rejected_rows += chunk.rejected_rows
            count(rejected, chunk.rejected)
        combined, unusable = self.combine(pa.concat_tables(found or [schema.empty_table()]))
        count(rejected, {NOT_FINITE: unusable.num_rows})
        if PLACE in unusable.column_names:
            rejected_rows.append(
                rejected_table(NOT_FINITE, unusable, getattr(self.inner, "names", []))
            )
        combined = combined.select(select(combined.schema, columns, "the combined rows").names)
        mark = checksum(combined)
        start, known = json.loads(position) if position else (0, mark)
        if known != mark:
            raise changed()
        for row in range(start, max(combined.num_rows, bool(rejected)), max_rows):
            part = combined.slice(row, max_rows)
            after = json.dumps([row + max(part.num_rows, 1), mark])
            tables = () if row else tuple(beside(table, combined.schema) for table in rejected_rows)
            yield Chunk(part, after, {} if row else rejected, tables)


def checksum(table: pa.Table) -> int:
    """A checksum of all values, however they lie in memory."""
    mark = 0
    for batch in table.combine_chunks().to_batches():
        mark = crc32(batch.serialize(), mark)
    return mark


# ---- the rows of a query

CHUNK = 1_000_000  # rows of another relation, at once


def per_unit(spec: SourceSpec, source: Source) -> Source:
    """A source with the steps over each unit's own rows."""
    assert isinstance(spec, OwnRows)  # noqa: S101  (`SourceSpec.combines`)
    schema = source.schema()
    check_declared(spec, schema, {*compile_unit(spec.unit, schema).columns})
    if spec.row_by_row:
        sets = prod(len(step.sets) for step in spec.steps if isinstance(step, OwnSets))
        return MappedSource(source, partial(own_rows, spec), spec.reads, sets)
    for other in spec.others:
        no_rows(other)  # says what is wrong with its columns
    if spec.is_endless and spec.keeps_rows:
        from streamveil.runtime.live_joins import LiveRows  # loaded where live data are joined

        return LiveRows(spec, source)
    made = combined(spec, no_rows, schema.empty_table()).rows.schema if spec.others else None
    return CombinedSource(source, partial(combined, spec, all_rows), spec.reads(schema), made)


def combined(spec: OwnRows, load: Load, table: pa.Table) -> Combined:
    """Rows after all steps; every row is usable as it comes, with null for missing values."""
    return Combined(own_rows(spec, table, load), table.slice(0, 0))


def all_rows(spec: OwnRows) -> pa.Table:
    """The rows of another relation; lines that are no rows are left out."""
    source = open_source(spec.kind, spec.options, spec.event_time)
    names = source.schema().names
    found = [chunk.rows.select(names) for chunk in source.read(None, CHUNK)]
    return pa.concat_tables([source.schema().empty_table(), *found])


def no_rows(spec: OwnRows) -> pa.Table:
    """The columns of another relation."""
    schema = open_source(spec.kind, spec.options, spec.event_time).schema()
    require_outer(schema.names)
    check_declared(spec, schema, {*compile_unit(spec.unit, schema).columns})
    return schema.empty_table()
