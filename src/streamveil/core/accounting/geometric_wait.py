"""Exact geometric waiting times from keyed words.

`floor(-ln(U) / rate)` with U uniform on (0, 1) is geometric: it is at least n with chance
e^(-rate n). So one draw replaces all the coins of a run of steps with the same chance
1 - e^(-rate), with the same law. It is memoryless: a run that ends early is simply forgotten.

Numerics: U is read 64 bits at a time. A word leaves U an interval of width 2^-64; when both its
ends, widened by 18 units in the last place, give the same result, that is the result, as for almost
every word. Otherwise the remaining words are read and the ends computed with 200 spare bits. With
w words the law is off by at most 2^(-64 w) for each value up to the horizon, see `doubt`.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import mpmath
import numpy as np

from streamveil.compiled import njit
from streamveil.types import Array, Float64, Int64, UInt64

NEVER = np.int64(2**62)
UNCLEAR = np.int64(-1)
EDGE = 4e-15  # above the error of the logs, the rate and the division together
WORDS = 2  # per draw: one AES block
PRECISION = 64 * WORDS + 200  # bits of a rate and of the ends when words must be read in full


def waits(
    words: UInt64[Array, "draws words"],
    rates: Float64[Array, " rates"],
    exact_rates: list[Any],  # multiprecision numbers
    which: Int64[Array, " draws"],
    horizon: int,
) -> Int64[Array, " draws"]:
    """Floor(-ln(U) / rate) for each row, NEVER when above the horizon.

    `rates` are `exact_rates` as floats, `which` says whose of them a row is: the first of all that
    are before them, the last of all behind. A rate of infinity waits 0, a rate of 0 for ever.
    """
    found = _fast(words, rates, which, horizon)
    for row in np.flatnonzero(found == UNCLEAR):
        place = min(max(int(which[row]), 0), len(rates) - 1)
        found[row] = _slow([int(word) for word in words[row]], exact_rates[place], horizon)
    return found


@njit(cache=True)
def _fast(words: Array, rates: Array, which: Array, horizon: int) -> Array:
    """The result where the first word decides it, else UNCLEAR."""
    found = np.empty(len(words), np.int64)
    for row in range(len(words)):
        rate = rates[min(max(which[row], 0), len(rates) - 1)]
        found[row] = wait_word(words[row, 0], rate, horizon)
    return found


@njit(inline="always")
def wait_word(word: np.uint64, rate: float, horizon: int) -> np.int64:
    """One draw from one word: for fused kernels, which hand UNCLEAR rows to `waits`."""
    if rate == np.inf:
        return np.int64(0)
    if rate == 0.0:
        return NEVER
    # -ln U >= 1 - U, which is at least this: no logarithm where it says enough, as it mostly does
    if np.float64(~np.uint64(word)) * 2.0**-64 * (1 - EDGE) >= rate * (horizon + 1.0) * (1 + EDGE):
        return NEVER
    if word == 0:
        return UNCLEAR
    if word >= np.uint64(1) << np.uint64(63):  # U near 1: work with 1 - U, which is exact
        low = -np.log1p(-(np.float64(~np.uint64(word)) * 2.0**-64))
    else:
        low = -np.log((np.float64(word) + 1.0) * 2.0**-64)
    high = low + 1.0 / np.float64(word)  # ln(word + 1) - ln(word) is less
    low, high = low / rate * (1 - EDGE), high / rate * (1 + EDGE)
    if low >= horizon + 1.0:
        return NEVER
    if high >= horizon + 1.0 or np.floor(low) != np.floor(high):
        return UNCLEAR
    return np.int64(low)


def _slow(words: list[int], rate: Any, horizon: int) -> int:
    """All words, in high precision."""
    bits = 64 * len(words)
    value = 0
    for word in words:
        value = (value << 64) | word
    with mpmath.workprec(PRECISION):
        low = int(mpmath.floor(-mpmath.log(mpmath.mpf(value + 1) / 2**bits) / rate))
    return int(NEVER) if low > horizon else low


def doubt(values: int, draws: int) -> Fraction:
    """How far, in total variation, that many draws are from exact, for values 0 .. values - 1.

    A draw is decided wrongly only when U's interval of width 2^(-64 WORDS) holds one of the
    thresholds e^(-rate n), n <= values; spare digits make the ends themselves certain.
    """
    return Fraction((values + 1) * draws, 1 << (64 * WORDS))
