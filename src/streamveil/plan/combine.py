"""contribution_bounds_per_group: a unit's rows in one group become one contribution.

GoogleSQL clamps the total of a unit in a group, not its rows. In a one-shot query all rows are
there, so they can be combined before bounding: one row per (unit, group), whose values are the
unit's own totals. After that the query is an ordinary one over those rows.

Proof: a combined row and its place among its unit's rows are functions of that unit's rows. So
adding or removing the unit adds or removes its combined rows, and leaves all others unchanged and
in order (which decides what bounding keeps): neighbours stay neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamveil.batch import whole
from streamveil.errors import PlanError
from streamveil.expressions import compile_predicate, compile_value, decoded, kind_of
from streamveil.plan import Aggregate, Plan, unit_column
from streamveil.types import Array, Int64

TOTALS = {"count": "count", "sum": "sum", "avg": "mean"}  # of a unit in a group
MOST_REPEATED = 1 << 24  # bytes of texts and lists in all rows that are made of one row
FIRST = "value_first"  # the place of a combined row's first row; no unit's column has this name


class Combined(NamedTuple):
    """One row per unit and group, in the order of their first rows, with the unit's totals."""

    rows: pa.Table
    unusable: pa.Table  # rows of the source with a value that is not a finite number


def combined_schema(plan: Plan, schema: pa.Schema) -> pa.Schema:
    """The columns that an operator sees: those of combined rows, if the plan combines them."""
    combines = plan.bounding.combine
    return combine_rows(plan, schema.empty_table()).rows.schema if combines else schema


def combine_rows(plan: Plan, table: pa.Table) -> Combined:
    """Combines rows that pass the plan's condition."""
    if plan.where is not None:
        passes = compile_predicate(plan.where, table.schema)(table)
        table = table.filter(pc.fill_null(passes, fill_value=False))
    unit = unit_column(plan)
    columns = {unit: _run(plan.unit, table)}
    for place, key in enumerate(plan.keys):
        columns[f"key_{place}"] = _run(key.expression, table)
    good = np.ones(table.num_rows, bool)
    totals: list[tuple[str, str, Any]] = []
    for place, agg in enumerate(plan.aggregates):
        if agg.function == "count_units":
            continue
        name = f"value_{place}"
        column = pa.repeat(1.0, table.num_rows) if agg.expression is None else _run(
            agg.expression, table
        )  # fmt: skip
        if agg.function != "count":
            column = _numbers(column, agg)
            good &= np.asarray(pc.fill_null(pc.is_finite(column), pa.scalar(value=True)))
        columns[name] = column
        how = pc.CountOptions(mode="only_valid") if agg.function == "count" else (
            pc.ScalarAggregateOptions(skip_nulls=True, min_count=1)
        )  # fmt: skip
        totals.append((name, TOTALS[agg.function], how))
    columns[FIRST] = pa.array(np.arange(table.num_rows))
    totals.append((FIRST, "min", pc.ScalarAggregateOptions()))
    rows = pa.table({name: one_zero(column) for name, column in columns.items()})
    rows = rows.filter(pa.array(good))
    by = [name for name in columns if name == unit or name.startswith("key_")]
    grouped = rows.group_by(by, use_threads=False).aggregate(totals)  # in the order of a hash table
    grouped = grouped.sort_by(f"{FIRST}_min").drop_columns(f"{FIRST}_min")
    renamed = {f"{name}_{how}": name for name, how, _ in totals}
    named = [renamed.get(name, name) for name in grouped.column_names]
    return Combined(grouped.rename_columns(named), table.filter(pa.array(~good)))


def one_zero(column: Any) -> Any:
    """Floats with one zero and one NaN, as in names of keys; Arrow's grouping has several.

    >>> one_zero(pa.array([-0.0, None])).to_pylist()
    [0.0, None]
    """
    if not pa.types.is_floating(column.type):
        return column
    plain = pc.add(column, pa.scalar(0.0, column.type))
    return pc.if_else(pc.is_nan(plain), pa.scalar(float("nan"), column.type), plain)


