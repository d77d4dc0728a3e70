"""From an upper bound of a hockey-stick curve to a certified delta of a composition.

A *curve* h(gamma) = sup over events of P[E] - gamma Q[E] of two laws P, Q is convex in gamma. Given
points that lie on or above it, their lower convex hull is itself the curve of a pair of discrete
laws that dominates P, Q: a dominating pair (Zhu, Dong & Wang 2022, arXiv:2106.08567; "connect the
dots", Doroshenko et al. 2022, arXiv:2207.04380). The pair's losses lie on a lattice, so its n-fold
product is a convolution of non-negative numbers, by squares, taken directly: no Fourier transform.

Numerics, each step an upper bound: points are floats rounded up by the caller; hull and masses are
exact (integers); masses are rounded up to floats; a sum of n products of non-negative floats is off
by less than n 2^-52 relative in any order and is raised by that; `SHIFT` covers the distance of
lattice losses k * step from the log of the float gamma they stand for, `doubt` what more of it a
law of many compositions may have gathered.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from streamveil.core.accounting.convert import Curve
from streamveil.types import Array, Float64, Int64

MANTISSA = 53  # bits of a float64
SHIFT = 1e-11
RARE = 1e-40  # smaller masses are moved to infinite loss: no subnormal products
TAIL = 1e-26  # mass at either end of a composition that counts as infinite loss: it stays short
LONGEST = 8192  # places of a law of many compositions; beyond, its lattice is made coarser


@dataclass(frozen=True, eq=False)
class CurvePoints:
    """h(gammas[i]) <= heights[i], where gammas[i] = e^(places[i] * step); in any order."""

    gammas: Float64[Array, " points"]
    heights: Float64[Array, " points"]
    places: Int64[Array, " points"]


@dataclass(frozen=True, eq=False)
class LossLaw:
    """A law of the privacy loss under P, on the lattice (first + i) * step, rounded up.

    One made by `law_near` is not rounded: it bounds nothing.
    """

    step: float
    first: int
    masses: Float64[Array, " n"]
    infinite: float  # mass at loss infinity
    doubt: float = 0.0  # losses may be larger by this and SHIFT than the lattice says

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
        masses = np.convolve(self.masses, other.masses) * (1 + few * 2.0**-51)
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
        """A law that dominates it with at most LONGEST places."""
        law = self
        while len(law.masses) > LONGEST:
            law = law.onto(2 * law.step)
        return law

    def onto(self, step: float) -> LossLaw:
        """A law that dominates it, with losses on another lattice.

        Proof: mass p of P at loss l, between lattice losses a and b = a + step, goes to b with the
            share (1 - e^(a-l)) / (1 - e^-step) and to a with the rest. P and Q keep their masses, Q
            because e^-l is the same mixture of e^-a and e^-b: undoing it is a post-processing. More
            mass at b than that only adds to every curve.
        Numerics: shares of b are raised by 1e-9; what a loss is off by goes to `doubt`.
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
        """How many of its losses at most share one place of a lattice of this step."""
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
    """The same numbers as multiples of 2^-bits, and these bits.

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

    With the run and the rise to each from the node before. A node goes when it lies on or above the
    chord between its neighbours: when the slope to it is no less than the slope from it.
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
