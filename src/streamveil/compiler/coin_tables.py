"""Families of tables of coins, and about what one does: for a search whose result is certified.

Nothing here is part of a guarantee: `core.accounting` certifies the coins that were found.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from itertools import islice
from math import hypot, inf, log, sqrt
from typing import Any

import numpy as np

from streamveil.compiled import ndtr, njit
from streamveil.core.accounting.coin_table import COIN, Coins
from streamveil.core.accounting.convert import CurvePoints, LossLaw
from streamveil.core.counters import Counter
from streamveil.core.selection.gaussian import FINE
from streamveil.dataflow.group_by import GroupBy
from streamveil.dataflow.outputs import Output
from streamveil.kept import kept
from streamveil.types import Array, Float64, Int64

STEEPEST = 6  # the largest fall of ln(pi) per gap


@dataclass(frozen=True)
class TableShape:
    """A family of tables: ln(pi) falls by `slope` per gap, and faster where openings are rare.

    With rare = ln(1 / (horizon pi)) > 0 it falls by slope + bend * rare^power, at most by STEEPEST.
    The table ends with the first coin of at most floor / horizon. Every coin is rounded once to
    2^-64; the guarantee is computed from the rounded coins.
    """

    horizon: int  # tests of one key
    slope: Fraction
    bend: Fraction  # how fast the fall grows beyond that point
    power: Fraction
    floor: Fraction  # what an opening at the last gap may cost in delta

    def coins(self) -> Coins:
        """The table. Decimal arithmetic: the same on every machine."""
        with localcontext() as context:
            context.prec = 50
            log_horizon, floor = Decimal(self.horizon).ln(), _decimal(self.floor) / self.horizon
            numbers = (_decimal(number) for number in (self.slope, self.bend, self.power))
            coins = []
            for log_pi in _logs(log_horizon, *numbers):
                chance = log_pi.exp()
                coins.append(int(chance * COIN + Decimal("0.5")))
                if chance <= floor:
                    return Coins(tuple(coins))
        raise AssertionError("chances fall below any floor")

    def near(self, longest: int) -> Float64[Array, " gaps"] | None:
        """About `Coins.chances`; None for a table of more than `longest` gaps."""
        last = log(self.floor) - log(self.horizon)
        numbers = (float(number) for number in (self.slope, self.bend, self.power))
        logs = [0.0]
        for log_pi in islice(_logs(log(self.horizon), *numbers), longest):
            logs.append(log_pi)
            if log_pi <= last:
                return np.append(np.exp(logs), 0.0)
        return None


def _logs(log_horizon: Any, slope: Any, bend: Any, power: Any) -> Iterator[Any]:
    """ln(pi) at gap 1, 2, ..., see `TableShape`; in decimals or in floats."""
    log_pi = -0 * slope
    while True:
        rare = -(log_horizon + log_pi)
        fall = slope + bend * rare**power if rare > 0 else slope
        log_pi -= min(STEEPEST, fall)
        yield log_pi


def _decimal(number: Fraction) -> Decimal:
    return Decimal(number.numerator) / Decimal(number.denominator)


def opening_chance(
    chances: Float64[Array, " gaps"], shift_epsilon: float, units: Int64[Array, " horizon"]
) -> float:
    """The chance that a key with this path of units has opened by its end; for forecasts.

    Given Z, every test adds ln(1 - pi) at its gap: for all Z at once, the sum of a slice of these
    for each number of units that the path has, as often as it has it.
    """
    threshold = len(chances)
    shifts = np.arange(int(40 / shift_epsilon) + 2)
    often = np.bincount(np.minimum(units, threshold + len(shifts)))
    shifts = shifts[: len(often)]  # with a larger one no gap is inside the table
    gaps = threshold + np.arange(1 - len(often), len(shifts))
    with np.errstate(divide="ignore"):
        closed = np.maximum(np.log1p(-chances), -1e3)[np.clip(gaps, 0, threshold - 1)]
    never = np.zeros(len(shifts))
    for count in np.flatnonzero(often):  # few: a path has one number of units for each test
        first = len(often) - 1 - count
        never += often[count] * closed[first : first + len(shifts)]
    never = np.exp(never)
    law = -np.expm1(-shift_epsilon) * np.exp(-shift_epsilon * shifts)
    return float(law @ (1 - never))


def law_near(points: CurvePoints, step: float) -> LossLaw:
    """About `law_under`, in floats: for searches, whose result is then certified by that."""
    order = np.argsort(points.gammas)
    gammas, heights = points.gammas[order], points.heights[order]
    nodes, found = hull_near(gammas, heights)
    places = points.places[order][nodes]
    masses = np.zeros(int(places[-1] - places[0]) + 1)
    masses[places - places[0]] = found
    return LossLaw(step, int(places[0]), masses, float(heights[nodes[-1]]))


@njit(cache=True)
def hull_near(
    gammas: Float64[Array, " n"], heights: Float64[Array, " n"]
) -> tuple[Int64[Array, " nodes"], Float64[Array, " nodes"]]:
    """The nodes of `hull` and their masses, in floats."""
    nodes = np.empty(len(gammas), np.int64)
    slopes = np.zeros(len(gammas) + 1)
    count = 0
    for place in range(len(gammas)):
        slope = (heights[place] - 1.0) / gammas[place]
        while count:
            before = nodes[count - 1]
            slope = (heights[place] - heights[before]) / (gammas[place] - gammas[before])
            if slopes[count - 1] < slope:
                break
            count -= 1
            slope = (heights[place] - 1.0) / gammas[place]
        nodes[count], slopes[count] = place, slope
        count += 1
    slopes[count] = 0.0
    kept = nodes[:count].copy()
    return kept, gammas[kept] * np.diff(slopes[: count + 1])


# ---- forecasts of noise and of published groups


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


def answer_sd(operator: GroupBy, output: Output, trigger: int) -> float:
    """The same of a count or sum."""
    parts = zip(output.factors, output.lanes, strict=True)
    return hypot(*(factor * lane_sd(operator, lane, trigger) for factor, lane in parts))


@lru_cache(maxsize=256)
@kept()
def deviation(counter: Counter, trigger: int) -> float:
    """Standard deviation of a counter's totals at a trigger, in quanta."""
    return float(counter.std(np.array([trigger]))[0])


