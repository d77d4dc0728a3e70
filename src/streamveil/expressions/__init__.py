"""Per-row SQL expressions, compiled once against a schema and run on whole Arrow tables.

An expression is a function of its own row and of nothing else: no subquery, no aggregate, no
window function, no random number, no clock. That is what lets WHERE and computed columns run
before contribution bounding without one person's rows moving another's.

Numerics: a row that SQL would refuse (division by zero, a bad cast, overflow) becomes null, which
every operator counts and skips; nothing is raised and no message holds a value from the data.

>>> import pyarrow as pa
>>> table = pa.table({"ms": [10, None, 0], "kind": ["a", "b", "A"]})
>>> run = compile_expression("IF(LOWER(kind) = 'a', 100 / ms, 0)", table.schema)
>>> run(table).to_pylist()
[10.0, 0.0, None]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf
from typing import Any

import pyarrow as pa
from sqlglot import exp

from streamveil.batch import whole
from streamveil.errors import PlanError, nearest
from streamveil.expressions import nodes
from streamveil.expressions.convert import KINDS, Node
from streamveil.expressions.dialect import canonical, parse_text, plain_names, shown
from streamveil.expressions.kernels import Column, date64_to_date, instants, uint_to_int
from streamveil.types import EXACT_DIGITS

Evaluator = Callable[[pa.Table], Column]


@dataclass(frozen=True)
class Compiled:
    """A checked expression: `kind` is its SQL type, calling it evaluates it."""

    text: str
    kind: str
    columns: tuple[str, ...]  # the columns it reads, in order of appearance
    run: Evaluator
    alone: bool = False  # it is only a column

    def __call__(self, table: pa.Table) -> Column:
        """One value per row, of the Arrow type of `kind`; null where the row has none."""
        return null_where_it_fails(self.run, table, KINDS[self.kind])


def compile_expression(text: str, schema: pa.Schema) -> Compiled:
    """Checks `text` against `schema` and returns its vectorised evaluator.

    Raises PlanError for anything but a per-row expression over known columns and functions.
    """
    if not isinstance(text, str):
        raise PlanError(f"the expression must be SQL text, not {type(text).__name__}")
    return _compiled(text, schema.remove_metadata())  # with it old Arrow cannot hash a schema


@lru_cache(maxsize=512)  # joins and answers ask again for each portion of rows
def _compiled(text: str, schema: pa.Schema) -> Compiled:
    """`compile_expression`, cached: only names and types of columns decide the result."""
    scope = Scope(schema)
    tree = plain_names(parse_text(text))
    try:
        node = nodes.build(tree, scope.column)
    except RecursionError:
        raise PlanError(f"the expression '{shown(text)}' is nested too deeply") from None
    if node.kind in ("unit", "interval"):
        raise PlanError(f"'{shown(text)}' is a unit or a length of time, and no column or value")
    alone = isinstance(tree.unnest(), exp.Column) and len(scope.used) > 0
    compiled = Compiled(canonical(tree), node.kind, tuple(scope.used), node.run, alone)
    compiled(schema.empty_table())  # a kernel Arrow does not have fails here, not on a stream
    return compiled


def compile_value(text: str, schema: pa.Schema) -> Compiled:
    """Compiles a value as `compile_expression` does; a lone unsigned column keeps all 64 bits.

    >>> ids = pa.table({"id": pa.array([2**64 - 1], pa.uint64())})
    >>> compile_value("id", ids.schema)(ids).to_pylist()
    [18446744073709551615]
    """
    compiled = compile_expression(text, schema)
    name = compiled.columns[0] if compiled.alone else None
    if name is None or not pa.types.is_uint64(plain_type(schema.field(name).type)):
        return compiled
    return replace(compiled, kind="uint", run=lambda table: decoded(whole(table.column(name))))


def compile_key(text: str, schema: pa.Schema) -> Compiled:
    """Compiles the key of groups or values. PlanError if a lone column would lose digits."""
    compiled = compile_value(text, schema)
    name = compiled.columns[0] if compiled.alone else None
    if name is not None and loses_digits(schema.field(name).type):
        raise PlanError(
            f"column '{shown(name)}' of type {schema.field(name).type} tells groups or values "
            "apart, but its last digits are not kept: several would count as one.\n"
            "  to fix  round it (TIMESTAMP_TRUNC(t, MICROSECOND), ROUND(x, 2)), or store it as text"
        )
    return compiled


def compile_unit(text: str, schema: pa.Schema) -> Compiled:
    """Compiles the privacy unit. PlanError if reading a column would make several units one.

    Units that share a name share one bound: without one of them, more rows of the other would pass.
    """
    compiled = compile_value(text, schema)
    for name in compiled.columns:
        kind = schema.field(name).type
        if loses_digits(kind) or pa.types.is_date64(plain_type(kind)):  # need not be whole days
            raise PlanError(
                f"the privacy unit reads column '{shown(name)}' of type {kind}, of which the last "
                "digits are not kept: several units would count as one.\n"
                "  to fix  store it as text or as an integer of 64 bits"
            )
    return compiled


def loses_digits(kind: Any) -> bool:
    """Whether different values of a column may be read as one."""
    plain = plain_type(kind)
    return bool(
        (pa.types.is_decimal(plain) and plain.precision > EXACT_DIGITS)
        or (pa.types.is_timestamp(plain) and plain.unit == "ns")
    )


def plain_type(kind: Any) -> Any:
    """The type of a column's values, however they are coded."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def compile_predicate(text: str, schema: pa.Schema) -> Compiled:
    """Compiles a WHERE condition, a BOOL. Rows where it is null do not pass the caller's filter."""
    compiled = compile_expression(text, schema)
    if compiled.kind not in ("bool", "null"):
        raise PlanError(f"WHERE must be a condition (BOOL), not {compiled.kind}: {shown(text)}")
    if compiled.kind == "null":
        raise PlanError(
            f"WHERE {shown(text)} is null in every row, so that no row would count.\n"
            "  to fix  write x IS NULL for x = NULL, or leave it out"
        )
    return compiled


