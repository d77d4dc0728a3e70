"""Typed values inside an expression, their conversions, and the typing rules of functions.

Arguments that shape the kernel (patterns, positions, units) must be written as constants, so that
the query is fixed before any row is read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from streamveil.errors import PlanError
from streamveil.expressions import times
from streamveil.expressions.dialect import shown
from streamveil.expressions.kernels import (
    INSTANT,
    Column,
    as_cast,
    float_to_int,
    string_to_bool,
    string_to_date,
    string_to_float,
    string_to_instant,
    string_to_int,
)

Kernel = Callable[..., Column]
Kind = str  # 'int' 'float' 'bool' 'string' 'bytes' 'date' 'timestamp' 'null'; 'unit' 'interval'


@dataclass(frozen=True)
class Argument:
    """An argument for the typing rule of a function: its kind, and its value if it is constant."""

    kind: Kind
    constant: Any = None


@dataclass(frozen=True)
class Bound:
    """A function chosen for its arguments: result kind, kinds wanted, kernel on columns.

    `wanted` has one kind per column argument; constants that are baked in are None.
    """

    result: Kind
    wanted: tuple[Kind | None, ...]
    kernel: Kernel


Rule = Callable[[str, Sequence[Argument]], Bound]


def arity(name: str, arguments: Sequence[Argument], low: int, high: int | None = None) -> None:
    """Refuses a wrong number of arguments."""
    high = low if high is None else high
    if not low <= len(arguments) <= high:
        wanted = str(low) if low == high else f"{low} to {high}" if high < 99 else f"{low} or more"
        raise PlanError(f"{name} takes {wanted} argument(s), not {len(arguments)}")


def written(name: str, arguments: Sequence[Argument], place: int, kind: Kind) -> Any:
    """The value of an argument that must be written out in the query."""
    argument = arguments[place]
    if argument.constant is None or argument.kind != kind:
        wanted = {
            "unit": "a unit of time such as MONTH, without quotes: TIMESTAMP_TRUNC(t, MONTH)",
            "interval": "an interval such as INTERVAL 1 DAY",
        }.get(kind, f"a constant of type {kind}")
        raise PlanError(f"argument {place + 1} of {name} must be {wanted}")
    return argument.constant


class TypeMismatchError(PlanError):
    """Values of types that do not fit; `build` adds the expression."""


DECLARE = "or declare the column's type in CREATE STREAM: CSV is text without that"


def mistyped(place: str, wanted: str, kind: str) -> TypeMismatchError:
    """A type error that names the place and never a value, with the way out."""
    way = "CAST it"
    if wanted == "bool":
        way = "compare it, as in x > 0 or x = 'a'"
    elif kind == "string":
        way = f"CAST it, {DECLARE}"
    return TypeMismatchError(f"{place} must be {wanted}, not {kind}.\n  to fix  {way}")


def wrong(name: str, argument: Argument, place: int, wanted: str) -> TypeMismatchError:
    """A type error of an argument of a function."""
    return mistyped(f"argument {place + 1} of {name}", wanted, argument.kind)


def fixed(result: Kind, *wanted: Kind, kernel: Kernel) -> Rule:
    """A function of one signature."""

    def rule(name: str, arguments: Sequence[Argument]) -> Bound:
        arity(name, arguments, len(wanted))
        return Bound(result, wanted, kernel)

    return rule


def numeric(name: str, arguments: Sequence[Argument]) -> Kind:
    """'int' if all arguments are integers, 'float' if some are floats."""
    for place, argument in enumerate(arguments):
        if argument.kind not in ("int", "float", "null"):
            raise wrong(name, argument, place, "a number")
    return "float" if any(a.kind == "float" for a in arguments) else "int"


def common(name: str, arguments: Sequence[Argument]) -> Kind:
    """The one kind all arguments convert to."""
    kinds = {a.kind for a in arguments} - {"null"}
    if kinds == {"int", "float"}:
        return "float"
    literals = {a.kind for a in arguments if a.constant is not None}
    if "string" in literals and len(kinds) == 2 and kinds & {"date", "timestamp"}:
        return next(iter(kinds & {"date", "timestamp"}))  # GoogleSQL reads '2026-01-01' as a time
    if len(kinds) > 1:
        first = {a.kind: n for n, a in reversed([*enumerate(arguments, 1)]) if a.kind in kinds}
        found = [f"argument {n} is {kind}" for kind, n in sorted(first.items(), key=itemgetter(1))]
        way = f"CAST one of them, {DECLARE}" if "string" in kinds else "CAST one of them"
        raise TypeMismatchError(
            f"{name} mixes types that do not convert: {', '.join(found)}.\n  to fix  {way}"
        )
    return next(iter(kinds), "null")


def same(column: Column) -> Column:
    """A column as it is."""
    return column


KINDS: dict[str, Any] = {
    "int": pa.int64(),
    "uint": pa.uint64(),  # only for a lone column (`compile_value`); in expressions it is "int"
    "float": pa.float64(),
    "bool": pa.bool_(),
    "string": pa.string(),
    "bytes": pa.binary(),
    "date": pa.date32(),
    "timestamp": INSTANT,
    "null": pa.null(),
}


@dataclass(frozen=True)
class Node:
    """A typed piece of an expression. `constant` is set where the query wrote the value out."""

    kind: str
    run: Callable[[pa.Table], Column]
    constant: Any = None


def constant(kind: str, value: Any) -> Node:
    """A value written in the query, repeated for every row."""
    scalar = pa.scalar(value, KINDS[kind])
    return Node(kind, lambda table: pa.repeat(scalar, table.num_rows), value)


def convert(node: Node, kind: str, place: str) -> Node:
    """Implicit conversion: integer to float, null to anything, a constant text to a time."""
    if node.kind == kind:
        return node
    if node.kind == "null":
        return Node(kind, lambda table: pa.nulls(table.num_rows, KINDS[kind]))
    if node.kind == "int" and kind == "float":
        value = None if node.constant is None else float(node.constant)
        return Node("float", lambda t: node.run(t).cast(pa.float64(), safe=False), value)
    if node.kind == "string" and node.constant is not None and kind in ("date", "timestamp"):
        cast = CASTS["string", kind]
        require_readable(node.constant, kind, place)
        return Node(kind, lambda table: cast(node.run(table)))
    if node.kind == "date" and kind == "timestamp":
        return Node("timestamp", lambda table: times.to_instant(node.run(table)))
    raise mistyped(place, kind, node.kind)


def require_readable(text: str, kind: str, place: str) -> None:
    """Refuses a text of the query that would be null in every row; the error shows no row."""
    if not CASTS["string", kind](pa.array([text])).null_count:
        return
    way = READABLE.get(kind)
    raise PlanError(
        f"{place}: the text '{shown(text)}' is not a valid {kind}"
        + (f".\n  to fix  {way}" if way else "")
    )


READABLE = {
    "timestamp": "write it as '2026-01-31 12:00:00' (UTC), or with an offset: "
    "'2026-01-31 12:00:00+01:00'. Zones have no names here",
    "date": "write it as '2026-01-31'",
}


def unify(word: str, *parts: Node) -> list[Node]:
    """Nodes, converted to their common kind."""
    kind = common(word, [seen(node) for node in parts])
    return [convert(node, kind, f"an operand of {word}") for node in parts]


def seen(node: Node) -> Argument:
    """A node as the argument that a typing rule may see."""
    return Argument(node.kind, node.constant)


def _to(kind: str) -> Callable[[Column], Column]:
    return lambda column: column.cast(KINDS[kind], safe=False)


CASTS: dict[tuple[str, str], Callable[[Column], Column]] = {
    ("int", "float"): _to("float"),
    ("int", "string"): _to("string"),
    ("int", "bool"): lambda c: pc.not_equal(c, 0),
    ("bool", "int"): _to("int"),
    ("bool", "string"): _to("string"),
    ("float", "int"): float_to_int,
    ("float", "string"): as_cast,
    ("string", "int"): string_to_int,
    ("string", "float"): string_to_float,
    ("string", "bool"): string_to_bool,
    ("string", "date"): string_to_date,
    ("string", "timestamp"): string_to_instant,
    ("string", "bytes"): _to("bytes"),
    ("bytes", "string"): lambda c: c.cast(pa.string()),
    ("date", "timestamp"): times.to_instant,
    ("date", "string"): _to("string"),
    ("timestamp", "date"): times.to_date,
    ("timestamp", "string"): as_cast,
}
_T = exp.DataType.Type
TYPES = {
    **dict.fromkeys((_T.BIGINT, _T.INT, _T.SMALLINT, _T.TINYINT), "int"),
    **dict.fromkeys((_T.DOUBLE, _T.FLOAT, _T.DECIMAL, _T.BIGDECIMAL), "float"),
    _T.BOOLEAN: "bool",
    **dict.fromkeys((_T.TEXT, _T.VARCHAR), "string"),
    **dict.fromkeys((_T.BINARY, _T.VARBINARY), "bytes"),
    _T.DATE: "date",
    **dict.fromkeys((_T.TIMESTAMP, _T.TIMESTAMPTZ), "timestamp"),
}
