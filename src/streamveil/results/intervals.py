"""Intervals for results computed from noisy numbers whose joint noise is known."""

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
    """Ends of intervals; NaN becomes an infinite end, as nothing is known there.

    >>> open_ends(np.array([1.0, np.nan]), np.array([2.0, np.nan]))
    (array([  1., -inf]), array([ 2., inf]))
    """
    return np.where(np.isnan(low), -np.inf, low), np.where(np.isnan(high), np.inf, high)


class RoundedPart(NamedTuple):
    """A part of a sum whose noise takes only multiples of its step."""

    step: Array
    variance: Array  # of its noise


def reach_by(facts: Facts, sd: Array, z: float) -> Array:
    """How far the interval of a released number reaches, by its facts: see `reach_of`."""
    return reach_of(sd, z, facts.get("step", 0.0), facts.get("room", 0.0))


def plain(value: Array, variance: Array, z: float, parts: Sequence[RoundedPart] = ()) -> Interval:
    """A sum of numbers whose noise is Gaussian, rounded to the steps of its parts.

    Proof: if all parts have one step, so has the sum: see `reach_of`. Otherwise see `room_of`.
    """
    sd = np.sqrt(np.maximum(variance, 0.0))
    reach = z * sd + room_of(parts)
    if parts:
        others = sum(1 * (part.step != parts[0].step) for part in parts)
        reach = np.where(others == 0, reach_of(sd, z, parts[0].step), reach)
    return Interval(value, sd, value - reach, value + reach)


def room_of(parts: Sequence[RoundedPart]) -> Float64[Array, " keys"]:
    """How much further than its deviations the interval of a sum reaches, for steps of its parts.

    Proof: spread the noise of one part, which takes multiples of a, evenly over a. The sum is then
        nearly Gaussian, and moved by a / 2 at most. If parts of at most half that step have a
        deviation s of a / 2 or more, they spread it out already: chances differ from those of a
        Gaussian by exp(-2 (pi s / a)^2) of the chance of a step, less than a hundredth.
    """
    room = np.zeros(1)
    for one in parts:
        finer = sum(np.where(2 * two.step <= one.step, two.variance, 0.0) for two in parts)
        half = one.step / 2
        room = np.maximum(room, np.where(finer < half**2, half, 0.0))
    return room


def rounded_parts(terms: Iterable[tuple[Facts, object, float | Array, Array]]) -> list[RoundedPart]:
    """The parts of a sum, by facts, place, factor and deviation of its numbers.

    A sum that is moved back by a count shares the noise of that count, which may cancel. In a sum
    alone, its own noise spreads out that of the count.

    >>> count, sum = {"lanes": [0], "step": 1.0}, {"lanes": [0, 1], "factors": [-9, 1], "step": 0.5}
    >>> terms = [(sum, None, 1.0, np.array([90.0])), (count, None, 9.0, np.array([6.0]))]
    >>> [(float(one.step), float(one.variance[0])) for one in rounded_parts(terms)]
    [(0.0, 0.0), (0.5, 5184.0)]
    """
    found = dict[Any, Array]()  # how many times a lane is in the sum
    spread, steps = dict[Any, Array](), dict[Any, float]()  # of a lane: variance, step
    for facts, place, factor, sd in sorted(terms, key=lambda term: len(term[0].get("lanes", ()))):
        lanes = [(str(lane), place) for lane in (facts["lanes"] if "step" in facts else [None])]
        shares = [float(share) for share in facts.get("factors", [1.0])[-len(lanes) :]]
        for lane, share in zip(lanes, shares, strict=True):
            times = share * np.where(np.isfinite(factor), factor, 0.0)
            found[lane] = found.get(lane, np.zeros(())) + times
        counts = zip(lanes[:-1], shares, strict=False)
        known = sum(share**2 * spread.get(lane, 0.0 * sd) for lane, share in counts)
        spread[lanes[-1]] = np.maximum(sd**2 - known, 0.0)
        steps[lanes[-1]] = float(facts.get("step", 0.0))
    return [
        RoundedPart(abs(found[lane]) * step, found[lane] ** 2 * spread[lane])
        for lane, step in steps.items()
    ]


def ratio(
    top: tuple[Array, Array],
    bottom: tuple[Array, Array],
    cov: tuple[Array, Array],
    z: float,
    rooms: tuple[float | Array, float | Array] = (0.0, 0.0),
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
        Where the noise of top or bottom is rounded to steps, its variance is enlarged so that z
        deviations grow by the room of `room_of`.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        value = top[0] / bottom[0]
        widest = np.maximum(*(top[1] - 2 * value * end + value**2 * bottom[1] for end in cov))
        sd = np.sqrt(np.maximum(widest, 0.0)) / np.abs(bottom[0])
    top, bottom = (
        (one[0], (np.sqrt(np.maximum(one[1], 0.0)) + room / z) ** 2)
        for one, room in zip((top, bottom), rooms, strict=True)
    )
    ends = [fieller(top, bottom, end, z) for end in cov]
    low, high = np.minimum(ends[0][0], ends[1][0]), np.maximum(ends[0][1], ends[1][1])
    return Interval(value, sd, low, high)