def plain(column: Any) -> Any:
    """One array, with one zero and one NaN."""
    return one_zero(whole(column) if isinstance(column, pa.ChunkedArray) else column)


def wide(column: Any) -> Any:
    """A column in a type that holds any number of rows: 64-bit offsets, no dictionaries.

    >>> wide(pa.array(["a"]).dictionary_encode()).type
    DataType(large_string)
    """
    kind = wide_type(column.type)
    column = column if column.type == kind else column.cast(kind)
    return whole(column) if isinstance(column, pa.ChunkedArray) else column


def wide_type(kind: Any) -> Any:
    """The type that `wide` gives, at any depth.

    >>> str(wide_type(pa.list_(pa.dictionary(pa.int8(), pa.string()))))
    'large_list<item: large_string>'
    """
    is_ = pa.types
    if is_.is_dictionary(kind):
        return wide_type(kind.value_type)
    if is_.is_list(kind) or is_.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(wide_type(kind.value_type)))
    if is_.is_map(kind):
        pairs = [kind.key_field, kind.item_field]
        return wide_type(pa.list_(pa.struct(pairs)))
    if is_.is_struct(kind):
        return pa.struct([one.with_type(wide_type(one.type)) for one in kind])
    if is_.is_string(kind) or is_.is_string_view(kind):
        return pa.large_string()
    return pa.large_binary() if is_.is_binary(kind) or is_.is_binary_view(kind) else kind


def bytes_of(column: Any) -> Int64[Array, " rows"]:
    """Bytes of the texts and lists of each row in the layout of `wide`; 0 for a plain number.

    >>> bytes_of(wide(pa.array([["ab", None], [], None]))).tolist()
    [18, 0, 0]
    """
    if pa.types.is_large_list(column.type):
        inside = np.append(0, np.cumsum(8 + bytes_of(pc.list_flatten(column))))
        ends = np.cumsum(np.asarray(pc.fill_null(pc.list_value_length(column), 0)))
        return np.diff(inside[ends], prepend=0)
    if pa.types.is_struct(column.type):
        fields = [bytes_of(field) for field in column.flatten()]
        return np.asarray(np.sum(fields, axis=0, dtype=np.int64))
    if kind_of(column.type) in ("string", "bytes"):
        return np.asarray(pc.fill_null(pc.binary_length(column), 0)).astype(np.int64)
    return np.zeros(len(column), np.int64)


def numbered(columns: Sequence[Any]) -> Int64[Array, " rows"]:
    """Numbers of rows from 0, in order of appearance, equal if all columns are; null is a value.

    >>> numbered([pa.array(["b", "a", "b"]), pa.array([1, None, 2])]).tolist()
    [0, 1, 2]
    """
    first, *others = (_appeared(column) for column in columns)
    for other in others:
        first = pairs(first, other)
    return first


def pairs(left: Int64[Array, " rows"], right: Int64[Array, " rows"]) -> Int64[Array, " rows"]:
    """A number below the number of rows for every pair, in order of appearance; so is `left`.

    `right` may be any numbers: they are numbered first, so that no value makes pairs overflow.

    >>> pairs(np.array([1, 0, 1, 1]), np.array([-9, 7, 2**62, -9])).tolist()
    [0, 1, 2, 0]
    """
    numbers = _appeared(pa.array(right))
    return _appeared(pa.array(left * (numbers.max(initial=0) + 1) + numbers))


def _appeared(column: Any) -> Int64[Array, " rows"]:
    """A number for every distinct value, from a hash table: sorting takes twenty times as long."""
    coded = decoded(column).dictionary_encode(null_encoding="encode")
    return np.asarray(coded.indices).astype(np.int64)


def _run(text: str, table: pa.Table) -> Any:
    return compile_value(text, table.schema)(table)


def _numbers(column: Any, agg: Aggregate) -> Any:
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        raise PlanError(f"{agg.function} '{agg.name}' needs numbers.\n  to fix  CAST the column")
    return column.cast(pa.float64(), safe=False)
