"""Minima of smooth functions, by search. Bad results cost accuracy.

No result is trusted: `core.counters` computes the loss and the error of a counter from the numbers
that were found. scipy is loaded when it is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from streamveil.types import Array

COMPLEX_STEP = 1e-30
NEWTON_STEP = 1e-6  # of differences between gradients
NEWTON_ROUNDS = 4
SHARPNESS = (8.0, 64.0, 512.0)  # of the smooth maxima that precede the true one
Map: TypeAlias = Callable[[Array], Array]


def gradients(objective: Map, x: Array) -> Array:
    """Derivatives by complex steps, exact to rounding: one row for each coordinate of `x`."""
    bumped = x.astype(complex) + COMPLEX_STEP * 1j * np.eye(len(x))
    with np.errstate(all="ignore"):
        return np.asarray(objective(bumped).imag / COMPLEX_STEP)


def least(objective: Map, start: Array) -> Array:
    """The point at which an analytic function is least, near a start.

    Algorithm: BFGS, whose last point depends on the last digits of all steps; then Newton's method
        leads to the optimum itself, unless it is so flat that it is not one point. `objective`
        takes many points at once.
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
    """The point of the least maximum, from a good start: minimises y with y >= every entry."""
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
