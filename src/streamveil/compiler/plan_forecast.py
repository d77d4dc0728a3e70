"""The forecast error of a query over all groups, on the streams that it expects."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import hypot, inf, pi, sqrt
from operator import attrgetter
from typing import Any, cast

import numpy as np

from streamveil.compiled import ndtr
from streamveil.compiler.error_forecast import CAUTION, Errors, Kind, Settings, Threshold, errors_of
from streamveil.compiler.expected_stream import ExpectedStream, expected_stream, public_groups
from streamveil.compiler.table_design import opening_chance
from streamveil.core.counters import Counter
from streamveil.core.selection.gaussian import FINE
from streamveil.core.selection.total_test import TotalsAlone
from streamveil.core.sensitivity import Lane
from streamveil.dataflow.group_by import GroupBy
from streamveil.dataflow.outputs import Output
from streamveil.dataflow.release import AggregationPlan, driver
from streamveil.dataflow.windows import periods_met
from streamveil.kept import kept
from streamveil.plan import Plan
from streamveil.plan.look import (
    CLAMPED,
    GUESSED,
    LOOKED,
    VALUES,
    expectations,
    is_guessed,
    ways_to_know,
)
from streamveil.plan.options import EXPECTED_ROWS
from streamveil.types import Array, Float64

HEADING = ("all groups, last release; sizes fall as", "published", "sum of errors", "largest", "l2")
UNKNOWN_SHARES = (0.5, 0.1, 0.02)  # assumed means of unknown values, as shares of the largest
LEAST_SHARE = 1e-6
TENFOLD = 10.0  # a share from which times are said, and no per cent
NOISE = 0.5  # a share of error from which an answer is little but noise


def forecast_title(plan: Plan, operator: GroupBy) -> str:
    """The size of the streams in the rows of `forecast_rows`."""
    stream = expected_stream(plan, windows_of(operator))
    assert stream is not None  # noqa: S101  (there are rows)
    return (
        f"FORECAST on streams of {stream.units:,.0f} units with {_rounded(stream.rows)} rows each"
        " on average, as expected (of the first count or sum)"
    )


def forecast_rows(plan: Plan, operator: GroupBy) -> list[tuple[str, ...]]:
    """One row for each stream of the family; none where nothing is expected or counted."""
    found = []
    for one, made in forecasts(plan, operator):
        fall = f"rank^-{one.steep:g}" if one.steep else "rank^0 (equal)"
        fall = f"log-normal {one.spread:g}" if one.spread else fall
        text = f"{fall}, {one.repeats:.0%} repeats, "
        text += f"{one.groups:,} groups" if one.histogram else f"tail n^-{one.heavy:.2g}"
        cells = (made.keys, made.l1, made.linf, made.l2)
        found.append((text, *map(_rounded, cells)))
    return [*dict.fromkeys(found)]  # laws that are more likely come more than once


def _rounded(number: float) -> str:
    return f"{float(f'{number:.4g}'):,.15g}"


def forecasts(plan: Plan, operator: GroupBy) -> list[tuple[ExpectedStream, Errors]]:
    """The streams of the family, each with the expected errors over all groups."""
    stream = expected_stream(plan, windows_of(operator))
    aggregation = operator.aggregation
    last, place = operator.schedule.triggers, driver(aggregation.lanes)
    if stream is None or last is None or place < 0 or plan.preset != "default":
        return []
    settings, usual = as_settings(operator), usual_row(plan, operator)
    more = largest_row(operator) / usual
    settings = replace(settings, reference=settings.reference * more)
    base = lane_sd(operator, place, last) / usual
    test = threshold_of(aggregation, last, base, more)
    lost = clamped_share(plan, aggregation.lanes)
    streams = [replace(one, once=plan.counts_units, clamped=lost) for one in stream.family()]
    family = [(one, errors_of(one, settings, test, last, base)) for one in streams]
    return [
        (one, replace(made, l1=made.l1 * usual, linf=made.linf * usual, l2=made.l2 * usual))
        for one, made in family
    ]


def largest_row(operator: GroupBy) -> float:
    """The most that one row adds to the number that measures the size of a group."""
    lanes = operator.aggregation.lanes
    lane = lanes[driver(lanes)]
    return 1.0 if lane.kind != "sum" else lane.reach * float(lane.quantum)


def usual_row(plan: Plan, operator: GroupBy) -> float:
    """The mean that a row adds, if known; else the most, and the forecast is too good."""
    known = value_shares(plan, operator.aggregation.lanes)
    return largest_row(operator) * (known[0] if len(known) == 1 else 1.0)


def noise_warning(plan: Plan, operator: GroupBy) -> str | None:
    """Warns that the answer is forecast to be noise; None where it is not, or nothing is known.

    For numbers that are null there is no forecast: the warning says why they are null, if no other
    number measures the size of a group. It follows from public expectations, or from a look that
    was paid for: no row decides it.
    """
    place, looked = driver(operator.aggregation.lanes), plan.options.get(LOOKED)
    told = [one for one in operator.outputs if not one.unbounded]
    if not told or (place >= 0 and not any(place in one.lanes for one in told)):
        return "; ".join(dict.fromkeys(one.unbounded for one in operator.outputs if one.unbounded))
    if looked is not None and not looked["options"] and not EXPECTED_ROWS.given_in(plan.options):
        return nothing_found(operator)
    if is_guessed(plan):
        return f"{GUESSED}.\n  to fix  {ways_to_know(plan)}"
    share, cut = error_share(plan, operator)
    if share - cut >= NOISE * (1 - cut):
        much = f"{share:.0%} of" if share < TENFOLD else f"{share:,.0f} times"
        guess = "may be" if looked is not None else "is forecast to be"
        why = ", as far as a noisy look can tell" if looked is not None else ""
        return (
            f"the answer {guess} little but noise: its errors, over all groups, come to {much}"
            f" the rows (or values) that are expected{why}; the intervals tell.\n"
            "  to fix  a larger epsilon, fewer or larger groups, fewer releases: see what_if"
        )
    if cut >= NOISE:
        whose = "; expected_rows are those of one unit" * EXPECTED_ROWS.given_in(plan.options)
        return (
            f"the bounds are forecast to leave out {cut:.0%} of the rows: the answer is of the"
            " rest.\n"
            "  to fix  larger bounds, or none, and they are chosen; COUNT(DISTINCT) of the privacy"
            f" unit, where people are meant and not rows{whose}"
        )
    return None


def nothing_found(operator: GroupBy) -> str | None:
    """The warning after a look that found too few units: the size that groups need."""
    last = operator.schedule.triggers
    least = None if last is None else opens_at(operator, last)
    if least is None:
        return None
    return (
        "the look at the rows found too few privacy units to tell their number: a group with about"
        f" {least:,.0f} of them is published as likely as not, a much smaller one hardly ever.\n"
        "  to fix  a larger epsilon or larger groups; expected_rows and expected_units if they are"
        " known; or declare public groups"
    )


def error_share(plan: Plan, operator: GroupBy) -> tuple[float, float]:
    """The forecast sum of errors as a share of the total, and the share of rows that are cut.

    It is that of the median stream of the family. After a look, which leaves the law of the groups
    open, it is the least by any law. If nothing is known, the error is 0.
    """
    made = forecasts(plan, operator)
    if not made:
        return 0.0, 0.0
    rows, usual = made[0][0].units * made[0][0].rows, usual_row(plan, operator)
    groups = public_groups(plan, windows_of(operator))
    if groups is None:
        errors = sorted((one for _, one in made), key=attrgetter("l1"))
        found = errors[0] if LOOKED in plan.options else errors[len(errors) // 2]
        return found.l1 / (rows * usual), found.cut
    last, place = operator.schedule.triggers, driver(operator.aggregation.lanes)
    assert last is not None  # noqa: S101  (nothing is forecast without a last release)
    noise = lane_sd(operator, place, last) * sqrt(2 / pi)
    return groups * noise / (rows * usual), 0.0


def as_settings(operator: GroupBy) -> Settings:
    """The bounds, weights and selection of an operator as a forecast takes them."""
    bounds, aggregation = operator.bounds, operator.aggregation
    rule = aggregation.rule
    weight = 1.0 if rule is None else rule.scale / rule.entry
    return Settings(
        kind=cast(Kind, aggregation.selected_by),
        quadratic=inf if bounds.quadratic is None else bounds.quadratic * weight**2,
        max_rows=bounds.max_rows or inf, per_group=bounds.per_group or inf,
        slots=bounds.slots or 0, reference=inf if rule is None else rule.reference,
    )  # fmt: skip


def threshold_of(
    aggregation: AggregationPlan, last: int, base: float, rows: float = 1.0
) -> Threshold:
    """The threshold of the selection at the last release, where small groups have noise `base`.

    `rows`: usual rows that add as much as one row adds at most.
    """
    selection: Any = aggregation.selection
    if selection is None:
        return Threshold(CAUTION * base)
    if isinstance(selection, TotalsAlone) and aggregation.test is not None:
        return Threshold(
            aggregation.test.threshold(last) / aggregation.test.lane.reach * rows, base
        )
    usual: float | None = getattr(selection, "usual", None)
    if usual is not None:
        return Threshold(usual)
    return Threshold(*tested(selection, last))


def windows_of(operator: GroupBy) -> int | None:
    """Windows that the scope of a unit meets (expected groups are per window). None: no end."""
    return periods_met(operator.schedule, operator.periods)


# ---- noise of answers, and which groups are published


def lane_sd(operator: GroupBy, lane: int, trigger: int) -> float:
    """Standard deviation of the noise of one lane's total at a trigger, in its own units."""
    aggregation = operator.aggregation
    counter = aggregation.counters[lane]
    sd = deviation(counter, trigger)  # type: ignore[arg-type]  # every counter is a frozen dataclass
    if lane == aggregation.shared:
        return sqrt(sd**2 / FINE**2 + 1 / 12)
    rule = aggregation.rule
    weight = 1.0 if rule is None else rule.entry / rule.scale  # of a group that is not large
    return sd * float(aggregation.lanes[lane].quantum) / weight


