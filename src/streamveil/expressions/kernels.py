"""Row functions on whole Arrow arrays that cannot fail: what SQL would refuse becomes null.

Every kernel is a function of each row alone. That is a privacy property, not only a convenience:
a kernel that raised, or switched to another method, because of one person's row would change what
happens to everybody else's rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamveil.types import Array

INT_MIN, INT_MAX = -(2**63), 2**63 - 1
DAY_US = 86_400_000_000
FIRST_US = -719_162 * DAY_US  # 0001-01-01
AFTER_US = 2_932_897 * DAY_US  # 10000-01-01
Column = Any  # pa.Array; pyarrow ships no types
INSTANT = pa.timestamp("us", tz="UTC")

_DATE = r"^\s*(?P<y>\d{4})-(?P<mo>\d{1,2})-(?P<d>\d{1,2})\s*$"
_INSTANT = (
    r"^\s*(?P<y>\d{4})-(?P<mo>\d{1,2})-(?P<d>\d{1,2})"
    r"(?:[ Tt](?P<h>\d{1,2}):(?P<mi>\d{1,2})(?::(?P<s>\d{1,2})(?:\.(?P<f>\d{1,9}))?)?)?"
    r"\s*(?P<z>[Zz]|UTC|(?P<zs>[+-])(?P<zh>\d{1,2})(?::?(?P<zm>\d{2}))?)?\s*$"
)
_FLOAT = r"^[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,9})?$"
_FLOAT_WORD = r"^(?i:[+-]?inf(?:inity)?|nan)$"


def null_unless(ok: Column, values: Column) -> Column:
    """`values` where `ok` is true, null elsewhere."""
    return pc.if_else(ok, values, pa.scalar(None, values.type))


def from_numpy(values: Array, ok: Array, kind: Any) -> Column:
    """An Arrow array of `kind` that is null where not `ok`."""
    if pa.types.is_date32(kind):
        ok = ok & (np.abs(values) < 2**31)
        values = np.where(ok, values, 0).astype(np.int32)
    column = pa.array(values, mask=~ok)
    return column if column.type == kind else column.cast(kind)


def from_micros(values: Array, ok: Array, kind: Any = INSTANT) -> Column:
    """Microseconds as a column of times, or of dates; null outside the years 1 to 9999."""
    ok = ok & (values >= FIRST_US) & (values < AFTER_US)
    return from_numpy(values // DAY_US if pa.types.is_date32(kind) else values, ok, kind)


def dense(column: Column) -> tuple[Array, Array]:
    """The values (zero at nulls; times as integers), and which rows have one."""
    ok = pc.is_valid(column).to_numpy(zero_copy_only=False)
    if pa.types.is_temporal(column.type):
        column = column.cast(pa.int32() if pa.types.is_date32(column.type) else pa.int64())
    zero = pa.scalar(value=False) if pa.types.is_boolean(column.type) else pa.scalar(0, column.type)
    values = pc.fill_null(column, zero).to_numpy(zero_copy_only=False)
    return (values.astype(np.int64) if values.dtype.kind == "i" else values), ok


# -- integers ------------------------------------------------------------------------------------


def int_op(name: str) -> Callable[[Column, Column], Column]:
    """Checked 64-bit arithmetic: 'add', 'subtract', 'multiply', 'div', 'mod'."""

    def run(left: Column, right: Column) -> Column:
        (a, a_ok), (b, b_ok) = dense(left), dense(right)
        with np.errstate(all="ignore"):
            values, fine = _INT_OPS[name](a, b)
        return from_numpy(values, a_ok & b_ok & fine, pa.int64())

    return run


def _add(a: Array, b: Array) -> tuple[Array, Array]:
    r = a + b
    return r, ((a ^ r) & (b ^ r)) >= 0


def _subtract(a: Array, b: Array) -> tuple[Array, Array]:
    r = a - b
    return r, ((a ^ b) & (a ^ r)) >= 0


def _multiply(a: Array, b: Array) -> tuple[Array, Array]:
    r = a * b
    safe = np.where(b == 0, 1, b)
    low = (a == INT_MIN) & (b == -1)
    exact = np.where(low, 0, r) // np.where(low, 1, safe)  # wrapped products do not divide back
    far = np.abs(a.astype(float) * b.astype(float)) > 2.0**63 + 2.0**12
    return r, (b == 0) | (~low & ~far & (exact == a) & (exact * safe == r))


def _div(a: Array, b: Array) -> tuple[Array, Array]:
    fine = (b != 0) & ~((a == INT_MIN) & (b == -1))
    safe = np.where(fine, b, 1)
    q = a // safe
    return q + ((a % safe != 0) & ((a < 0) != (safe < 0))), fine  # toward zero, as SQL does


def _mod(a: Array, b: Array) -> tuple[Array, Array]:
    safe = np.where((b == 0) | (b == -1), 1, b)
    return np.fmod(a, safe), b != 0


_INT_OPS: dict[str, Callable[[Array, Array], tuple[Array, Array]]] = {
    "add": _add,
    "subtract": _subtract,
    "multiply": _multiply,
    "div": _div,
    "mod": _mod,
}


def int_negate(column: Column) -> Column:
    """-x; null for the smallest integer."""
    a, ok = dense(column)
    return from_numpy(np.negative(a), ok & (a != INT_MIN), pa.int64())


def int_abs(column: Column) -> Column:
    """|x|; null for the smallest integer."""
    a, ok = dense(column)
    return from_numpy(np.abs(a), ok & (a != INT_MIN), pa.int64())


# -- floating point ------------------------------------------------------------------------------


def float_op(
    function: Callable[..., Array], defined: Callable[..., Array] | None = None
) -> Callable[..., Column]:
    """A NumPy function; a result that is not finite although its inputs are becomes null.

    `defined`: the inputs for which SQL has a value. Infinite inputs can be excluded too.

    >>> divide = float_op(np.divide, lambda _, b: b != 0)
    >>> divide(pa.array([6.0, 6.0, np.inf, np.inf]), pa.array([3.0, 0.0, 0.0, 3.0])).to_pylist()
    [2.0, None, None, inf]
    """

    def run(*columns: Column) -> Column:
        pairs = [dense(column) for column in columns]
        with np.errstate(all="ignore"):
            values = function(*(a for a, _ in pairs))
        ok = np.isfinite(values)
        finite = np.ones(len(values), bool)
        for a, valid in pairs:
            ok, finite = ok & valid, finite & np.isfinite(a) & valid
        ok |= np.logical_and.reduce([valid for _, valid in pairs]) & ~finite
        if defined is not None:
            ok &= defined(*(a for a, _ in pairs))
        return from_numpy(values, ok, pa.float64())

    return run


float_divide = float_op(np.divide, lambda _, b: b != 0)
float_root = float_op(np.sqrt, lambda a: ~(a < 0))


def float_log(function: Callable[[Array], Array]) -> Callable[[Column], Column]:
    """A logarithm; null unless the number is above 0."""
    return float_op(function, lambda a: ~(a <= 0))


def round_half_away(a: Array) -> Array:
    """Nearest integer, halves away from zero."""
    whole = np.trunc(a)
    return whole + np.where(np.abs(a - whole) >= 0.5, np.sign(a), 0.0)


def float_to_int(column: Column) -> Column:
    """CAST(float AS INT64): nearest, halves away from zero; null outside the 64-bit range."""
    a, ok = dense(column)
    with np.errstate(all="ignore"):
        r = round_half_away(a)
        fine = ok & (r >= -(2.0**63)) & (r < 2.0**63)
        return from_numpy(np.where(fine, r, 0.0).astype(np.int64), fine, pa.int64())


# -- strings -------------------------------------------------------------------------------------


def string_to_int(column: Column) -> Column:
    """CAST(string AS INT64); null where it is not a decimal integer of 64 bits."""
    text = pc.utf8_trim_whitespace(column)
    text = null_unless(pc.match_substring_regex(text, r"^[+-]?[0-9]{1,36}$"), text)
    text = pc.replace_substring_regex(text, r"^\+", "")
    wide = text.cast(pa.decimal128(38, 0))
    inside = pc.and_(
        pc.greater_equal(wide, pa.scalar(INT_MIN, pa.decimal128(38, 0))),
        pc.less_equal(wide, pa.scalar(INT_MAX, pa.decimal128(38, 0))),
    )
    return null_unless(inside, wide).cast(pa.int64())


def string_to_float(column: Column) -> Column:
    """CAST(string AS FLOAT64); null where it is not a number or overflows."""
    text = pc.utf8_trim_whitespace(column)
    plain = pc.match_substring_regex(text, _FLOAT)
    word = pc.match_substring_regex(text, _FLOAT_WORD)
    clean = pc.replace_substring_regex(null_unless(pc.or_(plain, word), text), r"^\+", "")
    values = pc.utf8_lower(clean).cast(pa.float64())
    return null_unless(pc.or_(word, pc.is_finite(values)), values)


def string_to_bool(column: Column) -> Column:
    """CAST(string AS BOOL): 'true' or 'false' in any case."""
    text = pc.utf8_lower(pc.utf8_trim_whitespace(column))
    yes = pc.equal(text, "true")
    return null_unless(pc.or_(yes, pc.equal(text, "false")), yes)


def string_to_date(column: Column) -> Column:
    """CAST(string AS DATE) for YYYY-MM-DD; null where there is no such day."""
    return from_numpy(*_days_of(pc.extract_regex(column, _DATE)), pa.date32())


def string_to_instant(column: Column) -> Column:
    """CAST(string AS TIMESTAMP) for ISO 8601 texts with an optional offset (UTC otherwise)."""
    part = pc.extract_regex(column, _INSTANT)
    days, fine = _days_of(part)
    clock = {name: _field(part, name) for name in ("h", "mi", "s", "zh", "zm")}
    fine &= (clock["h"] < 24) & (clock["mi"] < 60) & (clock["s"] < 60)
    fine &= (clock["zh"] < 15) & (clock["zm"] < 60)
    fraction = pc.utf8_rpad(pc.fill_null(pc.struct_field(part, "f"), ""), 9, "0")
    micros = pc.fill_null(fraction, "0").cast(pa.int64()).to_numpy(zero_copy_only=False) // 1000
    seconds = (clock["h"] * 60 + clock["mi"]) * 60 + clock["s"]
    east = pc.equal(pc.fill_null(pc.struct_field(part, "zs"), "+"), "+")
    sign = np.where(east.to_numpy(zero_copy_only=False), 1, -1)
    offset = sign * (clock["zh"] * 60 + clock["zm"]) * 60
    return from_micros(days * DAY_US + (seconds - offset) * 1_000_000 + micros, fine)


def _field(parts: Column, name: str) -> Array:
    text = pc.fill_null(pc.struct_field(parts, name), "")
    text = pc.if_else(pc.equal(text, ""), "0", text)
    return np.asarray(text.cast(pa.int64()).to_numpy(zero_copy_only=False))


def _days_of(parts: Column) -> tuple[Array, Array]:
    """`civil_days` of the fields y, mo and d that were extracted from a text."""
    days, fine = civil_days(*(_field(parts, name) for name in ("y", "mo", "d")))
    return days, fine & pc.is_valid(parts).to_numpy(zero_copy_only=False)


def civil_days(year: Array, month: Array, day: Array) -> tuple[Array, Array]:
    """Days since 1970-01-01 of dates in the years 1 to 9999, and which dates exist.

    >>> days, fine = civil_days(np.array([1970, 1900]), np.array([3, 2]), np.array([1, 29]))
    >>> int(days[0]), fine.tolist()
    (59, [True, False])
    """
    fine = (year >= 1) & (year <= 9999) & (month >= 1) & (month <= 12) & (day >= 1)
    months = np.where(fine, (year - 1970) * 12 + month - 1, 0)
    start, after = (
        some.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
        for some in (months, months + 1)
    )
    return start + day - 1, fine & (day <= after - start)


def instants(column: Column) -> Column:
    """Any timestamp as microseconds in UTC (without a zone: read as UTC); finer parts are cut."""
    ticks, ok = dense(column)
    if column.type.unit == "ns":
        return from_numpy(ticks // 1_000, ok, INSTANT)
    scale = {"s": 1_000_000, "ms": 1_000, "us": 1}[column.type.unit]
    fits = (ticks <= INT_MAX // scale) & (ticks >= INT_MIN // scale)
    return from_numpy(np.where(fits, ticks, 0) * scale, ok & fits, INSTANT)


def date64_to_date(column: Column) -> Column:
    """The day of each time in milliseconds; null if its number does not fit 32 bits."""
    millis, ok = dense(column)
    return from_numpy(millis // 86_400_000, ok, pa.date32())


def uint_to_int(column: Column) -> Column:
    """Unsigned to signed 64 bits; numbers that do not fit become null."""
    fits = pc.less_equal(column, pa.scalar(INT_MAX, pa.uint64()))
    return null_unless(fits, column).cast(pa.int64())


def as_cast(column: Column) -> Column:
    """Values as CAST(x AS STRING) writes them.

    >>> as_cast(pa.array([2.0, 1e-7, -0.0, np.inf, np.nan])).to_pylist()
    ['2', '1e-07', '0', 'inf', 'nan']
    >>> as_cast(pa.array([0, 1_120_000, 3], INSTANT)).to_pylist()[1:]
    ['1970-01-01 00:00:01.120+00', '1970-01-01 00:00:00.000003+00']
    """
    if pa.types.is_timestamp(column.type):
        clock = column.cast(pa.int64()).cast(pa.timestamp("us")).cast(pa.string())
        clock = pc.replace_substring_regex(clock, r"(?:\.000)?(?:000)?$", "")  # 0, 3 or 6 digits
        return pc.binary_join_element_wise(clock, "+00", "")
    if pa.types.is_floating(column.type):
        return pa.array(map(_as_real, column.to_pylist()), pa.string())
    return column.cast(pa.string())


def _as_real(number: float | None) -> str | None:
    """A number in 15 digits, or in 17 if 15 do not give it back; zero has no sign."""
    if number is None:
        return None
    short = f"{number + 0.0:.15g}"
    return short if float(short) == number else f"{number:.17g}"
