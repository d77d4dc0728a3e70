"""A look at the data before the first release: how many rows units have, for a share of the budget.

Settings that fit the data halve the error, and nobody knows the shape of their data to tell it.
Where all rows are there when a job begins, noisy histograms over units tell it (`survey`). They
also choose the bounds of values that nobody gave.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

from streamveil.calibrate import root_down
from streamveil.core.accounting.budget import Budget, exact
from streamveil.core.accounting.guarantee import Loss
from streamveil.errors import PlanError
from streamveil.plan.options import EXPECTED_ROWS, LOOK_SHARE
from streamveil.plan.plan import DATABASES, Plan, TableSource
from streamveil.plan.value_bounds import Bounds, open_values, refusals, with_bounds

DEFAULT_SHARE = Fraction(1, 20)
SHARE_WITH_BOUNDS = Fraction(1, 10)  # where it chooses the bounds of values as well
LOOKED = "looked"  # among the options of a plan: what a look said; nobody writes it
LAWS = "laws"  # of groups, among the options that a look said; likewise
HISTOGRAM = "histogram"  # of the rows of units, likewise: from, to, share of units
COUNTED = ("count", "count_units", "count_distinct", "sum")
SKETCHED = ("heavy_hitters", "approx_frequency")


def look_share(plan: Plan) -> Fraction:
    """The part of the budget that a look takes; 0 without one."""
    return exact(LOOK_SHARE.name, LOOK_SHARE.of(plan.options))


def with_look(plan: Plan) -> Plan:
    """The plan with a look, where it has something to tell and all rows are there.

    Not by itself where each period is protected: a person present all year would pay each time.
    Always where bounds of values are left out, if they may be (`cannot_choose_bounds`).
    """
    if LOOK_SHARE.name in plan.options:
        if look_share(plan) and not can_look(plan):
            raise PlanError(
                "look_share asks rows for their shape before the first release: they must all be"
                " there.\n"
                "  to fix  leave it out for live data and give expected_rows, if that is known"
            )
        return plan
    if open_values(plan):
        chosen = cannot_choose_bounds(plan) is None
        more = {LOOK_SHARE.name: SHARE_WITH_BOUNDS} if chosen else {}
        return replace(plan, options={**plan.options, **more})
    settled = EXPECTED_ROWS.name in plan.options or plan.periods is not None
    bounded = plan.bounding.max_rows is not None or plan.bounding.quadratic is not None
    public = plan.key_set.public is not None or not plan.keys
    if settled or (public and bounded) or plan.counts_once or not can_look(plan):
        return plan
    return replace(plan, options={**plan.options, LOOK_SHARE.name: DEFAULT_SHARE})


def cannot_choose_bounds(plan: Plan) -> str | None:
    """Why a look cannot choose the bounds of values; None where it can."""
    if LOOK_SHARE.name in plan.options and not look_share(plan):
        return "look_share = 0 leaves nothing of the budget to choose them with"
    if not can_look(plan):
        return (
            "a part of the budget chooses them only where all rows are there at the start (files, a"
            " table in memory) and the budget has a delta"
        )
    return next(refusals(plan), None)


def can_look(plan: Plan) -> bool:
    """Whether all rows are there when the job begins, and the budget allows Gaussian noise."""
    source, clock = plan.source, plan.clock
    whole = source.kind in ("files", "memory", *DATABASES) and not source.options.get("follow")
    ends = clock.kind in ("event", "once") or (clock.kind == "rows" and clock.steps is not None)
    functions = {agg.function for agg in plan.aggregates}
    return (
        whole and ends
        and functions.isdisjoint(SKETCHED)
        and not isinstance(source, TableSource)
        and plan.preset == "default"
        and not plan.budget.is_pure
        and (bool(open_values(plan)) or not functions.isdisjoint(COUNTED))
    )  # fmt: skip


def divided(budget: Budget, share: Fraction) -> tuple[Budget, Budget]:
    """What a look may lose, and what is left for everything after it.

    Proof: whatever the look says, what follows keeps what is left. Two (epsilon, delta) add up, so
        do two rho; mu adds up in squares. All hold where the second is chosen by what the first
        said: basic composition, and adaptive composition of Gaussian privacy.
    """
    delta, left = budget.delta, 1 - share
    if budget.mu is not None:
        square = budget.mu**2
        return Budget(mu=root_down(square * share)), Budget(
            mu=root_down(square * left), delta=delta
        )
    if budget.rho is not None:
        return Budget(rho=budget.rho * share), Budget(rho=budget.rho * left, delta=delta)
    assert budget.epsilon is not None  # noqa: S101  (a budget has exactly one of the three)
    assert delta is not None  # noqa: S101  (a pure budget does not look)
    looking = Budget(epsilon=budget.epsilon * share, delta=delta * share)
    return looking, Budget(epsilon=budget.epsilon * left, delta=delta * left)


def stated(looking: Budget) -> Loss:
    """What a look loses, in the terms in which what follows is added."""
    if looking.mu is not None:
        return Loss(gaussian=looking.mu**2)
    if looking.rho is not None:
        return Loss(zcdp=looking.rho)
    assert looking.epsilon is not None  # noqa: S101  (as above)
    return Loss(pure=((looking.epsilon, 1),), delta=looking.delta or Fraction(0))


def told(plan: Plan, known: dict[str, Any], said: list[str], bounds: Bounds | None = None) -> Plan:
    """The plan with what a look said: numbers as options of expectation, bounds, and in words."""
    content = {"options": known, "said": said}
    return with_bounds(replace(plan, options={**plan.options, LOOKED: content}), bounds or {})


def expectations(options: Any) -> dict[str, Any]:
    """The options of a query, with what a look said."""
    return {**options, **options.get(LOOKED, {}).get("options", {})}