def growth(operator: GroupBy, trigger: int, total: float) -> float:
    """How many times the noise of a small group a group of this total has at a trigger.

    Its rows come evenly; its weight falls after every release but the last (`release_stage`).
    """
    aggregation, rule = operator.aggregation, operator.aggregation.rule
    if rule is None:
        return 1.0
    before = np.arange(1, trigger)
    over = np.maximum(before / (aggregation.triggers or before), 1 / rule.growth)
    entry = np.full(trigger - 1, rule.entry, np.uint8)
    later = rule.next(entry, total * before / trigger / over, 1.0)
    weight = np.minimum.accumulate(np.append(rule.entry, later)) / rule.entry
    mix = aggregation.counters[driver(aggregation.lanes)].mix(trigger)
    drawn = mix.parts**2 * mix.scaled
    return sqrt((drawn / weight[mix.steps - 1] ** 2).sum() / drawn.sum())


def answer_sd(operator: GroupBy, output: Output, trigger: int) -> float:
    """The standard deviation of a count or sum at a trigger."""
    parts = zip(output.factors, output.lanes, strict=True)
    return hypot(*(factor * lane_sd(operator, lane, trigger) for factor, lane in parts))


@lru_cache(maxsize=256)
@kept()
def deviation(counter: Counter, trigger: int) -> float:
    """Standard deviation of a counter's totals at a trigger, in quanta."""
    return float(counter.std(np.array([trigger]))[0])


