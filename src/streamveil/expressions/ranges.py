"""The range of the values of an expression, and whether it has a value in every row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from math import ceil, floor, inf, isnan
from operator import add, mul, sub, truediv
from typing import TypeAlias

import pyarrow as pa
from sqlglot import exp

from streamveil.expressions.dialect import canonical

Range: TypeAlias = tuple[float, float]
Ends: TypeAlias = Callable[[str], Range]  # the range of a column, by its name
Rule: TypeAlias = Callable[[Sequence[Range]], Range]  # the range of a node, by those of its parts
ANY: Range = (-inf, inf)
NONE: Range = (inf, -inf)  # of an expression that is null in every row
EXACT = 2.0**53  # whole numbers below are floats
TRUTH: Range = (0.0, 1.0)  # of FALSE and TRUE, once they are cast
PARTS: Mapping[str, Range] = {  # of a time
    "QUARTER": (1, 4), "MONTH": (1, 12), "WEEK": (0, 53), "ISOWEEK": (1, 53), "DAY": (1, 31),
    "DAYOFYEAR": (1, 366), "DAYOFWEEK": (1, 7), "HOUR": (0, 23), "MINUTE": (0, 59),
    "SECOND": (0, 59), "MILLISECOND": (0, 999), "MICROSECOND": (0, 999_999),
}  # fmt: skip
SMALL: Mapping[pa.DataType, Range] = {  # types of columns with few values
    pa.bool_(): TRUTH, pa.int8(): (-128, 127), pa.uint8(): (0, 255),
}  # fmt: skip
CONDITIONS = (
    exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.And, exp.Or, exp.Not, exp.Is, exp.In,
    exp.Between, exp.Like, exp.Boolean, exp.NullSafeEQ, exp.NullSafeNEQ,
)  # fmt: skip
ASKING = ("STARTS_WITH", "ENDS_WITH", "CONTAINS_SUBSTR", "REGEXP_CONTAINS", "IS_NAN", "IS_INF")
COMPARED = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.Between, exp.In)
PLAIN = (  # nodes whose functions fail for no row: a failure makes a whole expression null
    *CONDITIONS, exp.Column, exp.Identifier, exp.Literal, exp.Null, exp.Paren, exp.If, exp.Case,
    exp.Neg, exp.Add, exp.Sub, exp.Mul, exp.Div, exp.DataType,
)  # fmt: skip
CHOICES = ("IF", "IFNULL", "COALESCE", "NULLIF")


def range_of_tree(tree: exp.Expr, ends: Ends) -> Range:
    """The least and the largest value; infinite if not known, `NONE` if all are null.

    Proof: by induction over the tree. A rule holds for all values of its parts within their ranges,
        and a node without a rule may be anything. A null is no value. Ends are computed in floating
        point, as real values are; a whole number that would be rounded counts as not known.
    """
    tree = tree.unnest()
    if isinstance(tree, exp.Column):
        return ends(tree.name)
    if isinstance(tree, CONDITIONS):
        return TRUTH
    rule = RULES.get(type(tree))
    found = ANY if rule is None else rule(tree, ends)
    return found if found == NONE or max(map(abs, found)) < EXACT else ANY


def is_filled(tree: exp.Expr, filled: Set[str]) -> bool:
    """Whether an expression has a value in every row; False if not known.

    `filled`: columns that have a value in every row that counts.

    Proof: by induction over the tree. Nodes that are not `PLAIN` may fail for a row. Among `PLAIN`
        nodes, arithmetic and casts may be null where their parts are not (overflow, division by
        zero), so they have a value only as literals and as casts of conditions to numbers.
    """
    return all(map(_cannot_fail, tree.walk())) and _has_value(tree, filled)


def _cannot_fail(node: exp.Expr) -> bool:
    if isinstance(node, exp.Cast):
        return isinstance(node.this.unnest(), CONDITIONS)
    if isinstance(node, exp.Like):
        return False
    return isinstance(node, PLAIN) or _choice(node) is not None


def _choice(node: exp.Expr) -> str | None:
    """The name of the function, if the node is a call of one that chooses among its arguments."""
    name = str(node.this).upper() if isinstance(node, exp.Anonymous) else None
    return name if name in CHOICES else None


def _chosen(tree: exp.Expr) -> list[exp.Expr]:
    """The choices of an IF or CASE; none for other nodes."""
    if _choice(tree) == "IF":
        return list(tree.expressions[1:])
    if not isinstance(tree, exp.If | exp.Case):
        return []
    ifs = [tree] if isinstance(tree, exp.If) else tree.args["ifs"]
    last = tree.args.get("false") or tree.args.get("default") or exp.Null()
    return [*(one.args["true"] for one in ifs), last]


def _has_value(tree: exp.Expr, filled: Set[str]) -> bool:
    tree = tree.unnest()
    if isinstance(tree, exp.Column):
        return tree.name in filled
    if isinstance(tree, exp.Literal | exp.Boolean | exp.Is | exp.NullSafeEQ | exp.NullSafeNEQ):
        return True
    parts = _chosen(tree)
    if _choice(tree) in ("IFNULL", "COALESCE"):
        return any(_has_value(part, filled) for part in tree.expressions)
    if isinstance(tree, CONDITIONS):
        parts = list(tree.iter_expressions())
    elif isinstance(tree, exp.Neg) and isinstance(tree.this, exp.Literal):
        return True
    elif isinstance(tree, exp.Cast):
        number = tree.args["to"].this in (exp.DataType.Type.BIGINT, exp.DataType.Type.DOUBLE)
        parts = [tree.this] if number and isinstance(tree.this.unnest(), CONDITIONS) else []
    return bool(parts) and all(_has_value(part, filled) for part in parts)


def leaves_out(tree: exp.Expr) -> bool:
    """Whether an expression as a whole is a choice, with NULL among its choices."""
    tree = tree.unnest()
    return (_choice(tree) == "IF" or isinstance(tree, exp.If | exp.Case)) and any(
        isinstance(part.unnest(), exp.Null) or leaves_out(part) for part in _chosen(tree)
    )


def asked_for(condition: exp.Expr) -> Iterator[str]:
    """Columns that have a value in each row for which a condition is true.

    A comparison with a null is null, as are AND and NOT of it.
    """
    tree = condition.unnest()
    if isinstance(tree, exp.And):
        yield from asked_for(tree.this)
        yield from asked_for(tree.expression)
        return
    if isinstance(tree, exp.Not):
        inner = tree.this.unnest()
        is_null = isinstance(inner, exp.Is) and isinstance(inner.expression, exp.Null)
        tree = inner if is_null or isinstance(inner, COMPARED) else tree
        parts = [tree.this]
    elif isinstance(tree, COMPARED):
        parts = [tree.this]
        if not isinstance(tree, exp.Between | exp.In):
            parts.append(tree.expression)
    else:
        return
    for part in parts:
        if isinstance(part.unnest(), exp.Column):
            yield part.unnest().name


def either(ranges: Sequence[Range]) -> Range:
    """The least range that holds all of some ranges."""
    lows, highs = zip(*ranges, strict=True)
    return min(lows), max(highs)


def _literal(tree: exp.Expr, _: Ends) -> Range:
    if tree.args.get("is_string"):
        return ANY
    number = float(tree.this)
    return number, number


def _cast(tree: exp.Expr, ends: Ends) -> Range:
    kind = tree.args["to"].this
    if kind == exp.DataType.Type.BOOLEAN:
        return TRUTH
    low, high = range_of_tree(tree.this, ends)
    if kind == exp.DataType.Type.BIGINT:
        return _whole(low, high)
    return (low, high) if kind == exp.DataType.Type.DOUBLE else ANY


def _whole(low: float, high: float) -> Range:
    """The range of values that are rounded, up or down."""
    return (floor(low), ceil(high)) if -inf < low <= high < inf else (low, high)


def _negative(tree: exp.Expr, ends: Ends) -> Range:
    low, high = range_of_tree(tree.this, ends)
    return -high, -low


def _by_corners(apply: Callable[[float, float], float]) -> Rule:
    """The rule of an operator that is monotone in each part: extremes are at the ends of both."""

    def rule(parts: Sequence[Range]) -> Range:
        left, right = parts
        found = [apply(one, other) for one in left for other in right]
        return (min(found), max(found)) if not any(map(isnan, found)) else ANY

    return rule


def _quotient(parts: Sequence[Range]) -> Range:
    low, high = parts[1]
    return _by_corners(truediv)(parts) if low > 0 or high < 0 else ANY


def _remainder(parts: Sequence[Range]) -> Range:
    """The range of a remainder: its sign is the dividend's, which must be known."""
    most = max(map(abs, parts[1]))
    return (0.0, most) if parts[0][0] >= 0 else ANY


