"""The functions a query may call on a row: one table, name -> typing rule and kernel.

A function is added by one line in `FUNCTIONS` (and a row in docs/sql.md, which a test compares).
Arguments that shape the kernel (patterns, positions, units) must be written as constants, so that
the query is fixed before any row is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamveil.calendars.zones import require_zone
from streamveil.errors import PlanError
from streamveil.expressions import texts, times
from streamveil.expressions.kernels import (
    INSTANT,
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
from streamveil.types import Array

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
        raise PlanError(f"argument {place + 1} of {name} must be a constant of type {kind}")
    return argument.constant


def wrong(name: str, argument: Argument, place: int, wanted: str) -> PlanError:
    """A type error that names the place and never a value."""
    return PlanError(f"argument {place + 1} of {name} must be {wanted}, not {argument.kind}")


def fixed(result: Kind, *wanted: Kind, kernel: Kernel) -> Rule:
    """A function of one signature."""

    def rule(name: str, arguments: Sequence[Argument]) -> Bound:
        arity(name, arguments, len(wanted))
        return Bound(result, wanted, kernel)

    return rule


def floating(function: Callable[..., Array], places: int = 1) -> Rule:
    """A function of floats to a float."""
    return fixed("float", *["float"] * places, kernel=float_op(function))


def numeric(name: str, arguments: Sequence[Argument]) -> Kind:
    """'int' when all arguments are integers, 'float' when some are floats."""
    for place, argument in enumerate(arguments):
        if argument.kind not in ("int", "float", "null"):
            raise wrong(name, argument, place, "a number")
    return "float" if any(a.kind == "float" for a in arguments) else "int"


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
    digits = constant(name, arguments, 1, "int")
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


def _concat(name: str, arguments: Sequence[Argument]) -> Bound:
    arity(name, arguments, 1, 99)
    return Bound("string", ("string",) * len(arguments), concatenate)


def concatenate(*columns: Column) -> Column:
    """Texts one after the other; null when one is null."""
    empty = pa.scalar("", columns[0].type)
    return pc.binary_join_element_wise(*columns, empty, null_handling="emit_null")


def _trim(all_sides: Kernel, of_characters: Kernel) -> Rule:
    def rule(name: str, arguments: Sequence[Argument]) -> Bound:
        arity(name, arguments, 1, 2)
        if len(arguments) == 1:
            return Bound("string", ("string",), all_sides)
        characters = constant(name, arguments, 1, "string")
        return Bound("string", ("string", None), lambda c: of_characters(c, characters=characters))

    return rule


def _substring(name: str, arguments: Sequence[Argument]) -> Bound:
    arity(name, arguments, 2, 3)
    start = constant(name, arguments, 1, "int")
    begin = start - 1 if start > 0 else start
    if len(arguments) == 2:
        return Bound("string", ("string", None), _slice(begin, None))
    length = constant(name, arguments, 2, "int")
    if length < 0:
        raise PlanError(f"argument 3 of {name} must not be negative")
    if begin < 0:  # from the end: cut there first, then take the length
        head, tail = _slice(begin, None), _slice(0, length)
        return Bound("string", ("string", None, None), lambda c: tail(head(c)))
    return Bound("string", ("string", None, None), _slice(begin, begin + length))


def _slice(start: int, stop: int | None) -> Kernel:
    limit = 2**31 - 1
    begin = max(-limit, min(start, limit))
    end = None if stop is None else max(-limit, min(stop, limit))
    return lambda c: pc.utf8_slice_codeunits(c, begin, end)


def _ends(side: str) -> Rule:
    def rule(name: str, arguments: Sequence[Argument]) -> Bound:
        arity(name, arguments, 2)
        length = constant(name, arguments, 1, "int")
        if length < 0:
            raise PlanError(f"argument 2 of {name} must not be negative")
        if side == "left":
            return Bound("string", ("string", None), _slice(0, length))
        kernel = _slice(-length, None) if length else _slice(0, 0)
        return Bound("string", ("string", None), kernel)

    return rule


def _replace(name: str, arguments: Sequence[Argument]) -> Bound:
    arity(name, arguments, 3)
    old, new = (constant(name, arguments, place, "string") for place in (1, 2))
    kernel: Kernel = (
        (lambda c: pc.replace_substring(c, pattern=old, replacement=new)) if old else _same
    )
    return Bound("string", ("string", None, None), kernel)


def _same(column: Column) -> Column:
    return column


def _with_text(kernel: Callable[[Column, str], Column], result: Kind = "bool") -> Rule:
    def rule(name: str, arguments: Sequence[Argument]) -> Bound:
        arity(name, arguments, 2)
        text = constant(name, arguments, 1, "string")
        return Bound(result, ("string", None), lambda c: kernel(c, text))

    return rule


def _regexp(kernel: Callable[[Column, str], Column]) -> Rule:
    def rule(name: str, arguments: Sequence[Argument]) -> Bound:
        bound = _with_text(kernel)(name, arguments)
        try:
            bound.kernel(pa.array([""]))
        except pa.ArrowInvalid:
            raise PlanError(f"argument 2 of {name} is not a valid regular expression") from None
        return bound

    return rule


def _regexp_extract(name: str, arguments: Sequence[Argument]) -> Bound:
    """The first match of a pattern, or of its only group; null where there is none."""
    _regexp(lambda c, text: pc.match_substring_regex(c, pattern=text))(name, arguments)
    pattern = constant(name, arguments, 1, "string")
    groups = group_places(pattern)
    if len(groups) > 1:
        raise PlanError(
            f"argument 2 of {name} has {len(groups)} groups, and one is extracted.\n"
            "  to fix  write the others as (?:...)"
        )
    named = f"(?P<found>{pattern})"
    if groups:
        named = f"{pattern[: groups[0]]}(?P<found>{pattern[groups[0] + 1 :]}"

    def kernel(column: Column) -> Column:
        return pc.struct_field(pc.extract_regex(column, pattern=named), "found")

    return Bound("string", ("string", None), kernel)


def _regexp_instr(name: str, arguments: Sequence[Argument]) -> Bound:
    """The character at which the first match begins; 0 where there is none."""
    _regexp(lambda c, text: pc.match_substring_regex(c, pattern=text))(name, arguments)
    pattern = constant(name, arguments, 1, "string")
    if group_places(pattern):
        raise PlanError(
            f"argument 2 of {name} has groups; here it is the whole match that is found.\n"
            "  to fix  write them as (?:...)"
        )
    return Bound("int", ("string", None), texts.place_of(pattern))


def _printf(name: str, arguments: Sequence[Argument]) -> Bound:
    """FORMAT(format, values): a text by the directives of C."""
    arity(name, arguments, 2, 99)
    pieces = texts.directives(name, constant(name, arguments, 0, "string"))
    kinds = [piece.kind for piece in pieces if piece.kind]
    if len(kinds) != len(arguments) - 1:
        raise PlanError(
            f"argument 1 of {name} writes {len(kinds)} value(s), and {len(arguments) - 1} follow"
        )
    wanted = [a.kind if k == "any" else k for k, a in zip(kinds, arguments[1:], strict=True)]
    return Bound("string", (None, *wanted), texts.formatted(pieces))


def group_places(pattern: str) -> list[int]:
    r"""Where the groups of a regular expression begin that have no name and are extracted.

    >>> group_places(r"a\((b)[(](?:c)(d)")
    [3, 14]
    """
    found, inside, at = [], False, 0
    while at < len(pattern):
        letter = pattern[at]
        if letter == "\\":
            at += 1
        elif letter == "[":
            inside = True
        elif letter == "]":
            inside = False
        elif letter == "(" and not inside and pattern[at + 1 : at + 2] != "?":
            found.append(at)
        at += 1
    return found


def _regexp_replace(name: str, arguments: Sequence[Argument]) -> Bound:
    arity(name, arguments, 3)
    _regexp(lambda c, text: pc.match_substring_regex(c, pattern=text))(name, arguments[:2])
    old, new = (constant(name, arguments, place, "string") for place in (1, 2))

    def kernel(column: Column) -> Column:
        return pc.replace_substring_regex(column, pattern=old, replacement=new)

    try:
        kernel(pa.array(["a"]))
    except pa.ArrowInvalid:
        raise PlanError(
            f"argument 3 of {name} names a group that its pattern does not have"
        ) from None
    return Bound("string", ("string", None, None), kernel)


def _format(kind: Kind, *, zoned: bool = False) -> Rule:
    """FORMAT_TIMESTAMP(format, time[, zone]), FORMAT_DATETIME and FORMAT_DATE(format, date)."""

    def rule(name: str, arguments: Sequence[Argument]) -> Bound:
        if not zoned:
            arity(name, arguments, 2)
        zone = _zone(name, arguments, 2)
        pattern = constant(name, arguments, 0, "string")
        unknown = set(re.findall("%(.?)", pattern.replace("%%", ""))) - FORMATS
        if unknown:
            raise PlanError(
                f"argument 1 of {name}: '%{min(unknown)}' is not available; known:"
                f" {' '.join(f'%{letter}' for letter in sorted(FORMATS))} %%"
            )
        clocks = times.on_clocks(zone) if zone else times.to_instant if kind == "date" else _same

        def kernel(column: Column) -> Column:
            whole = pc.floor_temporal(clocks(column), unit="second").cast(pa.timestamp("s", "UTC"))
            return pc.strftime(whole, format=pattern, locale="C")

        wanted = (None, kind, None) if zone else (None, kind)
        return Bound("string", wanted, kernel)

    return rule


FORMATS = frozenset("YmdHMSFTjaAbByVGuDReIp")  # letters of formats, as strftime has them


def _parse(result: Kind) -> Rule:
    """PARSE_DATE(format, text) and PARSE_TIMESTAMP(format, text); null where it does not fit."""

    def rule(name: str, arguments: Sequence[Argument]) -> Bound:
        arity(name, arguments, 2)
        pattern = constant(name, arguments, 0, "string")
        unknown = set(re.findall("%(.?)", pattern.replace("%%", ""))) - PARSED
        if unknown:
            raise PlanError(
                f"argument 1 of {name}: '%{min(unknown)}' is not available; known:"
                f" {' '.join(f'%{letter}' for letter in sorted(PARSED))} %%"
            )

        def kernel(column: Column) -> Column:
            found = pc.strptime(column, format=pattern, unit="s", error_is_null=True)
            told = pc.strftime(found, format=pattern, locale="C")  # of February 31 March 3
            same = pc.equal(_without_zeros(told), _without_zeros(column))
            found = null_unless(pc.fill_null(same, fill_value=False), found)
            found = found.cast(INSTANT)
            return times.to_date(found) if result == "date" else found

        return Bound(result, (None, "string"), kernel)

    return rule


def _without_zeros(column: Column) -> Column:
    """Texts of times, whether or not their numbers begin with a 0."""
    return pc.replace_substring_regex(
        pc.utf8_lower(column), pattern=r"\b0+([0-9])", replacement=r"\1"
    )


PARSED = frozenset("YmdHMSFTjbBy")  # letters of formats that are read


def _last_day(name: str, arguments: Sequence[Argument]) -> Bound:
    arity(name, arguments, 1, 2)
    unit = constant(name, arguments, 1, "unit") if len(arguments) > 1 else "MONTH"
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


def _split_part(name: str, arguments: Sequence[Argument]) -> Bound:
    """One part of a text, from 1: SPLIT(s, between)[OFFSET(n - 1)]; null where there is none."""
    arity(name, arguments, 3)
    between, place = constant(name, arguments, 1, "string"), constant(name, arguments, 2, "int")
    if not between or place < 1:
        raise PlanError(
            f"{name} takes what stands between the parts, and which part, from 1.\n"
            "  to fix  SPLIT(path, '/')[SAFE_OFFSET(1)]"
        )

    def kernel(column: Column) -> Column:
        parts = pc.split_pattern(column, pattern=between, max_splits=place)
        there = pc.fill_null(pc.greater_equal(pc.list_value_length(parts), place), False)  # noqa: FBT003
        starts = np.asarray(parts.offsets)[:-1] + place - 1
        values = parts.values.take(pa.array(np.where(there, starts, 0), mask=~np.asarray(there)))
        return values.cast(column.type)

    return Bound("string", ("string", None, None), kernel)


def _pad(kernel: Callable[..., Column]) -> Rule:
    def rule(name: str, arguments: Sequence[Argument]) -> Bound:
        arity(name, arguments, 2, 3)
        width = constant(name, arguments, 1, "int")
        padding = constant(name, arguments, 2, "string") if len(arguments) > 2 else " "
        if not 0 <= width <= MOST_PADDED or len(padding) != 1:
            raise PlanError(
                f"{name} takes a width of 0 to {MOST_PADDED:,} and one character to pad with"
            )
        cut = _slice(0, width)
        wanted: tuple[Kind | None, ...] = ("string", *[None] * (len(arguments) - 1))
        return Bound("string", wanted, lambda c: kernel(cut(c), width=width, padding=padding))

    return rule


MOST_PADDED = 1_000  # characters


def _position(column: Column, text: str) -> Column:
    return texts.place_of(texts.quoted(text))(column)


def _zone(name: str, arguments: Sequence[Argument], places: int) -> str | None:
    """The time zone that may follow so many arguments."""
    arity(name, arguments, places, places + 1)
    if len(arguments) == places:
        return None
    return require_zone(constant(name, arguments, places, "string"))


def _to_date(name: str, arguments: Sequence[Argument]) -> Bound:
    if len(arguments) == 3:
        return Bound("date", ("int",) * 3, _civil)
    zone, kind = _zone(name, arguments, 1), arguments[0].kind
    if zone is not None:
        return Bound("date", ("timestamp", None), times.on_calendar(zone))
    if kind == "date":
        return Bound("date", ("date",), _same)
    if kind == "string":
        return Bound("date", ("date",), _same)  # the caller converts, as CAST does
    return Bound("date", ("timestamp",), times.to_date)


def _civil(*parts: Column) -> Column:
    """A date from its year, month and day; null where the calendar has none."""
    (year, ok), (month, has_month), (day, has_day) = map(dense, parts)
    ok = ok & has_month & has_day & (year >= 1) & (year <= 9999)
    ok &= (month >= 1) & (month <= 12) & (day >= 1) & (day <= 31)
    months = np.where(ok, (year - 1970) * 12 + month - 1, 0)
    first = months.astype("datetime64[M]").astype("datetime64[D]")
    found = first + np.where(ok, day - 1, 0)
    ok &= found.astype("datetime64[M]").astype(np.int64) == months
    return from_numpy(found.astype(np.int64), ok, pa.date32())


def _to_clock(name: str, arguments: Sequence[Argument]) -> Bound:
    """DATETIME(time[, zone]), DATETIME(date), DATETIME(year, month, day, hour, minute, second)."""
    if len(arguments) == 6:
        return Bound("timestamp", ("int",) * 6, _civil_clock)
    zone, kind = _zone(name, arguments, 1), arguments[0].kind
    if zone is not None:
        return Bound("timestamp", ("timestamp", None), times.on_clocks(zone))
    if kind == "date":
        return Bound("timestamp", ("date",), times.to_instant)
    return Bound("timestamp", ("timestamp",), _same)


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
    if zone is not None:
        return Bound("timestamp", ("date", None), times.midnight(zone))
    if kind == "date":
        return Bound("timestamp", ("date",), times.to_instant)
    return Bound("timestamp", ("timestamp",), _same)


def _truncate(cut: Kind) -> Rule:
    def rule(name: str, arguments: Sequence[Argument]) -> Bound:
        zone = _zone(name, arguments, 2)
        kind: Kind = "timestamp" if arguments[0].kind == "timestamp" else cut  # as GoogleSQL has it
        unit = constant(name, arguments, 1, "unit")
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
        amount, unit = constant(name, arguments, 1, "interval")
        if kind == "date" and unit in ("MICROSECOND", "MILLISECOND", "SECOND", "MINUTE", "HOUR"):
            raise PlanError(f"{name} moves dates by days or more; use TIMESTAMP_ADD for {unit}")
        return Bound(kind, (kind, None), times.shift_by(sign * amount, unit))

    return rule


def _difference(kind: Kind, *, borders: bool) -> Rule:
    def rule(name: str, arguments: Sequence[Argument]) -> Bound:
        arity(name, arguments, 3)
        unit = constant(name, arguments, 2, "unit")
        return Bound("int", (kind, kind, None), times.difference(unit, borders=borders))

    return rule


def _safe(operation: str, on_float: Callable[..., Array]) -> Rule:
    """SAFE_ADD and its like: what + does here too, null where it overflows."""

    def rule(name: str, arguments: Sequence[Argument]) -> Bound:
        arity(name, arguments, 2)
        kind = numeric(name, arguments)
        return Bound(kind, (kind, kind), int_op(operation) if kind == "int" else float_op(on_float))

    return rule


def _unix(scale: int) -> Rule:
    return fixed("int", "timestamp", kernel=times.to_epoch(scale))


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
    "CONCAT": _concat,
    "LOWER": fixed("string", "string", kernel=pc.utf8_lower),
    "UPPER": fixed("string", "string", kernel=pc.utf8_upper),
    "TRIM": _trim(pc.utf8_trim_whitespace, pc.utf8_trim),
    "LTRIM": _trim(pc.utf8_ltrim_whitespace, pc.utf8_ltrim),
    "RTRIM": _trim(pc.utf8_rtrim_whitespace, pc.utf8_rtrim),
    "LENGTH": fixed("int", "string", kernel=lambda c: pc.utf8_length(c).cast(pa.int64())),
    "CHAR_LENGTH": fixed("int", "string", kernel=lambda c: pc.utf8_length(c).cast(pa.int64())),
    "SUBSTR": _substring,
    "SUBSTRING": _substring,
    "LEFT": _ends("left"),
    "RIGHT": _ends("right"),
    "REVERSE": fixed("string", "string", kernel=pc.utf8_reverse),
    "REPLACE": _replace,
    "INITCAP": fixed("string", "string", kernel=pc.utf8_title),
    "LPAD": _pad(pc.utf8_lpad),
    "RPAD": _pad(pc.utf8_rpad),
    "SPLIT_PART": _split_part,
    "STRPOS": _with_text(_position, "int"),
    "INSTR": _with_text(_position, "int"),
    "BYTE_LENGTH": fixed("int", "string", kernel=texts.bytes_of),
    "OCTET_LENGTH": fixed("int", "string", kernel=texts.bytes_of),
    "FORMAT": _printf,
    "STARTS_WITH": _with_text(lambda c, text: pc.starts_with(c, pattern=text)),
    "ENDS_WITH": _with_text(lambda c, text: pc.ends_with(c, pattern=text)),
    "CONTAINS_SUBSTR": _with_text(
        lambda c, text: pc.match_substring(pc.utf8_lower(c), pattern=text.lower())
    ),
    "REGEXP_CONTAINS": _regexp(lambda c, text: pc.match_substring_regex(c, pattern=text)),
    "REGEXP_EXTRACT": _regexp_extract,
    "REGEXP_SUBSTR": _regexp_extract,
    "REGEXP_REPLACE": _regexp_replace,
    "REGEXP_INSTR": _regexp_instr,
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
    "UNIX_SECONDS": _unix(1_000_000),
    "UNIX_MILLIS": _unix(1_000),
    "UNIX_MICROS": _unix(1),
    "UNIX_DATE": fixed("int", "date", kernel=times.to_epoch(times.UNIT_US["DAY"])),
}
