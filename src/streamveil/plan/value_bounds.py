"""Values whose bounds nobody gave: which query may leave them out, and what stands in for them.

Without bounds, a look at the rows chooses them for a part of the budget (`plan.look`,
`runtime.survey`), where all rows are there when the job begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from streamveil.plan.options import INTERVALS
from streamveil.plan.plan import Aggregate, Plan

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
