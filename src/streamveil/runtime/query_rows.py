"""The rows of a query: its source, as it comes or combined by unit, and the columns it reads."""

from __future__ import annotations

from functools import partial

import pyarrow as pa

from streamveil.connectors import Source, open_source
from streamveil.connectors.rejected_rows import traced
from streamveil.expressions.expr import column_named, columns_of, compile_unit
from streamveil.plan.combine import Combined
from streamveil.plan.own_rows import Load, OwnRows, own_rows
from streamveil.plan.plan import Plan, SourceSpec, TableSource
from streamveil.runtime.combined import CombinedSource, MappedSource
from streamveil.sql.schema import check_declared

CHUNK = 1_000_000  # rows of another relation, at once


def open_rows(spec: SourceSpec, arrival: str | None = None, *, trace: bool = False) -> Source:
    """The source of a plan; `trace`: keep rejected rows as they came."""
    source = open_source(spec.kind, spec.options, spec.event_time, arrival)
    return per_unit(spec, traced(source) if trace else source)


def per_unit(spec: SourceSpec, source: Source) -> Source:
    """A source with the steps over each unit's own rows, if there are any."""
    if not isinstance(spec, OwnRows):
        return source
    schema = source.schema()
    check_declared(spec, schema, {*compile_unit(spec.unit, schema).columns})
    if spec.row_by_row:
        return MappedSource(source, partial(own_rows, spec), spec.reads)
    made = combined(spec, no_rows, schema.empty_table()).rows.schema if spec.others else None
    return CombinedSource(source, partial(combined, spec, all_rows), spec.reads(schema), made)


def combined(spec: OwnRows, load: Load, table: pa.Table) -> Combined:
    """Rows after all steps; none is unusable as it comes: what is missing is null."""
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
    check_declared(spec, schema, {*compile_unit(spec.unit, schema).columns})
    return schema.empty_table()


def needed_columns(plan: Plan, schema: pa.Schema) -> list[str]:
    """The source's columns that the plan mentions, in the source's order."""
    texts = [plan.unit, plan.where, *(key.expression for key in plan.keys)]
    if not isinstance(plan.source, TableSource):  # whose aggregates are over declared columns
        texts += [aggregate.expression for aggregate in plan.aggregates]
    mentioned = {name.lower() for text in texts if text for name in columns_of(text)}
    exact = {time_named(schema, name) for name in (plan.source.event_time, plan.clock.arrival)}
    exact |= set(plan.source.columns) if isinstance(plan.source, TableSource) else set()
    return [name for name in schema.names if name.lower() in mentioned or name in exact]


def time_named(schema: pa.Schema, name: str | None) -> str | None:
    """A column of times as the source spells it."""
    return None if name is None else column_named(schema, name)
