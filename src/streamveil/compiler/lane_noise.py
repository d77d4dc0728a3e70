"""The noise of a compiled query's numbers, and the chance that its groups are shown."""

from __future__ import annotations

from math import inf, sqrt
from typing import Any

import numpy as np
from scipy.special import ndtr

from streamveil.compiler.coin_tables import opening_chance
from streamveil.core.selection.gaussian import FINE
from streamveil.dataflow.group_by import GroupBy
from streamveil.types import Array, Float64


def lane_sd(operator: GroupBy, lane: int, trigger: int) -> float:
    """Standard deviation of the noise of one lane's total at a trigger, in its own units."""
    aggregation = operator.aggregation
    counter = aggregation.counters[lane]
    if lane == aggregation.shared:
        return sqrt(float(counter.std(np.array([trigger]))[0]) ** 2 / FINE**2 + 1 / 12)
    rule = aggregation.rule
    weight = 1.0 if rule is None else rule.entry / rule.scale  # of a group that is not large
    sd = float(counter.std(np.array([trigger]))[0])
    return sd * float(aggregation.lanes[lane].quantum) / weight


def threshold(operator: GroupBy, trigger: int) -> float | None:
    """Units a group's noisy count must exceed to be shown; None where none do, or all are."""
    test = getattr(operator.aggregation.selection, "threshold", None)
    return None if test is None or test(trigger) == inf else float(test(trigger))


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
        sd = selection.deviation(trigger)
        return float(ndtr((units - selection.threshold(trigger)) / sd))
    steps = np.arange(1, selection.horizon + 1)
    arrived = np.where(steps <= trigger, units * steps // trigger - selection.offset, 0)
    return opening_chance(
        selection.coins.chances, float(selection.shift_epsilon), np.maximum(arrived, 0)
    )
