"""The functions a query may call on a row: one table, name -> typing rule and kernel.

A function is added by one line in the table of its kind (and a row in docs/sql.md, which a test
compares). Here are those of numbers and of any kind of value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

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


def by_number(on_int: Kernel, on_float: Kernel, places: int = 1) -> Rule:
    """A function of numbers that keeps their type."""

    def rule(name: str, arguments: Sequence[Argument]) -> Bound:
        arity(name, arguments, places)
        kind = numeric(name, arguments)
        return Bound(kind, (kind,) * places, on_int if kind == "int" else on_float)

    return rule


def of_common(low: int, high: int, kernel: Kernel) -> Rule:
    """A function of `low` to `high` values of one kind, whichever it is, to that kind."""

    def rule(name: str, arguments: Sequence[Argument]) -> Bound:
        arity(name, arguments, low, high)
        kind = common(name, arguments)
        return Bound(kind, (kind,) * len(arguments), kernel)

    return rule


def _extreme(larger: Callable[[Array, Array], Array], of_texts: Callable[..., Column]) -> Kernel:
    """The largest, or the least, of some values; null where one is null."""

    def kernel(*columns: Column) -> Column:
        kind = columns[0].type
        if pa.types.is_string(kind) or pa.types.is_binary(kind):
            return of_texts(*columns, skip_nulls=False)
        if pa.types.is_null(kind):
            return columns[0]
        values, ok = dense(columns[0])  # Arrow's differ on times and on what is not a number
        for column in columns[1:]:
            other, valid = dense(column)
            values, ok = larger(values, other), ok & valid
        return from_numpy(values, ok, kind)

    return kernel


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
    "DIV": fixed("int", "int", "int", kernel=int_op("div")),
    "MOD": fixed("int", "int", "int", kernel=int_op("mod")),
    "SAFE_DIVIDE": floating(np.divide, 2),
    # as the operators do here too: null where they overflow
    "SAFE_ADD": by_number(int_op("add"), float_op(np.add), 2),
    "SAFE_SUBTRACT": by_number(int_op("subtract"), float_op(np.subtract), 2),
    "SAFE_MULTIPLY": by_number(int_op("multiply"), float_op(np.multiply), 2),
    "SAFE_NEGATE": by_number(int_negate, float_op(np.negative)),
    "IS_NAN": _is(np.isnan),
    "RANGE_BUCKET": _range_bucket,
    "IS_INF": _is(np.isinf),
    "GREATEST": of_common(1, 99, _extreme(np.maximum, pc.max_element_wise)),
    "LEAST": of_common(1, 99, _extreme(np.minimum, pc.min_element_wise)),
    "COALESCE": of_common(1, 99, pc.coalesce),
    "IFNULL": of_common(2, 2, pc.coalesce),
    "NULLIF": of_common(2, 2, _null_where_equal),
    **TEXTS,
    **TIMES,
}
