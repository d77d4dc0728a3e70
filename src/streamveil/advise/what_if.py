"""The error of a query under other settings, and what an attacker could learn, before it runs.

It reads no data, or only a public sample, and spends nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil, exp, inf
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from streamveil.advise.tune import compiled, forecast, read_sample, require_whole
from streamveil.compiler.numbered_rows import first_counted
from streamveil.compiler.plan_forecast import NOISE, answer_sd, growth, published_chance
from streamveil.core.accounting import Budget
from streamveil.core.accounting.guarantee import Guarantee
from streamveil.dataflow.group_by import GroupBy
from streamveil.display import AnswerTable, shown_in_cells
from streamveil.errors import BudgetError, PlanError, require_positive, requires_extra
from streamveil.plan import Plan, combined_plan
from streamveil.plan.combine import combine_rows
from streamveil.plan.own_rows import OwnRows, own_rows
from streamveil.types import own

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TIMES = (Fraction(1, 4), Fraction(1, 2), Fraction(1), Fraction(2), Fraction(4))
AS_ASKED = Fraction(1)
RARE = 1_000  # one in a thousand: a person whose presence would be a surprise
MOST_UNITS = 10**12
FAR = 1_000  # the release of the forecast if there is no last one


@dataclass(frozen=True, repr=False)
class WhatIf(AnswerTable):
    """A row for each setting: `print` it, `plot()` it, or take the `table`.

    varied, value   the setting that differs (the first row is the query as it is)
    epsilon         the loss of a unit in all releases together, at the delta of the budget
    sd              noise of the first count or sum at the last release, one standard deviation
    error           of a count of `units` people with a row each, as a share; none for a sum without
                    a sample
    shown           the chance that such a group is shown at all
    posterior       the most probable that a given person's presence may seem after all releases, if
                    it seemed 50% before; `posterior_rare`: if it seemed 0.1%
    guess           the largest chance that a guess whether a person is in the data is right
    kept, groups, sample_error   of a public sample: the share of rows that bounds keep, groups that
                    are shown, the mean expected error of a group (for a hidden one, its total)
    """

    table: pa.Table
    notes: Sequence[str]
    units: int

    def plot(self, name: str | None = None, *, most: int = 0) -> Figure:
        """A matplotlib figure of error over each setting. MissingExtraError without matplotlib."""
        with requires_extra("plot()", "plots"):
            from matplotlib.figure import Figure
        rows = [row for row in self.table.to_pylist() if row["sd"] is not None]
        first, others = rows[0], rows[1:]
        varied = list(dict.fromkeys(row["varied"] for row in others))
        made = Figure(figsize=(3.4 * max(1, len(varied)), 3.2), layout="constrained")
        column = name or ("sd" if first["error"] is None else "error")
        if column not in self.table.column_names[3:]:
            raise PlanError(f"'{column}' cannot be plotted; known: sd, error, kept, sample_error")
        for at, axes in zip(varied, np.atleast_1d(made.subplots(1, len(varied))), strict=True):
            line = sorted((row["value"], row[column]) for row in others if row["varied"] == at)
            axes.plot(*zip(*line, strict=True), "o-", color="#1b6ca8", ms=4)
            axes.axhline(first[column], color="#5b6570", lw=0.8, ls=":")
            axes.set(xlabel=at, xscale="log", yscale="log")
            axes.spines[["top", "right"]].set_visible(False)
        made.supylabel(f"{column} ({self.units:,} people)" if column == "error" else column)
        return shown_in_cells(made)


def what_if(  # noqa: PLR0913  (what may be varied, each by name)
    plan: Plan,
    *,
    units: int = 100,
    epsilons: Iterable[float] | None = None,
    max_rows: Iterable[int] | None = None,
    releases: Iterable[int] | None = None,
    sample: pa.Table | None = None,
    fraction: float = 1.0,
) -> WhatIf:
    """A row for the query as it is, and one for each other setting, one at a time."""
    units = own(units)
    if type(units) is not int or not 1 <= units <= MOST_UNITS:
        raise PlanError(
            f"units must be a whole number of people, from 1 to {MOST_UNITS:,}, not {units!r}"
        )
    if not isinstance(fraction, Real) or not 0 < fraction <= 1:
        raise PlanError(f"fraction must be above 0 and at most 1, not {fraction!r}")
    epsilons, max_rows, releases = (
        require_numbers(name, given)
        for name, given in (("epsilons", epsilons), ("max_rows", max_rows), ("releases", releases))
    )
    for epsilon in epsilons or ():  # before the query is compiled, which takes a while
        require_positive(epsilons=epsilon)
    name = first_counted(plan).name
    if sample is not None:
        require_whole(plan, fraction)
        sample = own_rows(plan.source, sample) if isinstance(plan.source, OwnRows) else sample
        sample = combine_rows(plan, sample).rows if plan.bounding.combine else sample
    base = compiled(plan)
    tried: list[tuple[str, Any, Plan]] = [("as asked", None, plan)]
    tried += [("epsilon", value, one) for value, one in over_epsilon(plan, base, epsilons)]
    tried += [("max_rows", value, one) for value, one in over_rows(plan, max_rows)]
    tried += [("releases", value, one) for value, one in over_releases(plan, base, releases)]
    rows, refused = [], []
    for varied, value, one in tried:
        try:
            operator = base if one is plan else compiled(one)
            found = of_sample(combined_plan(one), sample, fraction) if sample is not None else {}
        except (PlanError, BudgetError) as error:
            if one is plan:
                raise
            refused.append(f"{varied} = {value}: {str(error).splitlines()[0]}")
            continue
        said = {**row_of(one, operator, name, units), **odds(operator.guarantee, one), **found}
        rows.append({"varied": varied, "value": None if value is None else float(value), **said})
    table = pa.Table.from_pylist(rows)
    return WhatIf(table, (*in_words(rows, units), *refused), units)


def require_numbers(name: str, given: Iterable[Any] | None) -> list[Any] | None:
    """The settings to try; PlanError if one is not a number."""
    if given is None:
        return None
    tried = [*given] if isinstance(given, Iterable) else [None]
    for value in tried:
        if isinstance(value, bool) or not isinstance(value, Real):
            raise PlanError(
                f"{name} takes a list of numbers to try, and nothing else.\n"
                f"  to fix  what_if(query, {name}=[1, 2, 4])"
            )
    return tried


def over_epsilon(
    plan: Plan, base: GroupBy, given: Iterable[float] | None
) -> Iterator[tuple[float, Plan]]:
    """Other budgets, at the delta of the query's own."""
    delta = plan.budget.quoted_delta
    asked = plan.budget.epsilon or Fraction(f"{base.guarantee.epsilon(delta):.3g}")
    values = [asked * times for times in TIMES if times != AS_ASKED] if given is None else given
    for value in values:
        kept = None if plan.budget.is_pure else delta
        budget = Budget(epsilon=value, delta=kept)
        yield float(budget.epsilon or 0), replace(plan, budget=budget)


