"""Parts of a budget, and the filter that enforces them.

Inside a mechanism privacy is counted in one of two currencies, pure epsilon or rho of zero-
concentrated DP; both simply add up over releases. Conversion to (epsilon, delta) happens once, at
the boundary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from threading import Lock
from typing import Literal

import numpy as np

from streamveil.calibrate import gaussian_mu, zcdp_rho
from streamveil.core.accounting import Budget, exact, held, take_numbers
from streamveil.core.accounting.guarantee import Gdp, Loss, Pure, Zcdp
from streamveil.core.measure import chosen, with_gaussian, with_laplace
from streamveil.core.noise import Draws
from streamveil.core.noisy import Noisy, post_process
from streamveil.errors import BudgetError, PlanError, require_budget, require_one_of, require_with
from streamveil.types import Array, Exact, Float64, Int64

Kind = Literal["pure", "zcdp", "gdp"]
CHARGING = Lock()  # of all meters: comparing a charge with the rest and taking it is one step
GRID = 1 << 80  # shares are multiples of 1/GRID, so that sums of many stay short and exact
MOST = 1 << 61  # the largest number that leaves room for its noise
LATTICE = 2.0**20  # public guesses are multiples of 1/LATTICE, see `on_lattice`


def floor_to_grid(value: Exact | float) -> Fraction:
    """The largest multiple of 1/GRID that is not above `value`."""
    return Fraction(math.floor(held("value", value) * GRID), GRID)


@lru_cache(maxsize=1024)  # the same few shares are spent again and again
def floor_root(value: Exact) -> Fraction:
    """A fraction just below the square root of `value`: never above it."""
    value = Fraction(value)
    return Fraction(math.isqrt(value.numerator * GRID**2 // value.denominator), GRID)


@lru_cache(maxsize=1024)
def ceil_root(value: Exact) -> Fraction:
    """A fraction just above the square root of `value`: never below it."""
    value = Fraction(value)
    return Fraction(math.isqrt(-(-value.numerator * GRID**2 // value.denominator)) + 1, GRID)


def on_lattice(public: Float64[Array, " n"]) -> Float64[Array, " n"]:
    """Public numbers, rounded so that exact answers less these are exact in floating point.

    Both are multiples of 2^-20 below 2^32, so their difference has at most 53 bits. Between two
    neighbours such differences move exactly as far as the answers, and not an ulp more.
    """
    return np.asarray(np.rint(public * LATTICE) / LATTICE)


@dataclass(frozen=True)
class Share:
    """A public part of a privacy budget: `amount` is epsilon ('pure') or rho ('zcdp', 'gdp').

    Parts are rounded down, so the parts of a split never exceed the whole.

    Raises:
        PlanError: an unknown kind, an amount below 0, or a conversion that this kind does not
            have.

    >>> whole = Share("zcdp", Fraction(1, 50))
    >>> sum((part.amount for part in whole.split(1, 2, 4)), Fraction(0)) <= whole.amount
    True
    >>> float(whole.choice_epsilon)
    0.4
    """

    kind: Kind  # the currency: 'pure', 'zcdp' or 'gdp'
    amount: Exact  # epsilon (pure) or rho (zcdp, gdp), >= 0

    def __post_init__(self) -> None:
        take_numbers(self)
        require_one_of("kind", self.kind, ("pure", "zcdp", "gdp"))
        if self.amount < 0:
            raise PlanError(f"amount must not be below 0, not {self.amount}")

    @classmethod
    def of(cls, budget: Budget) -> Share:
        """The share that spends the whole budget: pure when there is no delta, zCDP otherwise.

        Args:
            budget: in epsilon, epsilon and delta, rho or mu.

        Raises:
            PlanError: it is no `Budget`.
        """
        require_budget(budget)
        if budget.is_pure:
            return cls("pure", Fraction(budget.epsilon or 0))
        return cls("zcdp", floor_to_grid(zcdp_rho(budget)))

    @classmethod
    def for_noise(cls, budget: Budget) -> Share:
        """The share of a mechanism that only adds noise to numbers, never chooses or compares.

        Args:
            budget: in epsilon, epsilon and delta, rho or mu.

        Raises:
            PlanError: it is no `Budget`.
        """
        require_budget(budget)
        if budget.is_pure:
            return cls.of(budget)
        return cls("gdp", floor_to_grid(Fraction(gaussian_mu(budget)) ** 2 / 2))

    def scale(self, factor: Exact | float) -> Share:
        """This share times a factor, rounded down.

        Args:
            factor: at least 0.

        Raises:
            PlanError: the factor is below 0.
        """
        return Share(self.kind, floor_to_grid(held("factor", factor) * self.amount))

    def split(self, *weights: Exact | float) -> tuple[Share, ...]:
        """Parts in proportion to the weights, rounded down.

        Args:
            weights: of each part, at least 0, and not all 0.

        Raises:
            PlanError: a weight is below 0 or no number, or all are 0.
        """
        parts = [held("weight", weight) for weight in weights]
        if sum(parts) == 0:
            raise PlanError(f"one of the weights must be above 0, not {weights}")
        return tuple(self.scale(part / sum(parts)) for part in parts)

    @property
    def loss(self) -> Loss:
        """The loss of spending all of it."""
        if self.kind == "gdp":
            return Gdp.squared(2 * Fraction(self.amount))
        return Pure(self.amount) if self.kind == "pure" else Zcdp(self.amount)

    def require_choices(self) -> None:
        """Refuses a share that pays for noise only, not for choices and comparisons.

        Raises:
            PlanError: it does not.
        """
        if self.kind == "gdp":
            raise PlanError("this share ('gdp') buys Gaussian noise only: use Share.of(budget)")

    @property
    def epsilon(self) -> Fraction:
        """The largest epsilon of a pure mechanism that fits: rho = epsilon^2 / 2."""
        self.require_choices()
        return Fraction(self.amount) if self.kind == "pure" else floor_root(2 * self.amount)

    @property
    def choice_epsilon(self) -> Fraction:
        """The largest epsilon of an exponential mechanism that fits: rho = epsilon^2 / 8."""
        self.require_choices()
        return Fraction(self.amount) if self.kind == "pure" else floor_root(8 * self.amount)

    def spread(self, l1: Exact, l2_squared: Exact) -> Fraction:
        """The noise scale of one release: Laplace scale, or sigma of a Gaussian (rounded up).

        Args:
            l1: how far one unit moves the number, at least 0.
            l2_squared: how far it moves it, squared.

        Raises:
            PlanError: the share is nothing, or a number is below 0.
        """
        if not self.amount:
            raise PlanError("a share of nothing cannot pay for a release")
        one, two = held("l1", l1), held("l2_squared", l2_squared)
        if min(one, two) < 0:
            raise PlanError(f"l1 and l2_squared must be at least 0, not {one} and {two}")
        return one / self.amount if self.kind == "pure" else ceil_root(two / (2 * self.amount))

    def deviation(self, l1: Exact, l2_squared: Exact) -> float:
        """The standard deviation of the noise of one release, per coordinate.

        Args:
            l1: how far one unit moves the number, at least 0.
            l2_squared: how far it moves it, squared.

        Raises:
            PlanError: the share is nothing.
        """
        scale = float(self.spread(l1, l2_squared))
        return scale * math.sqrt(2) if self.kind == "pure" else scale

    def noisy(self, exact: int, draws: Draws, l1: Exact, l2_squared: Exact) -> Noisy[int]:
        """A whole number with noise of the scale that this share pays for.

        Args:
            exact: the number.
            draws: draws at an address of their own.
            l1: how far one unit moves the number, at least 0.
            l2_squared: how far it moves it, squared.

        Raises:
            PlanError: the share is nothing, or the number is not whole or beyond 2^61.
        """
        if not isinstance(exact, int | np.integer) or not -MOST <= exact <= MOST:
            raise PlanError("exact must be a whole number, from -2**61 to 2**61")  # not which
        law = with_laplace if self.kind == "pure" else with_gaussian
        return post_process(first, law(exact, self.spread(l1, l2_squared), draws))

    def choose(self, draws: Draws, scores: Float64[Array, " n"], sensitivity: float) -> Noisy[int]:
        """An index of high score, by the exponential mechanism.

        Args:
            draws: draws at an address of their own.
            scores: of each index.
            sensitivity: how far one unit moves a score, above 0.

        Raises:
            PlanError: the share buys Gaussian noise only, or the sensitivity is beyond its range.
        """
        return chosen(scores, self.choice_epsilon, sensitivity, draws)


def first(numbers: Int64[Array, " n"]) -> int:
    """The first of some whole numbers."""
    return int(numbers[0])


def require_share(share: object) -> None:
    """Raises PlanError for anything but a `Share`."""
    require_with("share", share, "for_noise", 'a share such as Share("pure", 1)')


@dataclass
class Meter:
    """A privacy filter: refuses a charge that would pass the limit, before anything is drawn.

    Guarantee: whatever is charged, in whatever order, adaptively, stays within `limit`.
    Proof: for pure DP and zCDP the costs along every transcript add up (chain rule; Feldman &
        Zrnic 2021, arXiv:2008.11193; Whitehouse et al. 2023, arXiv:2203.05481).

    Raises:
        BudgetError: a charge would pass the limit; nothing is charged then.
        PlanError: less than nothing is spent, or the limit is no share.

    >>> meter = Meter(Share("pure", 1))
    >>> _ = meter.charge(Share("pure", Fraction(3, 4)))
    >>> meter.fits(Share("pure", Fraction(1, 2))), meter.spent
    (False, Fraction(3, 4))
    """

    limit: Share
    spent: Fraction = Fraction(0)  # in the currency of the limit, >= 0

    def __post_init__(self) -> None:
        require_share(self.limit)
        self.spent = exact("spent", self.spent)
        if self.spent < 0:
            raise PlanError(f"spent must be at least 0, not {self.spent}")

    def fits(self, share: Share) -> bool:
        """Whether the charge would be accepted.

        Args:
            share: part of a budget (`Share`) that it may spend, above 0.

        Raises:
            PlanError: it is no share.
        """
        require_share(share)
        return share.kind == self.limit.kind and self.spent + share.amount <= self.limit.amount

    def charge(self, share: Share) -> Share:
        """Pays for one release and hands its share on.

        Args:
            share: part of a budget (`Share`) that it may spend, above 0.

        Raises:
            BudgetError: less than that is left.
            PlanError: it is no share.
        """
        with CHARGING:
            if not self.fits(share):
                raise BudgetError(
                    f"a release asks for {float(share.amount):.6g} ({share.kind}), "
                    f"{float(self.limit.amount - self.spent):.6g} of "
                    f"{float(self.limit.amount):.6g} ({self.limit.kind}) is left"
                )
            self.spent += Fraction(share.amount)
        return share