def threshold(operator: GroupBy, trigger: int) -> float | None:
    """Units a group's noisy count must exceed to be shown; None if no count decides that."""
    selection: Any = operator.aggregation.selection
    if hasattr(selection, "deviation"):
        return tested(selection, trigger)[0]
    test = getattr(selection, "threshold", None)
    return None if test is None or test(trigger) == inf else float(test(trigger))


@lru_cache(maxsize=256)
@kept()
def tested(selection: Any, trigger: int) -> tuple[float, float]:
    """The threshold of a noisy count of units at a trigger, and its standard deviation."""
    return float(selection.threshold(trigger)), float(selection.deviation(trigger))


def opens_at(operator: GroupBy, trigger: int) -> float | None:
    """Units that a group needs to be shown by a trigger as likely as not; None: all are shown."""
    usual: float | None = getattr(operator.aggregation.selection, "usual", None)
    return threshold(operator, trigger) if usual is None else float(usual)


def total_chance(
    operator: GroupBy, rows: Float64[Array, " groups"], trigger: int
) -> Float64[Array, " groups"]:
    """The chance that groups of such totals, in largest rows, passed a test by a trigger.

    Totals are taken to grow evenly. Only the last test until then counts: with earlier ones the
    chance is a little larger.
    """
    test = operator.aggregation.test
    tests = () if test is None else test.before(trigger + 1)
    if test is None or not tests:
        return np.zeros(len(rows))
    last = tests[-1]
    totals = rows * (test.lane.reach * last / trigger)
    passed = (totals - test.threshold(last)) / test.deviation(last)
    return np.where(totals < test.floor, 0.0, ndtr(passed))


