"""The account of a ledger: the joint loss of its charges, computed anew, against its limit.

Every charge stands for a mechanism that loses all of it: randomised response for a pure epsilon, a
Gaussian for mu and rho, "here is everything" with probability delta. The adversary writes the
stream and picks the unit-period after seeing the releases, so it waits for a mechanism that says
everything. Nothing here uses caps, kinds, splits or conversions: it judges them.

Tables of coins, and what looks chose, have no such mechanism. They count as nothing, so charges
with them are judged only in part (`unjudged`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from fractions import Fraction
from math import exp, expm1, inf, log1p, sqrt
from typing import Any

import numpy as np
from scipy.special import comb, ndtr

from streamveil.core.accounting import Budget
from streamveil.types import Array, Float64

EPSILONS = (0.0, 0.05, 0.2, 0.5, 1.0, 2.0, 4.0, 8.0)
WEEK = 7
MOST_LOSSES = 20_000  # different losses; if there are more, all are rounded down to steps
STEP = 1e-4
SLACK = 1 + 1e-6  # of the account's own arithmetic
Compared = tuple[float, float]  # the realised and the allowed delta


def gaussian_curve(mu: float, epsilon: Any) -> Any:
    """The delta of a Gaussian mechanism at any epsilon, also below 0."""
    if mu == 0:
        return np.maximum(0.0, 1 - np.exp(epsilon))
    far = np.exp(np.minimum(epsilon, 700.0))
    return ndtr(mu / 2 - epsilon / mu) - far * ndtr(-mu / 2 - epsilon / mu)


def lost(pure: Sequence[Any], mu_squared: Any, reveals: Sequence[Any], epsilon: float) -> float:
    """The least delta of randomised responses, one Gaussian and mechanisms that say everything."""
    losses, chances = np.zeros(1), np.ones(1)
    for one, times in Counter(pure).items():
        high = 1 / (1 + exp(-float(one)))
        k = np.arange(times + 1)
        steps = float(one) * (2 * k - times)
        weights = comb(times, k) * high**k * (1 - high) ** (times - k)
        losses = (losses[:, None] + steps).ravel()
        chances = (chances[:, None] * weights).ravel()
        losses, chances = fewer(losses, chances)
    found = float(chances @ gaussian_curve(sqrt(mu_squared), epsilon - losses))
    spoken = -expm1(sum(log1p(-float(delta)) for delta in reveals))
    return found + (1 - found) * spoken


def fewer(
    losses: Float64[Array, " n"], chances: Float64[Array, " n"]
) -> tuple[Float64[Array, " m"], Float64[Array, " m"]]:
    """Losses and their chances; if there are many, losses are rounded down, which loses less."""
    if len(losses) <= MOST_LOSSES:
        return losses, chances
    steps, place = np.unique(np.floor(losses / STEP), return_inverse=True)
    return steps * STEP, np.bincount(place, chances)


def parts_of(charges: Sequence[Any], held: Sequence[int]) -> tuple[list[Any], Any, list[Any]]:
    """(epsilons, mu^2, deltas) of mechanisms for a unit in `held` periods of each."""
    pure: list[Any] = []
    mu_squared, reveals = Fraction(0), list[Any]()
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


def holds(charge: Any, first: int, end: int) -> int:
    """The number of periods in [first, end) that a charge may read."""
    low, high = charge.range or (first, end)
    return max(0, min(high, end) - max(low, first))


def places(charges: Sequence[Any]) -> list[int]:
    """Periods that stand for all: the same charges read any other period as one of these."""
    ends = {end for charge in charges for end in charge.range or ()}
    return sorted({0, *ends, *(end - 1 for end in ends)})


def one_period(ledger: Any) -> Iterator[Compared]:
    """The loss of a unit-period at each epsilon, against the limit."""
    charges = ledger.entries()
    waited = [charge.loss.delta for charge in charges if not charge.given_past]
    for day in places(charges):
        held = [holds(charge, day, day + 1) for charge in charges]
        pure, mu_squared, _ = parts_of(charges, held)
        # among charges without `given_past`, the adversary has waited for one that says everything
        inside = [c.loss.delta for c, n in zip(charges, held, strict=True) if n and c.given_past]
        for epsilon in [*EPSILONS, float(ledger.limit.epsilon or 0)]:
            found = lost(pure, mu_squared, inside + waited, epsilon)
            yield found, allowed(ledger.limit, epsilon)


def allowed(limit: Budget, epsilon: float) -> float:
    """The delta of a limit at an epsilon; an (epsilon, delta) limit has one only at its own."""
    extra = float(limit.delta or 0)
    if limit.epsilon is not None:
        return extra if epsilon >= float(limit.epsilon) else inf
    if limit.mu is not None:
        return extra + float(gaussian_curve(float(limit.mu), epsilon))
    rho = float(limit.rho or 0)
    orders = 1 + np.geomspace(1e-4, 1e4, 4000)
    logs = (orders - 1) * (orders * rho - epsilon) + orders * np.log1p(-1 / orders)
    return extra + min(1.0, float(np.exp((logs - np.log(orders - 1)).min())))


def longer(ledger: Any, span: str, days: int) -> Iterator[Compared]:
    """The loss of a unit in all periods of a week or month, against the converted guarantee."""
    charges, claim = ledger.entries(), ledger.convert(span)
    for first in sorted({day - back for day in places(charges) for back in (0, days - 1)}):
        held = [holds(charge, first, first + days) for charge in charges]
        parts = parts_of(charges, held)
        for epsilon in EPSILONS:
            yield lost(*parts, epsilon), claim.delta_at(epsilon)


def worst_of(pairs: Sequence[Compared]) -> float:
    """The largest realised part of a claim, among claims that say anything."""
    ratios = [a / b for a, b in pairs if 0 < b < 1 and a > 1e-14]
    over = [a for a, b in pairs if not b and a > 1e-12]
    return inf if over else max(ratios, default=0.0)


def judged(ledger: Any) -> Iterator[tuple[str, float]]:
    """The rules of a ledger, each with the realised part of its claim."""
    limit = ledger.limit
    kind = "epsilon" if limit.epsilon is not None else "mu" if limit.mu is not None else "rho"
    yield f"limit in {kind}", worst_of([*one_period(ledger)])
    period = ledger.protects.period
    if period is not None and period.days == 1 and not period.seconds and ledger.entries():
        yield "a week", worst_of([*longer(ledger, f"{ledger.protects.unit}-week", WEEK)])


def unjudged(ledger: Any) -> list[str]:
    """Charges that may lose more than is judged."""
    return [one.name for one in ledger.entries() if one.loss.tables or one.loss.group_size > 1]
