"""One or more small configs of every counter, for the suites that run over all of them."""

from __future__ import annotations

from fractions import Fraction

from streamveil.counters import (
    AnytimeBltCounter,
    BltCounter,
    Counter,
    HonakerCounter,
    KaryTreeCounter,
)

SIGMA = Fraction(13, 2)


def examples(horizon: int) -> dict[str, Counter]:
    """Name -> counter; every registered kind appears."""
    return {
        "blt": BltCounter(horizon=horizon, sigma=SIGMA),
        "blt d=1 plain": BltCounter(horizon=horizon, sigma=SIGMA, d=1, weighting="none"),
        "anytime-blt": AnytimeBltCounter(sigma=SIGMA, tuned=64, d=2),
        "honaker": HonakerCounter(horizon=horizon, sigma=SIGMA),
        "k-ary-tree": KaryTreeCounter(horizon=horizon, sigma=SIGMA),
        "k-ary-tree 3": KaryTreeCounter(horizon=horizon, sigma=SIGMA, k=3),
    }


NAMES = tuple(examples(4))
