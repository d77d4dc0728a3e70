"""Buffered linear Toeplitz (BLT) factorizations: their algebra and the best one for a horizon.

Notation. Rates are kept as complements, p = 1 - theta, because theta is close to 1. With
interlaced rates p_1 < q_1 < p_2 < q_2 < ... < q_d < 1 the encoder and decoder are

    C(x) = prod (1 - (1-q_i) x) / prod (1 - (1-p_i) x) = 1 + sum_i omega_i x / (1 - (1-p_i) x)
    B(x) = C(x)^-1 / (1-x)                             = sum_(i=0..d) beta_i / (1 - (1-q_i) x)

with q_0 = 0; and C(x)^-1 = 1 - sum_i drain_i x / (1 - (1-q_i) x).

The search for good ones minimises smooth functions.

What is found costs accuracy where it is bad; what it costs in privacy is computed from the numbers
themselves (`core.counters.blt`). scipy is loaded when it is needed: designs are kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from streamveil.core.accounting import portable
from streamveil.kept import kept
from streamveil.types import Array, Float64

Rates = Float64[Array, " d"]
RATE_BITS = 20  # of a rate: the error grows by the square of 2^-20
LARGEST_D = 8


@dataclass(frozen=True)
class Blt:
    """Rates of a BLT factorization of running sums (hashable; arrays are made on demand).

    Raises:
        ValueError: rates are not interlaced: 0 < p_1 < q_1 < ... < q_d < 1.

    >>> one = Blt(p=(0.1,), q=(0.4,))
    >>> one.d, np.convolve(one.encoder(3), one.decoder(3))[:3].round(9).tolist()
    (1, [1.0, 1.0, 1.0])
    """

    p: tuple[float, ...]  # 1 - theta: decays of the encoder C, ascending
    q: tuple[float, ...]  # 1 - theta_hat: decays of its inverse, ascending

    def __post_init__(self) -> None:
        rates = [rate for pair in zip(self.p, self.q, strict=True) for rate in pair]
        if not rates or sorted(set(rates)) != rates or not 0 < rates[0] <= rates[-1] < 1:
            raise ValueError("rates must be interlaced: 0 < p_1 < q_1 < p_2 < ... < q_d < 1")

    @property
    def d(self) -> int:
        """The number of buffers."""
        return len(self.p)

    def omega(self) -> Rates:
        """Output scales of the encoder C."""
        return output_scales(np.array(self.p), np.array(self.q))

    def drain(self) -> Rates:
        """Output scales of C^-1 = 1 - sum drain_i x / (1 - (1-q_i) x); all positive."""
        p, q = np.array(self.p), np.array(self.q)
        return -output_scales(q, p)

    def beta(self) -> Float64[Array, " d+1"]:
        """Weights of the decoder B; beta_0 belongs to the rate 0."""
        return decoder_weights(np.array(self.p), np.array(self.q))

    def encoder(self, n: int) -> Float64[Array, " n"]:
        """The first n coefficients of C."""
        c = np.ones(n)
        if n > 1:
            powers = np.exp(np.arange(n - 1)[:, None] * np.log1p(-np.array(self.p)))
            c[1:] = powers @ self.omega()
        return c

    def decoder(self, n: int) -> Float64[Array, " n"]:
        """The first n coefficients of B."""
        rates = with_zero(np.array(self.q))
        powers: Array = np.exp(np.arange(n)[:, None] * np.log1p(-rates))
        return powers @ self.beta()

    def squared_norm(self, n: Array | float) -> Array:
        """S_n: the sum of squares of the first n coefficients of C; n may be inf."""
        p, omega = np.array(self.p), self.omega()
        weights = np.multiply.outer(omega, omega)
        sums = geometric(*pairs(p), np.asarray(n, float)[..., None, None] - 1)
        return np.asarray(1 + (weights * sums).sum(axis=(-2, -1)))

    def variance(self, t: Array | float) -> Array:
        """Variance of the estimate after t steps for unit noise and no schedule."""
        rates, beta = with_zero(np.array(self.q)), self.beta()
        weights = np.multiply.outer(beta, beta)
        sums = geometric(*pairs(rates), np.asarray(t, float)[..., None, None])
        return np.asarray((weights * sums).sum(axis=(-2, -1)))


def output_scales(p: Array, q: Array) -> Array:
    """omega_i = prod_j (q_j - p_i) / prod_(j != i) (p_j - p_i), of one or more sets of rates."""
    top = np.prod(q[..., None, :] - p[..., :, None], axis=-1)
    return np.asarray(top / _others(p))


def decoder_weights(p: Array, q: Array) -> Array:
    """beta_i = prod_j (p_j - q_i) / prod_(j != i) (q_j - q_i), with q_0 = 0 in front."""
    rates = with_zero(q)
    top = np.prod(p[..., None, :] - rates[..., :, None], axis=-1)
    return np.asarray(top / _others(rates))


def with_zero(q: Array) -> Array:
    """The rates of the decoder: q_0 = 0 before the others."""
    return np.concatenate([np.zeros_like(q[..., :1]), q], axis=-1)


def geometric(p: Array, q: Array, n: Array | float) -> Array:
    """Sum of ((1-p)(1-q))^k over k < n, without cancellation.

    Imaginary parts are those of a complex step: so small that they follow the derivative.
    """
    rate = p + q - p * q
    safe = np.where(rate == 0, 0.5, rate)
    spent = -np.expm1(n * np.log1p(-safe.real))
    if np.iscomplexobj(rate):
        spent = spent + 1j * safe.imag * n * (1 - spent) / (1 - safe.real)
    return np.where(rate == 0, n, spent / safe)


def _others(rates: Array) -> Array:
    gaps = rates[..., None, :] - rates[..., :, None] + np.eye(rates.shape[-1])
    return np.asarray(np.prod(gaps, axis=-1))


@lru_cache(maxsize=256)
@kept(Blt)
def best_blt(horizon: int, d: int) -> Blt:
    """The BLT with d buffers of least maximal error over `horizon` steps.

    Algorithm: BFGS over the logarithms of the gaps between the log-rates, so that every point is
        interlaced; the gradient is a complex-step derivative, exact to rounding.
    Error: sqrt(S_T Var(T)); Var grows with t, so its maximum is at the horizon T.

    Raises:
        ValueError: a horizon below 1, or d not between 1 and the most buffers there are.

    >>> best = best_blt(1000, 4)
    >>> round(float(np.sqrt(best.squared_norm(1000) * best.variance(1000))), 4)
    3.2654
    """
    check_buffers(d)
    if horizon < 1:
        raise ValueError(f"horizon must be at least 1, not {horizon}")
    reach = max(horizon, 4)  # shorter horizons have too few coefficients to tell rates apart

    def objective(x: Array) -> Array:
        p, q = rates_of(x)
        omega, beta = output_scales(p, q), decoder_weights(p, q)
        square = 1 + quadratic(omega, geometric(*pairs(p), reach - 1.0))
        error = quadratic(beta, geometric(*pairs(with_zero(q)), float(reach)))
        return np.asarray(np.log(square * error) / 2)

    return rounded_blt(least(objective, geometric_start(0.8 / reach, d)))


def check_buffers(d: int) -> None:
    """Raises unless the number of buffers is supported."""
    if not 1 <= d <= LARGEST_D:
        raise ValueError(f"d must be between 1 and {LARGEST_D}, not {d}")


def geometric_start(slowest: float, d: int) -> Array:
    """Rates evenly spaced in logarithm from `slowest` to 0.8, as a point of the search."""
    logs = np.linspace(np.log(slowest), np.log(0.8), 2 * d)
    return np.log(np.diff(np.concatenate([logs, [0.0]]))[::-1])


def rates_of(x: Array) -> tuple[Array, Array]:
    """The rates p and q of a point of the search."""
    rates = np.exp(-np.cumsum(np.exp(x), axis=-1))[..., ::-1]
    return rates[..., 0::2], rates[..., 1::2]


def pairs(rates: Array) -> tuple[Array, Array]:
    """Rates along rows and along columns: every pair of them, when combined."""
    return rates[..., :, None], rates[..., None, :]


def rounded_blt(x: Array) -> Blt:
    """The BLT at a point of the search, with rates that are the same on every processor."""
    below = 1 - 2.0**-RATE_BITS
    p, q = (np.minimum(portable(rates, RATE_BITS), below) for rates in rates_of(x))
    return Blt(tuple(map(float, p)), tuple(map(float, q)))


def quadratic(weights: Array, sums: Array) -> Array:
    """Weights times sums times weights."""
    return np.asarray(np.einsum("...i,...ij,...j->...", weights, sums, weights))


@lru_cache(maxsize=16)
def root_coefficients(n: int) -> Float64[Array, " n"]:
    """c_k = binom(2k, k) / 4^k."""
    k = np.arange(1, n)
    return np.concatenate([[1.0], np.cumprod(1 - 1 / (2 * k))])


Map = Callable[[Array], Array]
COMPLEX_STEP = 1e-30
NEWTON_STEP = 1e-6  # of differences between gradients
NEWTON_ROUNDS = 4
SHARPNESS = (8.0, 64.0, 512.0)  # of the smooth maxima that precede the true one


def gradients(objective: Map, x: Array) -> Array:
    """Derivatives by complex steps, exact to rounding: one row for each coordinate of `x`."""
    bumped = x.astype(complex) + COMPLEX_STEP * 1j * np.eye(len(x))
    with np.errstate(all="ignore"):
        return np.asarray(objective(bumped).imag / COMPLEX_STEP)


def least(objective: Map, start: Array) -> Array:
    """The point at which an analytic function is least, near a start.

    Algorithm: BFGS, whose last point depends on the last digits of every step before; then Newton's
        method leads to the optimum itself, unless that is so flat that it is not one point.
        `objective` takes many points at once.
    """
    from scipy.optimize import minimize

    def value(x: Array) -> float:
        with np.errstate(all="ignore"):
            found = float(objective(x))
        return found if np.isfinite(found) else np.inf

    def gradient(x: Array) -> Array:
        return gradients(objective, x)

    options = {"gtol": 1e-9, "maxiter": 2000}
    found = minimize(value, start, jac=gradient, method="BFGS", options=options)
    return polished(gradient, found.x)


def polished(gradient: Map, x: Array) -> Array:
    """The zero of a gradient next to a point, as near as the gradient can tell."""
    at = gradient(x)
    shifted = np.array([gradient(moved) for moved in x + NEWTON_STEP * np.eye(len(x))])
    bends = (shifted - at) / NEWTON_STEP
    if not np.all(np.isfinite(bends)) or np.linalg.eigvalsh(bends + bends.T).min() <= 0:
        return x
    for _ in range(NEWTON_ROUNDS):
        trial = x - np.linalg.solve(bends, at)
        following = gradient(trial)
        if not np.abs(following).max() < np.abs(at).max():
            break
        x, at = trial, following
    return x


def least_maximum(values: Map, x: Array) -> Array:
    """The point at which the largest entry of `values` is least, near a start.

    Algorithm: BFGS on smooth maxima of growing sharpness, then sequential quadratic programming on
        the maximum itself; gradients by complex steps.
    """
    from scipy.optimize import minimize

    def slopes(x: Array) -> Array:
        return gradients(values, x).T

    for sharp in SHARPNESS:

        def smooth(x: Array, sharp: float = sharp) -> float:
            found = values(x)
            top = float(found.max())
            value = top + float(np.log(np.exp(sharp * (found - top)).sum())) / sharp
            return value if np.isfinite(value) else np.inf

        def slope(x: Array, sharp: float = sharp) -> Array:
            found = values(x)
            weights = np.exp(sharp * (found - found.max()))
            return np.asarray(weights @ slopes(x) / weights.sum())

        x = minimize(smooth, x, jac=slope, method="BFGS", options={"gtol": 1e-6}).x
    return _descended(values, slopes, x)


def _descended(values: Map, slopes: Map, x: Array) -> Array:
    """From a good start: the least y with y >= every entry."""
    from scipy.optimize import minimize

    last = np.append(np.zeros(len(x)), 1.0)
    bound = {
        "type": "ineq",
        "fun": lambda z: z[-1] - values(z[:-1]),
        "jac": lambda z: np.hstack([-slopes(z[:-1]), np.ones((len(slopes(z[:-1])), 1))]),
    }
    found = minimize(
        lambda z: z[-1],
        np.append(x, values(x).max()),
        jac=lambda _: last,
        method="SLSQP",
        constraints=[bound],
        options={"ftol": 1e-10, "maxiter": 200},
    ).x[:-1]
    better = np.max(values(found)) <= np.max(values(x))
    return np.asarray(found if better else x)
