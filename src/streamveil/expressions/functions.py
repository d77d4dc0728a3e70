"""The functions a query may call on a row: one table, name -> typing rule and kernel.

A function is added by one line in the table of its kind (and a row in docs/sql.md, which a test
compares). Here are those of numbers and of any kind of value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamveil.errors import PlanError
from streamveil.expressions.convert import (
    Argument,
    Bound,
    Kernel,
    Rule,
    arity,
    common,
    fixed,
    numeric,
    written,
)
from streamveil.expressions.kernels import (
    Column,
    dense,
    float_op,
    from_numpy,
    int_abs,
    int_negate,
    int_op,
    null_unless,
    round_half_away,
)
from streamveil.expressions.text_functions import TEXTS
from streamveil.expressions.time_functions import TIMES
from streamveil.types import Array


def floating(function: Callable[..., Array], places: int = 1) -> Rule:
    """A function of floats to a float."""
    return fixed("float", *["float"] * places, kernel=float_op(function))


def by_number(on_int: Kernel, on_float: Kernel) -> Rule:
    """A function of one number that keeps its type."""

    def rule(name: str, arguments: Sequence[Argument]) -> Bound:
        arity(name, arguments, 1)
        kind = numeric(name, arguments)
        return Bound(kind, (kind,), on_int if kind == "int" else on_float)

    return rule


def integers(operation: str) -> Rule:
    """DIV and MOD."""
    return fixed("int", "int", "int", kernel=int_op(operation))


def _extreme(larger: Callable[[Array, Array], Array], of_texts: Callable[..., Column]) -> Rule:
    def folded(*columns: Column) -> Column:
        values, ok = dense(columns[0])
        for column in columns[1:]:
            other, valid = dense(column)
            values, ok = larger(values, other), ok & valid
        return from_numpy(values, ok, columns[0].type)

    def rule(name: str, arguments: Sequence[Argument]) -> Bound:
        arity(name, arguments, 1, 99)
        kind = common(name, arguments)
        kernel: Kernel = folded  # also of times and of what is not a number, where Arrow's differ
        if kind in ("string", "bytes"):
            kernel = partial(of_texts, skip_nulls=False)
        return Bound(kind, (kind,) * len(arguments), _first if kind == "null" else kernel)

    return rule


def _first(*columns: Column) -> Column:
    return columns[0]


def _coalesce(low: int, high: int) -> Rule:
    def rule(name: str, arguments: Sequence[Argument]) -> Bound:
        arity(name, arguments, low, high)
        kind = common(name, arguments)
        return Bound(kind, (kind,) * len(arguments), pc.coalesce)

    return rule


def _nullif(name: str, arguments: Sequence[Argument]) -> Bound:
    arity(name, arguments, 2)
    kind = common(name, arguments)
    return Bound(kind, (kind, kind), _null_where_equal)


def _null_where_equal(left: Column, right: Column) -> Column:
    if pa.types.is_null(left.type):
        return left
    same = pc.fill_null(pc.equal(left, right), fill_value=False)
    return null_unless(pc.invert(same), left)


def _round(name: str, arguments: Sequence[Argument]) -> Bound:
    arity(name, arguments, 1, 2)
    numeric(name, arguments)
    if len(arguments) == 1:
        return Bound("float", ("float",), float_op(round_half_away))
    digits = written(name, arguments, 1, "int")
    if not -308 <= digits <= 308:
        raise PlanError(f"argument 2 of {name} must be between -308 and 308")
    scale = 10.0 ** abs(digits)

    def to_digits(a: Array) -> Array:
        if digits < 0:
            return np.asarray(round_half_away(a / scale) * scale)
        scaled = a * scale
        return np.asarray(np.where(np.isfinite(scaled), round_half_away(scaled) / scale, a))

    return Bound("float", ("float", None), float_op(to_digits))


def _log(name: str, arguments: Sequence[Argument]) -> Bound:
    arity(name, arguments, 1, 2)
    if len(arguments) == 1:
        return Bound("float", ("float",), float_op(np.log))
    return Bound("float", ("float",) * 2, float_op(lambda a, base: np.log(a) / np.log(base)))


def _range_bucket(name: str, arguments: Sequence[Argument]) -> Bound:
    """How many of the ends are at most a number."""
    arity(name, arguments, 2, 999)
    numeric(name, arguments)
    ends = [argument.constant for argument in arguments[1:]]
    if any(end is None for end in ends) or sorted(ends) != ends:
        raise PlanError(
            f"{name} takes ends that are written in the query, in order: RANGE_BUCKET(x, [10, 20])"
        )
    at = np.array(ends, np.float64)

    def kernel(column: Column) -> Column:
        values, ok = dense(column)
        return from_numpy(np.searchsorted(at, values, side="right"), ok, pa.int64())

    return Bound("int", ("float", *[None] * len(ends)), kernel)


def _safe(operation: str, on_float: Callable[..., Array]) -> Rule:
    """SAFE_ADD and its like: what + does here too, null where it overflows."""

    def rule(name: str, arguments: Sequence[Argument]) -> Bound:
        arity(name, arguments, 2)
        kind = numeric(name, arguments)
        return Bound(kind, (kind, kind), int_op(operation) if kind == "int" else float_op(on_float))

    return rule


def _is(test: Callable[[Array], Array]) -> Rule:
    def kernel(column: Column) -> Column:
        values = pc.fill_null(column, 0.0).to_numpy(zero_copy_only=False)
        ok = pc.is_valid(column).to_numpy(zero_copy_only=False)
        return from_numpy(test(values), ok, pa.bool_())

    return fixed("bool", "float", kernel=kernel)


FUNCTIONS: dict[str, Rule] = {
    "ABS": by_number(int_abs, float_op(np.abs)),
    "SIGN": by_number(lambda c: pc.sign(c).cast(pa.int64()), float_op(np.sign)),
    "ROUND": _round,
    "FLOOR": floating(np.floor),
    "CEIL": floating(np.ceil),
    "CEILING": floating(np.ceil),
    "TRUNC": floating(np.trunc),
    "SQRT": floating(np.sqrt),
    "EXP": floating(np.exp),
    "LN": floating(np.log),
    "LOG": _log,
    "LOG10": floating(np.log10),
    "POW": floating(np.power, 2),
    "POWER": floating(np.power, 2),
    "DIV": integers("div"),
    "MOD": integers("mod"),
    "SAFE_DIVIDE": floating(np.divide, 2),
    "SAFE_ADD": _safe("add", np.add),
    "SAFE_SUBTRACT": _safe("subtract", np.subtract),
    "SAFE_MULTIPLY": _safe("multiply", np.multiply),
    "SAFE_NEGATE": by_number(int_negate, float_op(np.negative)),
    "IS_NAN": _is(np.isnan),
    "RANGE_BUCKET": _range_bucket,
    "IS_INF": _is(np.isinf),
    "GREATEST": _extreme(np.maximum, pc.max_element_wise),
    "LEAST": _extreme(np.minimum, pc.min_element_wise),
    "COALESCE": _coalesce(1, 99),
    "IFNULL": _coalesce(2, 2),
    "NULLIF": _nullif,
    **TEXTS,
    **TIMES,
}
