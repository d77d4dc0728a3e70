"""Which settings give the least error: forecasts of a query on a public sample.

Bounds on rows (C, c, B). The sample is read exactly, so it must be public (an older published
extract, a synthetic stream): nothing of the private data is used, nothing is spent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import pi, sqrt
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from streamveil.compiled import erf, njit
from streamveil.compiler.error_forecast import LUCK
from streamveil.compiler.group_by import compile_plan
from streamveil.compiler.numbered_rows import Sample, first_counted, ranks, row_pairs, usable_rows
from streamveil.compiler.plan_forecast import answer_sd, growth, total_chance, units_chance
from streamveil.core.accounting import Budget
from streamveil.dataflow.group_by import GroupBy
from streamveil.errors import PlanError, require_one_of, require_positive
from streamveil.plan import Bounding, Plan, combined_plan
from streamveil.plan.combine import pairs
from streamveil.plan.look import in_units, with_look
from streamveil.plan.options import EXPECTED_ROWS
from streamveil.types import Array, Bool, Float64, Int64

QUANTILES = (0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1.0)  # of rows per unit, tried as C
PER_GROUP = (1, 2, 4)
SMALL_BOUND = 2  # squared rows, at weights below one; tried in addition to the sample's quantiles
USUAL_STEPS = 1_000  # assumed for a query without end
METRICS = ("l1", "l2", "linf", "keys")
EPSILONS = (1e-3, 64.0)  # the range in which `solve_epsilon` looks


@dataclass(frozen=True)
class Forecast:
    """The expected errors of one choice at the last release, over all groups."""

    bounding: Bounding
    keys: float  # groups expected to be shown
    l1: float  # sum over groups of the expected absolute error; a hidden group errs by its total
    l2: float  # root of the sum of expected squares
    linf: float  # the largest expected error of a group
    kept: float  # share of rows that bounding keeps
    sd: float  # noise of one number, of a group that is not large

    def cost(self, metric: str) -> float:
        """Smaller is better."""
        return -self.keys if metric == "keys" else float(getattr(self, metric))


@dataclass(frozen=True)
class Tuning:
    """All forecasts, best first, and the reason for the first."""

    metric: str
    forecasts: tuple[Forecast, ...]

    @property
    def best(self) -> Forecast:
        """The recommendation."""
        return self.forecasts[0]

    @property
    def reason(self) -> str:
        """Why the best is best, in words."""
        best = self.best
        return (
            f"keeps {best.kept:.1%} of the rows at a noise of {best.sd:.4g}; looser bounds add more"
            " noise than they save in cut rows, tighter ones cut more rows than they save in noise"
        )


def tune(plan: Plan, table: pa.Table, *, fraction: float = 1.0, metric: str = "l1") -> Tuning:
    """Forecasts every choice of bounds; `fraction` is the share of units that the sample holds."""
    require_one_of("metric", metric, METRICS)
    if not 0 < fraction <= 1:
        raise PlanError(f"fraction must be above 0 and at most 1, not {fraction}")
    require_whole(plan, fraction)
    sample = read_sample(plan, table, 1 / fraction)
    tried = default_choices(sample)
    if EXPECTED_ROWS.given_in(plan.options):
        tried.append(Bounding())  # by the forecast of what is expected
    found = [forecast(plan, sample, bounding) for bounding in tried]
    return Tuning(metric, tuple(sorted(found, key=lambda one: one.cost(metric))))


def require_whole(plan: Plan, fraction: float) -> None:
    """Refuses a partial sample for distinct counts: a part says nothing about the other values."""
    if fraction < 1 and first_counted(plan).function == "count_distinct":
        raise PlanError("COUNT(DISTINCT x) is forecast on a whole sample: fraction = 1")


def read_sample(plan: Plan, table: pa.Table, scale: float) -> Sample:
    """The sample as the pipeline sees it before bounding."""
    found = usable_rows(plan, table, scale)
    if found is None:
        raise PlanError(
            "the sample has no usable row.\n"
            "  to fix  give rows with the columns and types of the query, within its time"
        )
    return found


def default_choices(sample: Sample) -> list[Bounding]:
    """C at quantiles of rows per unit, each with several c; B of the same sizes."""
    per_unit = np.bincount(sample.scope)
    sizes = sorted({int(np.ceil(q)) for q in np.quantile(per_unit[per_unit > 0], QUANTILES)})
    flat = [
        Bounding(max_rows=rows, max_rows_per_group=each if each < rows else None)
        for rows in sizes
        for each in sorted({*(c for c in PER_GROUP if c < rows), rows})
    ]
    return flat + [Bounding(quadratic=rows) for rows in sorted({SMALL_BOUND, *sizes})]


class Facts(NamedTuple):
    """What bounding must know of the group of every row."""

    hidden: Bool[Array, " rows"]  # the group is not shown when the row comes
    weight: Float64[Array, " rows"]


class KeptRows(NamedTuple):
    """What bounding decides about every row, in the order of the sample."""

    passed: Bool[Array, " rows"]
    counted: Bool[Array, " rows"]  # passed, and not in a hidden group without a slot of the unit


def passes(
    sample: Sample, bounding: Bounding, facts: Facts | None = None, slots: int | None = None
) -> KeptRows:
    """Which rows bounding keeps; `slots`: as in `Bounds`."""
    n, most = len(sample.cell), float(np.iinfo(np.int64).max)
    facts = Facts(np.zeros(n, np.bool_), np.ones(n)) if facts is None else facts
    limits = (bounding.max_rows, bounding.max_rows_per_group, bounding.quadratic, slots)
    bounds = np.array([most if limit is None else limit for limit in limits])
    return KeptRows(*accept(sample.scope, row_pairs(sample), facts.hidden, facts.weight, bounds))


@njit(cache=True)  # type: ignore[untyped-decorator]  # numba is untyped
def accept(
    scope: Int64[Array, " rows"],
    pair: Int64[Array, " rows"],
    hidden: Bool[Array, " rows"],
    weight: Float64[Array, " rows"],
    limits: Float64[Array, " 4"],
) -> tuple[Bool[Array, " rows"], Bool[Array, " rows"]]:
    """Keeps, in order, at most C rows of a scope, c of a pair, B in squared weights, and slots."""
    taken, spent = np.zeros(scope.max() + 1), np.zeros(scope.max() + 1)
    held, times = np.zeros(pair.max() + 1), np.zeros(pair.max() + 1)
    entered, inside = np.zeros(scope.max() + 1), np.zeros(pair.max() + 1, np.bool_)
    keep, counted = np.zeros(len(scope), np.bool_), np.zeros(len(scope), np.bool_)
    for i in range(len(scope)):
        s, p, w = scope[i], pair[i], weight[i]
        cost = w * (2 * held[p] + w)  # (h + w)^2 - h^2
        if taken[s] >= limits[0] or times[p] >= limits[1] or spent[s] + cost > limits[2] + 1e-9:
            continue
        keep[i] = True
        if hidden[i] and times[p] == 0 and entered[s] < limits[3]:
            inside[p] = True
            entered[s] += 1
        counted[i] = inside[p] or not hidden[i]
        taken[s] += 1
        times[p] += 1
        held[p] += w
        spent[s] += cost
    return keep, counted


def forecast(plan: Plan, sample: Sample, bounding: Bounding) -> Forecast:
    """The expected errors with these bounds, from the noise of the compiled query.

    Error: a shown group errs by the cut rows b plus Gaussian noise of deviation s: absolute
        error s sqrt(2/pi) exp(-b^2 / 2 s^2) + b erf(b / (s sqrt 2)); a hidden one by its total.
        Where groups carry weights, they are those of groups of their size.
    """
    operator = compiled(replace(plan, bounding=bounding))
    aggregate = first_counted(plan)
    place = next(i for i, out in enumerate(operator.outputs) if out.name == aggregate.name)
    last = operator.schedule.triggers or USUAL_STEPS
    base = answer_sd(operator, operator.outputs[place], last)
    cells, function = int(sample.cell.max()) + 1, aggregate.function
    everything = np.ones(len(sample.cell), np.bool_)
    rows = _totals(sample, everything, "count", cells) if function == "sum" else None
    total = _totals(sample, everything, function, cells)
    (keep, counted), spread = admitted(operator, sample, total if rows is None else rows, base)
    sd = base * spread
    held = _totals(sample, keep, function, cells)
    units = _totals(sample, counted, "count_units", cells)
    test, tested = operator.aggregation.test, operator.outputs[place].lanes[-1]
    chance = _chances(operator, units, last)
    if test is not None:
        largest = test.lane.reach * float(test.lane.quantum)
        rows = held / largest if test.place == tested else units
        chance = 1 - (1 - chance) * (1 - total_chance(operator, rows, last))
    dropped = np.abs(total - held)
    near = sd * sqrt(2 / pi) * np.exp(-(dropped**2) / (2 * sd**2))
    error = chance * (near + dropped * erf(dropped / (sd * sqrt(2)))) + (1 - chance) * np.abs(total)
    square = chance * (sd**2 + dropped**2) + (1 - chance) * total**2
    return Forecast(
        bounding, float(chance.sum()), float(error.sum()), float(np.sqrt(square.sum())),
        float(error.max()), float(keep.mean()), base,
    )  # fmt: skip


def admitted(
    operator: Any, sample: Sample, sizes: Float64[Array, " cells"], sd: float
) -> tuple[KeptRows, Float64[Array, " cells"]]:
    """Which rows pass, and by how much each group's noise is multiplied.

    A group is hidden until the selection's number of its units was accepted. Its weight follows
    from its size, and early on from its size so far (`WeightRule.growth`). This is
    `error_forecast.errors_of` for the rows of a sample.
    """
    rule, bounds, selection = (
        operator.aggregation.rule,
        operator.bounds,
        operator.aggregation.selection,
    )
    bounding = Bounding(
        max_rows=bounds.max_rows, max_rows_per_group=bounds.per_group, quadratic=bounds.quadratic
    )
    half = float(getattr(selection, "half", 0.0))
    size, steps = sizes[sample.cell], operator.schedule.triggers or USUAL_STEPS
    time = np.floor(np.arange(len(sample.cell)) / len(sample.cell) * steps) / steps
    weights, spread, scale = np.ones(len(size)), np.ones(len(sizes)), 1.0
    if rule is not None:
        luck = 0.0 if rule.caution else LUCK * sd / max(half, sd)
        reference, scale = rule.reference / (1 + luck), rule.entry / rule.scale
        if steps > 1:
            spread = np.maximum(1, sizes / reference) ** (1 / 3)
        known = size * np.minimum(1, rule.growth * time)
        weights = np.maximum(1, known / reference) ** (-1 / 3)
    middle = half if rule is None or half else rule.caution * sd
    for _ in range(3):
        hidden = size * time < middle
        weight = scale * np.where(hidden, 1.0, weights)
        keep = passes(sample, bounding, Facts(hidden, weight), bounds.slots)
        entered = keep.counted & hidden
        share = float(entered.sum()) / max(float(hidden.sum()), 1.0)
        middle = half / max(share, 0.02) if half else middle
    return keep, spread


def _totals(
    sample: Sample, keep: Bool[Array, " rows"], function: str, cells: int
) -> Float64[Array, " cells"]:
    cell, value = sample.cell[keep], sample.value[keep]
    if function == "count_distinct":  # distinct values do not grow with the share of units
        cell = np.unique(np.stack([cell, value.astype(np.int64)]), axis=1)[0]
        return np.bincount(cell, minlength=cells).astype(np.float64)
    if function == "count_units":
        first = ranks(pairs(sample.scope[keep], cell)) == 0 if keep.any() else keep[:0]
        cell, value = cell[first], np.ones(int(first.sum()))
    return np.bincount(cell, weights=value, minlength=cells) * sample.scale


def _chances(operator: Any, units: Float64[Array, " cells"], last: int) -> Float64[Array, " cells"]:
    """The chance that each group is shown by the last release, from its number of units."""
    whole = np.rint(units).astype(np.int64)
    levels, places = np.unique(whole, return_inverse=True)
    found: list[float] = []
    for level in levels:
        sure = bool(found) and found[-1] > 1 - 1e-9
        chance = 1.0 if sure else units_chance(operator, int(level), last)
        found.append(1.0 if chance is None else chance * (level > 0))
    return np.array(found)[places]


def solve_epsilon(
    plan: Plan, table: pa.Table, target: float, *, fraction: float = 1.0, metric: str = "l1"
) -> tuple[float, Forecast]:
    """The least epsilon (within 2 %) whose forecast is at most `target`; bounds as planned."""
    require_one_of("metric", metric, METRICS)
    require_positive(target=target)
    require_whole(plan, fraction)
    sample = read_sample(plan, table, 1 / fraction)

    def at(epsilon: float) -> Forecast:
        budget = Budget(epsilon=f"{epsilon:.6g}", delta=plan.budget.delta)
        return forecast(replace(plan, budget=budget), sample, plan.bounding)

    def good(made: Forecast) -> bool:
        return made.keys >= target if metric == "keys" else made.cost(metric) <= target

    found = least(lambda epsilon: good(at(epsilon)))
    if found is None:
        most = EPSILONS[1]
        raise PlanError(
            f"no epsilon up to {most:g} reaches {metric} = {target:g}: at {most:g} it is"
            f" {abs(at(most).cost(metric)):,.4g}.\n"
            "  to fix  change the bounds (`streamveil tune` shows how), or the target"
        )
    return found, at(found)


def least(good: Callable[[float], bool]) -> float | None:
    """The least epsilon (within 2 %) that is good enough; None: none is.

    >>> round(least(lambda epsilon: epsilon >= 0.5), 2)
    0.51
    """
    low, high = EPSILONS
    if not good(high):
        return None
    while high / low > 1.02:
        middle = sqrt(low * high)
        low, high = (low, middle) if good(middle) else (middle, high)
    return high


def compiled(plan: Plan) -> GroupBy:
    """The operator that `explain` describes: the look's part of the budget is taken off."""
    return compile_plan(combined_plan(in_units(with_look(plan))))


def epsilon_for(plan: Plan, units: int, target: float) -> float:
    """The least epsilon (within 2 %) with which the first count of a group errs at most `target`.

    No rows are needed: the group has one row per unit, the error is the deviation of the noise at
    the last release over `units`, for a group of its size.
    """
    asked = first_counted(plan)
    if asked.function == "sum":
        raise PlanError("a target error without a sample is for counts; give a public sample")
    if units < 1 or not target > 0:
        raise PlanError(
            "a target error needs at least 1 unit and a share above 0,"
            f" not units = {units} and target = {target}"
        )

    def at(epsilon: float) -> float:
        budget = Budget(epsilon=f"{epsilon:.6g}", delta=plan.budget.delta)
        operator = compiled(replace(plan, budget=budget))
        place = next(i for i, out in enumerate(operator.outputs) if out.name == asked.name)
        last = operator.schedule.triggers or USUAL_STEPS
        sd = answer_sd(operator, operator.outputs[place], last)
        return sd * growth(operator, last, units) / units

    found = least(lambda epsilon: at(epsilon) <= target)
    if found is None:
        raise PlanError(f"no epsilon up to {EPSILONS[1]:g} reaches the target: tighten the bounds")
    return found
