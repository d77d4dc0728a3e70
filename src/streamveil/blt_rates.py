"""Good rates of buffered linear Toeplitz (BLT) factorizations: their algebra, and a search.

Notation. Rates are kept as complements, p = 1 - theta, because theta is close to 1. With
interlaced rates p_1 < q_1 < p_2 < q_2 < ... < q_d < 1 the encoder and decoder are

    C(x) = prod (1 - (1-q_i) x) / prod (1 - (1-p_i) x) = 1 + sum_i omega_i x / (1 - (1-p_i) x)
    B(x) = C(x)^-1 / (1-x)                             = sum_(i=0..d) beta_i / (1 - (1-q_i) x)

with q_0 = 0; and C(x)^-1 = 1 - sum_i drain_i x / (1 - (1-q_i) x).

Nobody has to believe what is computed here: bad rates cost accuracy, and what rates cost in privacy
`core.counters.blt` computes from the numbers themselves. scipy is loaded when it is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from streamveil.types import Array, Float64

PER_OCTAVE = 6  # times tested between t and 2t
COMPLEX_STEP = 1e-30
NEWTON_STEP = 1e-6  # of differences between gradients
NEWTON_ROUNDS = 4
SHARPNESS = (8.0, 64.0, 512.0)  # of the smooth maxima that precede the true one
Map = Callable[[Array], Array]


# ---- the algebra


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


def pairs(rates: Array) -> tuple[Array, Array]:
    """Rates along rows and along columns: every pair of them, when combined."""
    return rates[..., :, None], rates[..., None, :]


def quadratic(weights: Array, sums: Array) -> Array:
    """Weights times sums times weights."""
    return np.asarray(np.einsum("...i,...ij,...j->...", weights, sums, weights))


# ---- the search


def best_rates(horizon: int, d: int) -> tuple[Array, Array]:
    """The rates p and q of d buffers with the least maximal error over `horizon` steps.

    Algorithm: BFGS over the logarithms of the gaps between the log-rates, so that every point is
        interlaced; the gradient is a complex-step derivative, exact to rounding.
    Error: sqrt(S_T Var(T)); Var grows with t, so its maximum is at the horizon T.
    """
    reach = max(horizon, 4)  # shorter horizons have too few coefficients to tell rates apart

    def objective(x: Array) -> Array:
        p, q = rates_of(x)
        omega, beta = output_scales(p, q), decoder_weights(p, q)
        square = 1 + quadratic(omega, geometric(*pairs(p), reach - 1.0))
        error = quadratic(beta, geometric(*pairs(with_zero(q)), float(reach)))
        return np.asarray(np.log(square * error) / 2)

    return rates_of(least(objective, geometric_start(0.8 / reach, d)))


def anytime_rates(tuned: int, d: int) -> tuple[Array, Array]:
    """The same, of the least largest ratio, over t <= tuned, to the best error for horizon t."""
    octaves = PER_OCTAVE * tuned.bit_length()
    times = np.unique(np.rint(np.geomspace(1, tuned, octaves + 1)))
    goals = np.log(root_squared_norm(times))

    def ratios(x: Array) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(log_errors(x, times) - goals)

    return rates_of(least_maximum(ratios, geometric_start(0.1 / tuned, d)))


def geometric_start(slowest: float, d: int) -> Array:
    """Rates evenly spaced in logarithm from `slowest` to 0.8, as a point of the search."""
    logs = np.linspace(np.log(slowest), np.log(0.8), 2 * d)
    return np.log(np.diff(np.concatenate([logs, [0.0]]))[::-1])


def rates_of(x: Array) -> tuple[Array, Array]:
    """The rates p and q of a point of the search."""
    rates = np.exp(-np.cumsum(np.exp(x), axis=-1))[..., ::-1]
    return rates[..., 0::2], rates[..., 1::2]


def log_errors(x: Array, times: Array) -> Array:
    """Log of (infinite sensitivity * standard deviation at each time) of points of the search."""
    p, q = rates_of(x)
    omega, beta = output_scales(p, q), decoder_weights(p, q)
    rows, columns = pairs(p)
    square = 1 + quadratic(omega, 1 / (rows + columns - rows * columns))
    both = with_zero(q)[..., None, :]  # an axis of times
    sums = geometric(*pairs(both), times[:, None, None])
    error = quadratic(beta[..., None, :], sums)
    return np.asarray(np.log(square[..., None] * error) / 2)


def root_squared_norm(t: Array) -> Float64[Array, " times"]:
    """S_t of the square-root factorization: its squared error and sensitivity for horizon t."""
    short = np.cumsum(root_coefficients(2**14) ** 2)
    n = float(len(short))
    times = np.asarray(t, float)
    # beyond, c_k^2 = (1 - 1/(4k) + O(k^-2)) / (pi k), summed by the midpoint rule
    tail = np.log((times - 0.5) / (n - 0.5)) - (1 / n - 1 / np.maximum(times, 1)) / 4
    inside = short[np.minimum(times, n).astype(int) - 1]
    return np.asarray(np.where(times <= n, inside, short[-1] + tail / np.pi))


@lru_cache(maxsize=16)
def root_coefficients(n: int) -> Float64[Array, " n"]:
    """c_k = binom(2k, k) / 4^k."""
    k = np.arange(1, n)
    return np.concatenate([[1.0], np.cumprod(1 - 1 / (2 * k))])


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
