"""The exponential mechanism's choice, exact.

The winner of score_i * rate + Gumbel_i, Gumbel_i = -ln E_i, E_i exponential
(inversion of one word each), is index i with probability exactly proportional to exp(rate
score_i). float64 finds the winner with an error margin; candidates within it (nearly always the
winner alone) are compared in multiprecision, with more bits as needed. E_i comes from a table with
a proved bound. The logarithm is the platform's, believed only to 2^-30 relative, a million times
less than what libraries state: the margin costs a comparison in a billion more, not exactness.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from streamveil.compiled import njit
from streamveil.core.accounting import float_below
from streamveil.core.noise import Draws, samplers
from streamveil.core.noise.samplers.quantiles import laplace_table, quantile_word
from streamveil.errors import PlanError, require_positive
from streamveil.types import Array, Exact, Float64, UInt64

TRUST = 2.0**-30  # relative error a logarithm may have


@njit(cache=True)
def race(words, table, times, spread):  # type: ignore[no-untyped-def]
    """The exponential E_i of every word, and the error of ln E_i before its own rounding."""
    for i in range(len(words)):
        x, bound, tabulated = quantile_word(words[i], table)
        known = tabulated & (x > 2.0 * bound)  # then |ln(1 + bound / x)| <= 2 bound / x
        times[i] = x if known else 1.0
        spread[i] = 2.0 * bound / x if known else np.inf


@njit(cache=True)
def screen(scores, top, rate, logs, spread):  # type: ignore[no-untyped-def]
    """The indices whose rate * (score - top) - ln E may be the largest."""
    best, high = -np.inf, spread
    for i in range(len(scores)):
        shifted = rate * (scores[i] - top)
        value = shifted - logs[i]
        slack = spread[i] + TRUST * (abs(logs[i]) + 1.0) + (abs(shifted) + 1.0) * 2.0**-50
        high[i] = value + slack
        best = max(best, value - slack)
    return np.flatnonzero(high >= best)


def exponential_choice(
    draws: Draws, scores: Float64[Array, " n"], epsilon: Exact | float, sensitivity: Exact | float
) -> int:
    """The exponential mechanism: index i with probability proportional to exp(rate * score_i).

    Algorithm: McSherry & Talwar (2007), by Gumbel-max; rate = epsilon / (2 sensitivity) rounded
        down to a float64, the scores being taken as the exact reals they are.
    Guarantee: epsilon-DP if one change moves every score by at most `sensitivity`; with the exact
        law and a rate that is never above the one asked for, nothing is added.
    Numerics: exact. Without noise (tests), the first of the largest scores.

    >>> from streamveil.core.noise import SeededNoise
    >>> exponential_choice(SeededNoise(1).at("doc"), np.array([0.0, 50.0, 3.0]), 1, 1)
    1
    """
    require_positive(epsilon=epsilon, sensitivity=sensitivity)
    scores = np.ascontiguousarray(scores, np.float64)
    if scores.ndim != 1 or not len(scores) or not bool(np.isfinite(scores).all()):
        raise PlanError("scores must be a nonempty vector of finite numbers")
    if draws.silent:
        return int(np.argmax(scores))
    rate = float_below(Fraction(epsilon) / (2 * Fraction(sensitivity)))
    words = draws.words(len(scores))
    times, spread = np.empty(len(words)), np.empty(len(words))
    race(words, laplace_table(), times, spread)
    candidates = screen(scores, scores.max(), rate, np.log(times), spread)
    if len(candidates) == 1:
        return int(candidates[0])
    return settle(draws, candidates.tolist(), words, scores, rate)


def settle(
    draws: Draws,
    candidates: list[int],
    words: UInt64[Array, " n"],
    scores: Float64[Array, " n"],
    rate: float,
) -> int:
    """The winner among the candidates, with as many bits and digits as it takes."""
    mp, more = samplers.context(), 1
    top = Fraction(float(scores.max()))  # 2^1100 below it a score loses, however its digits end
    while len(candidates) > 1:
        with samplers.LOCK, mp.workprec(64 * (more + 1) + 2 * samplers.GUARD + 1100):
            ends = {}
            for i in candidates:
                uniform = samplers.Uniform.of(int(words[i])).refined(
                    samplers.tail_at(draws, i)(more)
                )
                ends[i] = interval(uniform, Fraction(rate) * (Fraction(float(scores[i])) - top))
            best = max(low for low, _ in ends.values())
            candidates = [i for i, (_, high) in ends.items() if high >= best]
        more *= 2
    return candidates[0]


def interval(uniform: samplers.Uniform, lead: Fraction) -> tuple[samplers.Number, samplers.Number]:
    """Bounds of lead - ln E for the E that the known bits allow."""
    mp = samplers.context()
    scale = mp.mpf(2) ** (1 - uniform.bits)
    most, least = (
        -mp.log(part * scale) if part else mp.inf for part in (uniform.low, uniform.low + 1)
    )
    slack = mp.mpf(2) ** (samplers.GUARD - mp.prec + 1100)  # of numbers below 2^1100
    low = mp.ninf if most == mp.inf else samplers.exact(lead) - mp.log(most) - slack
    high = samplers.exact(lead) - mp.log(least) + slack if least else mp.inf
    return low, high