def _binary(rule: Rule) -> Callable[[exp.Expr, Ends], Range]:
    return lambda tree, ends: rule(
        [range_of_tree(part, ends) for part in (tree.this, tree.expression)]
    )


def _choose(tree: exp.Expr, ends: Ends) -> Range:
    return either([range_of_tree(one, ends) for one in _chosen(tree)])


def _extract(tree: exp.Expr, _: Ends) -> Range:
    return PARTS.get(canonical(tree.this).upper().partition("(")[0], ANY)


def _call(tree: exp.Expr, ends: Ends) -> Range:
    name = str(tree.this).upper()
    if name in ASKING:
        return TRUTH
    rule = CALLS.get(name)
    parts = [range_of_tree(one, ends) for one in tree.expressions] if rule is not None else []
    return rule(parts) if rule is not None and parts else ANY


def _rounded(parts: Sequence[Range]) -> Range:
    """The range of a rounded number; digits must be after the point, and floats hold them all."""
    if len(parts) == 1:
        return _whole(*parts[0])
    least, most = parts[1]
    exact = 0 <= least <= most <= 15 and max(map(abs, parts[0])) * 10**most < EXACT
    return _whole(*parts[0]) if exact else ANY


def _of_known(parts: Sequence[Range], choose: Callable[[Iterable[float]], float]) -> Range:
    """The range of GREATEST or LEAST, if all parts are known; a cut column has no useful one."""
    low, high = either(parts)
    if not -inf < low <= high < inf:
        return ANY
    lows, highs = zip(*parts, strict=True)
    return choose(lows), choose(highs)