def normalize_expression(text: str) -> str:
    """The canonical spelling that plans store; checks its shape, needs no schema.

    >>> normalize_expression("lower( `url` )")
    'LOWER(url)'
    """
    return canonical(nodes.check_shape(plain_names(parse_text(text))))


def range_of(text: str, schema: pa.Schema | None = None) -> tuple[float, float] | None:
    """The least and the largest number that an expression can be, whatever the rows.

    None if either is not known. With a `schema`, types of columns count too.

    >>> range_of("IF(kind = 'a', 1, 0)"), range_of("EXTRACT(HOUR FROM t) / 24"), range_of("ms")
    ((0.0, 1.0), (0.0, 0.9583333333333334), None)
    >>> range_of("CAST(paid AS INT64)", pa.schema([("paid", pa.bool_())]))
    (0.0, 1.0)
    """
    if schema is None and not any(word in text for word in ("(", "CASE")):
        return None  # columns, and values computed from them
    from streamveil.expressions.ranges import ANY, SMALL, range_of_tree  # loaded by need

    def ends(name: str) -> tuple[float, float]:
        if schema is None:
            return ANY
        return SMALL.get(plain_type(schema.field(column_named(schema, name)).type), ANY)

    low, high = range_of_tree(parse_text(text), ends)
    return (float(low), float(high)) if -inf < low <= high < inf else None


def has_value(text: str, where: str | None = None) -> bool:
    """Whether an expression has a value in every row that meets a condition; False if not known.

    >>> has_value("IF(kind = 'a', 1, 0)"), has_value("x"), has_value("x", "x > 3 AND y = 1")
    (True, False, True)
    """
    if where is None and not any(word in text for word in ("(", "CASE")):
        return text.isdigit()  # columns, and values computed from them
    from streamveil.expressions.ranges import asked_for, is_filled  # loaded by need

    filled = frozenset(() if where is None else asked_for(parse_text(where)))
    return is_filled(parse_text(text), filled)


def may_leave_out(text: str) -> bool:
    """Whether an expression gives some rows no value: an IF or CASE that may choose NULL.

    >>> may_leave_out("IF(x > 3, x, NULL)"), may_leave_out("IF(x > 3, x, 0)"), may_leave_out("x")
    (True, False, False)
    """
    if not any(word in text for word in ("IF(", "CASE")):
        return False
    from streamveil.expressions.ranges import leaves_out  # loaded by need

    return leaves_out(parse_text(text))


def conjunction(conditions: Sequence[str]) -> str:
    """All conditions joined by AND, however they were grouped or spread over several calls.

    >>> conjunction(["a = 1 and (b or c)", "(d AND (e))"])
    'a = 1 AND (b OR c) AND d AND e'
    """
    parts: list[exp.Expr] = []
    todo = [plain_names(parse_text(text, "the condition")) for text in reversed(conditions)]
    while todo:
        tree = todo.pop()
        if isinstance(tree, exp.And):
            todo += [tree.expression, tree.this]
        elif isinstance(tree, exp.Paren):
            todo.append(tree.this)
        else:
            parts.append(exp.paren(tree) if isinstance(tree, exp.Or) else tree)
    return " AND ".join(canonical(nodes.check_shape(part)) for part in parts)


def columns_of(text: str) -> tuple[str, ...]:
    """Every column an expression mentions, before any schema is known."""
    tree = parse_text(text)
    paths = ([part.name for part in column.parts] for column in tree.find_all(exp.Column))
    return tuple(dict.fromkeys(".".join(path) for path in paths))


@dataclass
class Scope:
    """The columns in reach while one expression is compiled."""

    schema: pa.Schema

    def __post_init__(self) -> None:
        self.used: dict[str, None] = {}

    def column(self, name: str) -> Node:
        """The node that reads a column; names match exactly, else without case."""
        found = column_named(self.schema, name)
        if self.schema.names.count(found) > 1:
            raise PlanError(
                f"there are {self.schema.names.count(found)} columns called '{shown(found)}'.\n"
                "  to fix  give each a name of its own, where they are stored"
            )
        field = self.schema.field(found)
        kind = kind_of(field.type)
        if kind is None:
            raise PlanError(
                f"column '{shown(found)}' has type {field.type}, which expressions cannot read.\n"
                "  to fix  store it as text or as numbers"
            )
        self.used[found] = None
        return Node(kind, lambda table: read_column(table, found))


