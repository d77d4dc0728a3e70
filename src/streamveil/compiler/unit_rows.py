"""What a look keeps of a query's rows: of each its unit, and its group or a value."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import chain
from math import inf

import numpy as np
import pyarrow as pa

from streamveil.compiler.by_unit import ByUnit
from streamveil.compiler.numbered_rows import Columns, UsableRows, first_counted, firsts
from streamveil.compiler.numbering import Numbering
from streamveil.plan.plan import Aggregate, Plan
from streamveil.types import Array, Float64, UInt32


class GroupRows:
    """The group of every row that may count, by unit (in each period)."""

    def __init__(self, plan: Plan, schema: pa.Schema) -> None:
        self.rows = ByUnit(np.uint32)
        self._usable, self._units, self._groups = UsableRows(plan, schema), Numbering(), Numbering()
        self._valued = first_counted(plan).function == "sum"
        self._first = [np.zeros(0)]

    def add(self, table: pa.Table) -> None:
        """Takes some more rows."""
        found, known = self._usable.of(table), len(self._units)
        if found is None:
            return
        unit = self._units.numbers(found.unit)
        cell = self._groups.numbers(found.cell) if found.cell else np.zeros(len(unit), np.uint32)
        self.rows.add(unit, cell)
        if self._valued:
            self._first.append(first_of_new(found, unit, known))

    @property
    def groups(self) -> int:
        """In how many there are rows."""
        return len(self._groups) or min(self.rows.units, 1)

    @property
    def first(self) -> Float64[Array, " units"]:
        """How large the value of the first row of each unit is, where there are values."""
        return np.concatenate(self._first)


def first_of_new(
    found: Columns, unit: UInt32[Array, " rows"], known: int
) -> Float64[Array, " new_units"]:
    """The size of the first value of each unit with a number from `known` on."""
    new = np.flatnonzero(unit >= known)
    values = np.ones(len(unit)) if found.value is None else found.value
    return np.abs(values[new[firsts(unit[new].astype(np.int64) - known)]])


class ValueRows:
    """The value of every row that has one, by unit (in each period)."""

    def __init__(self, plan: Plan, schema: pa.Schema, expression: str) -> None:
        every = Aggregate(name="value", function="sum", expression=expression, low=-inf, high=inf)
        self.rows = ByUnit(np.float64)
        self._usable = UsableRows(replace(plan, aggregates=(every,)), schema)
        self._units = Numbering()

    def add(self, table: pa.Table) -> None:
        """Takes some more rows."""
        found = self._usable.of(table)
        if found is not None and found.value is not None:
            self.rows.add(self._units.numbers(found.unit), found.value)


def taken(
    plan: Plan, counted: Plan, expressions: Iterable[str], parts: Iterable[pa.Table]
) -> tuple[GroupRows, list[ValueRows]]:
    """Of rows read once: their groups in `counted`, and the values of each expression in `plan`."""
    some = iter(parts)
    part = next(some)
    groups = GroupRows(counted, part.schema)
    values = [ValueRows(plan, part.schema, text) for text in expressions]
    takers: list[GroupRows | ValueRows] = [groups, *values]
    for rows in chain([part], some):
        for one in takers:
            one.add(rows)
    return groups, values
