"""A query, reduced to a size at which thousands of copies of it can be tested.

The reduced query keeps the budget, the bounding, the aggregates, the counter, the selection and the
kind of windows; its columns are those of `audit.pipeline`, its triggers few and its keys small. It
is compiled by the same code and its guarantee is computed from its own noise.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import ceil

import pyarrow as pa

from streamveil.audit.pipeline import STRIDE
from streamveil.compiler import is_sketched
from streamveil.compiler.group_by import compile_plan
from streamveil.core.selection.gaussian import GaussianSettings
from streamveil.core.selection.total_test import TotalsAlone
from streamveil.dataflow.group_by import GroupBy
from streamveil.errors import PlanError
from streamveil.plan import Aggregate, Clock, KeyColumn, Plan, SourceSpec, Window, combined_plan
from streamveil.plan.options import SELECTION

STEP = 3_600_000_000  # microseconds
STEPS, WINDOW = 6, 3  # triggers of the job, and of a window where there are windows
MOST_KEYS = 8  # keys of one copy
MOST_UNITS = 990  # units in the background; a copy has the numbers below 1000
MOST_ADDED = 2_000  # most rows of the unit that tries a bound
LEVELS = 2  # of a quantile's tree


def reduced(plan: Plan, copies: int) -> Plan:
    """The reduced query."""
    if is_sketched(plan) or not isinstance(plan.source, SourceSpec):
        raise PlanError("only group-by queries can be audited from the command line")
    plan = combined_plan(plan)
    public = plan.key_set.public is not None or not plan.keys
    keys = tuple((copy * STRIDE + key,) for copy in range(copies) for key in range(MOST_KEYS))
    return replace(
        plan,
        source=SourceSpec(name="audit", kind="memory", options={"table": EMPTY}, event_time="at"),
        unit="unit",
        where=None,
        period_us=None if plan.periods is None else STEPS * STEP,
        period_months=0,
        period_origin_us=0,
        keys=(KeyColumn(name="key", expression="key"),),
        key_set=replace(plan.key_set, public=keys if public else None),
        aggregates=tuple(small(aggregate) for aggregate in plan.aggregates),
        window=window_of(plan.window),
        clock=Clock(kind="event", every=STEP, start_us=0, end_us=STEPS * STEP),
        sinks=(),
        options={**plan.options, **same_selection(plan)},
    )


def same_selection(plan: Plan) -> dict[str, str]:
    """The selection of the whole query: with few triggers another one might be chosen."""
    if plan.key_set.public is not None or not plan.keys or plan.preset != "default":
        return {}
    whole = compile_plan(plan)
    return {SELECTION.name: whole.aggregation.selected_by}


EMPTY = pa.schema([
    ("unit", pa.int64()), ("key", pa.int64()), ("at", pa.timestamp("us", tz="UTC")),
    ("value", pa.float64()),
]).empty_table()  # fmt: skip


def small(aggregate: Aggregate) -> Aggregate:
    """The aggregate over the value column; quantiles get a small tree."""
    options = dict(aggregate.options)
    if aggregate.function == "quantile":
        options |= {"levels": min(LEVELS, int(options.get("levels", LEVELS)))}
    expression = None if aggregate.expression is None else "value"
    return replace(aggregate, expression=expression, options=options)


def window_of(window: Window) -> Window:
    """A window of the same kind and a few triggers."""
    if window.kind == "whole":
        return Window()
    size, slide = WINDOW * STEP, STEP if window.kind != "tumble" else 0
    lateness = STEP if window.lateness_us else 0
    return Window(kind=window.kind, size_us=size, slide_us=slide, lateness_us=lateness)


def halved(operator: GroupBy) -> GroupBy:
    """The query with half of its noise, which an audit must catch."""
    design, chosen = operator.design, operator.design.selection
    if isinstance(chosen, GaussianSettings):
        chosen = replace(chosen, noise=Fraction(chosen.noise, 2))
    noises = tuple(Fraction(noise, 2) for noise in design.noises)
    return replace(operator, design=replace(design, noises=noises, selection=chosen))


def around(operator: GroupBy) -> int:
    """The number of units at which a key is shown about half of the time: one more matters most."""
    selection, test = operator.aggregation.selection, operator.aggregation.test
    if isinstance(selection, TotalsAlone) and test is not None:
        return min(max(1, ceil(test.threshold(test.triggers[0]) / test.lane.reach)), MOST_UNITS)
    return 1 if selection is None else max(1, ceil(selection.threshold(1)) - 1)
