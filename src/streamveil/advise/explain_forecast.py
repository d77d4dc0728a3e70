"""What a query is forecast to err by, over all groups, on streams such as it expects."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any, cast

from streamveil.advise.lane_noise import lane_sd
from streamveil.compiler.error_forecast import (
    CAUTION,
    Errors,
    ExpectedStream,
    Kind,
    Settings,
    Threshold,
    errors_of,
    expected,
)
from streamveil.core.selection.total_test import TotalsAlone
from streamveil.dataflow.group_by import GroupBy
from streamveil.dataflow.release import AggregationPlan, driver
from streamveil.dataflow.windows import periods_met
from streamveil.plan.look import expectations
from streamveil.plan.plan import Plan

HEADING = ("all groups, last release; keys fall as", "shown", "sum of errors", "largest", "l2")


def forecast_rows(plan: Plan, operator: GroupBy) -> list[tuple[str, ...]]:
    """One row for each stream of the family; none where nothing is expected or counted."""
    found = []
    for one, made in forecasts(plan, operator):
        text = f"rank^-{one.steep:g}, {one.repeats:.0%} repeats, "
        text += f"{one.groups:,} groups" if one.histogram else f"tail n^-{one.heavy:.2g}"
        cells = (made.keys, made.l1, made.linf, made.l2)
        found.append((text, *(f"{cell:,.4g}" if cell < 1e4 else f"{cell:,.0f}" for cell in cells)))
    return [*dict.fromkeys(found)]  # laws that are more likely come more than once


def forecasts(plan: Plan, operator: GroupBy) -> list[tuple[ExpectedStream, Errors]]:
    """The streams of the family, each with the expected errors over all groups."""
    stream = expected(expectations(plan.options), windows_of(operator))
    aggregation = operator.aggregation
    last, place = operator.schedule.triggers, driver(aggregation.lanes)
    if stream is None or last is None or place < 0 or plan.preset != "default":
        return []
    settings = as_settings(operator)
    lane = aggregation.lanes[place]
    largest = 1.0 if lane.kind != "sum" else lane.reach * float(lane.quantum)
    base = lane_sd(operator, place, last) / largest
    test = threshold_of(aggregation, last, base)
    family = [(one, errors_of(one, settings, test, last, base)) for one in stream.family()]
    return [
        (one, replace(made, l1=made.l1 * largest, linf=made.linf * largest, l2=made.l2 * largest))
        for one, made in family
    ]


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


def threshold_of(aggregation: AggregationPlan, last: int, base: float) -> Threshold:
    """What the selection asks for at the last release, where small groups have noise `base`."""
    selection: Any = aggregation.selection
    if selection is None:
        return Threshold(CAUTION * base)
    if isinstance(selection, TotalsAlone) and aggregation.test is not None:
        return Threshold(aggregation.test.threshold(last) / aggregation.test.lane.reach, base)
    usual: float | None = getattr(selection, "usual", None)
    if usual is not None:
        return Threshold(usual)
    return Threshold(float(selection.threshold(last)), float(selection.deviation(last)))


def windows_of(operator: GroupBy) -> int:
    """Windows that the scope of a unit meets; the groups expected are those of one."""
    if operator.periods is None:
        return 1
    return periods_met(operator.schedule, operator.periods) or 1
