"""Exact samplers: integers whose law is the stated one, from the words of a noise source.

Each is a pure function of its draws: the same address gives the same noise. `rounded_*` add noise
to a centre; `inverse.discrete_laplace` draws from a fixed law, `choice.exponential_choice` picks an
index. `docs/noise.md` compares them and states what is proved.

The `*_word` kernels draw once and can be called from other numba kernels; when one answers "not
sure" its outcome must be replaced by `settle`'s.

Gaussian and Laplace noise about any real centre, rounded to the integer grid:

Algorithm: y = round(m + s X), X a standard Gaussian (or Laplace) real number spelled by random
    bits, by inversion: one word per draw, no rejection. float64 decides y unless m + s X is within
    a proved error of a half-integer; those draws (`sure` False, below) go to `rounded`.
Guarantee: post-processing of the continuous mechanism with the same centre and scale, so whatever
    holds for that one holds here, for every scale and every centre, with nothing to add.
Error: variance s^2 + at most about 1/12 for s >= 1.
Proof: |x - X| <= E (`quantiles.py`), so with u = 2^-53, w = fl(s x), z = fl(f + w) and
    |f| <= 1/2: |z - (f + s X)| <= s E + u |s x| + u |z| <= s E + 2 u (|z| + 2) for |z| <= 2^51,
    the last step with room for the rounding of the right-hand side itself. Larger |z| are never
    sure. The integer part of the centre is split off first, so its size costs no accuracy.
Numerics: exact. The chance that a draw needs multiprecision is below 2^-39 + 2^-49 s + 2^-49.

The multiprecision side: what a fast kernel was not sure about is settled in more digits.

All samplers invert one uniform tail probability p in (0, 1/2): the outcome is the number of
thresholds T(1) > T(2) > ... that are >= p. A kernel knows the first 63 bits of p and is sure nearly
always. When it is not, `locate` draws further bits of the same p, from a separate address of the
same draw, and evaluates thresholds to more digits until every comparison is decided. The outcome is
therefore the exact function of infinitely many bits that the sampler is defined to be; how the
kernel rounds can change only how often `locate` is asked.

Numerics: a threshold computed at q bits is taken to be right within 2^-(q-GUARD) relative error;
mpmath documents full accuracy of exp, log and erfc, and GUARD bits are given away (`around`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from threading import RLock
from typing import Any, TypeAlias

import mpmath
import numpy as np

from streamveil.compiled import njit
from streamveil.core.accounting import float_above
from streamveil.core.noise import Draws
from streamveil.core.noise.samplers.quantiles import (
    gaussian_quantile,
    gaussian_table,
    laplace_table,
    quantile_word,
)
from streamveil.errors import PlanError
from streamveil.types import Array, Exact, Float64, Int64, UInt64

GUARD = 32  # bits of a multiprecision value that are not trusted
LOCK = RLock()  # an mpmath context holds its precision in a global

Number: TypeAlias = Any  # an mpmath number
Threshold: TypeAlias = Callable[[int], tuple[Number, Number]]  # T(k) is between these
Tail: TypeAlias = Callable[[int], UInt64[Array, " n"]]  # the first n further words of one draw


@cache
def context() -> mpmath.MPContext:
    """Our own multiprecision context: it and the contexts of others do not affect each other."""
    return mpmath.MPContext()


def tail_at(draws: Draws, *path: int) -> Tail:
    """Further words of the draw number `path` at one address."""
    return lambda n: draws.at("tail", *path).words(n)


def tail_for(draws: Draws, key: UInt64[Array, " 2"], column: int) -> Tail:
    """Further words of one key's draw."""
    return lambda n: draws.at("tail", column).words_for(key[None, :], n)[0]


@dataclass(frozen=True)
class Uniform:
    """A tail probability in (0, 1/2) known to lie in [low, low + 1] / 2^bits."""

    low: int
    bits: int

    @classmethod
    def of(cls, word: int) -> Uniform:
        """The 63 lower bits of a word, as p = v / 2^64."""
        return cls(word & (2**63 - 1), 64)

    def refined(self, words: UInt64[Array, " n"]) -> Uniform:
        """With all bits of `words` appended."""
        low = self.low
        for word in words:
            low = low << 64 | int(word)
        return Uniform(low, self.bits + 64 * len(words))


def locate(word: int, tail: Tail, threshold: Threshold, start: Callable[[Number], Number]) -> int:
    """The k >= 0 with T(k) >= p > T(k+1) (T(0) = 1), for the p that `word` and `tail` spell.

    `start(p)` is a first guess from a multiprecision p; only speed depends on it.
    """
    with LOCK:
        mp, more = context(), 0
        while True:
            uniform = Uniform.of(word)
            if more:
                uniform = uniform.refined(tail(more))
            mp.prec = uniform.bits + 2 * GUARD + 64
            found = _locate(mp, uniform, threshold, start)
            if found is not None:
                return found
            more = 2 * more or 1


