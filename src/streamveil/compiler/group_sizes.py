"""How many groups there are and how unequal they are, from one row of each privacy unit."""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from typing import TypeAlias

import numpy as np
from scipy.special import gammainc

from streamveil.compiler.error_forecast import ExpectedStream, group_law
from streamveil.compiler.numbered_rows import Sample
from streamveil.types import Array, Float64, Int64, UInt64

SIZES = np.unique(np.round(2.0 ** (np.arange(0, 81) / 4))).astype(np.int64)  # 1, 2, 3, ... 2^20
WEIGHT = 2  # the noise of these numbers is so many times that of the other histograms
STEEPNESS = (0.0, 0.4, 0.8, 1.05, 1.25, 1.45, 1.61)
MISFIT = 0.1  # share by which numbers of groups may differ from every law that is fitted
LAWS = 6  # that stand for all that fit
SINGLE = (0.0, 0.05, 0.15, 0.3, 0.5, 0.7, 0.9)
MOSTLY = 6.0  # times as likely beforehand: no groups of one row beside the others
Law: TypeAlias = tuple[float, float, float]  # groups, how steep, share of rows in groups of one


def groups_by_size(sample: Sample | None, words: UInt64[Array, " units"]) -> Int64[Array, " sizes"]:
    """The number of groups with at least `SIZES` rows, among one row of each unit (in each scope).

    Algorithm: a unit's row is the one at place floor(word * rows / 2^64) of its rows, in their
        order.
    Sensitivity: 1, in L1 and L2, however many sizes there are.
    Proof: words are independent and uniform, one for each unit. Fix those of all other units: what
        their rows are does not change when a unit is added with a word of its own. Its one row
        makes one group larger by one, from n to n + 1, and no other group changes: of the numbers
        of groups with at least k rows, only that for k = n + 1 changes, by one. So it holds for
        any choice of sizes, and for whatever word the unit has.
    Memory: a count for each group that a chosen row has, hence at most one for each unit.
    """
    if sample is None:
        return np.zeros(len(SIZES), np.int64)
    order, rows = np.argsort(sample.scope, kind="stable"), np.bincount(sample.scope)
    place = np.minimum((words / 2.0**64 * rows).astype(np.int64), rows - 1)
    groups = np.bincount(sample.cell[order[np.cumsum(rows) - rows + place]])
    held = np.sort(groups[groups > 0])
    return np.asarray(len(held) - np.searchsorted(held, SIZES))


def likely_laws(noisy: Int64[Array, " sizes"], units: float, sigma: float) -> list[Law]:
    """Laws of groups that stand for all that fit noisy numbers of groups by size; each as likely.

    Algorithm: for laws on a grid of exponents and of numbers of groups (even in the logarithm),
        the likelihood of the noisy numbers about the expected ones, with Gaussian noise, the
        spread of a draw and `MISFIT` of it, and `MOSTLY` before it; of all
        laws, ordered by their smallest groups, which
        decide whether they can be shown, those at even places of the sum of likelihoods.

    >>> sizes = np.bincount(np.arange(30_000) % 1_000)
    >>> noisy = np.array([(sizes >= k).sum() for k in SIZES])
    >>> {float(groups) for groups, *_ in likely_laws(noisy, 30_000.0, 70.0)}
    {941.0, 1134.0}
    """
    laws, groups = expected_groups(round(max(units, 2.0), -1))
    spread = sigma**2 + groups + (MISFIT * groups) ** 2
    fit = ((noisy - groups) ** 2 / spread + np.log(spread)).sum(axis=1)
    before = np.array([1.0 if single else MOSTLY for _, _, single in laws])
    chance = np.cumsum(before * np.exp((fit.min() - fit) / 2))
    middles = (np.arange(LAWS) + 0.5) / LAWS * chance[-1]
    return [laws[place] for place in np.searchsorted(chance, middles)]


@lru_cache(maxsize=4)
def expected_groups(units: float) -> tuple[list[Law], Float64[Array, "laws sizes"]]:
    """The laws that are fitted, and the expected number of groups by size under each."""
    numbers = np.unique(np.round(np.geomspace(2, max(4.0, 4 * units), 60)))
    laws = list(product(numbers, STEEPNESS, SINGLE))
    found, smallest = [], []
    logs = np.linspace(-12, 24, 400)
    chances = gammainc(SIZES[:, None], np.exp(logs))  # of at least so many, by the mean
    for count, steep, single in laws:
        rest = ExpectedStream(units=units * (1 - single), rows=1.0, groups=int(count), steep=steep)
        totals, counts = group_law(rest)
        at = np.clip((np.log(totals) - logs[0]) / (logs[1] - logs[0]), 0, len(logs) - 1.001)
        low, part = at.astype(int), at % 1
        found.append((chances[:, low] * (1 - part) + chances[:, low + 1] * part) @ counts)
        found[-1][0] += single * units
        smallest.append(totals[-1])
    order = np.argsort(smallest)
    return [laws[place] for place in order], np.array(found)[order]