def threshold(operator: GroupBy, trigger: int) -> float | None:
    """Units a group's noisy count must exceed to be shown; None where none do, or all are."""
    selection: Any = operator.aggregation.selection
    if hasattr(selection, "deviation"):
        return tested(selection, trigger)[0]
    test = getattr(selection, "threshold", None)
    return None if test is None or test(trigger) == inf else float(test(trigger))


@lru_cache(maxsize=256)
@kept()
def tested(selection: Any, trigger: int) -> tuple[float, float]:
    """What a noisy count of units must exceed at a trigger, and its standard deviation."""
    return float(selection.threshold(trigger)), float(selection.deviation(trigger))


def opens_at(operator: GroupBy, trigger: int) -> float | None:
    """Units that a group needs to be shown by a trigger as likely as not; None: all are shown."""
    usual: float | None = getattr(operator.aggregation.selection, "usual", None)
    return threshold(operator, trigger) if usual is None else float(usual)


def total_chance(
    operator: GroupBy, rows: Float64[Array, " groups"], trigger: int
) -> Float64[Array, " groups"]:
    """The chance that groups of such totals, in largest rows, pass the test at a trigger."""
    test = operator.aggregation.test
    assert test is not None  # noqa: S101  (a type narrowing)
    passed = rows * test.lane.reach - test.threshold(trigger)
    return np.asarray(ndtr(passed / test.deviation(trigger)))


def published_chance(operator: GroupBy, units: int, trigger: int) -> float | None:
    """The chance that a group with so many units, evenly arrived, is shown by a trigger."""
    selection: Any = operator.aggregation.selection
    if selection is None:
        return None
    if operator.aggregation.selected_by == "totals":  # each unit brings the most that a row may
        return float(total_chance(operator, np.array([float(units)]), trigger)[0])
    if not hasattr(selection, "table"):  # at this very trigger: a little less
        level, sd = tested(selection, trigger)
        return float(ndtr((units - level) / sd))
    steps = np.arange(1, selection.horizon + 1)
    arrived = np.where(steps <= trigger, units * steps // trigger - selection.offset, 0)
    return opening_chance(
        selection.coins.chances, float(selection.shift_epsilon), np.maximum(arrived, 0)
    )
