"""The discrete Gaussian at a fixed integer centre, by inversion of an exact table.

Algorithm: up to `LARGEST_TABLE` one table of the thresholds floor(2^64 P(X >= k)), k >= 1; a word's
    top bit is the sign, its other bits v give |X| = #{k : v < threshold_k}. The first bits of v
    name a cell, which says how many thresholds are above it and, when one is inside, the next 40
    bits of that: nearly every draw is one look-up and one comparison. Beyond, the sum Y1 + m Y2 of
    two table draws, sigma^2 = s1^2 + m^2 s2^2 (Micciancio & Walter 2017,
    doi:10.1007/978-3-319-63715-0_16, for the idea).
Guarantee: rho = 1 / (2 sigma^2) zCDP per unit of squared L2 distance of integer inputs (Canonne,
    Kamath & Steinke 2020, arXiv:2004.00010), plus `distance(sigma, n)` in delta for n draws.
Proof: one table: v below, or above, the floor of a threshold decides the comparison of all bits; v
    equal to one (a chance of entries / 2^64) is settled with more bits, so the distance is 0.
    Two tables: completing the square in P(Y1 + m Y2 = x) = sum_y rho_s1(x - m y) rho_s2(y) leaves
    rho_sigma(x) times a sum over the integers of a Gaussian of scale s = s1 s2 / sigma about some
    real centre, which by Poisson summation is s sqrt(2 pi) times 1 +- eta,
    eta = 2 sum_j exp(-2 pi^2 s^2 j^2). So every probability is within (1 + eta) / (1 - eta) of the
    target's, and the total variation is at most eta / (1 - eta).
Numerics: thresholds are integers computed with FRACTION bits, each checked to be the same at both
    ends of its error interval. Time depends on sigma and, by table look-ups, on the draw's size.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cache, lru_cache
from math import isqrt

import numpy as np

from streamveil.compiled import njit
from streamveil.core.noise.keyed import Draws
from streamveil.core.noise.samplers import exact
from streamveil.errors import require_positive
from streamveil.types import Array, Exact, Int64, UInt64

LARGEST_TABLE = 1024  # sigma of one table: 75 KB
SMOOTHING = Fraction(22, 10)  # s of the proof: eta = 2^-136
LARGEST_SIGMA = 2**22  # two tables of sigma near 3,000
FRACTION = 256  # bits of the fixed-point construction
LOSS = 64  # bits of it that rounding may spoil, see `tails`
CELL_BITS = (10, 15)  # 8 KB to 256 KB of cells: beyond, cache misses cost more than they save
AT_ONCE = 1 << 16  # draws whose words are in the cache together

MASK, SIGN_SHIFT, ONE = np.uint64(2**63 - 1), np.uint64(63), np.uint64(1)
NEXT, NEXT_MASK = np.uint64(40), np.uint64(2**40 - 1)  # bits of v after those of the cell
COUNT, COUNT_MASK = np.uint64(24), np.uint64(2**23 - 1)  # below: a mark for several, a count
MARK = np.uint64(23)


@dataclass(frozen=True, eq=False)
class Thresholds:
    """threshold[k] = floor(2^64 P(X > k)), falling, and what is known from the top bits of v."""

    variance: Fraction
    threshold: UInt64[Array, " entries"]
    cells: UInt64[Array, " cells"]  # (40 bits of the threshold inside, several?, count above)
    shift: np.uint64  # v >> shift is the cell


@lru_cache(maxsize=8)
def tails(variance: Fraction, bits: int) -> list[int]:
    """2^bits P(X >= k) for k = 1, 2, ... down to 0, each within 2^LOSS.

    w_k = exp(-k^2 / 2 variance) from w_(k+1) = w_k r_k, r_(k+1) = r_k q, all at most 1, truncated
    to `bits`: with K terms, r is off by at most 2K, w by 2K^2, sums by 2K^3 units, and the quotient
    by four times that; K < 2^18 makes it less than 2^LOSS. Terms below 2^-bits are worth less
    than K more.
    """
    with exact.LOCK, exact.context().workprec(bits + 64):
        mp = exact.context()
        base = exact.exact(-1 / (2 * variance))
        r, q = (int(mp.floor(mp.ldexp(mp.exp(base * n), bits))) for n in (1, 2))
    w, weights = r, []
    while w:
        weights.append(w)
        r = r * q >> bits
        w = w * r >> bits
    if len(weights) >= 2**18:
        raise ValueError("sigma is too large for a table")
    total = (1 << bits) + 2 * sum(weights)
    sums, part = [], 0
    for weight in reversed(weights):
        part += weight
        sums.append((part << bits) // total)
    return sums[::-1]


@lru_cache(maxsize=64)
def thresholds(variance: Fraction) -> Thresholds:
    """The table of one variance."""
    floors = []
    for tail in [*tails(variance, FRACTION), 0]:
        floor = tail + (1 << LOSS) >> (FRACTION - 64)
        if floor != max(tail - (1 << LOSS), 0) >> (FRACTION - 64):
            raise ArithmeticError("a threshold is too close to an integer for FRACTION bits")
        floors.append(floor)
        if not floor:
            break  # the last entry is 0: v = 0 is never sure
    threshold = np.array(floors, np.uint64)
    bits = min(max(len(floors).bit_length() + 1, CELL_BITS[0]), CELL_BITS[1])
    return Thresholds(variance, threshold, cells_of(threshold, bits), np.uint64(63 - bits))


def cells_of(threshold: UInt64[Array, " entries"], bits: int) -> UInt64[Array, " cells"]:
    """What `table_word` reads for each value of the top bits of v."""
    shift, rising = np.uint64(63 - bits), threshold[::-1]
    low = np.arange(1 << bits, dtype=np.uint64) << shift
    high = low + ((ONE << shift) - ONE)
    above, from_low = (len(rising) - np.searchsorted(rising, v, side="right") for v in (high, low))
    inside = threshold[np.minimum(above, len(threshold) - 1)] >> (shift - NEXT) & NEXT_MASK
    rest = np.where(from_low > above, inside, np.uint64(0))
    several = (from_low > above + 1).astype(np.uint64)
    return np.asarray(rest << COUNT | several << MARK | above.astype(np.uint64))


@njit(cache=True)
def table_word(word, cells, threshold, shift):  # type: ignore[no-untyped-def]
    """(k, sure): the signed draw of one word."""
    v = word & MASK
    cell = cells[v >> shift]
    rest, inside = (v >> (shift - NEXT)) & NEXT_MASK, cell >> COUNT
    k, sure = np.int64(cell & COUNT_MASK), True
    if (rest == inside) | ((cell >> MARK) & ONE != 0):
        while v < threshold[k]:
            k += 1
        sure = v != threshold[k]
    else:
        k += np.int64(rest < inside)
    sign = -np.int64(word >> SIGN_SHIFT)
    return (k ^ sign) - sign, sure


@njit(cache=True)
def fill(words, law, out, doubtful):  # type: ignore[no-untyped-def]
    """Draws for every word; how many are not sure, listed in `doubtful` and drawn as 0."""
    cells, threshold, shift = law
    found = 0
    for i in range(len(words)):
        out[i], sure = table_word(words[i], cells, threshold, shift)
        if not sure:
            out[i], doubtful[found] = 0, i
            found += 1
    return found


@njit(cache=True)
def fill_more(words, law, stride, out, doubtful):  # type: ignore[no-untyped-def]
    """As `fill`, but adds stride times the draws to what is there."""
    cells, threshold, shift = law
    found = 0
    for i in range(len(words)):
        k, sure = table_word(words[i], cells, threshold, shift)
        if sure:
            out[i] += stride * k
        else:
            doubtful[found] = i
            found += 1
    return found


@dataclass(frozen=True)
class Parts:
    """A variance as first + stride^2 second, each small enough for a table."""

    first: Fraction
    second: Fraction
    stride: int


@cache
def parts(variance: Fraction) -> Parts:
    """How to add up a large variance from two tables of about the same size."""
    smooth = SMOOTHING**2 * variance  # first * second must reach this
    first = Fraction(isqrt(int(smooth)) + 1)
    stride = isqrt(int((variance - first) * first / smooth))
    return Parts(first, (variance - first) / stride**2, stride)


def discrete_gaussian(
    draws: Draws, sigma: Exact | float, shape: int | tuple[int, ...]
) -> Int64[Array, "*shape"]:
    """Integers with probability proportional to exp(-k^2 / (2 sigma^2)).

    >>> from streamveil.core.noise.keyed import SeededNoise
    >>> discrete_gaussian(SeededNoise(1).at("doc"), 3, 6)
    array([-2,  2,  3, -1,  0, -4])
    """
    variance = variance_of(sigma)
    if draws.silent:
        return np.zeros(shape, np.int64)
    out = np.empty(shape, np.int64)
    flat, terms = out.reshape(-1), [(draws, variance, 1)]
    if variance > LARGEST_TABLE**2:
        split = parts(variance)
        terms = [
            (draws.at("first"), split.first, 1),
            (draws.at("second"), split.second, split.stride),
        ]
    for start in range(0, len(flat), AT_ONCE):
        here = flat[start : start + AT_ONCE]
        for nth, (source, part, stride) in enumerate(terms):
            law, words = thresholds(part), source.words(len(here), start)
            for i in doubts(words, law, stride if nth else None, here):
                here[i] += stride * settled(source, part, int(words[i]), start + i)
    return out


def doubts(
    words: UInt64[Array, " n"], table: Thresholds, stride: int | None, out: Int64[Array, " n"]
) -> list[int]:
    """Fills `out` or, with a stride, adds to it; the draws that were left out for want of bits."""
    law, doubtful = (table.cells, table.threshold, table.shift), np.empty(len(words), np.int64)
    if stride is None:
        found = fill(words, law, out, doubtful)
    else:
        found = fill_more(words, law, stride, out, doubtful)
    return list(doubtful[:found].tolist())


def settled(draws: Draws, variance: Fraction, word: int, index: int) -> int:
    """The draw of a word that equals a threshold, from its further bits."""
    k = exact.locate(
        word,
        exact.tail_at(draws, index),
        lambda k: threshold_at(variance, k),
        lambda p: 0,
    )
    return -k if word >> 63 else k


def threshold_at(variance: Fraction, k: int) -> tuple[exact.Number, exact.Number]:
    """P(X >= k), to about the context's precision."""
    mp = exact.context()
    bits = mp.prec + LOSS
    found = tails(variance, bits)
    tail = found[k - 1] if k <= len(found) else 0
    slack = 1 << LOSS
    with mp.workprec(bits + LOSS):  # the integers below fit: no rounding
        return mp.ldexp(max(tail - slack, 0), -bits), mp.ldexp(tail + slack, -bits)


def distance(sigma: Exact | float, draws: int = 1) -> float:
    """A bound on the total variation between `draws` draws and as many ideal ones, for delta.

    >>> distance(100), distance(10_000) < 1e-40
    (0.0, True)
    """
    variance = variance_of(sigma)
    if variance <= LARGEST_TABLE**2:
        return 0.0
    split = parts(variance)
    smoothing = float(split.first * split.second / variance) * (1 - 2**-40)  # s^2, rounded down
    return draws * 2.01 * float(np.exp(-2 * np.pi**2 * smoothing))


def variance_of(sigma: Exact | float) -> Fraction:
    """Sigma squared, exactly."""
    require_positive(sigma=sigma)
    if sigma > LARGEST_SIGMA:
        raise ValueError(
            f"sigma must be at most {LARGEST_SIGMA}; rounded_gaussian has the same guarantee"
        )
    return Fraction(sigma) ** 2
