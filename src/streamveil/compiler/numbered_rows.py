"""Rows of a query as numbers: which unit, which group, which value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamveil.compiler.group_by import event_time
from streamveil.dataflow.rows import RowFunction, require_number
from streamveil.errors import PlanError
from streamveil.expressions import (
    column_named,
    compile_key,
    compile_predicate,
    compile_unit,
    compile_value,
)
from streamveil.kinds import TOTALS
from streamveil.plan import Aggregate, Plan
from streamveil.plan.combine import numbered, pairs
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
        if aggregate.function in TOTALS:
            return aggregate
    raise PlanError("tune forecasts counts and sums; the query has none")


class Columns(NamedTuple):
    """Columns of rows that may count: unit (in its period) and cell as numbers, and value."""

    unit: list[Any]
    cell: list[Any]
    value: Float64[Array, " rows"] | None  # None: 1 everywhere


class UsableRows:
    """Rows that pass WHERE and have a unit, a time and a value, of any part of a source."""

    def __init__(self, plan: Plan, schema: pa.Schema, absent: float = 0.0) -> None:
        """`absent`: what a null adds to a sum; NaN leaves its row out."""
        self._plan, self._aggregate, self._absent = plan, first_counted(plan), absent
        self._where = None if plan.where is None else compile_predicate(plan.where, schema)
        self._unit = compile_unit(plan.unit, schema)
        self._keys = [compile_key(key.expression, schema) for key in plan.keys]
        self._times = compiled_times(plan, schema)
        text = self._aggregate.expression
        self._value = None if text is None else compile_value(text, schema)

    def of(self, table: pa.Table) -> Columns | None:
        """The columns of the usable rows; None if there are none."""
        if self._where is not None:
            table = table.filter(pc.fill_null(self._where(table), fill_value=False))
        unit, keep = self._unit(table), np.ones(table.num_rows, np.bool_)
        times = None if self._times is None else self._times(table)
        for column in (unit, times):
            if column is not None and column.null_count:
                keep &= np.asarray(pc.is_valid(column))
        value = None if self._value is None else self._numbers(self._value(table))
        if value is not None:
            keep &= np.isfinite(value)
        if not keep.any():
            return None
        keys = [key(table) for key in self._keys]
        if not keep.all():
            rows = pa.array(keep)
            unit, keys = unit.filter(rows), [key.filter(rows) for key in keys]
            times = None if times is None else times.filter(rows)
            value = None if value is None else value[keep]
        scope, cell, plan = [unit], keys, self._plan
        if times is not None:
            micros = np.asarray(times)
            if plan.periods is not None:
                scope.append(pa.array(plan.periods.numbers(micros)))
            if plan.window.kind != "whole":
                cell.append(pa.array(plan.window.size.numbers(micros)))
        return Columns(scope, cell, value)

    def _numbers(self, column: Any) -> Float64[Array, " rows"]:
        aggregate = self._aggregate
        present = np.asarray(pc.is_valid(column), dtype=float)
        if aggregate.function == "count_distinct":
            return np.where(present > 0, numbered([column]), np.nan)
        if aggregate.function != "sum":
            return present
        require_number(column.type, str(aggregate.expression))  # a failing cast would quote a value
        numbers = np.asarray(pc.fill_null(column.cast(pa.float64(), safe=False), self._absent))
        return np.asarray(np.clip(numbers, aggregate.low, aggregate.high))


def usable_rows(plan: Plan, table: pa.Table, scale: float) -> Sample | None:
    """The rows of a sample that may count; None if there are none."""
    found = UsableRows(plan, table.schema).of(table)
    if found is None:
        return None
    scope = numbered(found.unit)
    cell = numbered(found.cell) if found.cell else np.zeros(len(scope), np.int64)
    return Sample(scope, cell, np.ones(len(scope)) if found.value is None else found.value, scale)


def compiled_times(plan: Plan, schema: pa.Schema) -> RowFunction | None:
    """Event times in microseconds as the job reads them, if a window or a period needs them."""
    column = plan.source.event_time
    if column is None or not plan.asks_for_times:
        return None
    return event_time(column_named(schema, column))


def firsts(numbers: Int64[Array, " rows"]) -> Int64[Array, " numbers"]:
    """The first row of every number.

    >>> firsts(np.array([1, 0, 1, 2, 0])).tolist()
    [1, 0, 3]
    """
    found = np.zeros(numbers.max(initial=-1) + 1, np.int64)
    found[numbers[::-1]] = np.arange(len(numbers))[::-1]  # of several, the one assigned last stays
    return found


def in_groups(numbers: Int64[Array, " rows"]) -> Int64[Array, " rows"]:
    """Rows ordered by their number; those with one number keep their order.

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
