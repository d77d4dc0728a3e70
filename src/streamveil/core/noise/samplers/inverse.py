"""Geometric laws and the discrete Laplace law at every scale, by one exact inversion.

Algorithm: with p the tail probability spelled by a word, the discrete Laplace draw is +-K,
    K = #{k >= 1 : p <= q^k / (1 + q)} = max(0, floor(scale (-ln p - ln(1 + q)))), q = e^(-1/scale);
    the geometric one is floor(ln(2p) / ln(1 - probability)). One word, no rejection.
Proof: P(+K >= k) = q^k / (1 + q) for k >= 1, the discrete Laplace tail; P(2p <= r^k) = r^k.
Numerics: exact. The logarithm comes from a table with a proved bound E; with u = 2^-53, the
    computed z is off by at most scale E + 5 u z + 2 u (shift, sum, scale and product each round
    once), and a draw is sure when no integer is that near. Others are settled by `exact.locate`.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np

from streamveil.compiled import njit
from streamveil.core.noise.keyed import Draws
from streamveil.core.noise.samplers import exact
from streamveil.core.noise.samplers.quantiles import laplace_table, quantile_word
from streamveil.core.noise.samplers.rounded import LARGEST_SCALE
from streamveil.errors import require_positive
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
def fill(words, law, table, out, sure):  # type: ignore[no-untyped-def]
    """Draws for every word; `law` ends in 1 for a sign from the top bit, 0 for none."""
    scale, shift, signed = law
    for i in range(len(words)):
        k, sure[i] = floor_word(words[i], scale, shift, table)
        out[i] = (1 - 2 * signed * np.int64(words[i] >> SIGN_SHIFT)) * k


def discrete_laplace(
    draws: Draws, scale: Exact | float, shape: int | tuple[int, ...]
) -> Int64[Array, "*shape"]:
    """Integers with probability proportional to exp(-|k| / scale).

    >>> from streamveil.core.noise.keyed import SeededNoise
    >>> discrete_laplace(SeededNoise(1).at("doc"), 3, 6)
    array([-2,  2,  3, -1,  0, -5])
    """
    exponent = 1 / Fraction(checked(scale))
    mp = exact.context()

    def log_one_plus_q() -> exact.Number:
        return mp.log1p(mp.exp(-exact.exact(exponent)))

    def threshold(k: int) -> tuple[exact.Number, exact.Number]:
        return exact.around(mp.exp(-exact.exact(k * exponent) - log_one_plus_q()))

    def start(p: exact.Number) -> exact.Number:
        return (-mp.log(p) - log_one_plus_q()) / exact.exact(exponent)

    with exact.LOCK, mp.workprec(128):
        shift = float(mp.log(2) - log_one_plus_q())
    return _inverted(draws, shape, (float(scale), shift, 1), (threshold, start))


def geometric(
    draws: Draws, probability: Exact | float, shape: int | tuple[int, ...]
) -> Int64[Array, "*shape"]:
    """Failures before the first success of coins with this exact success probability.

    >>> from streamveil.core.noise.keyed import SeededNoise
    >>> geometric(SeededNoise(1).at("doc"), Fraction(1, 10), 6)
    array([ 5,  5, 10,  2,  0, 14])
    """
    if not 0 < probability <= 1:
        raise ValueError(f"probability must be above 0 and at most 1, not {probability}")
    miss = 1 - Fraction(probability)
    if draws.silent or miss == 0:
        return np.zeros(shape, np.int64)
    mp = exact.context()

    def log_miss() -> exact.Number:
        return mp.log1p(-exact.exact(1 - miss))

    def threshold(k: int) -> tuple[exact.Number, exact.Number]:
        return exact.around(mp.exp(k * log_miss()) / 2)

    def start(p: exact.Number) -> exact.Number:
        return mp.log(2 * p) / log_miss()

    with exact.LOCK, mp.workprec(128):
        scale = checked(float(-1 / log_miss()))
    return _inverted(draws, shape, (float(scale), 0.0, 0), (threshold, start))


def _inverted(
    draws: Draws,
    shape: int | tuple[int, ...],
    kernel: tuple[float, float, int],
    law: tuple[exact.Threshold, Callable[[exact.Number], exact.Number]],
) -> Int64[Array, "*shape"]:
    out = np.zeros(shape, np.int64)
    if draws.silent or not out.size:
        return out
    flat, sure, words = out.reshape(-1), np.empty(out.size, np.bool_), draws.words(out.size)
    fill(words, kernel, laplace_table(), flat, sure)
    for i in np.flatnonzero(~sure).tolist():
        k = exact.locate(int(words[i]), exact.tail_at(draws, i), *law)
        flat[i] = -k if kernel[2] and int(words[i]) >> 63 else k
    return out


def checked(scale: Exact | float) -> Exact | float:
    """The scale, if a draw of it fits into 64 bits."""
    require_positive(scale=scale)
    if scale > LARGEST_SCALE:
        raise ValueError("scale must be at most 2**50")
    return scale
