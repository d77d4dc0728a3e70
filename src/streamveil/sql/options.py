"""How each kind of option is written in SQL and in Python; `plan.options` lists them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any

from sqlglot import exp

from streamveil.errors import PlanError, got, nearest
from streamveil.expressions.dialect import canonical, shown
from streamveil.expressions.nodes import interval_of
from streamveil.plan import SortKey
from streamveil.plan.check import require_known
from streamveil.plan.options import MAX_GROUPS, OPTIONS, Kind
from streamveil.sql.parts import UNIT_MONTHS, UNIT_US, Length, real_number, require_months
from streamveil.types import own

Value = Any
Reader = Callable[[exp.Expr, str], Value]
CHANGES = ("changelog", "operation", "id", "lives")  # settings of a changing table
OF_TABLES = ("source", "event_time", "follow", "path", "format", "public", *CHANGES)
GROUP_STRATEGIES = ("LAPLACE_THRESHOLD", "PUBLIC_GROUPS")
NO_UNIT = (
    "who is protected? privacy_unit_column has no default.\n"
    "  to fix  privacy_unit_column = user_id, in Python .protect(unit='user_id')"
)


def echo(tree: exp.Expr) -> str:
    """The text of a part of the query, for a message."""
    return shown(canonical(tree))


def number_text(tree: exp.Expr, what: str) -> str:
    """A privacy number exactly as written: 1e-9 stays 1e-9."""
    if isinstance(tree, exp.Literal) and not tree.is_string:
        return str(tree.this)
    raise PlanError(
        f"{what} must be a positive number written out, such as 1 or 1e-9, not {echo(tree)}"
    )


def real(tree: exp.Expr, what: str) -> float:
    """A number, possibly negative."""
    sign = -1.0 if isinstance(tree, exp.Neg) else 1.0
    inner = tree.this if isinstance(tree, exp.Neg) else tree
    try:
        return sign * float(number_text(inner, what))
    except ValueError:
        raise PlanError(f"{what} must be a number, not {echo(tree)}") from None


def whole(tree: exp.Expr, what: str) -> int:
    """A whole number."""
    text = str(tree.this) if isinstance(tree, exp.Literal) and not tree.is_string else ""
    if not text.isdecimal() or len(text) > 18:
        raise PlanError(
            f"{what} must be a whole number written out, such as 1, of at most 18 digits,"
            f" not {echo(tree)}"
        )
    return int(text)


def positioned(item: exp.Expr, items: list[exp.Expr], clause: str) -> exp.Expr:
    """An item of GROUP BY or ORDER BY; a number is the position of an item of SELECT."""
    if not isinstance(item, exp.Literal):
        return item
    place = whole(item, f"a position in {clause}")
    if not 1 <= place <= len(items):
        raise PlanError(f"{clause} position must be between 1 and {len(items)}")
    return items[place - 1].unalias()


def sort_key(item: exp.Expr, expression: str) -> SortKey:
    """One item of ORDER BY, of an expression as plans store it."""
    descending, first = (bool(item.args.get(name)) for name in ("desc", "nulls_first"))
    return SortKey(expression=expression, descending=descending, nulls_first=first)


def text(tree: exp.Expr, what: str) -> str:
    """A quoted text."""
    if isinstance(tree, exp.Literal) and tree.is_string:
        return str(tree.this)
    raise PlanError(f"{what} must be a text in quotes, not {echo(tree)}")


def word(tree: exp.Expr, what: str) -> str:
    """A word, quoted or not."""
    if isinstance(tree, exp.Column) and isinstance(tree.this, exp.Identifier) and not tree.table:
        return str(tree.name)
    if isinstance(tree, exp.Var):
        return str(tree.name)
    return text(tree, what)


def flag(tree: exp.Expr, what: str) -> bool:
    """TRUE or FALSE."""
    if isinstance(tree, exp.Boolean):
        return bool(tree.this)
    raise PlanError(f"{what} is TRUE or FALSE, not {echo(tree)}")


def row_value(tree: exp.Expr, what: str) -> str:
    """A column or per-row expression, as text."""
    if isinstance(tree, exp.Literal | exp.Null | exp.Boolean):
        raise PlanError(f"{what} must be a column or an expression over columns")
    return canonical(tree)


def interval(tree: exp.Expr, what: str) -> int:
    """INTERVAL n UNIT, in microseconds."""
    found = length(tree, what)
    if found.months:
        raise PlanError(f"{what}: months have no fixed length; use days or weeks")
    return found.us


def length(tree: exp.Expr, what: str) -> Length:
    """INTERVAL n UNIT, including units of a calendar."""
    if not isinstance(tree, exp.Interval):
        raise PlanError(
            f"{what} must be written INTERVAL n UNIT, such as INTERVAL 15 MINUTE, not {echo(tree)}"
        )
    amount, unit = interval_of(tree)
    if unit.lower() in UNIT_MONTHS:
        return Length(months=require_months(amount * UNIT_MONTHS[unit.lower()], what))
    total = amount * UNIT_US[unit.lower()]
    if not 0 < total < 2**62:
        raise PlanError(
            f"{what} must be longer than zero and shorter than 100,000 years, not {echo(tree)}"
        )
    return Length(total, weeks=unit == "WEEK")


def instant(tree: exp.Expr, what: str) -> str:
    """A time: a text, or TIMESTAMP 'text'."""
    if isinstance(tree, exp.Cast) and isinstance(tree.this, exp.Literal):
        return text(tree.this, what)
    return text(tree, what)


def steps(tree: exp.Expr, what: str) -> int | str:
    """A number of steps, or 'unbounded'."""
    if isinstance(tree, exp.Literal) and not tree.is_string:
        return whole(tree, what)
    chosen = word(tree, what).lower()
    if chosen != "unbounded":
        raise PlanError(f"{what} is a whole number or 'unbounded'")
    return chosen


def constant(tree: exp.Expr, what: str) -> Value:
    """A constant of any type a group can have."""
    if isinstance(tree, exp.Null):
        return None
    if isinstance(tree, exp.Boolean):
        return bool(tree.this)
    if isinstance(tree, exp.Literal) and tree.is_string:
        return str(tree.this)
    number = real(tree, what)
    return int(canonical(tree)) if canonical(tree).lstrip("-").isdecimal() else number


def groups(tree: exp.Expr, what: str) -> str | tuple[tuple[Value, ...], ...]:
    """A list of groups, or the path of a public file that holds one group per row."""
    if isinstance(tree, exp.Literal):
        return text(tree, what)
    if not isinstance(tree, exp.Array):
        raise PlanError(f"{what} is a list such as ['a', 'b'], or the path of a file in quotes")
    return tuple(_group(item, what) for item in tree.expressions)


def _group(tree: exp.Expr, what: str) -> tuple[Value, ...]:
    parts = tree.expressions if isinstance(tree, exp.Tuple) else [tree]
    for part in parts:
        if isinstance(part, exp.Cast | exp.RawString | exp.Anonymous):  # DATE '...', r'...', f(...)
            raise PlanError(
                f"{what} holds texts, numbers, TRUE, FALSE and NULL, not {echo(part)}.\n"
                f"  to fix  a Parquet file of groups, {what} = 'groups.parquet', holds every type"
            )
    return tuple(constant(part, what) for part in parts)


def strategy(tree: exp.Expr, what: str) -> str:
    """How groups are chosen."""
    chosen = word(tree, what).upper()
    if chosen not in GROUP_STRATEGIES:
        raise PlanError(f"unknown {what}{nearest(chosen[:40], GROUP_STRATEGIES)}")
    return chosen


READERS: dict[Kind, Reader] = {
    "amount": number_text, "real": real, "whole": whole, "flag": flag, "word": word,
    "strategy": strategy, "expression": row_value, "text": text, "length": length,
    "interval": interval, "instant": instant,
    "steps": steps, "groups": groups,
}  # fmt: skip

# options a GoogleSQL query may hold that have no meaning here, with the way out
REFUSED_OPTIONS: dict[str, str] = {
    "k_threshold": "a fixed k does not come with a proof over releases.\n  to fix  delta, and "
    "min_privacy_units_per_group = k if groups need at least k units",
    "contribution_bounding_rows": "it has another name.\n  to fix  max_rows_contributed",
    "privacy_budget_weight": "aggregates share the budget by forecast.\n  to fix  leave it out",
}


OLD_NAMES = {"kappa": MAX_GROUPS.name}
ALL_GROUPS = "all_groups"  # max_groups_contributed = NULL: no limit but the number of groups


def unknown_argument(of: str, name: str, known: Collection[str]) -> PlanError:
    """The error for an argument that a function does not have; says where options belong."""
    fault = f"{of} has no argument '{shown(name)}'"
    return PlanError(fault + (_place_of(name) or nearest(name, known)))


def refuse_options(values: Collection[str], source: str) -> None:
    """Refuses options of a table or stream that only a query takes."""
    for name in values:
        if place := _place_of(name):
            raise PlanError(f"the source '{shown(source)}' has no option '{name}'{place}")


def _place_of(name: str) -> str:
    """Where an option of the query is written; empty for any other name."""
    return f".\n  to fix  write OPTIONS ({name} = ...) in the query" if name in OPTIONS else ""


def read_options(pairs: list[tuple[str, exp.Expr]]) -> dict[str, Value]:
    """The values of a clause by option name; the error for an unknown name suggests a known one."""
    found: dict[str, Value] = {}
    for written, tree in pairs:
        name = OLD_NAMES.get(written.lower(), written.lower())
        if name in REFUSED_OPTIONS:
            raise PlanError(f"option '{name}' is not supported: {REFUSED_OPTIONS[name]}")
        if name in OF_TABLES:
            raise PlanError(
                f"'{name}' is no option of a query.\n"
                f"  to fix  CREATE STREAM ... WITH ({name} = ...)"
            )
        require_known(name, OPTIONS)
        if name in found:
            raise PlanError(f"option '{name}' is given twice")
        if name == MAX_GROUPS.name and isinstance(tree, exp.Null):
            found |= {name: None, ALL_GROUPS: True}
            continue
        found[name] = READERS[OPTIONS[name].kind](tree, name)
    return found


PYTHON: dict[Kind, tuple[tuple[type, ...], str]] = {  # how each option is written in Python
    "whole": ((int,), "a whole number"),
    "real": ((int, float), "a number"),
    "flag": ((bool,), "True or False"),
    "word": ((str,), "a text"),
    "expression": ((str,), "SQL text: a column or a per-row expression"),
    "strategy": ((str,), "a text"),
}


def own_values(values: Mapping[str, Value]) -> dict[str, Value]:
    """The values of options, each of the kind that its SQL reader returns; else PlanError."""
    found = {name: own(value) for name, value in values.items()}
    for name, value in found.items():
        option = OPTIONS.get(name)
        kinds, meant = PYTHON.get(option.kind, ((), "")) if option is not None else ((), "")
        if float in kinds and isinstance(value, Fraction | Decimal):
            found[name] = real_number(value, name)
        elif value is not None and kinds and type(value) not in kinds:
            raise PlanError(f"{name} must be {meant}, not {got(value)}")
    return found
