"""Ledgers: what jobs have spent, and what they may.

Here: how much of a ledger's limit is spent, by caps per kind of loss, and totals per unit-period.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from fractions import Fraction
from functools import cache
from math import ceil, exp, floor, log

from streamveil.core.accounting import Budget
from streamveil.core.accounting.guarantee import Loss
from streamveil.special import ndtri

UNIT = 10**60  # charges are rounded up, caps down, to multiples of 1 / UNIT
KINDS = ("gaussian", "zcdp", "pure", "delta", "distance")
Amounts = tuple[int, ...]  # one per kind, in units
Cost = tuple[Amounts, Amounts]  # within the charge's range, and everywhere
Periods = tuple[int, int]  # unit-periods [first, end)
ZERO: Amounts = (0,) * len(KINDS)


def own_caps(limit: Budget) -> Loss | None:
    """A limit in epsilon, rho or mu is its own cap; an (epsilon, delta) limit is a curve: None."""
    delta = limit.delta or Fraction(0)
    if limit.rho is not None:
        return Loss(zcdp=limit.rho, delta=delta)
    if limit.mu is not None:
        return Loss(gaussian=limit.mu**2, delta=delta)
    assert limit.epsilon is not None  # noqa: S101  (a budget has exactly one of the three)
    return Loss(pure=((limit.epsilon, 1),)) if limit.is_pure else None


def caps_for(limit: Budget, first: Loss) -> Loss:
    """Caps per kind of loss for an (epsilon, delta) limit, fixed by the first charge.

    They are the first charge scaled up as far as it fits (as it is, or as zCDP when that goes
    further), and what is then left of delta. So a limit is used up by repeating what it was opened
    for, and any single mechanism that fits the limit fits the ledger. A first charge that does not
    fit is scaled down: caps always fit, so it is refused.
    """
    delta, first = limit.delta or Fraction(0), first.stated()
    first = replace(first, delta=first.delta + first.chance, chance=Fraction(0))
    assert limit.epsilon is not None  # noqa: S101  (other limits have caps of their own)
    if not (first.gaussian or first.zcdp or first.distance) and not _small(first, limit):
        return Loss(pure=((limit.epsilon, 1),), delta=delta)
    if _small(first, limit):
        first = Loss(zcdp=Fraction(first.rho()), delta=first.delta, distance=first.distance)
    return _with_rest_of_delta(_scaled_to(limit, first), limit)


def _small(first: Loss, limit: Budget) -> bool:
    """Whether many charges like this compose better as zCDP than by adding epsilons."""
    if not first.pure or first.gaussian or first.zcdp or first.distance or not limit.delta:
        return False
    half = Loss(delta=limit.delta / 2)
    as_zcdp = Loss(zcdp=Fraction(first.rho()))
    assert limit.epsilon is not None  # noqa: S101  (only called for epsilon limits)
    times = int(limit.epsilon / first.pure_total) + 1
    slack = Loss(delta=first.delta * times)
    return as_zcdp.times(times).compose(half, slack).fits(limit)


def _scaled_to(limit: Budget, first: Loss) -> Loss:
    low, high = Fraction(1), Fraction(2)
    if not _times(first, low).fits(limit):
        if first.fits(limit):
            return first  # its pure losses compose better than their sum does
        low, high = Fraction(0), low
    while _times(first, high).fits(limit):
        low, high = high, 2 * high
    for _ in range(64):
        middle = (low + high) / 2
        low, high = (middle, high) if _times(first, middle).fits(limit) else (low, middle)
    return _times(first, low)


def _times(loss: Loss, factor: Fraction) -> Loss:
    pure = ((loss.pure_total * factor, 1),) if loss.pure else ()
    return Loss(
        loss.gaussian * factor,
        loss.zcdp * factor,
        pure,
        loss.delta * factor,
        loss.distance * factor,
    )


def _with_rest_of_delta(caps: Loss, limit: Budget) -> Loss:
    if limit.epsilon is None or limit.delta is None:
        return caps
    spare = limit.delta - Fraction(caps.delta_at(float(limit.epsilon)))
    wider = caps.compose(Loss(delta=max(spare, Fraction(0))))
    return wider if wider.fits(limit) else caps


def amounts(loss: Loss) -> Amounts:
    """A loss in units, kind by kind, rounded up."""
    return tuple(ceil(x * UNIT) for x in _numbers(loss))


@cache
def limits(caps: Loss) -> Amounts:
    """Caps in units, kind by kind, rounded down."""
    return tuple(floor(x * UNIT) for x in _numbers(caps))


def _numbers(loss: Loss) -> tuple[Fraction, ...]:
    return loss.gaussian, loss.zcdp, loss.pure_total, loss.delta + loss.chance, loss.distance


def split(loss: Loss, *, given_past: bool) -> tuple[Loss, Loss]:
    """What a charge takes from unit-periods in its range alone, and what from all of them.

    Proof: `ledger.Ledger`. A pure loss holds on every transcript, so given any past; of another
        kind only if somebody proved that it does. Chances and distances are about all draws of a
        run: what is left of them after some past may be more, so nobody can prove it.
    """
    if given_past:
        whole = Loss(distance=loss.distance, chance=loss.chance)
        return replace(loss, distance=Fraction(0), chance=Fraction(0)), whole
    plain = loss.stated()
    return Loss(pure=plain.pure), replace(plain, pure=())


def has_room(asked: Amounts, spent: Amounts, limit: Amounts) -> bool:
    """Whether a cost fits beside what is spent, in every kind."""
    return all(a + b <= cap for a, b, cap in zip(asked, spent, limit, strict=True))


def as_loss(spent: Amounts) -> Loss:
    """The loss that amounts stand for."""
    gaussian, zcdp, pure, delta, distance = (Fraction(amount, UNIT) for amount in spent)
    return Loss(gaussian, zcdp, ((pure, 1),) if pure else (), delta, distance)


@cache
def cost(loss: Loss, caps: Loss) -> Amounts:
    """What a loss takes from each cap, restated in the kinds that have one.

    Proof: a Gaussian mechanism is mu^2/2-zCDP. A pure mechanism is zCDP (`convert.pure_zcdp`); it
        is also GDP with mu = 2 Phi^-1(e^eps / (1 + e^eps)), because randomised response dominates
        it and is itself the sign of a Gaussian with that mu. A kind without a cap has room 0.
        Tables count as they are stated.
    """
    loss = loss.stated()
    gaussian, zcdp, pure = loss.gaussian, loss.zcdp, loss.pure
    if gaussian and not caps.gaussian and caps.zcdp:
        gaussian, zcdp = Fraction(0), zcdp + gaussian / 2
    if pure and not caps.pure and caps.zcdp:
        zcdp, pure = zcdp + Fraction(Loss(pure=pure).rho()), ()
    elif pure and not caps.pure and caps.gaussian:
        squares = (times * _gaussian_square(float(epsilon)) for epsilon, times in pure)
        gaussian, pure = gaussian + sum(map(Fraction, squares), Fraction(0)), ()
    return amounts(replace(loss, gaussian=gaussian, zcdp=zcdp, pure=pure))


def _gaussian_square(epsilon: float) -> float:
    """The least mu^2 such that epsilon-DP is mu-GDP, rounded up.

    -Phi^-1(1 / (1 + e^eps)), taken in the lower tail where it keeps its digits.
    """
    if epsilon > 600:
        return 4 * 2 * (epsilon + log(2))  # Phi(-x) <= e^(-x^2/2) / 2
    tail = float(ndtri(1 / (1 + exp(epsilon))))
    return 4 * tail**2 * (1 + 1e-9)


class PeriodTotals:
    """What each unit-period has lost: an amount for all of them and more within ranges.

    Memory: one row per distinct end of a range. A charge costs O(log ranges + ranges it meets).
    """

    def __init__(self) -> None:
        self.everywhere = ZERO
        self.most = ZERO  # kind by kind, the largest ranged amount of any unit-period
        self._starts: list[int] = []  # of segments; the last one only ends the segment before
        self._ranged: list[Amounts] = []

    def copy(self) -> PeriodTotals:
        """An independent copy."""
        other = PeriodTotals()
        other.everywhere, other.most = self.everywhere, self.most
        other._starts, other._ranged = list(self._starts), list(self._ranged)
        return other

    def worst(self, periods: Periods | None = None) -> Amounts:
        """Kind by kind, the most that any unit-period (of a range) has lost."""
        ranged = self.most
        if periods is not None:
            first, end = self._span(*periods)
            ranged = _most(self._ranged[first:end])
        return _sum(self.everywhere, ranged)

    def has_room(self, cost: Cost, periods: Periods | None, limit: Amounts) -> bool:
        """Whether a charge fits, for the unit-periods of its range and for all others."""
        ranged, everywhere = cost
        if not has_room(everywhere, self.worst(), limit):
            return False
        return has_room(_sum(ranged, everywhere), self.worst(periods), limit)

    def book(self, cost: Cost, periods: Periods | None) -> None:
        """Books a charge."""
        self.add(cost[0], periods)
        self.add(cost[1], None)

    def add(self, charge: Amounts, periods: Periods | None) -> None:
        """Books amounts."""
        if periods is None:
            self.everywhere = _sum(self.everywhere, charge)
            return
        first, end = self._split(periods[0]), self._split(periods[1])
        for place in range(first, end):
            self._ranged[place] = _sum(self._ranged[place], charge)
        self.most = _most([self.most, *self._ranged[first:end]])

    def _span(self, first: int, end: int) -> tuple[int, int]:
        low = bisect_left(self._starts, first)
        if low == len(self._starts) or self._starts[low] != first:
            low -= 1  # the segment that contains the first period
        return max(low, 0), bisect_left(self._starts, end)

    def _split(self, period: int) -> int:
        """The place of the segment that starts at a period, made if need be."""
        place = bisect_left(self._starts, period)
        if place == len(self._starts) or self._starts[place] != period:
            self._starts.insert(place, period)
            self._ranged.insert(place, self._ranged[place - 1] if place else ZERO)
        return place


def _sum(a: Amounts, b: Amounts) -> Amounts:
    return tuple(x + y for x, y in zip(a, b, strict=True))


def _most(rows: list[Amounts]) -> Amounts:
    return tuple(max(column) for column in zip(ZERO, *rows, strict=True))
