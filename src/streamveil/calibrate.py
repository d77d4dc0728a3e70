"""From a budget to the most that one mechanism may lose, and to the noise scale for that loss.

Numbers without a closed form are searched from the private side, and the answer is checked through
the forward formula of `guarantee`: a returned number keeps the budget, and rounding only adds
noise. Noise of several parts together is sized elsewhere: `linear.budget_shares`,
`sketches.privacy`, `dataflow.published_keys`, `compiler.sizing`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np

from streamveil.core.accounting import Budget, Number, exact_between
from streamveil.core.accounting.guarantee import Gdp, Loss, Zcdp
from streamveil.core.counters import Counter, check_moved
from streamveil.core.release import WeightRule, weighted_loss
from streamveil.core.sensitivity import root_up
from streamveil.errors import BudgetError, PlanError, at_least, require_budget, require_with
from streamveil.kept import kept
from streamveil.types import Exact

SCALE_BITS = 40  # a scale is a multiple of 2^-40 of its size
MOST_FOR_ROUNDING = 64  # most noise, as a multiple of that of the same keys without weights
TOO_SMALL = (
    "the budget is below what 64 bits can account for in this counter, whatever its noise.\n"
    "  to fix  give the clock an end or a number of steps, use counter = 'auto', a larger budget,"
    " or tighter bounds on rows"
)

AnyCounter = TypeVar("AnyCounter", bound=Counter)


def fit(
    counter: AnyCounter, budget: Budget, moved: Exact | float = 1, keys: int | None = None
) -> AnyCounter:
    """The counter with the least noise scale whose `loss(moved, keys)` fits the budget.

    The loss falls as the scale grows, so bisection finds it; the returned scale was checked.

    Raises:
        PlanError: `moved` is not a finite number above 0, or the budget or counter is none.
        BudgetError: no noise scale fits the budget.

    >>> from streamveil.counters import BltCounter
    >>> counter = fit(BltCounter(horizon=100, sigma=1), Budget(rho=0.5))
    >>> round(float(counter.sigma), 3), counter.loss().fits(Budget(rho=0.5))
    (1.591, True)
    """
    require_budget(budget)
    require_with("counter", counter, "loss", "one such as BltCounter(horizon=100, sigma=1)")
    if keys is not None:
        at_least(1, keys=keys)
    if not check_moved(moved):
        raise PlanError(f"moved must be above 0, not {moved}: nothing needs noise otherwise")

    def scaled(sigma: Fraction) -> AnyCounter:
        return replace(counter, sigma=sigma)  # type: ignore[type-var]  # counters are dataclasses

    def fits(sigma: Fraction) -> bool:
        return scaled(sigma).loss(moved, keys).fits(budget)

    high = None
    with suppress(PlanError):  # 64 bits do not hold more noise
        high = next((scale for n in range(200) if fits(scale := Fraction(2**n))), None)
    if high is None:
        raise BudgetError(
            f"no noise scale that 64 bits hold makes {type(counter).__name__} fit {budget}"
        )
    low = high / 2
    while fits(low):
        low, high = low / 2, low
    return scaled(least_between(low, high, fits))


def least_between(low: Fraction, high: Fraction, fits: Callable[[Fraction], bool]) -> Fraction:
    """About the least scale that fits, by bisection between one that does not and one that does."""
    while high - low > PRECISION * high:
        middle = short((low + high) / 2)
        if not low < middle < high:
            break
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def short(scale: Fraction) -> Fraction:
    """The nearest number with about SCALE_BITS bits, exact as a float64."""
    bits = SCALE_BITS - (scale.numerator.bit_length() - scale.denominator.bit_length())
    return Fraction(round(scale * Fraction(2) ** bits)) / Fraction(2) ** bits


PRECISION = Fraction(1, 2**30)  # relative, of a search: far above rounding differences of machines


@lru_cache(maxsize=256)
def gaussian_mu(budget: Budget) -> float:
    """The largest mu such that a mu-GDP mechanism fits the budget, rounded down.

    >>> mu = gaussian_mu(Budget(epsilon=6, delta=1e-9))
    >>> round(mu, 4), Gdp(mu).epsilon(1e-9) <= 6
    (0.9744, True)
    """
    require_budget(budget)
    if budget.is_pure:
        raise PlanError("Gaussian noise needs a delta; give one, or use Laplace noise")
    return _largest(Gdp, budget)


def gaussian_sigma(l2: Number, budget: Budget) -> Fraction:
    """The least noise scale for L2 sensitivity `l2`, rounded up.

    If only the square of the sensitivity is known, `root_up` gives an `l2`.

    >>> float(gaussian_sigma(1, Budget(mu=0.5)))
    2.0
    """
    require_budget(budget)
    size = exact_between("l2", l2, 0, 10**30)
    return _round_up(size / (Fraction(gaussian_mu(budget)) if budget.mu is None else budget.mu))


@lru_cache(maxsize=256)
def zcdp_rho(budget: Budget) -> float:
    """The largest rho such that every rho-zCDP mechanism fits the budget, rounded down."""
    require_budget(budget)
    if budget.mu is not None:
        raise PlanError("this mechanism has no loss in mu; give the budget as rho or epsilon")
    if budget.is_pure:
        raise PlanError("zCDP needs a delta to convert to epsilon; give one")
    return _largest(Zcdp, budget)


def _largest(make: Callable[[Number], Loss], budget: Budget) -> float:
    """The largest parameter whose loss fits, by bisection; the answer itself was checked.

    Use the float itself: its printed decimal may lie on the other side of the budget.
    """
    low, high = 0.0, 1e-6
    while make(Fraction(high)).fits(budget):
        low, high = high, 2 * high
    if low == 0.0:
        raise PlanError(
            f"the budget {budget} is too small for this mechanism.\n"
            "  to fix  a larger budget, or fewer steps"
        )
    while high - low > PRECISION * low:
        middle = (low + high) / 2
        if not low < middle < high:
            break
        low, high = (middle, high) if make(Fraction(middle)).fits(budget) else (low, middle)
    return low


def _round_up(scale: Fraction) -> Fraction:
    """The next number with about SCALE_BITS bits; an exact short number stays."""
    bits = SCALE_BITS - (scale.numerator.bit_length() - scale.denominator.bit_length())
    unit = Fraction(2) ** bits
    return Fraction(-(-(scale * unit) // 1)) / unit


def root_down(square: Fraction) -> Fraction:
    """A fraction not above the square root."""
    root = root_up(square)
    return root if root * root <= square else square / root


@kept()
def spread_of(unscaled: Any, triggers: int) -> float:
    """The deviation of a counter's totals after `triggers` triggers, at the noise for mu = 1."""
    fine = Fraction(10**6)
    counter: Any = fit(unscaled, Budget(mu=1), fine, 1)
    return float(counter.std(np.array([triggers]))[0]) / float(fine)


@lru_cache(maxsize=256)
@kept()
def least_sigma(
    unscaled: Any, moved: Fraction, groups: int, mu_squared: Fraction, rule: WeightRule | None
) -> Exact:
    """The least noise with which a counter loses at most mu^2, weighted keys included.

    The loss falls as noise grows (`weighted_loss`), so bisection finds it; the result was checked.
    """

    def fits(sigma: Fraction) -> bool:
        loss = weighted_loss(replace(unscaled, sigma=sigma), moved, groups, rule)
        return loss.gaussian <= mu_squared

    try:
        low = Fraction(fit(unscaled, Budget(mu=root_down(mu_squared)), moved, groups).sigma)
    except BudgetError:
        raise PlanError(TOO_SMALL) from None
    if rule is None or fits(low):
        return low
    high = 2 * low
    while not fits(high):
        high *= 2
        if high > low * MOST_FOR_ROUNDING:
            raise PlanError(TOO_SMALL)
    return least_between(low, high, fits)