def over_rows(plan: Plan, given: Iterable[int] | None) -> Iterator[tuple[int, Plan]]:
    """Other bounds on the rows of a unit."""
    rows = plan.bounding.max_rows
    if given is None and rows is None:
        return
    several = {max(1, round((rows or 1) * times)) for times in TIMES} - {rows}
    for value in sorted(several) if given is None else given:
        each = 1 if plan.bounding.combine else plan.bounding.max_rows_per_group
        each = None if each is None else min(each, value)
        bounding = replace(
            plan.bounding, max_rows=value, quadratic=None,
            max_rows_per_group=None if each == value else each,
        )  # fmt: skip
        yield value, replace(plan, bounding=bounding)


def over_releases(
    plan: Plan, base: GroupBy, given: Iterable[int] | None
) -> Iterator[tuple[int, Plan]]:
    """The same time cut into fewer or more releases."""
    steps, clock = base.schedule.steps, plan.clock
    if steps is None or clock.kind == "once":
        if given:
            why = "answers once" if clock.kind == "once" else "has no end"
            raise PlanError(
                f"releases tries other numbers of releases, and this query {why}.\n"
                "  to fix  leave it out"
            )
        return
    several = {round(steps * times) for times in TIMES} - {steps}
    for value in sorted(several) if given is None else given:
        pace = Fraction(steps, value) if value >= 1 else Fraction(0)
        every, months = clock.every * pace, clock.months * pace
        if pace and every.denominator == months.denominator == 1:
            number = value if clock.steps is not None else None
            changed = replace(clock, every=int(every), months=int(months), steps=number)
            yield value, replace(plan, clock=changed)
        elif given is not None:
            raise PlanError(
                f"{value} releases do not cut the time of the query evenly.\n"
                f"  to fix  a number such as {steps * 2:,}: the query has {steps:,}"
            )


