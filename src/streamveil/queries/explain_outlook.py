"""What a query is forecast to err by, over all groups, on streams such as it expects."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

from streamveil.queries.plan import Plan

if TYPE_CHECKING:
    from streamveil.operators.group_by import GroupBy

HEADING = ("all groups, last release; keys fall as", "shown", "sum of errors", "largest", "l2")


def outlook_rows(plan: Plan, operator: GroupBy) -> list[tuple[str, ...]]:
    """One row for each stream of the family; none where nothing is expected or counted."""
    from streamveil.engines.outlook import Settings, errors_of, expected
    from streamveil.operators.release import driver
    from streamveil.queries.explain import lane_sd

    outlook, totalling = expected(plan.options, windows_of(operator)), operator.totalling
    last, place = operator.schedule.triggers, driver(totalling.lanes)
    if outlook is None or last is None or place < 0 or plan.preset != "default":
        return []
    bounds, rule, selection = operator.bounds, totalling.rule, totalling.selection
    rows = float(bounds.l2_squared)
    if rule is not None:
        rows *= (rule.scale / rule.entry) ** 2
    settings = Settings(
        rows=rows, slots=bounds.slots or int(rows), share=1.0,
        reference=inf if rule is None else rule.reference,
    )  # fmt: skip
    opening = opening_of(selection, last)
    lane = totalling.lanes[place]
    largest = 1.0 if lane.kind != "sum" else lane.reach * float(lane.quantum)
    base = lane_sd(operator, place, last) / largest
    found = []
    for one in outlook.family():
        made = errors_of(one, settings, base, opening)
        text = f"rank^-{one.steep:g}, {one.repeats:.0%} repeats, tail n^-{one.heavy:.2g}"
        cells = (made.keys, made.l1 * largest, made.linf * largest, made.l2 * largest)
        found.append((text, *(f"{cell:,.4g}" if cell < 1e4 else f"{cell:,.0f}" for cell in cells)))
    return found


def opening_of(selection: Any, last: int) -> float:
    """Units that show half of all groups by the last release; 0 for public groups."""
    if selection is None:
        return 0.0
    usual: float | None = getattr(selection, "usual", None)
    return float(selection.threshold(last)) if usual is None else usual


def windows_of(operator: GroupBy) -> int:
    """Windows that the scope of a unit meets; the groups expected are those of one."""
    schedule = operator.schedule
    if schedule.whole or operator.period_us is None:
        return 1
    return -(-operator.period_us // schedule.slide_us) + schedule.overlap - 1
