"""Rows of a query as numbers: which unit, which group, which value."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamveil.dataflow.rows import require_number
from streamveil.errors import PlanError
from streamveil.expressions.expr import (
    column_named,
    compile_expression,
    compile_key,
    compile_predicate,
    compile_unit,
    compile_value,
)
from streamveil.plan.combine import numbered, pairs
from streamveil.plan.look import COUNTED
from streamveil.plan.plan import Aggregate, Plan
from streamveil.types import Array, Float64, Int64


@dataclass(frozen=True)
class Sample:
    """Rows of a public sample as numbers: scope of the unit, cell = (window, group), value."""

    scope: Int64[Array, " rows"]
    cell: Int64[Array, " rows"]
    value: Float64[Array, " rows"]
    scale: float  # the real stream has this many times the units


def first_counted(plan: Plan) -> Aggregate:
    """The aggregate whose error is forecast."""
    for aggregate in plan.aggregates:
        if aggregate.function in COUNTED:
            return aggregate
    raise PlanError("tune forecasts counts and sums; the query has none")


def usable_rows(plan: Plan, table: pa.Table, scale: float) -> Sample | None:
    """Rows that pass WHERE and have a unit, a time and a value; None if there are none."""
    if plan.where is not None:
        passes = compile_predicate(plan.where, table.schema)(table)
        table = table.filter(pc.fill_null(passes, fill_value=False))
    unit = compile_unit(plan.unit, table.schema)(table)
    keep = np.asarray(pc.is_valid(unit))
    times = _times(plan, table)
    if times is not None:
        keep &= np.asarray(pc.is_valid(times))
    aggregate = first_counted(plan)
    value = _values(aggregate, table)
    keep &= np.isfinite(value)
    rows = np.flatnonzero(keep)
    if len(rows) == 0:
        return None
    micros = None if times is None else np.asarray(times.fill_null(0))[rows]
    scope = numbered([unit.take(pa.array(rows))])
    if plan.periods is not None and micros is not None:
        scope = pairs(scope, plan.periods.numbers(micros))
    cell = numbered(
        [compile_key(key.expression, table.schema)(table).take(pa.array(rows))
         for key in plan.keys]
    ) if plan.keys else np.zeros(len(rows), np.int64)  # fmt: skip
    if plan.window.kind != "whole" and micros is not None:
        cell = pairs(cell, plan.window.size.numbers(micros))
    return Sample(scope, cell, value[rows], scale)


def one_value_of_each(plan: Plan, expression: str, table: pa.Table) -> Float64[Array, " units"]:
    """A value of each unit (in each scope): that of the middle one of its usable rows.

    Proof: which row it is, and what it says, follows from that unit's rows alone, in their order.
    """
    every = Aggregate(name="value", function="sum", expression=expression, low=-inf, high=inf)
    sample = usable_rows(replace(plan, aggregates=(every,)), table, 1.0)
    if sample is None:
        return np.zeros(0)
    order, rows = in_groups(sample.scope), np.bincount(sample.scope)
    return np.asarray(sample.value[order[np.cumsum(rows) - rows + rows // 2]])


def _times(plan: Plan, table: pa.Table) -> Any:
    column = plan.source.event_time
    if column is None or (plan.window.kind == "whole" and plan.periods is None):
        return None
    column = column_named(table.schema, column)
    text = f"UNIX_MICROS(CAST(`{column}` AS TIMESTAMP))"
    whole = pa.types.is_integer(table.schema.field(column).type)
    return compile_expression(f"`{column}`" if whole else text, table.schema)(table)


def _values(aggregate: Aggregate, table: pa.Table) -> Float64[Array, " rows"]:

    if aggregate.expression is None:
        return np.ones(table.num_rows)
    column = compile_value(aggregate.expression, table.schema)(table)
    present = np.asarray(pc.is_valid(column), dtype=float)
    if aggregate.function == "count_distinct":
        return np.where(present > 0, numbered([column]), np.nan)
    if aggregate.function != "sum":
        return present
    require_number(column.type, aggregate.expression)  # else a failing cast would quote a value
    numbers = np.asarray(pc.fill_null(column.cast(pa.float64(), safe=False), 0.0))
    return np.asarray(np.clip(numbers, aggregate.low, aggregate.high))


def firsts(numbers: Int64[Array, " rows"]) -> Int64[Array, " numbers"]:
    """The first row of every number.

    >>> firsts(np.array([1, 0, 1, 2, 0])).tolist()
    [1, 0, 3]
    """
    found = np.zeros(numbers.max(initial=-1) + 1, np.int64)
    found[numbers[::-1]] = np.arange(len(numbers))[::-1]  # of several, the one assigned last stays
    return found


def in_groups(numbers: Int64[Array, " rows"]) -> Int64[Array, " rows"]:
    """Rows ordered by their number, those of one number as they are.

    >>> in_groups(np.array([1, 0, 1, 0])).tolist()
    [1, 3, 0, 2]
    """
    rows = max(len(numbers), 1)
    return np.sort(numbers * rows + np.arange(len(numbers))) % rows


def ranks(groups: Int64[Array, " rows"]) -> Int64[Array, " rows"]:
    """How many earlier rows have the same number."""
    order = in_groups(groups)
    ordered = groups[order]
    starts = np.concatenate([[True], ordered[1:] != ordered[:-1]])
    first = np.maximum.accumulate(np.where(starts, np.arange(len(groups)), 0))
    found = np.empty(len(groups), np.int64)
    found[order] = np.arange(len(groups)) - first
    return found


def row_pairs(sample: Sample) -> Int64[Array, " rows"]:
    """A number for every (unit, group) pair."""
    return pairs(sample.scope, sample.cell)


def groups_entered(sample: Sample) -> Int64[Array, " units"]:
    """In how many groups each unit has rows.

    >>> one = Sample(np.array([0, 1, 0, 0]), np.array([5, 5, 5, 2]), np.ones(4), 1.0)
    >>> groups_entered(one).tolist()
    [2, 1]
    """
    cells = sample.cell.max(initial=0) + 1
    ordered = np.sort(sample.scope * cells + sample.cell)
    new = np.concatenate([np.ones(min(len(ordered), 1), np.bool_), ordered[1:] != ordered[:-1]])
    return np.bincount(ordered[new] // cells, minlength=sample.scope.max(initial=-1) + 1)
