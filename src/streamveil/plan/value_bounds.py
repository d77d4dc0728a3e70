"""Values whose bounds nobody gave: which query may leave them out, and what stands in for them.

Without bounds, a look at the rows chooses them for a part of the budget (`plan.look`,
`runtime.survey`), where all rows are there when the job begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from math import isqrt

from streamveil.errors import PlanError
from streamveil.plan.options import INTERVALS, MAX_UNITS
from streamveil.plan.plan import Aggregate, Bounding, Plan

# ---- no sum of quanta reaches 2**62

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


# ---- values without given bounds

VALUED = ("sum", "avg", "variance", "stddev", "quantile")  # functions that add or order values
LEAST, MOST = -40, 63  # a value counts as one of 2^LEAST to 2^MOST, either sign
WIDEST = (-(2.0**MOST), 2.0**MOST)
Bounds = Mapping[str, tuple[float, float]]  # of an expression: what its values are clamped to


def is_open(aggregate: Aggregate) -> bool:
    """Whether it adds or orders values and nobody said which are plausible."""
    return aggregate.function in VALUED and (aggregate.low is None or aggregate.high is None)


def open_values(plan: Plan) -> tuple[str, ...]:
    """The expressions whose bounds are to be chosen, each once."""
    open_ = (agg.expression for agg in plan.aggregates if is_open(agg))
    return tuple(dict.fromkeys(text for text in open_ if text is not None))


def with_bounds(plan: Plan, found: Bounds) -> Plan:
    """The plan with bounds for values that have none; a sum's hold 0, as rows that are not there.

    Noise of a sum hides the larger of both ends, so the other one may as well be 0; a mean and the
    like are centred, and gain from bounds that are close.
    """
    if not open_values(plan):
        return plan
    made = [_bounded(agg, found) if is_open(agg) else agg for agg in plan.aggregates]
    return replace(plan, aggregates=tuple(made))


def in_units(plan: Plan) -> Plan:
    """The plan with bounds of 1 where a look will choose them: what `explain` shows is their part.

    The account does not depend on bounds: noise is a multiple of the larger one.
    """
    return with_bounds(plan, dict.fromkeys(open_values(plan), (0.0, 1.0)))


def in_any_case(plan: Plan) -> Plan:
    """The plan with bounds that hold every value: all noise, and intervals that say so."""
    return with_bounds(plan, dict.fromkeys(open_values(plan), WIDEST))


def refusals(plan: Plan) -> Iterator[str]:
    """Why bounds cannot be left out, with all rows there and a budget that can look."""
    if plan.bounding.combine:
        yield "other bounds are per unit and group, and those of a look are per row"
    if INTERVALS.of(plan.options) != INTERVALS.value:
        yield "intervals = 'true' need bounds that are known beforehand"
    if any(is_open(agg) and agg.quantum is not None for agg in plan.aggregates):
        yield "a quantum needs bounds that are known beforehand"


def _bounded(aggregate: Aggregate, found: Bounds) -> Aggregate:
    low, high = found.get(aggregate.expression or "", WIDEST)
    if aggregate.function == "sum":
        low, high = min(low, 0.0), max(high, 0.0)
    return replace(aggregate, low=low, high=high)
