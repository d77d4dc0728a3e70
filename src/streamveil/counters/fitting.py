"""Sizing the noise of a counter: the least scale whose loss is inside a budget."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import TypeVar

from streamveil.calibrate import PRECISION
from streamveil.core.accounting.budget import Budget
from streamveil.core.counters.correlated_noise import check_moved
from streamveil.core.counters.protocol import Counter
from streamveil.errors import BudgetError, require_positive
from streamveil.types import Exact

SCALE_BITS = 40  # a scale is a multiple of 2^-40 of its size

AnyCounter = TypeVar("AnyCounter", bound=Counter)


def fit(
    counter: AnyCounter, budget: Budget, moved: Exact | float = 1, keys: int | None = None
) -> AnyCounter:
    """The counter with the least noise scale whose `loss(moved, keys)` fits the budget.

    The loss falls as the scale grows, so bisection finds it; what is returned was checked.

    Raises:
        ValueError: `moved` is not a finite number above 0, or the budget is no Budget.
        BudgetError: no noise scale fits the budget.

    >>> from streamveil.counters import BltCounter
    >>> counter = fit(BltCounter(horizon=100, sigma=1), Budget(rho=0.5))
    >>> round(float(counter.sigma), 3), counter.loss().fits(Budget(rho=0.5))
    (1.591, True)
    """
    require_budget(budget)
    if keys is not None:
        require_positive(keys=keys)
    if not check_moved(moved):
        raise ValueError("moved must be above 0: nothing needs noise otherwise")

    def scaled(sigma: Fraction) -> AnyCounter:
        return replace(counter, sigma=sigma)  # type: ignore[type-var]  # counters are dataclasses

    def fits(sigma: Fraction) -> bool:
        return scaled(sigma).loss(moved, keys).fits(budget)

    high = Fraction(1)
    for _ in range(200):
        if fits(high):
            break
        high *= 2
    else:
        raise BudgetError(f"no noise scale makes {type(counter).__name__} fit {budget}")
    low = high / 2
    while fits(low):
        low, high = low / 2, low
    while high - low > PRECISION * high:
        middle = short((low + high) / 2)
        if not low < middle < high:
            break
        low, high = (low, middle) if fits(middle) else (middle, high)
    return scaled(high)


def require_budget(budget: Budget) -> None:
    """Raises ValueError unless it is one."""
    if not isinstance(budget, Budget):
        raise ValueError("budget must be a Budget, such as Budget(epsilon=1, delta=1e-9)")


def short(scale: Fraction) -> Fraction:
    """The nearest number with about SCALE_BITS bits, exact as a float64."""
    bits = SCALE_BITS - (scale.numerator.bit_length() - scale.denominator.bit_length())
    return Fraction(round(scale * Fraction(2) ** bits)) / Fraction(2) ** bits
