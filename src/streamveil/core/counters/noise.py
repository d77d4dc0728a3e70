"""Gaussian noise of counters that draw for all keys at once: one column of draws per key.

Compiled steps (`kernels`), Haar counters (`haar`, `keyed`) and the Laplace tree (`kary`) draw their
own.
"""

from __future__ import annotations

import numpy as np

from streamveil.core.counters.correlated_noise import up
from streamveil.core.counters.protocol import Ids
from streamveil.core.noise.keyed import Draws
from streamveil.core.noise.samplers import rounded_gaussian, rounded_gaussian_for
from streamveil.types import Array, Exact, Float64, Int64


def gaussian_about(
    draws: Draws, ids: Ids | None, centre: Float64[Array, " keys"], sigma: float | Array
) -> Int64[Array, " keys"]:
    """round(centre + sigma G), one draw per key."""
    if ids is None:
        return rounded_gaussian(draws, centre, sigma)
    return rounded_gaussian_for(draws, ids, centre, sigma)


def gaussian_rows(
    draws: Draws, ids: Ids | None, keys: int, rows: int, sigma: Exact | float
) -> Int64[Array, "rows keys"]:
    """round(sigma G), `rows` independent draws per key."""
    centre = np.zeros((keys, rows))
    return np.ascontiguousarray(gaussian_about(draws, ids, centre, up(sigma)).T)
