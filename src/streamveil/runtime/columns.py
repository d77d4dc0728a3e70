"""Which columns of a source a query reads."""

from __future__ import annotations

import pyarrow as pa

from streamveil.expressions.expr import column_named, columns_of
from streamveil.plan.plan import Plan, TableSource


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