def _size(parts: Sequence[Range]) -> Range:
    low, high = parts[0]
    return max(low, -high, 0.0), max(abs(low), abs(high))


CALLS: Mapping[str, Rule] = {
    "IF": lambda parts: either(parts[1:]),
    "IFNULL": either, "COALESCE": either,
    "NULLIF": lambda parts: parts[0],
    "LEAST": lambda parts: _of_known(parts, min), "GREATEST": lambda parts: _of_known(parts, max),
    "MOD": _remainder, "ABS": _size, "SIGN": lambda _: (-1.0, 1.0),
    "ROUND": _rounded, "TRUNC": _rounded,
    "FLOOR": lambda parts: _whole(*parts[0]), "CEIL": lambda parts: _whole(*parts[0]),
    "CEILING": lambda parts: _whole(*parts[0]),
}  # fmt: skip
RULES: Mapping[type, Callable[[exp.Expr, Ends], Range]] = {
    exp.Literal: _literal, exp.Null: lambda *_: NONE,
    exp.Cast: _cast, exp.TryCast: _cast, exp.Neg: _negative,
    exp.Add: _binary(_by_corners(add)), exp.Sub: _binary(_by_corners(sub)),
    exp.Mul: _binary(_by_corners(mul)), exp.Div: _binary(_quotient), exp.Mod: _binary(_remainder),
    exp.If: _choose, exp.Case: _choose, exp.Extract: _extract, exp.Anonymous: _call,
}  # fmt: skip
