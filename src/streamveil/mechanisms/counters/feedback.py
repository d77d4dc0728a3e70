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
z = C (ideal + g + sum_i drain_i x/(1 - keep_i x) e_i). With A = sum of |c_k| and every
|z_t| <= Z, a buffer stays below Z/q_i, the offset's terms sum to at most Z (as sum drain_i/q_i =
1 - 1/C(1) < 1), so |g_t| <= (d + 5) u Z and |e_it| <= 2.01 u Z / q_i, and z is off by at most

    eta = A u Z (d + 5 + 2.01 sum_i drain_i / q_i^2)

in each of the two streams. As v_t >= 1, L2 over T steps adds at most 2 eta sqrt(T) / sigma to mu,
per key that the person touches. Z is REACH sigma max(v) + 1/(2 min D) + moved max|c| / min D (the
second stream sees the first one's noise, moved); |G| > REACH in any of 2^64 draws has probability
below 2^-128, which is part of the distance of the sampler and not charged again here.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil, nextafter, sqrt

from streamveil.privacy.guarantee import Gdp, Loss
from streamveil.types import Exact

REACH = 17.0  # standard deviations; P(|G| > 17) < 2^-208
U = 2.0**-53
UP = 1 + 1e-14  # covers a handful of roundings of positive numbers
EASE = 1.01  # second-order terms of the analysis


def deviation(amplification: float, largest: float, weights: float) -> float:
    """The eta of the module's proof for |z| <= `largest`; `weights` is its last factor."""
    eta = amplification * U * largest * EASE * weights
    if not eta * 1000 < largest:
        raise ValueError("float64 offsets are too inaccurate for this horizon and noise scale")
    return eta


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
