"""The rows of a query: its source, opened, and the columns that it needs."""

from __future__ import annotations

import pyarrow as pa

from streamveil.connectors import open_source
from streamveil.connectors.base import Source
from streamveil.connectors.rejected_rows import traced
from streamveil.expressions.expr import column_named, columns_of
from streamveil.plan.plan import Plan, SourceSpec, TableSource


def open_rows(spec: SourceSpec, arrival: str | None = None, *, trace: bool = False) -> Source:
    """The source of a plan; `trace`: keep rejected rows as they came."""
    source = open_source(spec.kind, spec.options, spec.event_time, arrival)
    source = traced(source) if trace else source
    if not spec.combines:
        return source
    from streamveil.runtime.combined import per_unit  # loaded where rows are combined

    return per_unit(spec, source)


def needed_columns(plan: Plan, schema: pa.Schema) -> list[str]:
    """The source's columns that the plan mentions, in the source's order."""
    texts = [plan.unit, plan.where, *(key.expression for key in plan.keys)]
    declared = isinstance(plan.source, TableSource)  # columns are what its other counts are over
    texts += [
        one.expression
        for one in plan.aggregates
        if not declared or one.function == "count_distinct"
    ]
    mentioned = {name.lower() for text in texts if text for name in columns_of(text)}
    exact = {time_named(schema, name) for name in (plan.source.event_time, plan.clock.arrival)}
    exact |= set(plan.source.columns) if isinstance(plan.source, TableSource) else set()
    return [name for name in schema.names if name.lower() in mentioned or name in exact]


def time_named(schema: pa.Schema, name: str | None) -> str | None:
    """A column of times as the source spells it."""
    return None if name is None else column_named(schema, name)
