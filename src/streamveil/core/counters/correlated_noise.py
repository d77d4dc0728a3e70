"""What is common to counters that keep the noise they have used and subtract it again.

A feedback counter with encoder C (unit lower triangular), column scales D_t and noise scales v_t
publishes, at step t,

    y_t = y_(t-1) + x_t + k_t,   k_t = round(o_t + sigma v_t D_t G_t),   z_t = (k_t - o_t) / D_t

where the offset o_t = -D_t (terms of C^-1 on z_1 .. z_(t-1)) is real. So (C^-1 z)_t D_t = y_t -
y_(t-1) - x_t: given the outputs, z = C D^-1 (dy - x) is linear in the data.

Guarantee and proof. Given y_1 .. y_(t-1), step t is a Gaussian with scale sigma v_t D_t about a
centre that moves by D_t (C D^-1 dx)_t between two streams; rounding to integers is post-processing
of a real centre, whatever it is. Composition over t, adaptive, gives a Gaussian mechanism with
mu = |V^-1 C D^-1 dx| / sigma, at most (sum |dx|) * (largest column norm of V^-1 C D^-1) / sigma.

Numerics: the offset is a float64, so its move between two streams is not exactly the ideal one.
Proof of the slack. Fix the outputs, so that k_t differs between the streams by the integer dx_t
only. Rounding injects g_t into z_t and e_it into buffer i; both act on later z through C alone:
z = C (ideal + g + sum_i drain_i x/(1 - keep_i x) e_i). Let A be the sum of |c_k|, |z_t| <= Z, and
|s_i| <= Y_i for buffer i. The offset's terms sum to at most Z, sum drain_i/q_i being 1 - 1/C(1),
so |g_t| <= (d + 5) u Z and |e_it| <= 2.01 u Y_i, and z is off in each of the two streams by at most

    eta = A u ((d + 5) Z + 2.01 sum_i (drain_i / q_i) Y_i).

As v_t >= 1, L2 over T steps adds at most 2 eta sqrt(T) / sigma to mu, per key the person touches.
Bounds: z_t = sigma v_t G_t + r_t / D_t with |r_t| <= 1/2. On the first stream |z_t| <= REACH
sigma max(v) + 1/(2 min D); a buffer is a weighted sum of z, a martingale but for the bias of
rounding, with terms sub-Gaussian of scale sigma v + 1/(2D), so it stays below REACH times that over
sqrt(1 - keep_i^2), plus bias / q_i. The second stream has the first one's z moved by a vector of
norm at most moved * norm * max(v), and its buffers by that over sqrt(1 - keep_i^2). A bound fails
with probability below 2 exp(-REACH^2/2) < 2^-207, so all of 2^64 draws keep theirs but for 2^-128,
which is part of the distance of any computed noise from its ideal (as is the cipher's) and not
charged again here.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import ceil, exp, nextafter, pi, sqrt

import numpy as np

from streamveil.core.accounting.guarantee import Gdp, Loss
from streamveil.core.counters import Ids
from streamveil.core.noise import Draws
from streamveil.core.noise.samplers import rounded_gaussian
from streamveil.types import Array, Exact, Float64, Int64

REACH = 17.0  # standard deviations; P(|G| > 17) < 2^-208
U = 2.0**-53
UP = 1 + 1e-14  # covers a handful of roundings of positive numbers
EASE = 1.01  # second-order terms of the analysis


@dataclass(frozen=True)
class Recursion:
    """The public numbers of one encoder that decide how rounding errors spread."""

    amplification: float  # A
    norm: float  # the sensitivity
    terms: int  # d, or the length of the history
    rest: Float64[Array, " d"]  # q_i = 1 - keep_i; empty when there are no buffers
    drain: Float64[Array, " d"]
    smallest_column: float  # min D_t
    largest_noise: float  # max v_t

    def deviation(self, sigma: Exact | float, moved: Exact | float) -> float:
        """The eta of the module's proof; raises when float64 is not accurate enough."""
        spread, half = up(sigma) * self.largest_noise, 0.5 / self.smallest_column
        shift = up(moved) * self.norm * self.largest_noise
        z = REACH * spread + half + shift
        wander = (REACH * (spread + half) + shift) / np.sqrt(self.rest * (2 - self.rest))
        wander += rounding_bias(down(sigma) * self.smallest_column) * 2 * half / self.rest
        buffers = np.minimum(wander, z / self.rest)
        spent = float((self.drain / self.rest * buffers).sum())
        eta = self.amplification * U * EASE * ((self.terms + 5) * z + 2.01 * spent)
        if not eta * 1000 < z:
            raise ValueError("float64 offsets are too inaccurate for this horizon and noise scale")
        return eta


def rounding_bias(spread: float) -> float:
    """At most how far the mean of round(m + s G) is from m: sum_k exp(-2 (pi k s)^2) / (pi k)."""
    decay = exp(-2 * (pi * spread) ** 2)
    return min(0.5, decay / ((1 - decay) * pi)) if decay < 1 else 0.5


def gaussian_loss(
    sigma: Exact | float,
    sensitivity: float,
    moved: Exact | float,
    slack: float = 0.0,
    keys: int | None = None,
) -> Loss:
    """The loss of a Gaussian counter whose centre moves by moved * sensitivity, plus slack per key.

    Streams are integers, so whoever moves them by `moved` in L2 touches at most moved^2 keys.
    """
    size = check_moved(moved)
    if not size:
        return Loss()
    touched = max(1, ceil(size * size))
    if keys is not None:
        touched = min(touched, keys)
    scale = down(sigma)
    mu = (up(moved) * sensitivity + sqrt(touched) * slack) / scale * UP
    return Gdp.squared(Fraction(mu) ** 2)


def check_moved(moved: Exact | float) -> Fraction:
    """The move as an exact number; raises unless it is finite and not negative."""
    if not 0 <= moved < float("inf"):
        raise ValueError(f"moved must be a finite number, at least 0, not {moved}")
    return Fraction(moved)


def up(value: Exact | float) -> float:
    """A float not below the number."""
    number = float(value)
    return number if Fraction(number) >= Fraction(value) else nextafter(number, float("inf"))


def down(value: Exact | float) -> float:
    """A float not above the number."""
    number = float(value)
    return number if Fraction(number) <= Fraction(value) else nextafter(number, 0.0)


# ---- Gaussian noise for all keys at once
#
# Compiled steps (`kernels`), Haar counters (`haar`, `keyed`) and the Laplace tree (`kary`) draw
# their own.


def gaussian_about(
    draws: Draws, ids: Ids | None, centre: Float64[Array, " keys"], sigma: float | Array
) -> Int64[Array, " keys"]:
    """round(centre + sigma G), one draw per key."""
    return rounded_gaussian(draws, centre, sigma, ids)


def gaussian_rows(
    draws: Draws, ids: Ids | None, keys: int, rows: int, sigma: Exact | float
) -> Int64[Array, "rows keys"]:
    """round(sigma G), `rows` independent draws per key."""
    centre = np.zeros((keys, rows))
    return np.ascontiguousarray(gaussian_about(draws, ids, centre, up(sigma)).T)
