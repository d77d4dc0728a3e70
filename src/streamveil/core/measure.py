"""From exact numbers to numbers that may leave: noise of one release each, at draws of its own.

For mechanisms that measure once, or choose; counters that run for ever draw in their own steps
(`Counter.step`). Callers prove which noise their privacy budget needs. Every function returns exact
numbers with their noise, or a choice, never the noise alone.
"""

from __future__ import annotations

import numpy as np

from streamveil.core.noise import Draws
from streamveil.core.noise.samplers import rounded_gaussian, rounded_laplace
from streamveil.core.noise.samplers.choice import exponential_choice
from streamveil.core.noise.samplers.inverse import discrete_laplace
from streamveil.core.noisy import Noisy, drawn
from streamveil.types import Array, Exact, Float64, Int64


def with_laplace(
    exact: int | Int64[Array, " n"], scale: Exact, draws: Draws
) -> Noisy[Int64[Array, " n"]]:
    """Integers, each plus discrete Laplace noise of a scale."""
    numbers = np.atleast_1d(np.asarray(exact, np.int64))
    return drawn(numbers + discrete_laplace(draws, scale, len(numbers)))


def with_gaussian(
    exact: int | Int64[Array, " n"], sigma: Exact, draws: Draws
) -> Noisy[Int64[Array, " n"]]:
    """Integers, each plus a rounded Gaussian of deviation sigma, rounded up."""
    numbers = np.atleast_1d(np.asarray(exact, np.int64))
    scale = float(np.nextafter(float(sigma), np.inf))
    return drawn(numbers + rounded_gaussian(draws, np.zeros(len(numbers)), scale))


def rows_with_noise(
    exact: Int64[Array, " rows"], scales: Float64[Array, " rows"], draws: Draws, *, laplace: bool
) -> Noisy[Float64[Array, " rows"]]:
    """Integers, each plus rounded Laplace or Gaussian noise of its own scale."""
    law = rounded_laplace if laplace else rounded_gaussian
    noise = law(draws, np.zeros(len(exact)), scales)
    return drawn(np.asarray(exact + noise, np.float64))


def sums_with_noise(
    whole: Int64[Array, " rows"],
    rest: Float64[Array, " rows"],
    scales: Float64[Array, " rows"],
    draws: Draws,
) -> Noisy[Int64[Array, " rows"]]:
    """Real sums, each an integer and a rest, plus Gaussian noise of its own scale; rounded."""
    return drawn(whole + rounded_gaussian(draws, rest, scales))


def about(
    centre: Float64[Array, " n"],
    scale: Exact | float | Float64[Array, " n"],
    draws: Draws,
    *,
    laplace: bool = False,
) -> Noisy[Int64[Array, " n"]]:
    """Continuous Gaussian or Laplace noise about real centres, rounded to integers."""
    law = rounded_laplace if laplace else rounded_gaussian
    return drawn(law(draws, centre, scale))


def chosen(
    scores: Float64[Array, " n"], epsilon: Exact, sensitivity: float, draws: Draws
) -> Noisy[int]:
    """A number of high score, by the exponential mechanism."""
    return drawn(exponential_choice(draws, scores, epsilon, sensitivity))
