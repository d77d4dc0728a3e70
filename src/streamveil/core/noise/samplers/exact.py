"""The multiprecision side of every sampler: settles the words a fast kernel was not sure about.

All samplers invert one uniform tail probability p in (0, 1/2): the outcome is the number of
thresholds T(1) > T(2) > ... that are >= p. A kernel knows the first 63 bits of p and is sure nearly
always. When it is not, `locate` draws further bits of the same p, from a separate address of the
same draw, and evaluates thresholds to more digits until every comparison is decided. The outcome is
therefore the exact function of infinitely many bits that the sampler is defined to be; how the
kernel rounds can change only how often this file is asked.

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

from streamveil.core.noise.keyed import Draws
from streamveil.core.noise.samplers.quantiles import gaussian_quantile
from streamveil.types import Array, UInt64

GUARD = 32  # bits of a multiprecision value that are not believed
LOCK = RLock()  # an mpmath context holds its precision in a global

Number: TypeAlias = Any  # an mpmath number
Threshold: TypeAlias = Callable[[int], tuple[Number, Number]]  # T(k) is between these
Tail: TypeAlias = Callable[[int], UInt64[Array, " n"]]  # the first n further words of one draw


@cache
def context() -> mpmath.MPContext:
    """Our own multiprecision context: nobody else's settings reach it, nor ours theirs."""
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
    """What a computed value may stand for."""
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