def column_named(schema: pa.Schema, name: str) -> str:
    """The column of that name, else one whose name differs only in case.

    >>> column_named(pa.schema([("Seen", pa.int64())]), "SEEN")
    'Seen'
    """
    if name in schema.names:
        return name
    matches = [known for known in schema.names if known.lower() == name.lower()]
    if len(matches) == 1:
        return str(matches[0])
    if matches:
        raise PlanError(f"column '{shown(name)}' is ambiguous: names differ only in case")
    outer, _, field = name.partition(".")
    holders = [one for one in schema if field and one.name.lower() == outer.lower()]
    if any(pa.types.is_struct(one.type) for one in holders):
        raise PlanError(
            f"column '{shown(outer)}' is a structure, and its fields are read from Parquet files,"
            " Delta tables and rows in memory alone.\n"
            f"  to fix  make '{shown(field)}' a column of its own in the source"
        )
    if holders:
        raise PlanError(
            f"column '{shown(outer)}' has no field '{shown(field)}'.\n"
            f"  to fix  correct it; of JSON text JSON_VALUE({shown(outer)}, '$.{shown(field)}')"
        )
    sides = [one for one in schema.names if one.lower().endswith(f":{name.lower()}")]
    if sides:  # of a join
        words = " or ".join(shown(one.replace(":", ".")) for one in sides)
        raise PlanError(f"column '{shown(name)}' is in both tables of the join: write {words}")
    fields = [one for one in schema.names if one.lower().endswith(f".{name.lower()}")]
    if fields:
        table = fields[0].partition(".")[0]
        raise PlanError(
            f"unknown column '{shown(name)}'; did you mean '{shown(fields[0])}'?\n"
            f"  to fix  write it in full; where the table is called {shown(table)} as well,"
            f" {shown(table)}.{shown(fields[0])}"
        )
    known = field if field in schema.names else name  # after a prefix that is not a table
    raise PlanError(f"unknown column '{shown(name)}'{nearest(known, schema.names)}")


def kind_of(type_: Any) -> str | None:
    """The SQL kind an Arrow type is read as, or None."""
    is_ = pa.types
    if is_.is_dictionary(type_):
        return kind_of(type_.value_type)
    if is_.is_integer(type_):
        return "int"
    if is_.is_floating(type_) or is_.is_decimal(type_):
        return "float"
    if is_.is_boolean(type_):
        return "bool"
    if is_.is_string(type_) or is_.is_large_string(type_) or is_.is_string_view(type_):
        return "string"
    if is_.is_binary(type_) or is_.is_large_binary(type_) or is_.is_fixed_size_binary(type_):
        return "bytes"
    if is_.is_timestamp(type_):
        return "timestamp"
    if is_.is_date(type_):
        return "date"
    return "null" if is_.is_null(type_) else None


def read_column(table: pa.Table, name: str) -> Column:
    """A column in the canonical Arrow type of its kind; values that do not fit become null."""
    column = whole(table.column(name))
    if isinstance(column, pa.ChunkedArray):  # more text than one array can hold
        return pa.chunked_array([_canonical_type(c) for c in column.chunks]).combine_chunks()
    return _canonical_type(column)


def decoded(column: Column) -> Column:
    """The values of a coded column, each written out."""
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _canonical_type(column: Column) -> Column:
    kind = kind_of(column.type)
    target = KINDS[kind or "null"]
    if column.type == target:
        return column
    if pa.types.is_dictionary(column.type):
        return _canonical_type(decoded(column))
    if pa.types.is_uint64(column.type):
        return uint_to_int(column)
    if pa.types.is_timestamp(column.type):
        return instants(column)
    if pa.types.is_date64(column.type):
        return date64_to_date(column)
    if pa.types.is_decimal(column.type):
        return column.cast(pa.string()).cast(target)  # the nearest number, as 1.1 in a query is
    return column.cast(target, safe=False)


def null_where_it_fails(run: Evaluator, table: pa.Table, kind: Any) -> Column:
    """Runs an evaluator; rows on which a kernel fails become null, all others keep their value.

    Kernels are written not to fail. Should one fail all the same (an invalid UTF-8 text, say, or
    results that take more than a column holds), the failing rows are found by halving, so that they
    cannot change the result of any other row, and no error quotes a value.
    """
    try:
        column = run(table)
    except PlanError:  # the query's fault, not a row's
        raise
    except (ValueError, ArithmeticError, pa.ArrowCapacityError):  # Arrow's, or Python's own
        if table.num_rows <= 1:
            return pa.nulls(table.num_rows, kind)
        half = table.num_rows // 2
        parts = [table.slice(0, half), table.slice(half)]
        return pa.concat_arrays([null_where_it_fails(run, part, kind) for part in parts])
    return column if column.type == kind else column.cast(kind)
