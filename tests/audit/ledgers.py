"""The account of the ledger's rules: what charged mechanisms lose together, worked out anew.

Every charge stands for a mechanism that loses all of it: randomised response for a pure epsilon, a
Gaussian for mu and rho, "here is everything" with probability delta. The adversary writes the
stream: it picks the unit-period after it saw the releases, so that it waits for a mechanism that
says everything. Nothing here knows caps, kinds, splits or conversions: those are what it judges.
"""

from collections import Counter
from datetime import timedelta
from fractions import Fraction
from math import exp, expm1, inf, log1p, sqrt

import numpy as np
from scipy.special import comb, ndtr

from streamveil.accounts.ledger import Ledger
from streamveil.core.accounting.budget import Budget
from streamveil.core.accounting.guarantee import Guarantee, Loss
from streamveil.core.accounting.neighbours import Neighbours
from streamveil.errors import BudgetError

DAY, PEOPLE = Neighbours("user", period=timedelta(days=1)), Neighbours("user")
DAYS = 9
LIMITS = (
    Budget(epsilon=1, delta=Fraction("1e-6")), Budget(epsilon=4, delta=Fraction("1e-4")),
    Budget(epsilon=2), Budget(rho=Fraction(1, 2)),
    Budget(rho=Fraction(1, 8), delta=Fraction("1e-6")),
    Budget(mu=1), Budget(mu=Fraction(1, 2), delta=Fraction("1e-5")),
)  # fmt: skip
EPSILONS = (0.0, 0.05, 0.2, 0.5, 1.0, 2.0, 4.0, 8.0)


def gaussian_curve(mu, epsilon):
    """The delta of a Gaussian mechanism at any epsilon, also below 0."""
    if mu == 0:
        return np.maximum(0.0, 1 - np.exp(epsilon))
    far = np.exp(np.minimum(epsilon, 700.0))
    return ndtr(mu / 2 - epsilon / mu) - far * ndtr(-mu / 2 - epsilon / mu)


def lost(pure, mu_squared, reveals, epsilon):
    """The least delta of randomised responses, one Gaussian and mechanisms that say everything."""
    losses, chances = np.zeros(1), np.ones(1)
    for one, times in Counter(pure).items():
        high = 1 / (1 + exp(-float(one)))
        k = np.arange(times + 1)
        steps = float(one) * (2 * k - times)
        weights = comb(times, k) * high**k * (1 - high) ** (times - k)
        losses = (losses[:, None] + steps).ravel()
        chances = (chances[:, None] * weights).ravel()
    found = float(chances @ gaussian_curve(sqrt(mu_squared), epsilon - losses))
    spoken = -expm1(sum(log1p(-float(delta)) for delta in reveals))
    return found + (1 - found) * spoken


def loss_drawn(rng):
    """The loss of one mechanism, of one kind or of several."""
    part = lambda top: Fraction(int(rng.integers(1, 20)), 20) * Fraction(top)  # noqa: E731
    kinds = rng.permutation(4)[: int(rng.choice([1, 1, 1, 2, 3]))]
    return Loss(
        gaussian=part("0.2") if 0 in kinds else 0,
        zcdp=part("0.1") if 1 in kinds else 0,
        pure=((part("0.5"), int(rng.choice([1, 1, 3]))),) if 2 in kinds else (),
        delta=part(1) * Fraction(1, 10 ** int(rng.integers(5, 9))) if 3 in kinds else 0,
    )


def filled(rng):
    """A ledger with all charges that it took, of many that were tried."""
    protects, limit = (DAY, PEOPLE)[rng.random() < 0.3], LIMITS[int(rng.integers(len(LIMITS)))]
    ledger = Ledger.open(None, limit, protects)
    few = [loss_drawn(rng) for _ in range(3)]
    for nth in range(int(rng.integers(3, 25))):
        loss = few[int(rng.integers(3))]
        if rng.random() < 0.3:
            loss = loss_drawn(rng)
        given, separate = rng.random() < 0.5, rng.random() < 0.5
        periods = None
        if protects is DAY and rng.random() < 0.7:
            first = int(rng.integers(DAYS - 1))
            periods = first, first + int(rng.choice([1, 1, 2, 4]))
        made = Guarantee(protects, loss, None, separate, given_past=given)
        try:
            ledger.charge(f"{nth}", made, range=periods)
        except BudgetError:
            continue
    return ledger


