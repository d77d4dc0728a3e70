"""Numbers of rows of units, also where the noise of a look hides them."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from streamveil.compiler.expected_stream import MOST_ROWS
from streamveil.types import Array, Bool, Float64, Int64

ROW_EDGES = np.unique(np.round(2.0 ** (np.arange(0, 41) / 2)))  # 1, 2, 3, 4, 6, 8, 11, ... 2^20
ROW_ENDS = np.append(ROW_EDGES[1:] - 1, 2 * ROW_EDGES[-1])
FITTED_HEAVY = (3.0, 3.5, 4.0, 5.0, 6.5, 9.0, 14.0, 30.0)  # exponents of power laws
FITTED_EVEN = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 13.0, 17.0, 25.0, 60.0)  # gamma laws
FITTED_SIZES = np.geomspace(0.1, 3_000, 80)  # b of power laws
FITTED_MEANS = np.geomspace(1, 400, 160)  # of gamma laws, about
MISFIT = 0.05  # share by which a bin may differ from every law that is fitted
OUTSTANDING = 4.0  # deviations above which a bin next to another such bin holds units
BESIDE = 2.0  # the same, for bins next to one that holds units
ALONE = 5.0  # the same, for bins alone: some bin of noise stands out once in 10,000 looks
TOLD = 1e-5  # share of units below which a bin is left out


class SeenUnits(NamedTuple):
    """Noisy bins of units by their rows, and how often these repeat a group."""

    units: Int64[Array, " bins"]
    sigma: float  # the noise of a bin
    times: int  # so many units stand for each that was counted
    again: float  # share of rows that repeat a group of their unit
    off: float  # its deviation


class AboutLaws(NamedTuple):
    """Noisy bins and those that each law expects, with the number of units that fits it best."""

    units: Float64[Array, " laws"]
    bins: Float64[Array, "laws bins"]  # expected
    spread: Float64[Array, "laws bins"]  # their variances about the noisy ones


def about_laws(
    noisy: Int64[Array, " bins"], laws: Float64[Array, "laws bins"], sigma: float,
    misfit: float | Float64[Array, " bins"] = MISFIT, times: int = 1,
) -> AboutLaws:  # fmt: skip
    """Fits the number of units to noisy bins by least squares, for laws that give shares of units.

    The variance of a bin is that of its noise, of the draw (of which each unit stands for `times`),
    and of the share `misfit` by which it may differ from every law.
    """
    units = np.maximum(laws @ noisy, 0.0) / np.maximum((laws**2).sum(axis=1), 1e-300)
    bins = units[:, None] * laws
    return AboutLaws(units, bins, sigma**2 + times * bins + (misfit * bins) ** 2)


def unlikely(noisy: Int64[Array, " bins"], about: AboutLaws) -> Float64[Array, " laws"]:
    """-2 times the log-likelihood of noisy bins by each law, up to a constant."""
    off = (noisy - about.bins) ** 2 / about.spread
    return np.asarray((off + np.log(about.spread)).sum(axis=1))


def outstanding(
    noisy: Float64[Array, "*laws bins"], sigma: float, least: float = OUTSTANDING
) -> Bool[Array, "*laws bins"]:
    """Bins above the noise, and bins next to them, one after the other, that are likely so.

    One bin of noise alone, far out, would make the mean of rows a hundred times too large.

    >>> outstanding(np.array([50, 25, 21, 0, 44, 0]), 10.0).tolist()
    [True, True, True, False, False, False]
    """
    may = noisy > BESIDE * sigma
    alone, paired = noisy > max(least, ALONE) * sigma, noisy > least * sigma
    before, standing = may, alone | (paired & _beside(may))
    while (before != standing).any():
        before, standing = standing, standing | (may & _beside(standing))
    return np.asarray(standing)


def _beside(bins: Bool[Array, "*laws bins"]) -> Bool[Array, "*laws bins"]:
    """The bins next to one of them."""
    none = np.zeros_like(bins[..., :1])
    before = np.concatenate([none, bins[..., :-1]], axis=-1)
    return np.asarray(before | np.concatenate([bins[..., 1:], none], axis=-1))


def in_bins(by_rows: Float64[Array, "laws sizes"]) -> Float64[Array, "laws bins"]:
    """Sums over the bins of shares of units that have 1, 2, ... `MOST_ROWS` rows.

    >>> in_bins(np.ones((1, MOST_ROWS)))[0, :6]
    array([1., 1., 1., 2., 2., 3.])
    """
    place = np.searchsorted(ROW_EDGES, np.arange(1, MOST_ROWS + 1), side="right") - 1
    first = np.searchsorted(place, np.arange(len(ROW_EDGES)))
    inside = first < MOST_ROWS
    found = np.zeros((len(by_rows), len(ROW_EDGES)))
    found[:, inside] = np.add.reduceat(by_rows, first[inside], axis=1)
    return found


def fitted_units(noisy: Int64[Array, " bins"], sigma: float) -> Float64[Array, " bins"]:
    """Units in each bin of rows by the law that fits noisy bins best: post-processing.

    Algorithm: of power laws (n + b)^-heavy and gamma laws n^(even - 1) e^-cn, the one of the
        largest likelihood of all bins (`about_laws`), those of noise alone too.

    >>> exact = 30_000 * bins_of_laws()[300]
    >>> fitted = fitted_units(np.round(exact).astype(np.int64), 50.0)
    >>> bool(np.abs(fitted - exact).max() < 1)
    True
    """
    about = about_laws(noisy, bins_of_laws(), sigma)
    return np.asarray(about.bins[int(np.argmin(unlikely(noisy, about)))])


@lru_cache(maxsize=1)
def bins_of_laws() -> Float64[Array, "laws bins"]:
    """The share of units in each bin, by each law that `fitted_units` tries."""
    n = np.arange(1, MOST_ROWS + 1)
    logs = [-heavy * np.log((n + b) / (1 + b)) for heavy in FITTED_HEAVY for b in FITTED_SIZES]
    logs += [(even - 1) * np.log(n) - n / size
             for even in FITTED_EVEN for size in FITTED_MEANS / even]  # fmt: skip
    laws = np.exp(np.array(logs) - np.max(logs, axis=1)[:, None])
    laws /= laws.sum(axis=1)[:, None]
    return in_bins(laws)
