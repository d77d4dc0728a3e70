"""Charges on disjoint ranges, against an adversary that picks the unit-period after releases.

Mechanisms here are finite, and every law is enumerated: what the best adversary gains is exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from fractions import Fraction
from itertools import product
from math import exp, log

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from streamveil.accounts.ledger import Ledger
from streamveil.core.accounting import Budget, Neighbours, convert
from streamveil.core.accounting.guarantee import Gdp, Guarantee, Loss, Pure, Zcdp
from streamveil.errors import BudgetError
from tests.losses import approx

USER_DAY = Neighbours("user_id", period=timedelta(days=1))
WIDE = Budget(epsilon=10, delta=0.999)
MOST = approx(2, "0.99")
Law = tuple[Fraction, ...]
# what a mechanism says before any row is there: (chance, law of its answer without and with a unit)
Mechanism = tuple[tuple[Fraction, Law, Law], ...]


def leaking(delta: Fraction) -> Mechanism:
    """Says "now I hide nothing" with probability delta, and nothing else but then."""
    silent, spoken = (Fraction(1), Fraction(0)), (Fraction(0), Fraction(1))
    return ((delta, silent, spoken), (1 - delta, silent, silent))


def divergence(gamma: Fraction, p: Law, q: Law) -> Fraction:
    return sum((max(a - gamma * b, Fraction(0)) for a, b in zip(p, q, strict=True)), Fraction(0))


def alone(mechanism: Mechanism, gamma: Fraction) -> Fraction:
    """The least delta with which it is (log gamma, delta)-DP, adaptive or not."""
    ways = (
        sum((c * divergence(gamma, *pair) for c, *pair in mechanism), Fraction(0)),
        sum((c * divergence(gamma, b, a) for c, a, b in mechanism), Fraction(0)),
    )
    return max(ways)


def together(mechanisms: tuple[Mechanism, ...], gamma: Fraction) -> Fraction:
    """The same for all of them, when the adversary hears all first words and then picks a day."""
    totals = [Fraction(0), Fraction(0)]
    for said in product(*mechanisms):
        chance = Fraction(1)
        for c, _, _ in said:
            chance *= c
        totals[0] += chance * max(divergence(gamma, a, b) for _, a, b in said)
        totals[1] += chance * max(divergence(gamma, b, a) for _, a, b in said)
    return max(totals)


def daily(
    losses: Sequence[Loss | Guarantee], limit: Budget = WIDE, caps: Loss | None = None
) -> Ledger:
    ledger = Ledger.open(None, limit, USER_DAY, caps=caps)
    for day, loss in enumerate(losses):
        ledger.charge(f"day {day}", loss, range=(day, day + 1))
    return ledger


def test_days_that_say_when_they_leak_cost_the_sum_of_their_deltas() -> None:
    delta, days = Fraction(1, 50), 5
    gained = together((leaking(delta),) * days, Fraction(1))
    assert gained == 1 - (1 - delta) ** days > 4 * delta  # the maximum over days is delta
    spent = daily([Loss(delta=delta)] * days).spent()
    assert gained <= Fraction(spent.delta_at(0.0)) <= days * delta * (1 + Fraction(1, 10**12))
    with pytest.raises(BudgetError):
        daily([Loss(delta=delta)] * days, Budget(epsilon=1, delta=2 * delta))


def test_epsilons_count_in_their_range_and_deltas_everywhere() -> None:
    ledger = daily([approx(1, 1e-9)] * 300, Budget(epsilon=1, delta=3e-7))
    assert ledger.spent().pure_total == 1
    assert ledger.spent().delta == Fraction(3, 10**7)
    with pytest.raises(BudgetError):
        ledger.charge("one more", approx(1, 1e-9), range=(300, 301))
    with pytest.raises(BudgetError):
        ledger.charge("the same day", Pure("0.001"), range=(7, 8))
    ledger.charge("pure", Pure(1), range=(300, 301))


def loud(chance: float, epsilon: float) -> tuple[float, float]:
    """The least rho and mu of: says "loud" with that chance, then a randomised response, else none.

    Of finitely many orders and epsilons: the true ones may be larger by little.
    """
    alpha = 1 + np.geomspace(1e-2, 1e3, 2000)
    v = alpha - 0.5
    renyi = np.logaddexp(v * epsilon, -v * epsilon) - np.logaddexp(epsilon / 2, -epsilon / 2)
    moment = np.logaddexp(log(1 - chance), log(chance) + renyi)
    at = np.linspace(0, epsilon, 200)
    curve = chance * np.maximum((np.exp(epsilon) - np.exp(at)) / (1 + np.exp(epsilon)), 0)
    mu = next(m for m in np.linspace(0.1, 9, 900) if np.all(convert.gaussian_delta(at, m) >= curve))
    return float(np.max(moment / (alpha - 1) / alpha)), float(mu)


def test_rho_and_mu_of_any_mechanism_add_up_over_days() -> None:
    chance, epsilon, days, at = 0.01, 4.0, 300, 3.0
    rho, mu = loud(chance, epsilon)
    heard = 1 - (1 - chance) ** days
    gained = heard * (exp(epsilon) - exp(at)) / (1 + exp(epsilon))
    for loss in (Zcdp(rho), Gdp(mu)):
        assert gained > 3 * loss.delta_at(at)  # what the maximum over days would say
        ledger = daily([loss] * days, Budget(epsilon=10**5, delta=0.5))
        assert ledger.spent().delta_at(at) >= gained
        kept = Guarantee(USER_DAY, loss, given_past=True)
        assert daily([kept] * days, Budget(epsilon=10**5, delta=0.5)).spent() == loss


def laws() -> st.SearchStrategy[Law]:
    counts = st.lists(st.integers(0, 6), min_size=2, max_size=2).filter(any)
    return counts.map(lambda c: tuple(Fraction(x, sum(c)) for x in c))


def mechanisms() -> st.SearchStrategy[Mechanism]:
    words = st.lists(st.tuples(st.integers(1, 20), laws(), laws()), min_size=1, max_size=3)
    return words.map(lambda w: tuple((Fraction(c, sum(x[0] for x in w)), a, b) for c, a, b in w))


@given(st.lists(mechanisms(), min_size=2, max_size=4), st.sampled_from(["1", "3/2", "3"]))
@settings(max_examples=60, deadline=None)
def test_no_adversary_gains_more_than_the_ledger_says(drawn: list[Mechanism], text: str) -> None:
    gamma = Fraction(text)
    epsilon = Fraction(log(gamma) * (1 + 1e-12) + 1e-15)
    gained = together(tuple(drawn), gamma)
    losses = [approx(epsilon, alone(one, gamma)) for one in drawn]
    assume(sum(loss.delta for loss in losses) <= MOST.delta)
    ledger = daily(losses, caps=MOST)
    assert ledger.spent().pure_total <= epsilon + Fraction(1, 10**50)
    assert ledger.spent().delta >= gained


@given(st.lists(mechanisms(), min_size=2, max_size=3))
@settings(max_examples=60, deadline=None)
def test_pure_days_cost_their_maximum(drawn: list[Mechanism]) -> None:
    ratios = [max(ratio(one)) for one in drawn]
    if None in ratios or max(ratios) == float("inf"):
        return
    gamma = max(Fraction(r) for r in ratios)
    assert together(tuple(drawn), gamma) == 0


def ratio(mechanism: Mechanism) -> Iterator[Fraction | float]:
    for _, p, q in mechanism:
        for a, b in zip(p, q, strict=True):
            yield float("inf") if bool(a) != bool(b) else max(a / b, b / a) if a else Fraction(1)


def test_a_year_of_charged_days_follows_the_same_rule() -> None:
    days = [approx(1, 1e-9)] * 40
    week = daily(days, caps=MOST).convert("user-week").loss
    assert week.pure_total == 7  # in any week, one of days that hold it
    assert week.delta == 40 * Fraction(1, 10**9)  # the adversary picks the week


def test_chances_and_distances_count_everywhere_whatever_is_claimed() -> None:
    loss = Loss(pure=((Fraction(1), 1),), chance=Fraction(1, 10**9), distance=Fraction(1, 10**20))
    caps = Loss(pure=((Fraction(2), 1),), delta=Fraction(1, 10**6), distance=Fraction(1, 10**12))
    ledger = Ledger.open(None, WIDE, USER_DAY, caps=caps)
    for day in range(10):
        kept = Guarantee(USER_DAY, loss, given_past=True)
        ledger.charge("day", kept, range=(day, day + 1))
    assert ledger.spent().chance == 10 * loss.chance
    assert ledger.spent().distance == 10 * loss.distance
    assert ledger.spent().pure_total == 1