def parts_of(charges, held):
    """(epsilons, mu^2, deltas) of mechanisms for a unit that is in so many of their periods."""
    pure, mu_squared, reveals = [], Fraction(0), []
    for charge, times in zip(charges, held, strict=True):
        loss = charge.loss
        reveals += [loss.delta] * (times if charge.separate else bool(times))
        if not times:
            continue
        copies, size = (times, 1) if charge.separate else (1, times)
        mu_squared += (loss.gaussian + 2 * loss.zcdp) * copies * size**2
        for epsilon, often in loss.pure:
            pure += [epsilon * size] * (often * copies)
    return pure, mu_squared, reveals


def holds(charge, first, end):
    """How many of the periods [first, end) a charge may read."""
    low, high = charge.range or (first, end)
    return max(0, min(high, end) - max(low, first))


def one_period(ledger):
    """What a unit-period loses at each epsilon, against the limit: (realised, claimed) deltas."""
    charges = ledger.entries()
    waited = [charge.loss.delta for charge in charges if not charge.given_past]
    for day in range(DAYS) if ledger.protects is DAY else [0]:
        held = [holds(charge, day, day + 1) for charge in charges]
        pure, mu_squared, reveals = parts_of(charges, held)
        # of charges without a proof for every past the adversary has waited for the one that tells
        inside = [c.loss.delta for c, n in zip(charges, held, strict=True) if n and c.given_past]
        reveals = inside + waited
        for epsilon in [*EPSILONS, float(ledger.limit.epsilon or 0)]:
            yield lost(pure, mu_squared, reveals, epsilon), allowed(ledger.limit, epsilon)


def allowed(limit, epsilon):
    """The delta that a limit stands for at an epsilon; of (epsilon, delta) at its own alone."""
    extra = float(limit.delta or 0)
    if limit.epsilon is not None:
        return extra if epsilon >= float(limit.epsilon) else inf
    if limit.mu is not None:
        return extra + float(gaussian_curve(float(limit.mu), epsilon))
    rho = float(limit.rho)
    orders = 1 + np.geomspace(1e-4, 1e4, 4000)
    logs = (orders - 1) * (orders * rho - epsilon) + orders * np.log1p(-1 / orders)
    return extra + min(1.0, float(np.exp((logs - np.log(orders - 1)).min())))


def longer(ledger, span, days):
    """The same of a unit that is in all periods of a week or month, against what is converted."""
    charges, claim = ledger.entries(), ledger.convert(span)
    for first in range(1 - days, DAYS):
        held = [holds(charge, first, first + days) for charge in charges]
        parts = parts_of(charges, held)
        for epsilon in EPSILONS:
            yield lost(*parts, epsilon), claim.delta_at(epsilon)


def worst_of(pairs):
    """The largest part of a claim that was realised, of claims that say anything."""
    ratios = [a / b for a, b in pairs if 0 < b < 1 and a > 1e-14]
    over = [a for a, b in pairs if not b and a > 1e-12]
    return inf if over else max(ratios, default=0.0)


def judged(seed):
    """(rule, the part of its claim that was realised) of one ledger."""
    ledger = filled(np.random.default_rng(seed))
    yield f"limit in {limit_kind(ledger.limit)}", worst_of([*one_period(ledger)])
    if ledger.protects is DAY and ledger.entries():
        yield "a week", worst_of([*longer(ledger, "user-week", 7)])


def limit_kind(limit):
    return "epsilon" if limit.epsilon is not None else "mu" if limit.mu is not None else "rho"
