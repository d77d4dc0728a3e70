"""The discrete Laplace law at every scale, by one exact inversion.

Algorithm: with p the tail probability spelled by a word, the draw is +-K,
    K = #{k >= 1 : p <= q^k / (1 + q)} = max(0, floor(scale (-ln p - ln(1 + q)))), q = e^(-1/scale).
    One word, no rejection.
Proof: P(+K >= k) = q^k / (1 + q) for k >= 1, the discrete Laplace tail.
Numerics: exact. The logarithm comes from a table with a proved bound E; with u = 2^-53, the
    computed z is off by at most scale E + 5 u z + 2 u (shift, sum, scale and product each round
    once), and a draw is sure when no integer is that near. Others are settled by `locate`.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from streamveil.compiled import njit
from streamveil.core.noise import Draws, samplers
from streamveil.core.noise.samplers import LARGEST_SCALE
from streamveil.core.noise.samplers.quantiles import laplace_table, quantile_word
from streamveil.errors import PlanError, require_positive
from streamveil.types import Array, Exact, Int64

SIGN_SHIFT = np.uint64(63)


@njit(cache=True)
def floor_word(word, scale, shift, table):  # type: ignore[no-untyped-def]
    """(k, sure): max(0, floor(scale * (x(p) + shift))) of one word."""
    x, bound, tabulated = quantile_word(word, table)
    z = scale * (x + shift)
    k = np.floor(z)
    error = scale * bound + (z + 2.0) * 2.0**-50
    sure = ((z - k > error) | (k == 0.0)) & (k + 1.0 - z > error)
    return np.int64(k), tabulated & sure


@njit(cache=True)
def fill(words, scale, shift, table, out, sure):  # type: ignore[no-untyped-def]
    """Draws for every word, each with the sign of its top bit."""
    for i in range(len(words)):
        k, sure[i] = floor_word(words[i], scale, shift, table)
        out[i] = (1 - 2 * np.int64(words[i] >> SIGN_SHIFT)) * k


def discrete_laplace(
    draws: Draws, scale: Exact | float, shape: int | tuple[int, ...]
) -> Int64[Array, "*shape"]:
    """Integers with probability proportional to exp(-|k| / scale).

    >>> from streamveil.core.noise import SeededNoise
    >>> discrete_laplace(SeededNoise(1).at("doc"), 3, 6)
    array([-2,  2,  3, -1,  0, -5])
    """
    exponent = 1 / Fraction(checked(scale))
    mp = samplers.context()

    def log_one_plus_q() -> samplers.Number:
        return mp.log1p(mp.exp(-samplers.exact(exponent)))

    def threshold(k: int) -> tuple[samplers.Number, samplers.Number]:
        return samplers.around(mp.exp(-samplers.exact(k * exponent) - log_one_plus_q()))

    def start(p: samplers.Number) -> samplers.Number:
        return (-mp.log(p) - log_one_plus_q()) / samplers.exact(exponent)

    with samplers.LOCK, mp.workprec(128):
        shift = float(mp.log(2) - log_one_plus_q())
    out = np.zeros(shape, np.int64)
    if draws.silent or not out.size:
        return out
    flat, sure, words = out.reshape(-1), np.empty(out.size, np.bool_), draws.words(out.size)
    fill(words, float(scale), shift, laplace_table(), flat, sure)
    for i in np.flatnonzero(~sure).tolist():
        k = samplers.locate(int(words[i]), samplers.tail_at(draws, i), threshold, start)
        flat[i] = -k if int(words[i]) >> 63 else k
    return out


def checked(scale: Exact | float) -> Exact | float:
    """The scale, if a draw of it fits into 64 bits."""
    require_positive(scale=scale)
    if scale > LARGEST_SCALE:
        raise PlanError("scale must be at most 2**50")
    return scale
