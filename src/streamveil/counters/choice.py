"""Which counter to use."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from streamveil.calibrate import fit
from streamveil.core.accounting import Budget
from streamveil.core.counters import FOREVER, Counter
from streamveil.core.counters.anytime import AnytimeBltCounter
from streamveil.core.counters.blt import BltCounter, Weighting
from streamveil.core.sensitivity import Bounds, root_up
from streamveil.counters.kary import KaryTreeCounter
from streamveil.errors import PlanError, fitting, require_between, require_budget
from streamveil.types import Array, Int64

ALL_TIMES = 2**20  # errors are taken over all steps up to here, beyond over a grid
MOST_SCALED = 2**24  # scaled columns (3% less error) take time and memory for each step


@dataclass(frozen=True)
class CounterChoice:
    """A counter with its noise, and why.

    >>> choice = choose(None, Budget(rho=0.1))
    >>> choice.counter.needs_horizon, choice.reason[:18]
    (False, 'the end is unknown')
    """

    counter: Counter
    reason: str  # why this one

    def __str__(self) -> str:
        return f"{type(self.counter).__name__}: {self.reason}"


@fitting("choose(horizon=1000, budget=Budget(epsilon=1, delta=1e-9))")
def choose(
    horizon: int | None, budget: Budget, *, rows: int = 1, per_key: int | None = None
) -> CounterChoice:
    """The counter of least error for a setting, sized to its budget.

    Args:
        horizon: the last step; None if nobody knows it.
        budget: what one person may lose, over all steps.
        rows: the most rows of one person, over all keys.
        per_key: the most of these rows in one key; `rows` if left out.

    Raises:
        PlanError: an argument is missing or unknown; the message shows a call that works.
        PlanError: the budget is no Budget, the horizon is below 1 or above 2**40, or no counter
            fits.
        BudgetError: no noise scale makes a counter fit the budget.

    >>> print(choose(1000, Budget(rho=0.1)))
    BltCounter: the end is known; max sd 6.90, 32 bytes per key
    >>> print(choose(1000, Budget(epsilon=1)))
    KaryTreeCounter: pure differential privacy; max sd 18.04, 16 bytes per key
    """
    require_budget(budget)
    if horizon is not None:
        require_between(1, FOREVER, horizon=horizon)
    counter, reason = _pick(horizon, budget)
    person = Bounds(max_rows=rows, per_group=per_key)
    fitted = sized(counter, budget, person)
    if budget.epsilon is not None and budget.delta is not None and horizon is not None:
        tree = KaryTreeCounter(horizon=horizon, sigma=1)
        pure = sized(tree, Budget(epsilon=budget.epsilon), person)
        if largest_std(pure, horizon) < largest_std(fitted, horizon):
            fitted, reason = pure, "delta is so small that Laplace noise is less than Gaussian"
    worst = largest_std(fitted, horizon)
    return CounterChoice(
        fitted, f"{reason}; max sd {worst:.2f}, {fitted.state_bytes} bytes per key"
    )


def _pick(horizon: int | None, budget: Budget) -> tuple[Counter, str]:
    if budget.is_pure:
        if horizon is None:
            raise PlanError("pure differential privacy needs a horizon; give the most steps")
        return KaryTreeCounter(horizon=horizon, sigma=1), "pure differential privacy"
    if horizon is None:
        return AnytimeBltCounter(sigma=1), "the end is unknown"
    scaled: Weighting = "columns" if horizon <= MOST_SCALED else "none"
    return BltCounter(horizon=horizon, sigma=1, weighting=scaled), "the end is known"


def sized(counter: Counter, budget: Budget, person: Bounds) -> Counter:
    """The counter with the least noise for a budget and what one person may bring.

    Laplace noise is sized for the sum of a person's rows, Gaussian noise for `Bounds.l2_squared`.
    """
    rows = person.max_rows
    moved = rows if counter.loss().pure else root_up(Fraction(person.l2_squared))
    return fit(counter, budget, moved or 1, rows)


def times_of(counter: Counter, horizon: int | None) -> Int64[Array, " times"]:
    """The steps over which errors are taken."""
    last = min(counter.horizon, horizon or ALL_TIMES)
    if last <= ALL_TIMES:
        return np.arange(1, last + 1)
    return np.unique(np.rint(np.geomspace(1, last, 4096)).astype(np.int64))


def largest_std(counter: Counter, horizon: int | None) -> float:
    """The largest standard deviation over the horizon (2^20 steps when there is none)."""
    return float(counter.std(times_of(counter, horizon)).max())
