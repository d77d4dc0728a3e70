"""Tuning on a public sample beyond bounds on rows: values, budget split, how often to release."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from math import sqrt

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamveil.advise.tune import (
    EPSILONS,
    METRICS,
    Forecast,
    Tuning,
    forecast,
    read_sample,
    require_whole,
    tune,
)
from streamveil.compiler.coin_tables import lane_sd
from streamveil.compiler.group_by import compile_plan
from streamveil.compiler.numbered_rows import first_counted
from streamveil.core.accounting.budget import Budget
from streamveil.errors import MissingExtraError, PlanError, require_one_of
from streamveil.expressions.expr import compile_value
from streamveil.plan import options
from streamveil.plan.plan import Plan

VALUES = (0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1.0)  # quantiles of the values, tried as bounds
SHARES = (0.3, 0.4, 0.5, 0.6, 2 / 3, 0.72, 0.8, 0.9)
PACES = (Fraction(1, 4), Fraction(1, 2), 1, 2, 4, 8, 16)  # times the interval between releases
OVER = ("bounds", "values", "split", "releases")


def tune_over(
    plan: Plan, table: pa.Table, over: str, *, fraction: float = 1.0, metric: str = "l1"
) -> Tuning:
    """Forecasts the choices of one kind, the others as planned."""
    require_one_of("over", over, OVER)
    require_one_of("metric", metric, METRICS)
    if over == "bounds":
        return tune(plan, table, fraction=fraction, metric=metric)
    require_whole(plan, fraction)
    ways: dict[str, Callable[[Plan, pa.Table, float], Iterator[Forecast]]] = {
        "values": over_values, "split": over_split, "releases": over_releases,
    }  # fmt: skip
    found = list(ways[over](plan, table, fraction))
    return Tuning(metric, tuple(sorted(found, key=lambda one: one.cost(metric))))


def over_values(plan: Plan, table: pa.Table, fraction: float) -> Iterator[Forecast]:
    """Upper bounds of the first SUM at quantiles of its values: looser is noisier, not clamped."""
    asked = first_counted(plan)
    if asked.function != "sum" or asked.expression is None or asked.low is None:
        raise PlanError("bounds on values belong to a SUM; the first aggregate is none")
    value = compile_value(asked.expression, table.schema)(table).cast(pa.float64(), safe=False)
    present = np.asarray(pc.drop_null(value))
    present = present[np.isfinite(present)]
    if len(present) == 0:
        raise PlanError("the sample has no usable row")

    def bounded(low: float, high: float) -> Plan:
        changed = replace(asked, low=low, high=high, quantum=None)
        kept = tuple(changed if one is asked else one for one in plan.aggregates)
        return replace(plan, aggregates=kept)

    widest = bounded(min(asked.low, float(present.min())), float(present.max()) + 1)
    truth = read_sample(widest, table, 1 / fraction)
    highs = np.unique(np.quantile(present, VALUES))
    for high in highs[highs > asked.low].tolist():
        tried = bounded(asked.low, high)
        made = forecast(tried, read_sample(tried, table, 1 / fraction), plan.bounding, truth)
        yield replace(made, choice=f"values up to {high:,.6g}")


def over_split(plan: Plan, table: pa.Table, fraction: float) -> Iterator[Forecast]:
    """Shares of the budget for the values, the rest for deciding which groups to show."""
    operator = compile_plan(plan)
    if operator.aggregation.selection is None or plan.preset != "default":
        raise PlanError("public groups and presets leave no budget to split")
    tabled = hasattr(operator.aggregation.selection, "table")
    if (
        not tabled
        and operator.aggregation.shared is not None
        and len(operator.aggregation.lanes) == 1
    ):
        raise PlanError("one counter selects and answers: there is nothing to split")
    name = str(options.MU_SHARE if tabled else options.SELECTION_SHARE)
    sample = read_sample(plan, table, 1 / fraction)
    for share in SHARES:
        tried = plan.options | {name: share if tabled else 1 - share}
        if tabled:
            tried[options.SELECTION.name] = "table"
        try:
            made = forecast(replace(plan, options=tried), sample, plan.bounding)
        except PlanError:  # no table fits beside that share
            continue
        yield replace(made, choice=f"{name} = {tried[name]:.3g}")


def over_releases(plan: Plan, table: pa.Table, fraction: float) -> Iterator[Forecast]:
    """How often to release: seldom costs less noise, often shows newer numbers.

    Error: of a group read at any time: the noise of the last release and the rows since, half an
        interval's on average, if rows arrive evenly.
    """
    steps = compile_plan(plan).schedule.steps
    if steps is None or plan.clock.kind == "once":
        raise PlanError("how often to release is tuned for a query with a known number of steps")
    sample = read_sample(plan, table, 1 / fraction)
    rows = np.bincount(sample.cell, np.abs(sample.value)) * sample.scale
    for pace in PACES:
        every, months, fewer = (
            plan.clock.every * pace,
            plan.clock.months * pace,
            round(steps / pace),
        )
        whole = every == int(every) and months == int(months)
        if not whole or fewer < 1 or (pace != 1 and fewer * pace != steps):
            continue
        clock = replace(plan.clock, every=int(every), months=int(months), steps=fewer)
        tried = replace(plan, clock=clock)
        made = forecast(tried, sample, plan.bounding)
        stale = rows / (compile_plan(tried).schedule.triggers or fewer)
        yield replace(
            made,
            l1=made.l1 + float(stale.sum()) / 2,
            l2=sqrt(made.l2**2 + float((stale**2).sum()) / 3),
            linf=made.linf + float(stale.max()) / 2,
            choice=f"{fewer:,} releases",
        )


def epsilon_for(plan: Plan, units: int, target: float) -> float:
    """The least epsilon (within 2 %) with which the first count of such a group errs so little.

    No rows are needed: the group has one row per unit, the error is the deviation of the noise at
    the last release over `units`, for a group of its size.
    """
    asked = first_counted(plan)
    if asked.function == "sum":
        raise PlanError("a target error without a sample is for counts; give a public sample")
    if units < 1 or not target > 0:
        raise PlanError("a target error needs units of at least 1 and a share above 0")

    def at(epsilon: float) -> float:
        budget = Budget(epsilon=f"{epsilon:.6g}", delta=plan.budget.delta)
        operator = compile_plan(replace(plan, budget=budget))
        place = next(i for i, out in enumerate(operator.outputs) if out.name == asked.name)
        last = operator.schedule.triggers or 1_000
        sd = lane_sd(operator, operator.outputs[place].lanes[0], last)
        rule = operator.aggregation.rule
        return sd / units * (1.0 if rule is None else max(1.0, units / rule.reference) ** (1 / 3))

    low, high = EPSILONS
    if at(high) > target:
        raise PlanError(f"no epsilon up to {high:g} reaches the target: tighten the bounds")
    while high / low > 1.02:
        middle = sqrt(low * high)
        low, high = (low, middle) if at(middle) <= target else (middle, high)
    return high


def draw(tuning: Tuning, path: str) -> None:
    """Every metric against C, one line for each c, as in Figure 10 of DP-SQLP; or by choice."""
    try:
        import matplotlib as mpl
    except ImportError:
        raise MissingExtraError("a plot", "plots") from None
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 2, figsize=(9, 6), sharex=True)
    for axis, metric in zip(axes.flat, METRICS, strict=True):
        for name, line in lines(tuning, metric):
            axis.plot(*zip(*line, strict=True), marker="o", markersize=4, label=name)
        axis.set(ylabel=metric, yscale="log")
        if not tuning.best.choice:
            axis.set(xscale="log")
        axis.tick_params(axis="x", labelrotation=0 if not tuning.best.choice else 60)
    for axis in axes[1]:
        axis.set(xlabel="C (rows of a unit); B for squared rows" * (not tuning.best.choice))
    if not tuning.best.choice:
        axes.flat[0].legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def lines(tuning: Tuning, metric: str) -> Iterator[tuple[str, list[tuple[int | str, float]]]]:
    """What to draw: a name and points for each line."""
    made = tuning.forecasts
    if made[0].choice:
        order = sorted(made, key=lambda one: one.sd)
        yield "", [(one.choice, getattr(one, metric)) for one in order]
        return
    for each in sorted({one.bounding.max_rows_per_group or 0 for one in made}):
        points = [
            (one.bounding.max_rows, getattr(one, metric)) for one in made
            if one.bounding.max_rows and (one.bounding.max_rows_per_group or 0) == each
        ]  # fmt: skip
        if points:
            yield f"c = {each or 'C'}", sorted(points)
    squares = [
        (one.bounding.quadratic, getattr(one, metric)) for one in made if one.bounding.quadratic
    ]
    if squares:
        yield "squared rows <= B", sorted(squares)
