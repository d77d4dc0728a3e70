"""How many groups there are and how unequal they are, from one row of each privacy unit."""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from typing import NamedTuple, TypeAlias

import numpy as np
from scipy.special import gammainc, ndtri

from streamveil.compiler.error_forecast import ExpectedStream, group_law, mixed_uniform
from streamveil.types import Array, Float64, Int64, UInt32, UInt64

SIZES = np.unique(np.round(2.0 ** (np.arange(0, 81) / 4))).astype(np.int64)  # 1, 2, 3, ... 2^20
WEIGHT = 2  # the noise of these numbers is so many times that of the other histograms
BUCKETS = 128  # into which groups fall by chance
BUCKET_WEIGHT = 4  # as WEIGHT, of the rows in buckets
RANKS = np.array([0, 1, 2, 4, 8, 16, 32])  # of buckets by their rows, that tell large groups
LARGEST = 256  # groups that a law puts into buckets one by one
DRAWS = 6  # of buckets and noise, for what a law makes expect of them
STEEPNESS = (0.0, 0.4, 0.8, 1.05, 1.25, 1.45, 1.61)
MISFIT = 0.1  # share by which numbers may differ from every law that is fitted
LAWS = 6  # that stand for all that fit
SINGLE = (0.0, 0.05, 0.15, 0.3, 0.5, 0.7, 0.9)
MOSTLY = 6.0  # times as likely beforehand: no groups of one row beside the others
Law: TypeAlias = tuple[float, float, float]  # groups, how steep, share of rows in groups of one


def groups_by_size(cells: UInt32[Array, " units"]) -> Int64[Array, " sizes"]:
    """The number of groups with at least `SIZES` rows, among one row of each unit.

    Sensitivity: 1, in L1 and L2, however many sizes there are.
    Proof: a unit's one row makes one group larger by one, from n to n + 1, and no other group
        changes: of the numbers of groups with at least k rows, only that for k = n + 1 changes, by
        one. So it holds for any choice of sizes, and for whatever word the unit has.
    Memory: a count for each group that a chosen row has, hence at most one for each unit.
    """
    groups = np.bincount(cells)
    held = np.sort(groups[groups > 0])
    return np.asarray(len(held) - np.searchsorted(held, SIZES))


def rows_by_bucket(
    cells: UInt32[Array, " units"], words: UInt64[Array, " groups"]
) -> Int64[Array, " buckets"]:
    """Rows in each of `BUCKETS` buckets, of one row of each unit; a group's word tells its bucket.

    Sensitivity: 1, in L1 and L2.
    Proof: words are independent and uniform, and nothing but this depends on them: whatever numbers
        groups have, which follow from all rows, the map from groups to buckets has one law. Fix it
        for the groups of all other units. Their rows stay in their buckets when a unit is added,
        and its one row adds one to one bucket.
    """
    place = (words % BUCKETS).astype(np.int64)
    return np.bincount(place[cells], minlength=BUCKETS)


def likely_laws(
    noisy: Int64[Array, " sizes"],
    buckets: Int64[Array, " buckets"],
    units: float,
    sigma: float,
) -> list[Law]:
    """Laws of groups that stand for all that fit noisy numbers of groups, by size and in buckets.

    Algorithm: for laws on a grid of exponents and of numbers of groups (even in the logarithm),
        the likelihood of the noisy numbers about the expected ones, with Gaussian noise (`sigma` of
        the other histograms), the spread of a draw and `MISFIT` of it, and `MOSTLY` before it.
        Numbers by size tell how many small groups there are, full buckets how large the largest
        are, which are too few to be seen among numbers. Of all laws, ordered by their smallest
        groups, which decide whether they can be shown, those at even places of the sum of
        likelihoods. Each is as likely.

    >>> cells = np.arange(30_000) % 1_000
    >>> buckets = np.bincount(np.arange(1_000) * 37 // 11 % BUCKETS, minlength=BUCKETS) * 30
    >>> laws = likely_laws(groups_by_size(cells), buckets, 30_000.0, 35.0)
    >>> {float(groups) for groups, *_ in laws}
    {941.0, 1134.0}
    """
    fitted = expected_groups(round(max(units, 2.0), -1), float(f"{sigma:.3g}"))
    groups, full = fitted.groups, np.sort(buckets)[::-1][RANKS]
    spread = (WEIGHT * sigma) ** 2 + groups + (MISFIT * groups) ** 2
    fit = ((noisy - groups) ** 2 / spread + np.log(spread)).sum(axis=1)
    spread = fitted.spread + (MISFIT * fitted.full) ** 2
    fit += ((full - fitted.full) ** 2 / spread + np.log(spread)).sum(axis=1)
    before = np.array([1.0 if single else MOSTLY for _, _, single in fitted.laws])
    chance = np.cumsum(before * np.exp((fit.min() - fit) / 2))
    middles = (np.arange(LAWS) + 0.5) / LAWS * chance[-1]
    return [fitted.laws[place] for place in np.searchsorted(chance, middles)]


