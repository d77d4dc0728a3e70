"""The one place where counters draw noise: one column of draws per key."""

from __future__ import annotations

import numpy as np

from streamveil.mechanisms.counters.feedback import up
from streamveil.mechanisms.counters.protocol import Ids
from streamveil.privacy.noise import Draws
from streamveil.privacy.samplers import rounded_gaussian, rounded_gaussian_for
from streamveil.types import Array, Exact, Float64, Int64


def gaussian_about(
    draws: Draws, ids: Ids | None, centre: Float64[Array, " keys"], sigma: float
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
