"""How many rows units have, beyond what stands out of the noise of a look."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from streamveil.compiler.expected_stream import MOST_ROWS
from streamveil.types import Array, Float64, Int64

ROW_EDGES = np.unique(np.round(2.0 ** (np.arange(0, 41) / 2)))  # 1, 2, 3, 4, 6, 8, 11, ... 2^20
ROW_ENDS = np.append(ROW_EDGES[1:] - 1, 2 * ROW_EDGES[-1])
HEAVY = (3.0, 3.5, 4.0, 5.0, 6.5, 9.0, 14.0, 30.0)  # powers of laws that are fitted
EVEN = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 13.0, 17.0, 25.0, 60.0)  # gamma laws
SIZES = np.geomspace(0.1, 3_000, 80)  # b of powers
MEANS = np.geomspace(1, 400, 160)  # of gamma laws, about
MISFIT = 0.05  # share by which a bin may differ from every law that is fitted


class SeenUnits(NamedTuple):
    """Noisy bins of units by their rows, and how often these repeat a group."""

    units: Int64[Array, " bins"]
    sigma: float  # the noise of a bin
    times: int  # so many units stand for each that was counted
    again: float  # share of rows that repeat a group of their unit
    off: float  # its deviation


def fitted_units(noisy: Int64[Array, " bins"], sigma: float) -> Float64[Array, " bins"]:
    """Units in each bin of rows by the law that fits noisy bins best: post-processing.

    Algorithm: of powers (n + b)^-heavy and gamma laws n^(even - 1) e^-cn, the one of the largest
        likelihood of all bins, those of noise alone too, given the number of units that fits it
        best, with Gaussian noise, the spread of a draw and `MISFIT` of the bin.

    >>> exact = 30_000 * bins_of_laws()[300]
    >>> fitted = fitted_units(np.round(exact).astype(np.int64), 50.0)
    >>> bool(np.abs(fitted - exact).max() < 1)
    True
    """
    laws = bins_of_laws()
    units = np.maximum(laws @ noisy, 0.0) / (laws**2).sum(axis=1)
    expected = units[:, None] * laws
    spread = sigma**2 + expected + (MISFIT * expected) ** 2
    fit = ((noisy - expected) ** 2 / spread + np.log(spread)).sum(axis=1)
    return np.asarray(expected[int(np.argmin(fit))])


@lru_cache(maxsize=1)
def bins_of_laws() -> Float64[Array, "laws bins"]:
    """The share of units in each bin, by each law that is fitted."""
    n = np.arange(1, MOST_ROWS + 1)
    place = np.searchsorted(ROW_EDGES, n, side="right") - 1
    first = np.searchsorted(place, np.arange(len(ROW_EDGES)))
    inside = first < MOST_ROWS
    logs = [-heavy * np.log((n + size) / (1 + size)) for heavy in HEAVY for size in SIZES]
    logs += [(even - 1) * np.log(n) - n / size for even in EVEN for size in MEANS / even]
    laws = np.exp(np.array(logs) - np.max(logs, axis=1)[:, None])
    laws /= laws.sum(axis=1)[:, None]
    found = np.zeros((len(laws), len(ROW_EDGES)))
    found[:, inside] = np.add.reduceat(laws, first[inside], axis=1)
    return found
