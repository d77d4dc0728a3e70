"""Intervals for what is computed from noisy numbers whose joint noise is known."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from streamveil.dataflow.outputs import fieller, quantile_of
from streamveil.errors import PlanError
from streamveil.types import Array, Float64


class Interval(NamedTuple):
    """A number, the standard deviation of its noise, and an interval."""

    value: Float64[Array, " keys"]
    sd: Float64[Array, " keys"]
    low: Float64[Array, " keys"]
    high: Float64[Array, " keys"]


def deviations(confidence: float) -> float:
    """How many standard deviations a two-sided interval reaches.

    >>> round(deviations(0.95), 3)
    1.96
    """
    if not 0 < confidence < 1:
        raise PlanError(f"confidence must be above 0 and below 1, not {confidence}")
    return quantile_of(confidence)


def open_ends(low: Array, high: Array) -> tuple[Array, Array]:
    """Ends of intervals; of a number that has none nothing is known, whatever stands in for it.

    >>> open_ends(np.array([1.0, np.nan]), np.array([2.0, np.nan]))
    (array([  1., -inf]), array([ 2., inf]))
    """
    return np.where(np.isnan(low), -np.inf, low), np.where(np.isnan(high), np.inf, high)


def plain(value: Array, variance: Array, z: float) -> Interval:
    """A sum of Gaussian numbers."""
    sd = np.sqrt(np.maximum(variance, 0.0))
    return Interval(value, sd, value - z * sd, value + z * sd)


def ratio(
    top: tuple[Array, Array], bottom: tuple[Array, Array], cov: tuple[Array, Array], z: float
) -> Interval:
    """Top / bottom, each given as (value, variance); `cov` bounds their covariance on both sides.

    Algorithm: Fieller (1954). The interval holds every r for which the noise of top - r * bottom is
        within z deviations of it.
    Proof: at the true ratio r that difference is Gaussian with mean 0 and variance
        v(r) = var top - 2 r cov + r^2 var bottom, so r is in the set with exactly the confidence of
        z, whatever the true bottom is, 0 excepted. When the bottom is within z deviations of 0 the
        set is unbounded, and so is the interval. With a covariance known to lie between two ends,
        v(r) is at most its value at one of them, so the union of both sets holds r at least as
        often.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        value = top[0] / bottom[0]
        widest = np.maximum(*(top[1] - 2 * value * end + value**2 * bottom[1] for end in cov))
        sd = np.sqrt(np.maximum(widest, 0.0)) / np.abs(bottom[0])
    ends = [fieller(top, bottom, end, z) for end in cov]
    low, high = np.minimum(ends[0][0], ends[1][0]), np.maximum(ends[0][1], ends[1][1])
    return Interval(value, sd, low, high)
