"""What an attack proves: confidence bounds on the privacy loss from counts of a test's outcomes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from scipy.special import betaincinv

from streamveil.errors import require_between, require_positive

DELTAS = (1e-6, 1e-3, 0.01, 0.03, 0.05, 0.08, 0.1, 0.2, 0.4)  # where a claimed curve is compared


def clopper_pearson(hits: int, trials: int, alpha: float) -> tuple[float, float]:
    """An interval that misses the true probability with probability at most `alpha`.

    Source: Clopper and Pearson (1934), doi:10.1093/biomet/26.4.404.

    >>> [round(x, 4) for x in clopper_pearson(0, 100, 0.05)]
    [0.0, 0.0362]
    """
    require_positive(trials=trials, alpha=alpha)
    require_between(0, trials, hits=hits)
    low = float(betaincinv(hits, trials - hits + 1, alpha / 2)) if hits else 0.0
    high = float(betaincinv(hits + 1, trials - hits, 1 - alpha / 2)) if hits < trials else 1.0
    return low, high


@dataclass(frozen=True)
class EventCounts:
    """How often one event, fixed before these trials, happened under two neighbouring inputs."""

    event: str
    with_unit: int  # hits with the unit's rows
    without_unit: int
    trials: int  # on each side
    alpha: float  # chance that any bound derived from this finding is wrong

    def epsilon(self, delta: float) -> float:
        """The largest lower bound on ε at this δ that the counts prove; 0 when they prove nothing.

        (ε, δ)-DP demands p <= e^ε q + δ in both directions for the probabilities p, q of the event
        (and of its complement), so ε >= ln((p_low - δ) / q_high).
        """
        bounds = [0.0]
        a = clopper_pearson(self.with_unit, self.trials, self.alpha / 2)
        b = clopper_pearson(self.without_unit, self.trials, self.alpha / 2)
        sides = [(a, b), (b, a)]
        sides += [((1 - p[1], 1 - p[0]), (1 - q[1], 1 - q[0])) for p, q in sides]
        for (p_low, _), (_, q_high) in sides:
            if p_low > delta and q_high > 0:
                bounds.append(math.log((p_low - delta) / q_high))
        return max(bounds)

    def violates(
        self, claim: Callable[[float], float], deltas: Iterable[float] = DELTAS
    ) -> list[tuple[float, float, float]]:
        """Points (δ, proven ε, claimed ε) where the proof exceeds the claim; empty when sound."""
        points = [(delta, self.epsilon(delta), claim(delta)) for delta in deltas]
        return [(delta, proven, claimed) for delta, proven, claimed in points if proven > claimed]