def row_of(plan: Plan, operator: GroupBy, name: str, units: int) -> dict[str, float | None]:
    """The noise at the last release, and the error of a group of `units` people."""
    last = operator.schedule.triggers or FAR
    output = next(out for out in operator.outputs if out.name == name)
    sd = answer_sd(operator, output, last)
    is_sum = first_counted(plan).function == "sum"
    return {
        "epsilon": operator.guarantee.epsilon(plan.budget.quoted_delta), "sd": sd,
        "error": None if is_sum else sd * growth(operator, last, units) / units,
        "shown": published_chance(operator, units, last),
    }  # fmt: skip


def odds(guarantee: Guarantee, plan: Plan) -> dict[str, float]:
    """What an attacker who knows everything else could learn about one person.

    Proof: apart from events of probability delta, all that is released is at most e^epsilon times
        as likely with a person's rows as without, so by Bayes' rule the odds that they are in the
        data grow at most by that factor. The best guess from even odds is right with probability
        (1 + TV) / 2, and the total variation distance TV is the delta at epsilon = 0.
    """
    epsilon = guarantee.epsilon(plan.budget.quoted_delta)
    return {
        "posterior": posterior(epsilon, 0.5), "posterior_rare": posterior(epsilon, 1 / RARE),
        "guess": min(1.0, (1 + guarantee.delta_at(0)) / 2),
    }  # fmt: skip


def posterior(epsilon: float, prior: float) -> float:
    """The largest probability after all releases, from the probability before them.

    >>> round(posterior(1.0, 0.5), 3), posterior(0.0, 0.5), posterior(float("inf"), 0.5)
    (0.731, 0.5, 1.0)
    """
    return 1 / (1 + (1 - prior) / prior * exp(-epsilon)) if epsilon < inf else 1.0


def of_sample(plan: Plan, sample: pa.Table, fraction: float) -> dict[str, float]:
    """Errors on a public sample, scaled to all units."""
    read = read_sample(plan, sample, 1 / fraction)
    made = forecast(plan, read, bounded(plan))
    error = made.l1 / (int(read.cell.max()) + 1)
    return {"kept": made.kept, "groups": made.keys, "sample_error": error}


def bounded(plan: Plan) -> Any:
    """The bounds of a plan, including those that a forecast chose."""
    bounds = compiled(plan).bounds
    if plan.bounding.max_rows is not None or plan.bounding.quadratic is not None:
        return plan.bounding
    return replace(
        plan.bounding, max_rows=bounds.max_rows, quadratic=bounds.quadratic,
        max_rows_per_group=None if bounds.quadratic is not None else bounds.per_group,
    )  # fmt: skip


def in_words(rows: list[dict[str, Any]], units: int) -> list[str]:
    """The results for the query as it is, in sentences; probabilities are rounded up."""
    asked = rows[0]
    said = [
        "a reader who thinks it 50% likely that a given person is in the data is at most "
        f"{up(asked['posterior'])} sure after all releases; one who thinks it {1 / RARE:.1%} likely"
        f", at most {up(asked['posterior_rare'])} (apart from events of probability delta)",
        f"the best guess from even odds is right in at most {up(asked['guess'])} of all cases",
    ]  # fmt: skip
    if asked["error"] is not None:
        said.append(
            f"a count of {units:,} people errs by {asked['error']:.1%} (one standard deviation)"
        )
        if asked["error"] > NOISE:
            said.append(
                f"for groups of {units:,} people the answer is mostly noise: take larger groups, "
                "fewer releases or a larger epsilon"
            )
    if asked["shown"] is not None and asked["shown"] < NOISE:
        said.append(
            f"a group of {units:,} people is published with probability {asked['shown']:.1%}"
        )
    return said


def up(share: float) -> str:
    """A share in percent, rounded up."""
    return f"{min(100.0, ceil(share * 1000) / 10):g}%"
