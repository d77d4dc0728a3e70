"""Values made of several rows of one unit: totals, and window functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamveil.batch import whole
from streamveil.errors import PlanError
from streamveil.expressions import compile_key, compile_value
from streamveil.plan import SortKey
from streamveil.plan.combine import plain, wide
from streamveil.types import Array, Bool, Int64

TOTALS = {  # of the rows of a unit, or of a group or partition of them
    "COUNT": "count",
    "COUNT DISTINCT": "count_distinct",
    "SUM": "sum",
    "AVG": "mean",
    "MIN": "min",
    "MAX": "max",
    "LOGICAL_OR": "any",
    "LOGICAL_AND": "all",
    "ANY_VALUE": "first",
}
NUMBERS, CONDITIONS = ("SUM", "AVG"), ("LOGICAL_OR", "LOGICAL_AND")
PLACES = ("ROW_NUMBER", "RANK", "DENSE_RANK")
MOVED = ("LAG", "LEAD", "FIRST_VALUE")
RUNNING = ("COUNT", "SUM")  # totals up to a row, if an order is given


@dataclass(frozen=True, kw_only=True)
class OwnColumn:
    """One value made of several rows of a unit: a total, or a function over a window of them."""

    name: str
    function: str
    expression: str | None = None  # None: COUNT(*), ROW_NUMBER()
    by: tuple[str, ...] = ()  # a window function is partitioned by the unit and these
    order: tuple[SortKey, ...] = ()
    distance: int = 1  # of LAG and LEAD


def total(column: OwnColumn, table: pa.Table, group: Int64[Array, " rows"]) -> Any:
    """A total of every group, by its number; rows are added up in their order."""
    ordered = bool(column.order)  # the value of the first row in an order
    values = (Ordered.of(column, table, group).values if ordered else values_of)(column, table)
    how: Any = pc.ScalarAggregateOptions(skip_nulls=True, min_count=1)
    if column.function.startswith("COUNT"):
        how = pc.CountOptions(mode="only_valid")
    by_group = pa.table({"group": group, "value": values}).group_by("group", use_threads=False)
    found = by_group.aggregate([("value", TOTALS.get(column.function, "first"), how)]).sort_by(
        "group"
    )
    return whole(found.column(found.column_names.index("group") ^ 1))


def values_of(column: OwnColumn, table: pa.Table) -> Any:
    """The values that a column adds up or picks, by row."""
    if column.expression is None:
        return pa.repeat(1, table.num_rows)
    compiled = (compile_key if column.function == "COUNT DISTINCT" else compile_value)(
        column.expression, table.schema
    )
    wanted = (
        ("int", "uint", "float") if column.function in NUMBERS
        else ("bool",) if column.function in CONDITIONS else (compiled.kind,)
    )  # fmt: skip
    if compiled.kind not in wanted:
        raise PlanError(
            f"{column.function} '{column.name}' takes "
            f"{'conditions' if 'bool' in wanted else 'numbers'}, not {compiled.kind}.\n"
            "  to fix  CAST the column, or write a condition"
        )
    return plain(compiled(table))


@dataclass(frozen=True)
class Ordered:
    """Rows sorted by group and order; ties keep the order of the source."""

    rows: Int64[Array, " rows"]  # which row is where
    start: Int64[Array, " rows"]  # where the group of each begins
    peers: Bool[Array, " rows"]  # whether each differs from the one before, in group or order

    @classmethod
    def of(cls, column: OwnColumn, table: pa.Table, group: Int64[Array, " rows"]) -> Ordered:
        """The order of a column's window."""
        keys = [ranked(order, table) for order in column.order]
        rows = np.lexsort([*reversed(keys), group])
        begins = new(group[rows])
        peers = np.logical_or.reduce([begins, *(new(key[rows]) for key in keys)])
        return cls(rows, last(begins), peers)

    def values(self, column: OwnColumn, table: pa.Table) -> Any:
        """A window function, by row of the table."""
        place = np.arange(len(self.rows))
        if column.function in PLACES:
            seen = np.cumsum(self.peers)
            first, own = {
                "ROW_NUMBER": (self.start, place),
                "RANK": (self.start, last(self.peers)),
                "DENSE_RANK": (seen[self.start], seen),
            }[column.function]
            return pa.array(self.back(own - first + 1))
        values = values_of(column, table)
        if column.function in MOVED:
            return wide(values).take(pa.array(*self.moved(column, place)))
        return self.running(column, values)

    def moved(
        self, column: OwnColumn, place: Int64[Array, " rows"]
    ) -> tuple[Int64[Array, " rows"], None, Bool[Array, " rows"]]:
        """The row from which each row takes its value, with type and nulls."""
        away = {"LAG": -column.distance, "LEAD": column.distance}.get(column.function)
        to = self.start if away is None else place + away
        inside = (to >= 0) & (to < len(place))
        to = np.where(inside, to, 0)
        inside &= self.start[to] == self.start if len(place) else inside
        return self.back(self.rows[to] if len(place) else to), None, self.back(~inside)

    def running(self, column: OwnColumn, values: Any) -> Any:
        """A count or a sum of integers from the first row of a group to the last peer of each."""
        valid = np.asarray(pc.is_valid(values))
        if column.function == "SUM" and not pa.types.is_integer(values.type):
            raise PlanError(
                f"a running SUM '{column.name}' is of integers: floats are rounded by what was "
                "added before.\n  to fix  CAST(ROUND(x) AS INT64), or in smaller units"
            )
        added = np.asarray(pc.fill_null(values, 0)) if column.function == "SUM" else valid
        counts = self.up_to_peers(valid)
        sums = counts if column.function == "COUNT" else self.up_to_peers(added)
        empty = (counts == 0) & (column.function == "SUM")
        return pa.array(self.back(sums), mask=self.back(empty))

    def up_to_peers(self, values: Array) -> Int64[Array, " rows"]:
        """Sums within groups, exact modulo 2^64."""
        sums = np.concatenate([[0], np.cumsum(values[self.rows].astype(np.int64))])
        ends = np.flatnonzero(np.append(self.peers[1:], True)[: len(self.rows)]) + 1
        peer = np.cumsum(self.peers) - 1
        return sums[ends[peer]] - sums[self.start]  # type: ignore[no-any-return]  # numpy's

    def back(self, found: Array) -> Array:
        """Values of sorted rows, by row of the table."""
        made = np.empty_like(found)
        made[self.rows] = found
        return made


def ranked(order: SortKey, table: pa.Table) -> Int64[Array, " rows"]:
    """Integers in the order of an expression's values."""
    values = plain(compile_value(order.expression, table.schema)(table))
    if pa.types.is_null(values.type):
        return np.zeros(len(values), np.int64)
    ranks = np.asarray(pc.rank(values, "ascending", tiebreaker="dense"))
    found = ranks.astype(np.int64) * (-1 if order.descending else 1)
    beyond = (-1 if order.nulls_first else 1) * (len(found) + 1)
    return np.where(np.asarray(values.is_null()), beyond, found)


def new(values: Array) -> Bool[Array, " rows"]:
    """Whether each value differs from the one before."""
    return np.concatenate([np.ones(min(len(values), 1), np.bool_), values[1:] != values[:-1]])


def last(marked: Bool[Array, " rows"]) -> Int64[Array, " rows"]:
    """The place of the last mark at or before each place."""
    return np.maximum.accumulate(np.where(marked, np.arange(len(marked)), 0))
