"""Intervals for what is computed from noisy numbers whose joint noise is known."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from streamveil.dataflow.outputs import fieller, quantile_of, reach_of
from streamveil.errors import PlanError
from streamveil.release_metadata import Facts
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


def plain(value: Array, variance: Array, z: float, steps: Sequence[float | Array] = ()) -> Interval:
    """A sum of numbers whose noise is Gaussian, each of which takes multiples of its step alone.

    Proof: see `reach_of`, which is true of a sum whose parts have the same step. Else let one part
        have the largest step, and its noise be spread out over that step, evenly: the sum is then
        Gaussian, nearly, and nowhere more than half that step from what it is.
    """
    sd = np.sqrt(np.maximum(variance, 0.0))
    least, most = ends_of(steps)
    reach = np.where(least == most, reach_of(sd, z, most), z * sd + most / 2)
    return Interval(value, sd, value - reach, value + reach)


def steps_of(terms: Iterable[tuple[Facts, object, float | Array]]) -> list[Array]:
    """What each part of a sum takes multiples of, by facts, place and factor of its numbers.

    A sum that is moved back by a count shares the noise of that count, which may cancel. By itself
    its own noise spreads out that of the count.

    >>> count = {"lanes": [0], "step": 1.0}
    >>> moved = {"lanes": [0, 1], "factors": [-40.0, 1.0], "step": 0.25}
    >>> [float(one) for one in steps_of([(moved, None, 1.0)])]
    [0.25]
    >>> [float(one) for one in steps_of([(moved, None, 1.0), (count, None, 40.0)])]
    [0.0, 0.25]
    """
    found, counted = dict[Any, Array](), set[Any]()
    for facts, place, factor in terms:
        if "step" not in facts:
            found[None] = np.zeros(())
            counted.add(None)
            continue
        finite = np.where(np.isfinite(factor), factor, 0.0)
        own = zip(facts["lanes"], facts.get("factors", [1.0]), strict=True)
        for lane, share in own:
            part, is_last = (str(lane), place), lane == facts["lanes"][-1]
            size = facts["step"] if is_last else 1.0
            found[part] = found.get(part, np.zeros(())) + share * size * finite
            counted.update([part] * is_last)
    return [step for part, step in found.items() if part in counted]


def ends_of(steps: Sequence[float | Array]) -> tuple[Array, Array]:
    """The smallest and the largest, whatever their signs."""
    found = np.abs(np.broadcast_arrays(np.zeros(1), *steps)[1:])
    return found.min(axis=0, initial=np.inf), found.max(axis=0, initial=0.0)


def ratio(
    top: tuple[Array, Array],
    bottom: tuple[Array, Array],
    cov: tuple[Array, Array],
    z: float,
    steps: tuple[float | Array, float | Array] = (0.0, 0.0),
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
        Where top and bottom take multiples of `steps` alone, so does their noise, and each has the
        variance of which z deviations are half a step more (`reach_of`).
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        value = top[0] / bottom[0]
        widest = np.maximum(*(top[1] - 2 * value * end + value**2 * bottom[1] for end in cov))
        sd = np.sqrt(np.maximum(widest, 0.0)) / np.abs(bottom[0])
    top, bottom = (
        (one[0], (np.sqrt(np.maximum(one[1], 0.0)) + step / (2 * z)) ** 2)
        for one, step in zip((top, bottom), steps, strict=True)
    )
    ends = [fieller(top, bottom, end, z) for end in cov]
    low, high = np.minimum(ends[0][0], ends[1][0]), np.maximum(ends[0][1], ends[1][1])
    return Interval(value, sd, low, high)
