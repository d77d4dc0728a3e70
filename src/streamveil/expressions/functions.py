"""The functions a query may call on a row: one table, name -> typing rule and kernel.

A function is added by one line in the table of its kind. A kernel answers each row alone, with null
where SQL would raise. This module has the functions of times, of numbers and of any kind of value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamveil.calendars import require_zone, rules_of
from streamveil.errors import PlanError
from streamveil.expressions import times
from streamveil.expressions.convert import (
    Argument,
    Bound,
    Kernel,
    Kind,
    Rule,
    arity,
    common,
    fixed,
    numeric,
    same,
    written,
    wrong,
)
from streamveil.expressions.kernels import (
    INSTANT,
    Column,
    civil_days,
    dense,
    float_divide,
    float_log,
    float_op,
    float_root,
    from_numpy,
    int_abs,
    int_negate,
    int_op,
    null_unless,
    round_half_away,
)
from streamveil.expressions.text_functions import TEXTS
from streamveil.types import Array

# ---- the functions of dates and times

FORMATS = frozenset("YmdHMSFTjaAbByVGuDReIp")  # letters of formats, as in strftime
PARSED = frozenset("YmdHMSFTjbBy")  # letters of formats that are read


def _pattern(name: str, arguments: Sequence[Argument], known: frozenset[str]) -> str:
    """The format in the first argument of a function; PlanError for letters not in `known`."""
    pattern = str(written(name, arguments, 0, "string"))
    unknown = set(re.findall("%(.?)", pattern.replace("%%", ""))) - known
    if unknown:
        raise PlanError(
            f"argument 1 of {name}: '%{min(unknown)}' is not available; known:"
            f" {' '.join(f'%{letter}' for letter in sorted(known))} %%"
        )
    return pattern


def _format(kind: Kind, *, zoned: bool = False) -> Rule:
    """FORMAT_TIMESTAMP(format, time[, zone]), FORMAT_DATETIME and FORMAT_DATE(format, date)."""

    def rule(name: str, arguments: Sequence[Argument]) -> Bound:
        if not zoned:
            arity(name, arguments, 2)
        zone = _zone(name, arguments, 2)
        pattern = _pattern(name, arguments, FORMATS)
        clocks = times.on_clocks(zone) if zone else times.to_instant if kind == "date" else same

        def kernel(column: Column) -> Column:
            whole = pc.floor_temporal(clocks(column), unit="second").cast(pa.timestamp("s", "UTC"))
            return pc.strftime(whole, format=pattern, locale="C")

        wanted = (None, kind, None) if zone else (None, kind)
        return Bound("string", wanted, kernel)

    return rule


def _parse(result: Kind) -> Rule:
    """PARSE_DATE(format, text) and PARSE_TIMESTAMP(format, text); null where it does not fit."""

    def rule(name: str, arguments: Sequence[Argument]) -> Bound:
        arity(name, arguments, 2)
        pattern = _pattern(name, arguments, PARSED)

        def kernel(column: Column) -> Column:
            found = pc.strptime(column, format=pattern, unit="s", error_is_null=True)
            told = pc.strftime(found, format=pattern, locale="C")  # February 31 becomes March 3
            same = pc.equal(_without_zeros(told), _without_zeros(column))
            found = null_unless(pc.fill_null(same, fill_value=False), found)
            found = found.cast(INSTANT)
            return times.to_date(found) if result == "date" else found

        return Bound(result, (None, "string"), kernel)

    return rule


def _without_zeros(column: Column) -> Column:
    """Texts of times without the zeros at the beginning of numbers."""
    return pc.replace_substring_regex(
        pc.utf8_lower(column), pattern=r"\b0+([0-9])", replacement=r"\1"
    )


def _last_day(name: str, arguments: Sequence[Argument]) -> Bound:
    arity(name, arguments, 1, 2)
    unit = written(name, arguments, 1, "unit") if len(arguments) > 1 else "MONTH"
    weekly = unit == "ISOWEEK" or unit.startswith("WEEK")
    if unit not in times.UNIT_MONTHS and not weekly:
        raise PlanError(f"{name} is the last day of WEEK, ISOWEEK, MONTH, QUARTER or YEAR")
    length = "WEEK" if weekly else unit
    steps = times.truncate(unit), times.shift_by(1, length), times.shift_by(-1, "DAY")

    def kernel(column: Column) -> Column:
        for step in steps:
            column = step(column)
        return column

    return Bound("date", ("date", *[None] * (len(arguments) - 1)), kernel)


def _zone(name: str, arguments: Sequence[Argument], places: int) -> str | None:
    """The time zone that may follow `places` arguments."""
    arity(name, arguments, places, places + 1)
    if len(arguments) == places:
        return None
    return require_zone(written(name, arguments, places, "string"))


def _to_date(name: str, arguments: Sequence[Argument]) -> Bound:
    if len(arguments) == 3:
        return Bound("date", ("int",) * 3, _civil)
    zone, kind = _zone(name, arguments, 1), arguments[0].kind
    if zone is not None:
        return Bound("date", ("timestamp", None), times.on_calendar(zone))
    if kind in ("date", "string"):
        return Bound("date", ("date",), same)  # the caller converts a text, as CAST does
    return Bound("date", ("timestamp",), times.to_date)


def _civil(*parts: Column) -> Column:
    """A date from its year, month and day; null where the calendar has none."""
    numbers, there = zip(*map(dense, parts), strict=True)
    days, fine = civil_days(*numbers)
    return from_numpy(days, np.logical_and.reduce([fine, *there]), pa.date32())


def _to_clock(name: str, arguments: Sequence[Argument]) -> Bound:
    """DATETIME(time[, zone]), DATETIME(date), DATETIME(year, month, day, hour, minute, second)."""
    if len(arguments) == 6:
        return Bound("timestamp", ("int",) * 6, _civil_clock)
    zone = _zone(name, arguments, 1)
    if zone is not None:
        return Bound("timestamp", ("timestamp", None), times.on_clocks(zone))
    return _to_instant(name, arguments)


def _civil_clock(*parts: Column) -> Column:
    """A time of a day from its six numbers; null where no clock shows them."""
    days, ok = times.micros(_civil(*parts[:3]))
    for part, most, unit in zip(parts[3:], (24, 60, 60), ("HOUR", "MINUTE", "SECOND"), strict=True):
        values, there = dense(part)
        fits = (values >= 0) & (values < most)
        ok = ok & there & fits
        days = days + np.where(fits, values, 0) * times.UNIT_US[unit]
    return from_numpy(days, ok, INSTANT)


def _to_instant(name: str, arguments: Sequence[Argument]) -> Bound:
    zone, kind = _zone(name, arguments, 1), arguments[0].kind
    if zone is not None:  # when clocks show midnight for good, or first a DATETIME, or a text
        day, rules = kind == "date", rules_of(zone)
        moved = times.of_micros(rules.instants if day else rules.first, INSTANT)
        return Bound("timestamp", ("date" if day else "timestamp", None), moved)
    if kind == "date":
        return Bound("timestamp", ("date",), times.to_instant)
    return Bound("timestamp", ("timestamp",), same)


def _truncate(cut: Kind) -> Rule:
    def rule(name: str, arguments: Sequence[Argument]) -> Bound:
        zone = _zone(name, arguments, 2)
        kind: Kind = "timestamp" if arguments[0].kind == "timestamp" else cut  # as GoogleSQL has it
        unit = written(name, arguments, 1, "unit")
        if zone is not None and arguments[0].kind == "date":
            raise wrong(name, arguments[0], 0, "timestamp, where a time zone follows")
        if zone is not None:
            kernel = times.truncate_on_clocks(unit, zone)
            return Bound("timestamp", ("timestamp", None, None), kernel)
        if kind == "date" and unit in ("MICROSECOND", "MILLISECOND", "SECOND", "MINUTE", "HOUR"):
            raise PlanError(f"{name} cannot cut a date to {unit}; use TIMESTAMP_TRUNC")
        return Bound(kind, (kind, None), times.truncate(unit))

    return rule


def _shift(kind: Kind, sign: int) -> Rule:
    def rule(name: str, arguments: Sequence[Argument]) -> Bound:
        arity(name, arguments, 2)
        amount, unit = written(name, arguments, 1, "interval")
        if kind == "date" and unit in ("MICROSECOND", "MILLISECOND", "SECOND", "MINUTE", "HOUR"):
            raise PlanError(f"{name} moves dates by days or more; use TIMESTAMP_ADD for {unit}")
        return Bound(kind, (kind, None), times.shift_by(sign * amount, unit))

    return rule


def _difference(kind: Kind, *, borders: bool) -> Rule:
    def rule(name: str, arguments: Sequence[Argument]) -> Bound:
        arity(name, arguments, 3)
        unit = written(name, arguments, 2, "unit")
        return Bound("int", (kind, kind, None), times.difference(unit, borders=borders))

    return rule


TIMES: dict[str, Rule] = {
    "FORMAT_TIMESTAMP": _format("timestamp", zoned=True),
    "FORMAT_DATETIME": _format("timestamp"),
    "FORMAT_DATE": _format("date"),
    "PARSE_TIMESTAMP": _parse("timestamp"),
    "PARSE_DATETIME": _parse("timestamp"),
    "PARSE_DATE": _parse("date"),
    "LAST_DAY": _last_day,
    "DATE": _to_date,
    "TIMESTAMP": _to_instant,
    "DATETIME": _to_clock,
    "DATETIME_TRUNC": _truncate("timestamp"),
    "DATETIME_ADD": _shift("timestamp", 1),
    "DATETIME_SUB": _shift("timestamp", -1),
    "DATETIME_DIFF": _difference("timestamp", borders=True),
    "TIMESTAMP_TRUNC": _truncate("timestamp"),
    "DATE_TRUNC": _truncate("date"),
    "TIMESTAMP_ADD": _shift("timestamp", 1),
    "TIMESTAMP_SUB": _shift("timestamp", -1),
    "DATE_ADD": _shift("date", 1),
    "DATE_SUB": _shift("date", -1),
    "TIMESTAMP_DIFF": _difference("timestamp", borders=False),
    "DATE_DIFF": _difference("date", borders=True),
    "DATE_FROM_UNIX_DATE": fixed("date", "int", kernel=times.from_days),
    "TIMESTAMP_SECONDS": fixed("timestamp", "int", kernel=times.from_epoch(1_000_000)),
    "TIMESTAMP_MILLIS": fixed("timestamp", "int", kernel=times.from_epoch(1_000)),
    "TIMESTAMP_MICROS": fixed("timestamp", "int", kernel=times.from_epoch(1)),
    "UNIX_SECONDS": fixed("int", "timestamp", kernel=times.to_epoch(1_000_000)),
    "UNIX_MILLIS": fixed("int", "timestamp", kernel=times.to_epoch(1_000)),
    "UNIX_MICROS": fixed("int", "timestamp", kernel=times.to_epoch(1)),
    "UNIX_DATE": fixed("int", "date", kernel=times.to_epoch(times.UNIT_US["DAY"])),
}


# ---- all functions


def floating(kernel: Kernel, places: int = 1) -> Rule:
    """A function of floats to a float."""
    return fixed("float", *["float"] * places, kernel=kernel)


def by_number(on_int: Kernel, on_float: Kernel, places: int = 1) -> Rule:
    """A function of numbers that keeps their type."""

    def rule(name: str, arguments: Sequence[Argument]) -> Bound:
        arity(name, arguments, places)
        kind = numeric(name, arguments)
        return Bound(kind, (kind,) * places, on_int if kind == "int" else on_float)

    return rule


def of_common(low: int, high: int, kernel: Kernel) -> Rule:
    """A function of `low` to `high` values of one kind, with a result of that kind."""

    def rule(name: str, arguments: Sequence[Argument]) -> Bound:
        arity(name, arguments, low, high)
        kind = common(name, arguments)
        return Bound(kind, (kind,) * len(arguments), kernel)

    return rule


def _extreme(larger: Callable[[Array, Array], Array], of_texts: Callable[..., Column]) -> Kernel:
    """The kernel of the largest, or the least, of some values; null where one is null."""

    def kernel(*columns: Column) -> Column:
        kind = columns[0].type
        if pa.types.is_string(kind) or pa.types.is_binary(kind):
            return of_texts(*columns, skip_nulls=False)
        if pa.types.is_null(kind):
            return columns[0]
        values, ok = dense(columns[0])  # Arrow's kernels differ on times and on NaN
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
        return Bound("float", ("float",), float_log(np.log))
    kernel = float_op(
        lambda a, base: np.log(a) / np.log(base), lambda _, base: ~(base <= 0) & (base != 1)
    )
    return Bound("float", ("float",) * 2, kernel)


def _range_bucket(name: str, arguments: Sequence[Argument]) -> Bound:
    """The number of ends that are at most a number; null for NaN."""
    arity(name, arguments, 2, 999)
    kind = numeric(name, arguments)
    ends = [argument.constant for argument in arguments[1:]]
    if any(end is None for end in ends) or sorted(ends) != ends:
        raise PlanError(
            f"{name} takes ends that are written in the query, in order: RANGE_BUCKET(x, [10, 20])"
        )
    at = np.array(ends, np.int64 if kind == "int" else np.float64)

    def kernel(column: Column) -> Column:
        values, ok = dense(column)
        return from_numpy(
            np.searchsorted(at, values, side="right"), ok & (values == values), pa.int64()
        )

    return Bound("int", (kind, *[None] * len(ends)), kernel)


def _is(test: Callable[[Array], Array]) -> Rule:
    def kernel(column: Column) -> Column:
        values, ok = dense(column)
        return from_numpy(test(values), ok, pa.bool_())

    return fixed("bool", "float", kernel=kernel)


FUNCTIONS: dict[str, Rule] = {
    "ABS": by_number(int_abs, float_op(np.abs)),
    "SIGN": by_number(lambda c: pc.sign(c).cast(pa.int64()), float_op(np.sign)),
    "ROUND": _round,
    "FLOOR": floating(float_op(np.floor)),
    "CEIL": floating(float_op(np.ceil)),
    "CEILING": floating(float_op(np.ceil)),
    "TRUNC": floating(float_op(np.trunc)),
    "SQRT": floating(float_root),
    "EXP": floating(float_op(np.exp)),
    "LN": floating(float_log(np.log)),
    "LOG": _log,
    "LOG10": floating(float_log(np.log10)),
    "POW": floating(float_op(np.power), 2),
    "POWER": floating(float_op(np.power), 2),
    "DIV": fixed("int", "int", "int", kernel=int_op("div")),
    "MOD": fixed("int", "int", "int", kernel=int_op("mod")),
    "SAFE_DIVIDE": floating(float_divide, 2),
    # null where they overflow, as for operators here
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