def _locate(
    mp: mpmath.MPContext, uniform: Uniform, threshold: Threshold, start: Callable[[Number], Number]
) -> int | None:
    """The outcome if the known bits decide it."""
    scale = mp.mpf(2) ** -uniform.bits
    low, high = uniform.low * scale, (uniform.low + 1) * scale

    def at_least(k: int) -> bool:  # is the outcome >= k?
        least, most = threshold(k)
        if least < high and low < most:
            raise Undecided
        return bool(high <= least)

    try:
        return bisect(at_least, max(0, int(mp.floor(start(low + scale / 2)))))
    except Undecided:
        return None


class Undecided(Exception):  # noqa: N818  (a signal, not an error)
    """The bits known so far do not decide a comparison."""


def bisect(at_least: Callable[[int], bool], guess: int) -> int:
    """The largest k >= 0 with at_least(k), which falls with k; galloping away from a guess."""
    low, high, step = 0, guess + 1, 1
    while at_least(high):
        low, high, step = high, high + step, 2 * step
    step = 1
    while low == 0 and high > step:  # the guess may also have been too high
        if at_least(high - step):
            low = high - step
        else:
            high, step = high - step, 2 * step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if at_least(middle) else (low, middle)
    return low


def around(value: Number) -> tuple[Number, Number]:
    """The interval of true values that a computed one may stand for."""
    slack = context().mpf(2) ** (GUARD - context().prec)
    return value * (1 - slack), value * (1 + slack)


@dataclass(frozen=True)
class NoiseShape:
    """A symmetric law of scale 1: its tail P(X > x) for x >= 0, and the inverse of that."""

    tail: Callable[[Number], Number]
    quantile: Callable[[Number], Number]


GAUSSIAN = NoiseShape(
    tail=lambda x: context().erfc(x / context().sqrt(2)) / 2,
    quantile=lambda p: gaussian_quantile(context(), p),
)
LAPLACE = NoiseShape(
    tail=lambda x: context().exp(-x) / 2,
    quantile=lambda p: -context().log(2 * p),
)


def rounded(shape: NoiseShape, word: int, tail: Tail, fraction: float, scale: float) -> int:
    """round(fraction + scale * X) for the X that `word` and `tail` spell, |fraction| <= 1/2.

    Under the sign bit everything is mirrored, so the outcome is sign * k with
    k >= j exactly when X >= (j - 1/2 - sign * fraction) / scale.
    """
    sign = -1 if word >> 63 else 1
    centre, spread = Fraction(fraction) * sign, Fraction(scale)

    def threshold(k: int) -> tuple[Number, Number]:
        cut = (k - Fraction(1, 2) - centre) / spread
        return around(shape.tail(exact(cut))) if cut > 0 else (1, 1)

    def start(p: Number) -> Number:
        return exact(centre) + exact(spread) * shape.quantile(p)

    return sign * locate(word, tail, threshold, start)


def exact(value: Fraction | int) -> Number:
    """A rational at the context's precision."""
    mp, fraction = context(), Fraction(value)
    return mp.mpf(fraction.numerator) / fraction.denominator


__all__ = [
    "Asked", "gaussian_table", "laplace_table", "rounded_gaussian", "rounded_gaussian_word",
    "rounded_laplace", "rounded_word", "settle",
]  # fmt: skip


LARGEST_CENTRE = 2.0**62
SMALLEST_SCALE, LARGEST_SCALE = 2.0**-30, 2.0**50
SIGN_SHIFT = np.uint64(63)


@njit(cache=True)
def rounded_word(word, fraction, scale, table):  # type: ignore[no-untyped-def]
    """(y, sure): round(fraction + scale * X) of one word; |fraction| <= 1/2."""
    x, bound, tabulated = quantile_word(word, table)
    z = fraction + (1 - 2 * np.int64(word >> SIGN_SHIFT)) * (scale * x)
    y = np.rint(z)
    error = scale * bound + (abs(z) + 2.0) * 2.0**-52
    return np.int64(y), tabulated & (abs(z - y) < 0.5 - error)


@njit(cache=True)
def rounded_gaussian_word(word, centre, sigma, table):  # type: ignore[no-untyped-def]
    """(y, sure): round(centre + sigma * G), for fused kernels; `table` is `gaussian_table()`.

    When not sure, y must not be used: collect such draws and give them to `settle`.
    """
    whole = np.rint(centre)
    y, sure = rounded_word(word, centre - whole, sigma, table)
    return np.int64(whole) + y, sure


@njit(cache=True)
def fill(words, centre, scale, table, out, sure):  # type: ignore[no-untyped-def]
    """`rounded_gaussian_word` of every word; a scale of one entry serves all.

    Two plain loops, so that both become vector instructions: 4 ns a draw, not 19.
    """
    if len(scale) == 1:
        common = scale[0]
        for i in range(len(words)):
            out[i], sure[i] = rounded_gaussian_word(words[i], centre[i], common, table)
    else:
        for i in range(len(words)):
            out[i], sure[i] = rounded_gaussian_word(words[i], centre[i], scale[i], table)


