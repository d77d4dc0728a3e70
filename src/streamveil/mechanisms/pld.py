"""From an upper bound of a hockey-stick curve to a certified delta of a composition.

A *curve* h(gamma) = sup over events of P[E] - gamma Q[E] of two laws P, Q is convex in gamma. Given
points that lie on or above it, their lower convex hull is itself the curve of a pair of discrete
laws that dominates P, Q: a dominating pair (Zhu, Dong & Wang 2022, arXiv:2106.08567; "connect the
dots", Doroshenko et al. 2022, arXiv:2207.04380). The pair's losses lie on a lattice, so its n-fold
product is an n-fold convolution of non-negative numbers, taken directly: no Fourier transform.

Numerics, each step an upper bound: points are floats rounded up by the caller; hull and masses are
exact (integers and fractions); masses are rounded up to floats; a sum of n products of non-negative
floats is off by less than n 2^-52 relative in any order and is raised by that; `SHIFT` covers the
distance of lattice losses k * step from the log of the float gamma they stand for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

import numpy as np

from streamveil.privacy.convert import Curve
from streamveil.types import Array, Float64

POINT_BITS = 300  # points are multiples of 2^-300
SHIFT = 1e-11
RARE = 1e-40  # smaller masses are moved to infinite loss: no subnormal products


@dataclass(frozen=True)
class Point:
    """h(gamma) <= height, where gamma = e^(place * step); place 0 and up may be any integers."""

    gamma: float
    height: float
    place: int


@dataclass(frozen=True, eq=False)
class LossLaw:
    """A law of the privacy loss under P, on the lattice (first + i) * step, rounded up."""

    step: float
    first: int
    masses: Float64[Array, " n"]
    infinite: float  # mass at loss infinity

    def self_compose(self, times: int) -> LossLaw:
        """The loss of that many independent (or concurrently composed) mechanisms."""
        masses = np.ones(1)
        for _ in range(times):
            masses = np.convolve(masses, self.masses) * (1 + len(self.masses) * 2.0**-51)
        infinite = times * self.infinite * (1 + 2.0**-50)
        return LossLaw(self.step, self.first * times, masses, infinite)

    def delta_at(self, epsilon: float, rest: Curve) -> float:
        """A delta of this loss composed with a mechanism of curve `rest`, rounded up."""
        losses = (self.first + np.arange(len(self.masses))) * self.step
        terms = self.masses * rest(epsilon - losses - SHIFT)
        total = float(np.sum(terms)) * (1 + len(terms) * 2.0**-51)
        return min(1.0, (total + self.infinite) * (1 + 2.0**-50))


def law_under(points: Sequence[Point], step: float) -> LossLaw:
    """The loss law of the least dominating pair above all points.

    Proof: with hull nodes (g_i, h_i), g_0 = 0, h_0 = 1, and slopes s_i from node i - 1 to i (0
        after the last), put Q mass s_(i+1) - s_i >= 0 and P mass g_i times that on node i; Q mass 1
        + s_1 on loss minus infinity and P mass h_n on loss infinity. Then P sums to h_n - sum of
        s_i (g_i - g_(i-1)) = 1, and the pair's curve is the hull: piecewise linear, with these
        slopes. Beyond the last point the curve, which falls, stays below h_n.
    """
    scale = 1 << POINT_BITS
    nodes = [(0, scale, 0)]
    for point in sorted(points, key=lambda point: point.gamma):
        gamma = int(Fraction(point.gamma) * scale)
        height = -int(-Fraction(point.height) * scale // 1)
        while len(nodes) > 1 and _is_above(nodes[-1], nodes[-2], (gamma, height)):
            nodes.pop()
        nodes.append((gamma, height, point.place))
    gammas = [gamma for gamma, _, _ in nodes]
    slopes = [Fraction(b[1] - a[1], b[0] - a[0]) for a, b in pairwise(nodes)] + [Fraction(0)]
    first, last = nodes[1][2], nodes[-1][2]
    masses = np.zeros(last - first + 1)
    for index in range(1, len(nodes)):
        mass = float(Fraction(gammas[index], scale) * (slopes[index] - slopes[index - 1]))
        masses[nodes[index][2] - first] += mass * (1 + 2.0**-51)
    infinite = float(Fraction(nodes[-1][1], scale)) * (1 + 2.0**-51) + RARE * len(masses)
    return LossLaw(step, first, np.where(masses < RARE, 0.0, masses), infinite)


def _is_above(
    middle: tuple[int, int, int], left: tuple[int, int, int], new: tuple[int, int]
) -> bool:
    """Whether the middle node lies on or above the chord from the left node to the new one."""
    rise = (middle[1] - left[1]) * (new[0] - left[0])
    return rise >= (new[1] - left[1]) * (middle[0] - left[0])
