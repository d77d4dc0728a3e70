"""How a function is chosen for its arguments: typing rules, shared by all functions of a row.

Arguments that shape the kernel (patterns, positions, units) must be written as constants, so that
the query is fixed before any row is read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from streamveil.errors import PlanError
from streamveil.expressions.kernels import Column

Kernel = Callable[..., Column]
Kind = str  # 'int' 'float' 'bool' 'string' 'bytes' 'date' 'timestamp' 'null'; 'unit' 'interval'


@dataclass(frozen=True)
class Argument:
    """What the typing rule of a function sees: the kind, and the value where it is a constant."""

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


def constant(name: str, arguments: Sequence[Argument], place: int, kind: Kind) -> Any:
    """The value of an argument that must be written out in the query."""
    argument = arguments[place]
    if argument.constant is None or argument.kind != kind:
        wanted = {
            "unit": "a unit of time such as MONTH, without quotes: TIMESTAMP_TRUNC(t, MONTH)",
            "interval": "an interval such as INTERVAL 1 DAY",
        }.get(kind, f"a constant of type {kind}")
        raise PlanError(f"argument {place + 1} of {name} must be {wanted}")
    return argument.constant


def mistyped(place: str, wanted: str, kind: str) -> PlanError:
    """A type error that names the place and never a value, with the way out."""
    way = "CAST it"
    if wanted == "bool":
        way = "compare it, as in x > 0 or x = 'a'"
    elif kind == "string":
        way = "CAST it, or declare the column's type in CREATE STREAM: CSV is text without that"
    return PlanError(f"{place} must be {wanted}, not {kind}.\n  to fix  {way}")


def wrong(name: str, argument: Argument, place: int, wanted: str) -> PlanError:
    """The same of an argument of a function."""
    return mistyped(f"argument {place + 1} of {name}", wanted, argument.kind)


def fixed(result: Kind, *wanted: Kind, kernel: Kernel) -> Rule:
    """A function of one signature."""

    def rule(name: str, arguments: Sequence[Argument]) -> Bound:
        arity(name, arguments, len(wanted))
        return Bound(result, wanted, kernel)

    return rule


def numeric(name: str, arguments: Sequence[Argument]) -> Kind:
    """'int' when all arguments are integers, 'float' when some are floats."""
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
        raise PlanError(
            f"{name} mixes types that do not convert: {', '.join(found)}.\n"
            "  to fix  CAST one of them"
        )
    return next(iter(kinds), "null")


def same(column: Column) -> Column:
    """A column as it is."""
    return column