def rounded_gaussian(
    draws: Draws,
    centre: Float64[Array, "*shape"],
    sigma: Exact | float | Array,
    ids: UInt64[Array, "keys 2"] | None = None,
) -> Int64[Array, "*shape"]:
    """round(centre + sigma G) per entry; an integer centre is used exactly.

    With `ids` of keys, a row of `centre` for each, noise is a function of the address and the id.

    >>> from streamveil.core.noise import SeededNoise, SilentNoise
    >>> rounded_gaussian(SeededNoise(1).at("doc"), np.array([0.25, 1e6]), 10)
    array([     -6, 1000006])
    >>> rounded_gaussian(SilentNoise().at("doc"), np.array([0.25, 1e6]), 10)
    array([      0, 1000000])
    """
    return _rounded(draws, ids, np.asarray(centre), sigma, "gaussian")


def rounded_laplace(
    draws: Draws,
    centre: Float64[Array, "*shape"],
    scale: Exact | float | Array,
    ids: UInt64[Array, "keys 2"] | None = None,
) -> Int64[Array, "*shape"]:
    """round(centre + Laplace(scale)) per entry, as `rounded_gaussian`."""
    return _rounded(draws, ids, np.asarray(centre), scale, "laplace")


@dataclass(frozen=True)
class NoiseLaw:
    """A shape of noise: the fast table, and the multiprecision truth behind it."""

    table: Callable[[], Float64[Array, "rows 8"]]
    shape: NoiseShape


LAWS = {
    "gaussian": NoiseLaw(gaussian_table, GAUSSIAN),
    "laplace": NoiseLaw(laplace_table, LAPLACE),
}


def _rounded(
    draws: Draws, ids: Array | None, centre: Array, scale: Exact | float | Array, law: str
) -> Int64[Array, "*shape"]:
    wholes, reals = split(centre)
    scales = as_scales(scale, centre.shape)
    if draws.silent:
        return (wholes + np.rint(reals).astype(np.int64)).reshape(centre.shape)
    width = centre.size // len(ids) if ids is not None and len(ids) else 1
    words = draws.words(centre.size) if ids is None else draws.words_for(ids, width)
    words = words.reshape(-1)  # a view: one word of each pair when there is one draw per id
    if len(words) != centre.size:
        raise PlanError(f"centre has {centre.size} entries, not a multiple of the ids")
    out, sure = np.empty(centre.size, np.int64), np.empty(centre.size, np.bool_)
    fill(words, reals, scales, LAWS[law].table(), out, sure)
    if not sure.all():
        index = np.flatnonzero(~sure)
        out[index] = settle(Asked(draws, ids, width), index, words, reals, scales, law)
    return (wholes + out.reshape(-1)).reshape(centre.shape)


@dataclass(frozen=True)
class Asked:
    """Where the words of an array of draws came from, so that any draw can get more bits."""

    draws: Draws
    ids: UInt64[Array, "keys 2"] | None = None
    width: int = 1  # draws per id

    def tail(self, index: int) -> Tail:
        """Further words of draw number `index`."""
        if self.ids is None:
            return tail_at(self.draws, index)
        return tail_for(self.draws, self.ids[index // self.width], index % self.width)


def settle(
    asked: Asked,
    index: Int64[Array, " unsure"],
    words: UInt64[Array, " n"],
    centre: Float64[Array, " n"],
    scale: Float64[Array, " n"],
    law: str = "gaussian",
) -> Int64[Array, " unsure"]:
    """The exact outcomes of draws a kernel was not sure about; centre and scale as in `fill`."""
    outcomes = []
    for i in index.tolist():
        middle = float(centre[i])
        whole = round(middle)
        outcomes.append(
            whole
            + rounded(
                LAWS[law].shape,
                int(words[i]),
                asked.tail(i),
                middle - whole,
                float(scale[i if len(scale) > 1 else 0]),
            )
        )
    return np.array(outcomes, np.int64)


def split(centre: Array) -> tuple[Int64[Array, " n"], Float64[Array, " n"]]:
    """Flat exact integers, and the reals to draw about (zeros when the centre is integer)."""
    if np.issubdtype(centre.dtype, np.integer):
        return centre.astype(np.int64).reshape(-1), np.broadcast_to(0.0, centre.size)
    reals = np.ascontiguousarray(centre, np.float64).reshape(-1)
    if not bool(np.all(np.abs(reals) < LARGEST_CENTRE)):  # false for nan, too
        raise PlanError("centre must be finite and between -2**62 and 2**62")
    return np.zeros(1, np.int64), reals


def as_scales(scale: Exact | float | Array, shape: tuple[int, ...]) -> Float64[Array, " n"]:
    """The scales as float64, never below what was asked; one, or one per entry."""
    if isinstance(scale, np.ndarray) and scale.ndim:
        scales = np.array(np.broadcast_to(scale, shape), np.float64, order="C").reshape(-1)
    else:
        scales = np.array([float_above(scale) if isinstance(scale, Fraction) else float(scale)])
    if not bool(np.all((scales >= SMALLEST_SCALE) & (scales <= LARGEST_SCALE))):
        raise PlanError("scale must be between 2**-30 and 2**50 quanta")
    return scales