def units_chance(operator: GroupBy, units: int, trigger: int) -> float | None:
    """The chance that its number of units, evenly arrived, shows a group by a trigger."""
    selection: Any = operator.aggregation.selection
    if selection is None:
        return None
    if operator.aggregation.selected_by == "totals":
        return 0.0
    if not hasattr(selection, "table"):  # at this very trigger: a little less
        level, sd = tested(selection, trigger)
        return float(ndtr((units - level) / sd))
    steps = np.arange(1, selection.horizon + 1)
    arrived = np.where(steps <= trigger, units * steps // trigger - selection.offset, 0)
    return opening_chance(
        selection.coins.chances, float(selection.shift_epsilon), np.maximum(arrived, 0)
    )


def published_chance(operator: GroupBy, units: int, trigger: int) -> float | None:
    """The chance that a group with so many units, evenly arrived, is shown by a trigger.

    Each unit has one row. Where totals alone show groups, each row adds the most that it may. With
    coins, a total of values is left out, as nobody knows it: the chance may then be larger.
    """
    shown, aggregation = units_chance(operator, units, trigger), operator.aggregation
    if shown is None or aggregation.test is None:
        return shown
    if aggregation.selected_by != "totals" and aggregation.test.lane.kind == "sum":
        return shown
    by_total = total_chance(operator, np.array([float(units)]), trigger)
    return float(1 - (1 - shown) * (1 - by_total[0]))


# ---- what is known of the values of a row


def sizing_lane(lanes: tuple[Lane, ...]) -> int:
    """The lane whose errors are forecast; -1: none. Not the units, if rows or values are counted.

    >>> sizing_lane((Lane(kind="units"), Lane(kind="sum", value=0, high=1.0)))
    1
    """
    place, kinds = driver(lanes), [lane.kind for lane in lanes]
    return (
        kinds.index("sum") if place >= 0 and kinds[place] == "units" and "sum" in kinds else place
    )


def value_shares(plan: Plan, lanes: tuple[Lane, ...]) -> tuple[float, ...]:
    """The mean that a row adds to the lane of sizes, as a share of the most that it may add.

    For a count it is 1. For a sum a look may tell it; else it may be any of `UNKNOWN_SHARES`.
    """
    place = sizing_lane(lanes)
    if place < 0 or lanes[place].kind != "sum":
        return (1.0,)
    size = said_of_values(plan, VALUES)
    if size is None:
        return UNKNOWN_SHARES
    share = size / (lanes[place].reach * float(lanes[place].quantum))
    return (float(f"{min(1.0, max(share, LEAST_SHARE)):.3g}"),)


def clamped_share(plan: Plan, lanes: tuple[Lane, ...]) -> float:
    """The share of the sum of that lane's values that lies beyond their bounds; 0 if unknown."""
    place = sizing_lane(lanes)
    summed = place >= 0 and lanes[place].kind == "sum"
    return said_of_values(plan, CLAMPED) or 0.0 if summed else 0.0


def said_of_values(plan: Plan, what: str) -> float | None:
    """A look's number on the values that are summed first; None where it has none."""
    summed = next((one.expression for one in plan.aggregates if one.function == "sum"), None)
    found: float | None = expectations(plan.options).get(what, {}).get(summed)
    return found
