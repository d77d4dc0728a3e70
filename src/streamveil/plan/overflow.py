"""No sum of quanta reaches 2**62: shown from public numbers before a job starts, or refused."""

from __future__ import annotations

from fractions import Fraction
from math import isqrt

from streamveil.errors import PlanError
from streamveil.plan.options import MAX_UNITS
from streamveil.plan.plan import Bounding, Plan

MAX_ROWS = 2**36  # rows that one job may bring into one group: 68 billion
MAX_QUANTA = 2**62
LARGEST_WEIGHT = 127  # a row of the smallest weight costs one of so many squared quanta


def prove_no_overflow(reach: int, rows: int) -> int:
    """The largest sum of quanta that a group can hold; PlanError when it could reach 2**62.

    Proof: a row moves a sum by at most `reach` quanta, and at most `rows` rows enter one group: see
        `rows_of_a_group`. Whatever is summed in between is a part of these.

    >>> prove_no_overflow(60_000, MAX_ROWS) < 2**62
    True
    """
    largest = reach * rows
    if largest >= MAX_QUANTA:
        raise PlanError(
            "the bounds allow sums of 2**62 quanta or more, which 64 bits cannot hold safely.\n"
            "  why     noise has to hide the whole bound, however small the values are\n"
            "  to fix  tighter bounds (plausible values, not the largest of a type), a coarser"
            " quantum (the noise hides far more than it), or a smaller max_units"
        )
    return largest


def rows_of_a_group(plan: Plan) -> int:
    """How many rows can enter one group of one window.

    Proof: each of `max_units` units brings at most what bounding lets into one group, if it has one
        scope; over many scopes (unit-periods), and for units without number, no job brings more
        than MAX_ROWS, which at ten million rows a second takes two hours of one group's rows alone.
    """
    if plan.periods is not None:
        return MAX_ROWS
    units = int(MAX_UNITS.of(plan.options))
    return min(units * most_in_group(plan.bounding), MAX_ROWS)


def most_in_group(bounding: Bounding) -> int:
    """Rows of one unit that can pass into one group."""
    limits = [bounding.max_rows, bounding.max_rows_per_group]
    if bounding.quadratic is not None:  # rows of the smallest weight
        limits.append(isqrt(bounding.quadratic) * LARGEST_WEIGHT + LARGEST_WEIGHT)
    return min((limit for limit in limits if limit is not None), default=MAX_ROWS)


def reach_of(low: float, high: float, quantum: float) -> int:
    """The most quanta of a value clamped to [low, high], after rounding."""
    widest = max(abs(Fraction(low)), abs(Fraction(high))) / Fraction(quantum)
    return -(-widest.numerator // widest.denominator)
