"""The account of one continual counter: what a change loses under the noise it really draws.

The estimates of a counter are its running sums plus noise that does not depend on the stream, so a
change d of the stream moves them by its running sums. Run on streams of zeros, one for each of many
keys, a counter shows its noise: its covariance is measured, not read off. For Gaussian noise of n
keys over T steps, mu^2 under the measured covariance is n / chi^2(n - T + 1) times the true one
(Muirhead 1982, theorem 3.2.12), so a lower bound with a known chance of being wrong follows.

Laplace nodes are laid open one by one: what has to move which draws is then a linear system.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from scipy.optimize import linprog
from scipy.stats import chi2

from streamveil.audit.laid_open import OpenNoise, replaced
from streamveil.core.counters import Counter
from streamveil.core.noise import Place, SeededNoise
from streamveil.types import Array, Float64

LARGE = 2**20  # what one node draws alone
SINGULAR = 1e-9  # of the whole variance: what is less is no noise


def every_change(steps: int) -> Float64[Array, "changes steps"]:
    """All changes of a stream by -1, 0 or 1 at each step, up to their sign."""
    half = 3**steps // 2
    return np.array(list(itertools.product((-1.0, 0.0, 1.0), repeat=steps)))[half + 1 :]


def estimates(
    counter: Counter, increments: Any, place: Place, keys: int
) -> Float64[Array, "keys steps"]:
    """Of one stream for every key."""
    state, found = counter.init(keys), []
    for increment in increments:
        made, state = counter.step(state, np.full(keys, int(increment)), place)
        found.append(np.asarray(made, np.float64))
    return np.stack(found, axis=1)


def gaussian_losses(
    counter: Counter,
    changes: Float64[Array, "changes steps"],
    *,
    keys: int,
    alpha: float,
    seed: int,
) -> Float64[Array, " changes"]:
    """For each change a lower bound on mu^2; one of them is wrong with chance at most `alpha`."""
    steps = changes.shape[1]
    noise = estimates(counter, np.zeros(steps), Place(SeededNoise(seed), "account"), keys)
    covariance = noise.T @ noise / keys
    if np.linalg.eigvalsh(covariance)[0] < SINGULAR * covariance.trace():
        return np.full(len(changes), np.inf)  # some combination of the estimates is exact
    root = np.linalg.cholesky(np.linalg.inv(covariance))
    moved = np.cumsum(changes, axis=1) @ root
    sure = float(chi2.ppf(alpha / len(changes), keys - steps + 1)) / keys
    return np.asarray((moved**2).sum(axis=1) * sure)


def laplace_losses(
    counter: Any, module: Any, changes: Float64[Array, "changes steps"]
) -> Float64[Array, " changes"]:
    """For each change its epsilon: the least sum of moves of draws, over their scales.

    `module` is where the counter finds `rounded_laplace`.
    """
    steps, nodes = changes.shape[1], dict[tuple[Any, ...], float]()

    def alone(draws: Any, about: Array, scale: Any, _ids: Any = None) -> Array:
        address = (draws.purpose, *draws.path)
        nodes.setdefault(address, float(scale))
        out = np.asarray(about, np.int64).copy()
        out[list(nodes).index(address)] += LARGE
        return out

    with replaced(module, "rounded_laplace", alone):
        found = estimates(counter, np.zeros(steps), Place(OpenNoise(1), "account"), 4 * steps + 64)
    spread = found[: len(nodes)].T / LARGE  # steps x nodes
    scales = np.array(list(nodes.values()))
    moved = np.cumsum(changes, axis=1)
    if np.linalg.matrix_rank(spread) == len(nodes):
        moves = np.linalg.lstsq(spread, moved.T, rcond=None)[0]
        return np.asarray((np.abs(moves) / scales[:, None]).sum(axis=0))
    costs = np.concatenate([1 / scales, 1 / scales])
    both = np.hstack([spread, -spread])
    return np.array([linprog(costs, A_eq=both, b_eq=one).fun for one in moved])
