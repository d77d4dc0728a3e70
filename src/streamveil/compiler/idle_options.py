"""Options of a query that have no effect on it."""

from __future__ import annotations

from streamveil.dataflow import Operator
from streamveil.dataflow.group_by import GroupBy
from streamveil.plan import Plan, options
from streamveil.plan.look import expectations
from streamveil.plan.options import Option
from streamveil.sketches.operator import SketchQuery

BY_SKETCHES = {options.CONFIDENCE, options.MAX_UNITS, options.LOOK_SHARE}  # read, or 0 as it is


def idle_options(plan: Plan, operator: Operator) -> list[tuple[str, str, str]]:
    """Options without effect, each with its value and its purpose."""
    given = plan.options
    if isinstance(operator, SketchQuery):
        others = (one for one in options.OPTIONS.values() if one.part_of and one not in BY_SKETCHES)
        return [(one.name, str(one.of(given)), "for counts and sums, not for sketches")
                for one in others if one.given_in(given)]  # fmt: skip
    if not isinstance(operator, GroupBy):
        return []
    aggregation = operator.aggregation
    by = "published" if plan.preset == "dp-sqlp" else aggregation.selected_by
    forecast = options.EXPECTED_ROWS.given_in(expectations(given)) and by != "published"
    tested = operator.design.test is not None or not options.TOTAL_TESTS.of(given)
    tested = tested and by in ("table", "totals")
    coins = (by == "table", "for selection = 'table'")
    weights = (aggregation.rule is not None, "for groups that carry weights")
    expected = (forecast, f"used with {options.EXPECTED_ROWS}")
    acts: dict[Option, tuple[bool, str]] = {
        options.THRESHOLDS: (by == "published", "for preset = 'dp-sqlp'"),
        options.SELECTION: (by not in ("public", "published"), "for discovered groups"),
        options.SELECTION_SHARE: (
            by == "gaussian" and aggregation.shared is None,
            "for selection = 'gaussian', where no answer is its count of units",
        ),
        options.DELTA_SHARE: (
            by in ("gaussian", "totals"), "for selection = 'gaussian' or 'totals'",
        ),
        options.MU_SHARE: coins,
        options.HIDDEN_GROUPS: coins,
        options.TOTAL_TESTS: (tested, "for selection = 'table' or 'totals'"),
        options.ENTRY_WEIGHT: weights,
        options.WEIGHT_REFERENCE: weights,
        options.EXPECTED_MOST_ROWS: expected,
        options.EXPECTED_REPEATS: expected,
        options.EXPECTED_UNITS: expected,
        options.EXPECTED_GROUPS: expected,
    }  # fmt: skip
    return [
        (option.name, str(option.of(given)), why)
        for option, (used, why) in acts.items()
        if option.given_in(given) and not used
    ]


def idle_warning(plan: Plan, operator: Operator) -> str | None:
    """A warning of options without effect; None if there are none."""
    said = [f"{name} = {value} is {why}" for name, value, why in idle_options(plan, operator)]
    return f"decides nothing here: {'; '.join(said)}.\n  to fix  leave it out" if said else None