class Fitted(NamedTuple):
    """What laws make expect, in the order of their smallest groups."""

    laws: list[Law]
    groups: Float64[Array, "laws sizes"]  # with at least so many rows
    full: Float64[Array, "laws ranks"]  # rows in the fullest buckets, with noise
    spread: Float64[Array, "laws ranks"]  # their variance


@lru_cache(maxsize=4)
def expected_groups(units: float, sigma: float) -> Fitted:
    """The laws that are fitted, and what each makes expect of so many rows."""
    numbers = np.unique(np.round(np.geomspace(2, max(4.0, 4 * units), 60)))
    laws = list(product(numbers, STEEPNESS, SINGLE))
    found, smallest = [], []
    largest, rest = np.zeros((len(laws), LARGEST)), np.zeros((len(laws), 2))
    logs = np.linspace(-12, 24, 400)
    chances = gammainc(SIZES[:, None], np.exp(logs))  # of at least so many, by the mean
    for row, (count, steep, single) in enumerate(laws):
        others = ExpectedStream(
            units=units * (1 - single), rows=1.0, groups=int(count), steep=steep
        )
        totals, counts = group_law(others)
        with np.errstate(divide="ignore"):  # groups of which nothing is expected are the least
            at = np.clip((np.log(totals) - logs[0]) / (logs[1] - logs[0]), 0, len(logs) - 1.001)
        low, part = at.astype(int), at % 1
        found.append((chances[:, low] * (1 - part) + chances[:, low + 1] * part) @ counts)
        found[-1][0] += single * units
        smallest.append(totals[-1])
        some = np.diff(np.minimum(np.cumsum(counts), LARGEST), prepend=0).astype(int)
        one_by_one = np.repeat(totals, some)
        largest[row, : len(one_by_one)] = one_by_one
        left = counts - some
        rest[row] = single * units + left @ totals, single * units + left @ totals**2
    order = np.argsort(smallest)
    full, spread = full_buckets(largest[order], rest[order], BUCKET_WEIGHT * sigma)
    return Fitted([laws[place] for place in order], np.array(found)[order], full, spread)


def full_buckets(
    largest: Float64[Array, "laws groups"], rest: Float64[Array, "laws 2"], noise: float
) -> tuple[Float64[Array, "laws ranks"], Float64[Array, "laws ranks"]]:
    """Means and variances of the fullest buckets, from fixed draws of buckets and of noise.

    `rest`: the rows of all other groups and the sum of their squares, which spread evenly.
    """
    seen = np.empty((DRAWS, len(largest), len(RANKS)))
    for draw in range(DRAWS):
        place = np.floor(mixed_uniform(largest.shape[1], 10 + draw) * BUCKETS).astype(int)
        held = largest @ np.eye(BUCKETS)[place] + rest[:, :1] / BUCKETS
        spread = np.sqrt(held + rest[:, 1:] / BUCKETS + noise**2)
        held += spread * ndtri(mixed_uniform(BUCKETS, 20 + draw))
        seen[draw] = -np.sort(-held, axis=1)[:, RANKS]
    return seen.mean(axis=0), seen.var(axis=0) * DRAWS / (DRAWS - 1) + noise**2 / 10
