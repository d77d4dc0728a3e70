"""A plan against the columns of its source: everything that can be wrong before a row is read."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from streamveil.errors import PlanError, nearest
from streamveil.expressions import (
    column_named,
    columns_of,
    compile_expression,
    compile_key,
    compile_predicate,
    compile_unit,
    compile_value,
)
from streamveil.expressions.convert import KINDS
from streamveil.expressions.dialect import shown
from streamveil.kinds import VALUED
from streamveil.plan import Plan, SourceSpec, TableSource
from streamveil.types import ROUNDED

SKETCHED = {  # kinds of values that sketches take
    "heavy_hitters": ("int", "uint", "string"),
    "approx_frequency": ("int", "uint", "string", "bytes"),
}


def check_schema(plan: Plan, schema: pa.Schema) -> None:
    """Compiles every expression of a plan; PlanError names the unknown column or wrong type."""
    for column, what in ((plan.source.event_time, "event_time"), (plan.clock.arrival, "arrival")):
        if column is not None:
            _check_time(plan.source, schema, column, what)
    if isinstance(plan.source, TableSource):
        _check_table(plan.source, schema)
    if plan.source.kind == "files":  # types come from the first file, and others may differ
        check_typed(plan.source, needed_columns(plan, schema), schema)
    _check_folders(plan, schema)
    check_searched(plan, schema)
    _check_names(plan, schema)
    _check_public(plan, schema)
    if plan.where is not None:
        compile_predicate(plan.where, schema)
    for agg in plan.aggregates:
        named = agg.function == "count_distinct"
        if agg.expression is None or (isinstance(plan.source, TableSource) and not named):
            continue  # expressions over a changing table are compiled against its domains
        value = (compile_key if named else compile_value)(agg.expression, schema)
        kind = value.kind
        if kind == "null":
            check_typed(plan.source, value.columns, schema)
        if agg.function in VALUED and kind not in ("int", "uint", "float"):
            how = "CAST the column, or declare its type in CREATE STREAM"
            how = f"IF({shown(agg.expression)}, 1, 0)" if kind == "bool" else how
            raise PlanError(
                f"{agg.function} '{agg.name}' needs numbers, not {kind}.\n  to fix  {how}"
            )


def _check_folders(plan: Plan, schema: pa.Schema) -> None:
    """Suggests the option that reads a column from folder names, if the path has such folders."""
    source, known = plan.source, {name.lower() for name in schema.names}
    paths = source.options.get("path") or []
    folders = [part for path in ([paths] if isinstance(paths, str) else paths)
               for part in str(path).split("/")[:-1]]  # fmt: skip
    if source.kind != "files" or source.combines or "folder_columns" in source.options:
        return
    values = (agg.expression for agg in plan.aggregates)
    texts = [plan.unit, plan.where, *(key.expression for key in plan.keys), *values]
    for name in (name for text in texts if text for name in columns_of(text)):
        held = any("*" in part or part.startswith(f"{name}=") for part in folders)
        if held and name.lower() not in known:
            raise PlanError(
                f"unknown column '{shown(name)}'{nearest(name, schema.names)}.\n"
                f"  to fix  folder_columns = ['{shown(name)}'], if it stands in names of folders"
                f" ({shown(name)}=...); else correct the name"
            )


def check_searched(plan: Plan, schema: pa.Schema) -> None:
    """Sketches count integers and text; heavy hitters are integers, or text of a stated length."""
    for agg in plan.aggregates:
        if agg.function not in SKETCHED or agg.expression is None:
            continue
        key = compile_key(agg.expression, schema)
        kind = key.kind
        if kind == "null":
            check_typed(plan.source, key.columns, schema)
        if kind not in SKETCHED[agg.function]:
            raise PlanError(
                f"{agg.function.upper()}({shown(agg.expression)}) counts integers or text, not"
                f" {kind}.\n"
                "  to fix  CAST the column to text, or a time by UNIX_MICROS(t), UNIX_DATE(d)"
            )
        if agg.function != "heavy_hitters":
            continue
        length = dict(agg.options).get("text_length")
        if kind == "string" and not length:
            raise PlanError(
                f"HEAVY_HITTERS({shown(agg.expression)}) searches text, of a length it must know.\n"
                "  to fix  text_length => 8 (its leading bytes, up to 1024; fewer mean less noise),"
                " or a column of integers"
            )
        if kind != "string" and length:
            raise PlanError(
                f"HEAVY_HITTERS({shown(agg.expression)}) searches integers, or text with"
                f" text_length; this is {kind}, with text_length.\n"
                "  to fix  leave text_length out"
            )


def _check_names(plan: Plan, schema: pa.Schema) -> None:
    read = compile_expression if isinstance(plan.source, TableSource) else compile_unit
    unit = [read(plan.unit, schema)] if plan.unit else []
    check_declared(plan.source, schema, {name for part in unit for name in part.columns})
    for found in (*unit, *(compile_key(key.expression, schema) for key in plan.keys)):
        if found.kind == "null":
            check_typed(plan.source, found.columns, schema)
            raise PlanError(f"'{found.text}' is always null: it names nobody and no group")


def check_typed(source: SourceSpec, columns: Iterable[str], schema: pa.Schema) -> None:
    """Refuses columns without a type: of a frame without rows, or of nulls alone."""
    for name in sorted(columns):
        if any(one.name == name and pa.types.is_null(one.type) for one in schema):
            if source.kind == "files":
                raise PlanError(
                    f"column '{shown(name)}' has no type: the first file has nothing but nulls"
                    " there, and every value of another file would be read as null.\n"
                    f"  to fix  declare it: CREATE STREAM name ({shown(name)} STRING) WITH (...);"
                    " in Python files(..., columns={...})"
                )
            raise PlanError(
                f"column '{name}' has no type: the frame has no rows, or nothing but nulls there.\n"
                f"  to fix  give it one: frame.astype({{'{name}': 'int64'}}) of pandas, or"
                " pa.array([], pa.int64()) of Arrow; 'string' is text"
            )


def _check_public(plan: Plan, schema: pa.Schema) -> None:
    """Refuses public groups that are not values of their columns' types: no row can have them."""
    texts = [key.expression for key in plan.keys]
    if not texts:  # of a sketch
        texts = [agg.expression or "" for agg in plan.aggregates]
    for text, values in zip(texts, zip(*(plan.key_set.public or ()), strict=True), strict=False):
        kind = KINDS[compile_key(text, schema).kind]
        try:
            held = pa.array(values, kind)
            fits = not pa.types.is_integer(kind) or held.to_pylist() == [*values]
            fits = fits and all(_is_of(kind, one) for one in values if one is not None)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            fits = False
        if not fits:
            raise PlanError(
                f"public groups of '{shown(text)}' are values of its type, {kind}.\n"
                "  to fix  write them so, or CAST the column; a Parquet file of groups can hold "
                "every type"
            )
        for field in schema:
            if field.name.lower() == text.lower() and pa.types.is_floating(field.type):
                _check_held(field, held)


