"""From losses and curves to (epsilon, delta): upper bounds, with margins for float64's rounding.

Functions named `..._delta` bound a hockey-stick divergence H(eps) = sup over events of P[E] - e^eps
Q[E] from above, for any real eps. In exact arithmetic each is an upper bound, with a proof or a
citation. Parts are raised by a margin for rounding, which also covers the sums taken over them. The
margins for scipy (MARGIN, MASS_MARGIN) are measured, those for exp, log and tanh are generous; all
are trusted, not proved (`docs/weaknesses.md`).

A *curve* h(gamma) = sup over events of P[E] - gamma Q[E] of two laws P, Q is convex in gamma. Given
points that lie on or above it, their lower convex hull is itself the curve of a pair of discrete
laws that dominates P, Q: a dominating pair (Zhu, Dong & Wang 2022, arXiv:2106.08567; "connect the
dots", Doroshenko et al. 2022, arXiv:2207.04380). The pair's losses lie on a lattice, so its n-fold
product is a convolution of non-negative numbers, by squares, taken directly: no Fourier transform.

Numerics, each step an upper bound: points are floats rounded up by the caller; hull and masses are
exact (integers); masses are rounded up to floats; a sum of n products of non-negative floats is off
by less than n 2^-52 relative in any order and is raised by that; `SHIFT` covers the distance from
a lattice loss k * step to the log of the float gamma that it stands for, and `doubt` what many
compositions may add to that distance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from math import exp, inf, log, log1p, sqrt
from typing import TypeAlias

import numpy as np

from streamveil.compiled import erfcx, ndtr
from streamveil.types import Array, Float64, Int64

# scipy's error functions are accurate to about 1e-13 relative, its binomial to about 1e-11
MARGIN = 2e-12
MASS_MARGIN = 1e-9
TINY = 1e-300  # covers underflow
LARGEST_EPSILON = 1e6  # where a search gives up
NEAR, MOST_TRIES = 4e-11, 20  # a search for a zero: how close its ends come, in how many steps
LATTICE = 4096  # points a sum of unlike pure losses is rounded up to
LARGEST_LATTICE = 200_000
PureLosses: TypeAlias = tuple[tuple[Fraction, int], ...]  # (epsilon, how often)
Curve: TypeAlias = Callable[[Float64[Array, " n"]], Float64[Array, " n"]]


def gaussian_delta(epsilon: Float64[Array, " n"], mu: float) -> Float64[Array, " n"]:
    """H of N(mu, 1) against N(0, 1), rounded up.

    Algorithm: Balle & Wang (2018), arXiv:1805.06530: Phi(a) - e^eps Phi(b) with
        a = mu/2 - eps/mu and b = a - mu. As a^2/2 = b^2/2 - eps, the two terms share the factor
        e^(-a^2/2) and their difference is taken between scaled functions: no overflow.
    Numerics: raised by MARGIN (1 + a^2 / 1000) times the first term, above the error of erfcx.
    """
    epsilon = np.asarray(epsilon, np.float64)
    if mu <= 0:
        return nothing_delta(epsilon)
    a = mu / 2 - epsilon / mu
    first = ndtr(a)
    tail = a < 0
    safe = np.where(tail, a, -1.0)
    scale = np.exp(-(safe**2) / 2) / 2
    far = scale * (erfcx(-safe / sqrt(2)) - erfcx((mu - safe) / sqrt(2)))
    with np.errstate(over="ignore"):
        near = first - np.exp(np.minimum(epsilon, 700.0)) * ndtr(a - mu)
    value = np.where(tail, far, near) + MARGIN * (1 + a**2 / 1000) * first + TINY
    bounded: Array = np.clip(value, 0.0, 1.0)
    return bounded


def zcdp_delta(epsilon: Float64[Array, " n"], rho: float) -> Float64[Array, " n"]:
    """H of any rho-zCDP mechanism, rounded up.

    Algorithm: Canonne, Kamath & Steinke (2020), arXiv:2004.00010: for every alpha > 1,
        H <= e^((alpha-1)(alpha rho - eps)) / (alpha-1) * (1 - 1/alpha)^alpha. Every alpha is sound,
        so the search for the best one (a grid, then three refinements) needs no proof.
    """
    epsilon = np.asarray(epsilon, np.float64)
    if rho <= 0:
        return nothing_delta(epsilon)
    centre = np.log(np.maximum((epsilon - rho) / (2 * rho), 1e-3))  # the leading-order optimum
    best, width = np.full(epsilon.shape, inf), 4.0
    for _ in range(4):
        trial = centre[:, None] + np.linspace(-width, width, 41)[None, :]
        over = np.exp(trial)  # alpha - 1
        alpha = over + 1
        value = over * (alpha * rho - epsilon[:, None]) - trial - alpha * np.log1p(1 / over)
        place = np.argmin(value, axis=1)
        best = np.minimum(best, value[np.arange(len(epsilon)), place])
        centre = trial[np.arange(len(epsilon)), place]
        width /= 15
    bounded: Array = np.minimum(1.0, np.exp(np.minimum(best, 0.0)) * (1 + 1e-11) + TINY)
    return bounded


def nothing_delta(epsilon: Float64[Array, " n"]) -> Float64[Array, " n"]:
    """H of two equal distributions: (1 - e^eps)+, rounded up."""
    bounded: Array = np.maximum(0.0, -np.expm1(np.minimum(epsilon, 700.0))) * (1 + MARGIN)
    return bounded


def pure_zcdp(epsilon: float) -> float:
    """The least rho such that every epsilon-DP mechanism is rho-zCDP: epsilon tanh(epsilon / 2).

    Proof: randomised response (p = e^eps/(1+e^eps) against 1-p) dominates every eps-DP mechanism
        (Kairouz, Oh & Viswanath 2015, arXiv:1311.0776). Its Renyi divergence times (alpha-1) is
        log cosh((alpha - 1/2) eps) - log cosh(eps/2). As a function of v = (alpha - 1/2)^2,
        log cosh(eps sqrt v) is concave (tanh(x)/x falls), so it lies below its tangent at v = 1/4,
        whose slope is eps tanh(eps/2); and v - 1/4 = alpha (alpha-1). Tight as alpha -> 1.
    """
    return epsilon * float(np.tanh(epsilon / 2)) * (1 + 1e-15)


def pure_sum(losses: PureLosses) -> tuple[Float64[Array, " n"], Float64[Array, " n"]]:
    """The privacy-loss distribution (losses, masses under P) of composed randomised responses.

    Different losses are rounded up to a common lattice: randomised response with a larger epsilon
    dominates. Masses are rounded up by MASS_MARGIN relative.
    """
    step, counts = _lattice(losses)
    masses = np.ones(1)
    for units, times in counts:
        p = 1 / (1 + exp(-units * step))
        single = binomial(times, p)
        spread = np.zeros(2 * units * times + 1)
        spread[:: 2 * units] = single
        masses = convolved(masses, spread)
    half = (len(masses) - 1) // 2
    grid = np.arange(-half, half + 1) * step
    kept = masses > 0
    return grid[kept] * (1 + np.sign(grid[kept]) * 1e-15), masses[kept] * (1 + MASS_MARGIN)


def binomial(times: int, p: float) -> Float64[Array, " values"]:
    """The chances of 0 to `times` successes of probability p, above 0.

    Numerics: products of ratios away from the mode, then one sum. A chance of 1e-300 or more
        lies within 40 (times / 4)**(1/2) steps of the mode, each within 4 roundings.

    >>> binomial(2, 0.5).tolist()
    [0.25, 0.5, 0.25]
    """
    if p == 1:
        return np.append(np.zeros(times), 1.0)
    mode, k = min(times, int((times + 1) * p)), np.arange(times)
    ratio = (times - k) / (k + 1) * (p / (1 - p))  # of a chance to the one before
    up = np.cumprod(ratio[mode:])
    down = np.cumprod(1 / ratio[:mode][::-1])[::-1]
    chances = np.concatenate([down, [1.0], up])
    return np.asarray(chances / chances.sum())


def _lattice(losses: PureLosses) -> tuple[float, list[tuple[int, int]]]:
    """A step and, for every loss, how many steps it is rounded up to."""
    step = losses[0][0]
    for epsilon, _ in losses[1:]:
        step = _common_divisor(step, epsilon)
    total = sum((epsilon * times for epsilon, times in losses), Fraction(0))
    if 2 * total / step > LATTICE and len(losses) > 1:
        step = total / LATTICE
    # the float step is rounded up, so that units * step is never below the loss
    return float(step) * (1 + 1e-15), [(-(-epsilon // step), times) for epsilon, times in losses]


def _common_divisor(a: Fraction, b: Fraction) -> Fraction:
    while b:
        a, b = b, a % b
    return a


def mixture_delta(epsilon: float, losses: PureLosses, rest: Curve) -> float:
    """H of pure mechanisms composed with something whose H is at most `rest`, rounded up.

    Proof: with dominating pairs P1, Q1 (pure, loss l) and P2, Q2 (rest), H_eps of the product is
        E over P1 of H_(eps - l)(P2, Q2). `rest` may be any upper bound valid for all real eps: the
        true curve is convex in e^eps, so it lies below the convex envelope of the bound, which is
        itself the curve of a dominating pair (Zhu, Dong & Wang 2022, arXiv:2106.08567). The pair
        composes adaptively and concurrently (Vadhan & Zhang 2023, arXiv:2207.08335).
    """
    if not losses:
        return float(rest(np.array([epsilon]))[0])
    total = float(sum(loss * times for loss, times in losses)) * (1 + 1e-15)
    whole = float(rest(np.array([epsilon - total]))[0])  # all of the pure loss, surely
    if sum(times for _, times in losses) > LARGEST_LATTICE:
        return whole
    values, masses = pure_sum(losses)
    return min(whole, 1.0, float(np.sum(masses * rest(epsilon - values))))


def split_delta(epsilon: float, first: Curve, second: Curve) -> float:
    """The best of delta1(e) + delta2(epsilon - e) over a grid of splits: plain composition."""
    parts = epsilon * np.linspace(0.0, 1.0, 65)
    return float(np.min(first(parts) + second(epsilon - parts)))


def smallest_epsilon(delta: float, curve: Callable[[float], float]) -> float:
    """The least epsilon >= 0 found with curve(epsilon) <= delta, from above; inf if none is found.

    The curve falls, so a bisection needs no value beyond a point where the answer is known. The
    curve itself was evaluated at the result, or at a smaller epsilon.
    """

    def excess(epsilon: float) -> float:
        value = curve(epsilon)
        far = log(max(value, TINY) / max(delta, TINY))
        return min(far, 0.0) if value <= delta else max(far, TINY)

    low, high, over = 0.0, 1.0, excess(0.0)
    if over <= 0:
        return 0.0
    while not (under := excess(high)) <= 0:
        low, high, over = high, 2 * high, under
        if high > LARGEST_EPSILON:
            return inf
    above, below = zero_between(excess, (low, over), (high, under))
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        fits = middle >= below or (middle > above and curve(middle) <= delta)
        low, high = (low, middle) if fits else (middle, high)
    return high


def zero_between(
    excess: Callable[[float], float], left: tuple[float, float], right: tuple[float, float]
) -> tuple[float, float]:
    """Narrows the interval in which a falling function is 0, by false position (Illinois).

    `left` and `right`: points with their values. Each try stays `NEAR` away from both ends: once
    one end is at the zero, the next try is just past it.

    >>> low, high = zero_between(lambda x: 2 - x * x, (1.0, 1.0), (2.0, -2.0))
    >>> low < 2**0.5 <= high, high - low < 1e-10
    (True, True)
    """
    (low, over), (high, under), side = left, right, 0
    for _ in range(MOST_TRIES):
        near = NEAR * high
        if high - low <= 2 * near or not over > 0 >= under:
            break
        middle = high - under * (high - low) / (under - over)
        middle = min(max(middle, low + near), high - near)
        found = excess(middle)
        if found <= 0:
            high, under, over = middle, found, over / (1 + (side > 0))
        else:
            low, over, under = middle, found, under / (1 + (side < 0))
        side = 1 if found <= 0 else -1
    return low, high


def log_geometric_sum(step: float, terms: int) -> float:
    """log(1 + e^step + ... + e^((terms-1) step)), rounded up."""
    if step < 1e-12:
        return log(terms) + terms * step
    if step * terms > 30:
        return (terms - 1) * step - log1p(-exp(-step)) + 1e-12
    return log(np.expm1(step * terms) / np.expm1(step)) + 1e-12


MANTISSA = 53  # bits of a float64
SHIFT = 1e-11
RARE = 1e-40  # smaller masses are moved to infinite loss: no subnormal products
TAIL = 1e-26  # mass at either end of a composition that counts as infinite loss: it stays short
PIECE = 10_000  # products that one thread adds up
LONGEST = 8192  # places of a law of many compositions; beyond, its lattice is made coarser


def convolved(one: Float64[Array, " n"], two: Float64[Array, " m"]) -> Float64[Array, " n_m_1"]:
    """`np.convolve` of numbers that are at least 0, with the same bits for any number of threads.

    A sum of k products is off by less than k 2^-52 of itself. The shorter array is taken in pieces
    of `PIECE`: the BLAS splits longer sums among its threads, which then spin as they wait.

    >>> convolved(np.ones(3), np.array([1.0, 2.0])).tolist()
    [1.0, 3.0, 3.0, 2.0]
    """
    short, long = sorted((one, two), key=len)
    sums = np.zeros(len(short) + len(long) - 1)
    for begin in range(0, len(short), PIECE):
        piece = np.convolve(long, short[begin : begin + PIECE])
        sums[begin : begin + len(piece)] += piece
    return sums


@dataclass(frozen=True, eq=False)
class CurvePoints:
    """h(gammas[i]) <= heights[i], where gammas[i] = e^(places[i] * step); in any order."""

    gammas: Float64[Array, " points"]
    heights: Float64[Array, " points"]
    places: Int64[Array, " points"]


@dataclass(frozen=True, eq=False)
class LossLaw:
    """A law of the privacy loss under P, on the lattice (first + i) * step, rounded up.

    A law made by `law_near` is not rounded: it bounds nothing.
    """

    step: float
    first: int
    masses: Float64[Array, " n"]
    infinite: float  # mass at loss infinity
    doubt: float = 0.0  # losses may exceed those of the lattice by this and SHIFT

    def self_compose(self, times: int) -> LossLaw:
        """The loss of that many independent (or concurrently composed) mechanisms, one or more."""
        if times == 1:
            return self
        half = self.self_compose(times // 2)
        both = half.compose(half)
        return both.compose(self) if times % 2 else both

    def compose(self, other: LossLaw) -> LossLaw:
        """The loss of both together."""
        few = min(len(self.masses), len(other.masses))
        masses = convolved(self.masses, other.masses) * (1 + few * 2.0**-51)
        infinite = (self.infinite + other.infinite) * (1 + 2.0**-50)
        doubt = (self.doubt + other.doubt) * (1 + 2.0**-50)
        return LossLaw(self.step, self.first + other.first, masses, infinite, doubt).trimmed()

    def many(self, times: int) -> LossLaw:
        """As `self_compose`, for hundreds: on lattices that grow coarser with the spread.

        The last step is at most 40 standard deviations / LONGEST, so what coarser lattices add to
        the variance of the loss is about (40 / LONGEST)^2 of it.
        """
        if times == 1:
            return replace(self, doubt=self.doubt + SHIFT).shortened()
        half = self.many(times // 2)
        both = half.compose(half).shortened()
        if times % 2:
            both = both.compose(self.many(1).onto(both.step)).shortened()
        return both

    def shortened(self) -> LossLaw:
        """A law that dominates this one, with at most LONGEST places."""
        law = self
        while len(law.masses) > LONGEST:
            law = law.onto(2 * law.step)
        return law

    def onto(self, step: float) -> LossLaw:
        """A law that dominates this one, with losses on another lattice.

        Proof: mass p of P at loss l, between lattice losses a and b = a + step, goes to b with the
            share (1 - e^(a-l)) / (1 - e^-step) and to a with the rest. P and Q keep their masses, Q
            because e^-l is the same mixture of e^-a and e^-b: undoing it is a post-processing. More
            mass at b than that only adds to every curve.
        Numerics: shares of b are raised by 1e-9; the error of a loss goes to `doubt`.
        """
        if step == self.step:
            return self
        losses = (self.first + np.arange(len(self.masses))) * self.step
        lower = np.floor(losses / step).astype(np.int64)
        above = np.clip(losses - lower * step, 0.0, step)
        share = np.minimum(np.expm1(-above) / np.expm1(-step) * (1 + 1e-9), 1.0)
        raised = self.masses * (1 + 2.0**-50)
        first = int(lower[0])
        masses = np.zeros(int(lower[-1]) - first + 2)
        np.add.at(masses, lower - first, raised * (1 - share))
        np.add.at(masses, lower - first + 1, raised * share)
        masses *= 1 + (2 + self.per_place(step)) * 2.0**-51
        return LossLaw(step, first, masses, self.infinite, self.doubt + SHIFT)

    def per_place(self, step: float) -> float:
        """The most losses that share one place of a lattice with this step."""
        return 2 * step / self.step + 2

    def trimmed(self) -> LossLaw:
        """With up to TAIL of mass at either end taken as infinite loss: an upper bound.

        A third TAIL covers what rounding adds to the two sums.
        """
        low, high = (int(np.sum(np.cumsum(m) <= TAIL)) for m in (self.masses, self.masses[::-1]))
        first = min(low, len(self.masses) - 1)
        last = max(len(self.masses) - high, first + 1)
        infinite = (self.infinite + 3 * TAIL) * (1 + 2.0**-50)
        return replace(
            self, first=self.first + first, masses=self.masses[first:last], infinite=infinite
        )

    def delta_at(self, epsilon: float, rest: Curve) -> float:
        """A delta of this loss composed with a mechanism of curve `rest`, rounded up."""
        losses = (self.first + np.arange(len(self.masses))) * self.step
        terms = self.masses * rest(epsilon - losses - (SHIFT + self.doubt))
        total = float(np.sum(terms)) * (1 + len(terms) * 2.0**-51)
        return min(1.0, (total + self.infinite) * (1 + 2.0**-50))


def law_under(points: CurvePoints, step: float) -> LossLaw:
    """The loss law of the least dominating pair above all points.

    Proof: with hull nodes (g_i, h_i), g_0 = 0, h_0 = 1, and slopes s_i from node i - 1 to i (0
        after the last), put Q mass s_(i+1) - s_i >= 0 and P mass g_i times that on node i; Q mass 1
        + s_1 on loss minus infinity and P mass h_n on loss infinity. Then P sums to h_n - sum of
        s_i (g_i - g_(i-1)) = 1, and the pair's curve is the hull: piecewise linear, with these
        slopes. Beyond the last point the curve, which falls, stays below h_n.
    Numerics: a slope is a quotient rise / run of integers, so a mass is one too, and Python rounds
        the quotient of two integers to the nearest float, however long they are.
    """
    order = np.argsort(points.gammas, kind="stable")
    gammas, _ = multiples(points.gammas[order])
    heights, bits = multiples(points.heights[order])
    nodes, runs, rises = hull(gammas, heights, 1 << bits)
    places = points.places[order][nodes]
    masses = np.zeros(int(places[-1] - places[0]) + 1)
    found = [
        gammas[node] * (next_rise * run - rise * next_run) / ((run * next_run) << bits)
        for node, run, rise, next_run, next_rise in zip(
            nodes, runs, rises, [*runs[1:], 1], [*rises[1:], 0], strict=True
        )
    ]
    np.add.at(masses, places - places[0], np.array(found) * (1 + 2.0**-51))
    last = heights[nodes[-1]] / (1 << bits)
    infinite = last * (1 + 2.0**-51) + RARE * len(masses)
    return LossLaw(step, int(places[0]), np.where(masses < RARE, 0.0, masses), infinite)


def multiples(values: Float64[Array, " n"]) -> tuple[list[int], int]:
    """The numbers as multiples of 2^-bits, and `bits`.

    >>> multiples(np.array([0.75, 2.0])) == ([3 << 51, 2 << 53], 53)
    True
    """
    mantissas, exponents = np.frexp(values)
    bits = MANTISSA - min(int(exponents.min()), 0)
    whole = (mantissas * 2.0**MANTISSA).astype(np.int64).tolist()
    shifts = (exponents.astype(np.int64) + (bits - MANTISSA)).tolist()
    return [a << s for a, s in zip(whole, shifts, strict=True)], bits


def hull(gammas: list[int], heights: list[int], one: int) -> tuple[list[int], list[int], list[int]]:
    """The points on the lower convex hull of (0, one) and all points, by rising gamma.

    Also the run and the rise to each from the node before. A node is removed when it lies on or
    above the chord between its neighbours: when the slope to it is no less than the slope from it.
    """
    nodes: list[int] = []
    runs: list[int] = []
    rises: list[int] = []
    left, level = 0, one
    for place, (gamma, height) in enumerate(zip(gammas, heights, strict=True)):
        run, rise = gamma - left, height - level
        while nodes and rises[-1] * run >= rise * runs[-1]:
            del nodes[-1]
            run, rise = run + runs.pop(), rise + rises.pop()
        nodes.append(place)
        runs.append(run)
        rises.append(rise)
        left, level = gamma, height
    return nodes, runs, rises