def _is_of(kind: pa.DataType, value: Any) -> bool:
    """Whether a value is one of a type: Arrow also takes numbers for times, and TRUE for 1."""
    if pa.types.is_timestamp(kind):
        return isinstance(value, datetime)
    if pa.types.is_date(kind):
        return isinstance(value, date) and not isinstance(value, datetime)
    return bool(isinstance(value, bool) == pa.types.is_boolean(kind))


def _check_held(field: pa.Field, public: pa.Array) -> None:
    """Refuses public groups that no row can have: a 32-bit column cannot hold 0.1."""
    finite = public.filter(pc.is_finite(public))
    if not finite.cast(field.type).cast(public.type).equals(finite):
        raise PlanError(
            f"column '{shown(field.name)}' is of type {field.type}, which does not have every"
            " public group exactly: no row would count there.\n"
            f"  to fix  group by ROUND({shown(field.name)}, 6), or by as many digits as groups have"
        )


def check_declared(source: SourceSpec, schema: pa.Schema, names: set[str]) -> None:
    """Refuses a unit that is read as a type other than its own, with fewer digits."""
    declared = source.options.get("columns") or {}
    for name in sorted(names):
        field = schema.field(name)
        exact = (field.metadata or {}).get(ROUNDED, b"").decode()
        if exact or (pa.types.is_floating(field.type) and name in declared):
            what = f"of type {exact}, read" if exact else "declared"
            read = "FLOAT64" if pa.types.is_floating(field.type) else "TIMESTAMP"
            raise PlanError(
                f"the privacy unit reads column '{name}', {what} as"
                f" {declared.get(name, read)}, of which "
                "the last digits are not kept: several units would count as one.\n"
                "  to fix  declare it as STRING or INT64"
            )


def _check_table(source: TableSource, schema: pa.Schema) -> None:
    """Refuses a changing table whose columns are missing or differ from their declarations."""
    for name in source.columns:
        if name not in schema.names:
            raise PlanError(
                f"table '{source.name}': unknown column '{name}'{nearest(name, schema.names)}"
            )
    for column in filter(None, (source.operation, source.record)):
        kind = schema.field(column).type
        if pa.types.is_nested(kind):
            raise PlanError(
                f"column '{column}' of table '{source.name}' holds {kind}, which is neither an"
                " operation nor an id.\n  to fix  name a column of text or numbers"
            )
    for name, values in source.domains:
        try:
            pa.array(values).cast(schema.field(name).type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise PlanError(
                f"column '{name}' holds {schema.field(name).type}; its public values are "
                f"{type(values[0]).__name__}.\n"
                "  to fix  write values of the column's type in CHECK"
            ) from None


def _check_time(source: SourceSpec, schema: pa.Schema, column: str, what: str) -> None:
    try:
        column = column_named(schema, column)
    except PlanError as error:
        raise PlanError(f"{what}: {error}") from None
    kind = schema.field(column).type
    check_typed(source, [column], schema)
    if not (pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_int64(kind)):
        raise PlanError(
            f"{what}: column '{column}' holds {kind}, not times.\n"
            "  to fix  declare it as TIMESTAMP in CREATE STREAM"
        )


def needed_columns(plan: Plan, schema: pa.Schema, *, scheduled: bool = True) -> list[str]:
    """The source's columns that the plan mentions, in the source's order.

    Unless `scheduled`, it leaves out times that only say to which step of the clock a row belongs.
    """
    texts = [plan.unit, plan.where, *(key.expression for key in plan.keys)]
    declared = isinstance(plan.source, TableSource)  # its other counts need all declared columns
    texts += [
        one.expression
        for one in plan.aggregates
        if not declared or one.function == "count_distinct"
    ]
    mentioned = {name.lower() for text in texts if text for name in columns_of(text)}
    times = [plan.source.event_time] * (scheduled or plan.asks_for_times)
    times += [plan.clock.arrival] * scheduled
    exact = {time_named(schema, name) for name in times}
    exact |= set(plan.source.columns) if isinstance(plan.source, TableSource) else set()
    return [name for name in schema.names if name.lower() in mentioned or name in exact]


def time_named(schema: pa.Schema, name: str | None) -> str | None:
    """A column of times as the source spells it."""
    return None if name is None else column_named(schema, name)
