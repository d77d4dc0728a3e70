"""How many groups there are and how unequal they are, from one row of each privacy unit."""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from typing import NamedTuple

import numpy as np

from streamveil.compiled import gammainc, log_ndtr, ndtri, njit
from streamveil.compiler.expected_stream import ExpectedStream, group_law, mixed_uniform
from streamveil.plan.look import MANY_ROWS
from streamveil.types import Array, Float64, Int64, UInt32, UInt64

SIZES = np.unique(np.round(2.0 ** (np.arange(0, 81) / 4))).astype(np.int64)  # 1, 2, 3, ... 2^20
SIZES_OF_OCTAVE = np.maximum(1.0, 1 / np.gradient(np.log2(SIZES)))
WEIGHT = 2  # noise of the numbers of groups, in that of the other histograms
BUCKETS = 128  # into which groups fall by chance
BUCKET_WEIGHT = 4  # likewise, noise of the rows in buckets
RANKS = np.array([0, 1, 2, 4, 8, 16, 32])  # ranks of buckets by rows, that reveal large groups
LARGEST = 256  # largest groups of a law, put into buckets one by one
DRAWS = 6  # of buckets and noise, to estimate what a law leads one to expect
AT_ONCE = 40  # rows of laws whose buckets fit into the processor's cache
STEEPNESS = (0.0, 0.4, 0.8, 1.05, 1.25, 1.45, 1.61)
SPREADS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.85, 1.05, 1.3, 1.6, 2.0, 2.5)  # of log-normal laws
SHAPES = [(steep, 0.0) for steep in STEEPNESS] + [(0.0, spread) for spread in SPREADS]
CLASSES = 64  # classes of groups of about equal size in a fitted law
MISFIT = (
    0.1  # share by which numbers may differ from every law, independently from octave to octave
)
LAWS = 6  # chosen to represent all laws that fit
SINGLE = (0.0, 0.05, 0.15, 0.3, 0.5, 0.7, 0.9)
MOSTLY = 6.0  # how many times likelier beforehand are laws without extra groups of one row


class GroupLaw(NamedTuple):
    """A law of the rows of groups, as in `ExpectedStream`."""

    groups: float
    steep: float
    single: float  # share of rows in groups of one
    spread: float  # 0: by `steep`


class Units(NamedTuple):
    """The known facts on the units whose groups are fitted."""

    number: float
    lengths: Int64[Array, " some"]  # rows of some, each standing for the same number of rows
    repeats: float  # share of rows that repeat a group of their unit
    off: float  # its deviation
    concentration: float | None = None  # of units with many rows (`by_unit.by_rows`), if known
    apart: float = 0.0  # its deviation


def groups_by_size(cells: UInt32[Array, " units"]) -> Int64[Array, " sizes"]:
    """The number of groups with at least `SIZES` rows, among one row of each unit.

    Sensitivity: 1, in L1 and L2, however many sizes there are.
    Proof: a unit's one row makes one group larger by one, from n to n + 1, and no other group
        changes. The number of groups with at least k rows changes only for k = n + 1, by one. So
        this holds for any choice of sizes, and whatever word the unit has.
    Memory: a count for each group that has a chosen row, hence at most one for each unit.
    """
    groups = sizes_of(cells)
    held = np.sort(groups[groups > 0])
    return np.asarray(len(held) - np.searchsorted(held, SIZES))


def rows_by_bucket(
    cells: UInt32[Array, " units"], words: UInt64[Array, " groups"]
) -> Int64[Array, " buckets"]:
    """Rows in each of `BUCKETS` buckets, of one row of each unit; a group's word tells its bucket.

    Sensitivity: 1, in L1 and L2.
    Proof: words are independent and uniform, and nothing else depends on them. So the map from
        groups to buckets has one law, whatever numbers groups have (these follow from all rows).
        Fix it for the groups of all other units. Their rows stay in their buckets when a unit is
        added, and its one row adds one to one bucket.
    """
    groups = sizes_of(cells)
    place = (words[: len(groups)] % BUCKETS).astype(np.int64)
    return np.bincount(place, groups, BUCKETS).astype(np.int64)


def sizes_of(cells: UInt32[Array, " units"]) -> Int64[Array, " groups"]:
    """How many cells have each value, from 0 to the largest."""
    groups = np.zeros(int(cells.max()) + 1 if len(cells) else 0, np.int64)
    count_each(cells, groups)
    return groups


@njit(cache=True)
def count_each(cells: UInt32[Array, " units"], counts: Int64[Array, " groups"]) -> None:
    """Adds one to the count of each cell's value."""
    for cell in cells:
        counts[cell] += 1


def likely_laws(
    noisy: Int64[Array, " sizes"],
    buckets: Int64[Array, " buckets"],
    units: Units,
    sigma: float,
) -> list[GroupLaw]:
    """Laws of groups that represent all laws that fit noisy numbers by size and in buckets.

    Algorithm: laws lie on a grid of exponents, or of deviations of log-normal laws, and of numbers
        of groups (even in the logarithm). Each has the likelihood of the noisy numbers about the
        expected ones, with Gaussian noise (`sigma` of the other histograms), the spread of a draw
        and a relative error `MISFIT`, times the prior `MOSTLY`. Numbers by size tell how many small
        groups there are. Full buckets tell how large the largest groups are, which are too few to
        be seen among numbers. A law is less likely if by chance alone rows repeat more than those
        of units do, or units with many rows keep to fewer groups. Laws are ordered by their
        smallest groups, which decide whether they can be shown, and taken at even steps of the sum
        of likelihoods, so all are equally likely.

    >>> cells = np.arange(30_000) % 1_000
    >>> buckets = np.bincount(np.arange(1_000) * 37 // 11 % BUCKETS, minlength=BUCKETS) * 30
    >>> units = Units(30_000.0, np.array([1]), 0.0, 0.01)
    >>> laws = likely_laws(groups_by_size(cells), buckets, units, 35.0)
    >>> {float(law.groups) for law in laws}
    {941.0, 1134.0}
    """
    fitted = expected_groups(round(max(units.number, 2.0), -1), float(f"{sigma:.3g}"))
    groups, full = fitted.groups, np.sort(buckets)[::-1][RANKS]
    spread = (WEIGHT * sigma) ** 2 + groups + (MISFIT * groups) ** 2 * SIZES_OF_OCTAVE
    fit = ((noisy - groups) ** 2 / spread + np.log(spread)).sum(axis=1)
    spread = fitted.spread + (MISFIT * fitted.full) ** 2
    fit += ((full - fitted.full) ** 2 / spread + np.log(spread)).sum(axis=1)
    off = np.hypot(units.off, MISFIT * min(units.repeats, 1 - units.repeats))
    fit -= 2 * log_ndtr((units.repeats - by_chance(fitted, units)) / off)
    if units.concentration is not None:
        off = np.hypot(units.apart, MISFIT)
        fit -= 2 * log_ndtr((units.concentration - concentrated_by_chance(fitted, units)) / off)
    before = np.array([1.0 if law.single else MOSTLY for law in fitted.laws])
    chance = np.cumsum(before * np.exp((fit.min() - fit) / 2))
    middles = (np.arange(LAWS) + 0.5) / LAWS * chance[-1]
    return [fitted.laws[place] for place in np.searchsorted(chance, middles)]


class Fitted(NamedTuple):
    """What is expected under each law, in the order of their smallest groups."""

    laws: list[GroupLaw]
    totals: Float64[Array, "laws classes"]  # rows of a group, of one row of each unit
    counts: Float64[Array, "laws classes"]  # groups
    groups: Float64[Array, "laws sizes"]  # with at least so many rows
    full: Float64[Array, "laws ranks"]  # rows in the fullest buckets, with noise
    spread: Float64[Array, "laws ranks"]  # their variance


def by_chance(fitted: Fitted, units: Units) -> Float64[Array, " laws"]:
    """The share of rows that by chance alone repeat a group of their unit, under each law.

    A unit of n rows meets a group with a share p of all rows with probability 1 - (1 - p)^n.
    """
    missed = np.log1p(-np.minimum(fitted.totals / max(units.number, 2.0), 1 - 1e-9))
    some, times = np.unique(units.lengths, return_counts=True)
    entered = sum(
        many / n * (fitted.counts * -np.expm1(n * missed)).sum(axis=1)
        for n, many in zip(some, times, strict=True)
    )
    return np.asarray(1 - entered / len(units.lengths))


def concentrated_by_chance(fitted: Fitted, units: Units) -> Float64[Array, " laws"]:
    """The concentration by chance alone of units with many rows, under each law.

    The expected sum of squares of n rows is n + n (n - 1) s, s the sum of squared shares of groups.
    """
    shares = np.minimum(fitted.totals / max(units.number, 2.0), 1.0)
    together = np.minimum((fitted.counts * shares**2).sum(axis=1), 1.0)
    rows = units.lengths[units.lengths > MANY_ROWS]
    found = [np.log(1 + (n - 1) * together) / np.log(n) for n in rows.tolist()]
    return np.asarray(np.mean(found, axis=0)) if found else np.zeros(len(together))


@lru_cache(maxsize=4)
def expected_groups(units: float, sigma: float) -> Fitted:
    """The laws that are fitted, and what is expected under each for one row of every unit."""
    numbers = np.unique(np.round(np.geomspace(2, max(4.0, 4 * units), 60)))
    laws = [
        GroupLaw(float(count), steep, single, spread)
        for count, (steep, spread), single in product(numbers, SHAPES, SINGLE)
    ]
    whole, held = np.zeros((2, len(laws) // len(SINGLE), CLASSES))
    least, shares = np.zeros(len(whole)), 1 - np.array(SINGLE)
    for row, law in enumerate(laws[:: len(SINGLE)]):  # without groups of one row
        sizes, many = group_law(
            ExpectedStream(units=units, rows=1.0, groups=int(law.groups), steep=law.steep,
                           spread=law.spread), CLASSES)  # fmt: skip
        whole[row, : len(sizes)], held[row, : len(many)], least[row] = sizes, many, sizes[-1]
    each = np.diff(np.minimum(np.cumsum(held, axis=1), LARGEST), axis=1, prepend=0).astype(int)
    largest = np.zeros((len(whole), LARGEST))
    largest[np.arange(LARGEST) < each.sum(axis=1)[:, None]] = np.repeat(whole, each.reshape(-1))
    totals, smallest = scaled(whole, shares), np.outer(least, shares).reshape(-1)
    counts, some = (np.repeat(found, len(shares), axis=0) for found in (held, each))
    single = np.array([law.single for law in laws])
    left = (counts - some) * totals
    rest = single[:, None] * units + np.stack([left.sum(axis=1), (left * totals).sum(axis=1)], 1)
    found = np.zeros((len(laws), len(SIZES)))
    logs = np.linspace(-12, 24, 400)
    chances = gammainc(SIZES, np.exp(logs)[:, None])  # of at least so many rows, by the mean
    with np.errstate(divide="ignore"):  # groups without expected rows get the least mean
        at = np.clip((np.log(totals) - logs[0]) / (logs[1] - logs[0]), 0, len(logs) - 1.001)
    add_chances(chances, at, counts, found)
    found[:, 0] += single * units
    totals[:, -1], counts[:, -1] = single > 0, single * units  # no law has so many classes
    order = np.argsort(smallest)
    full, spread = full_buckets(largest, shares, rest, BUCKET_WEIGHT * sigma)
    return Fitted([laws[place] for place in order], totals[order], counts[order], found[order],
                  full[order], spread[order])  # fmt: skip


def scaled(
    rows: Float64[Array, "some sizes"], shares: Float64[Array, " shares"]
) -> Float64[Array, "all sizes"]:
    """Each row times each share: all multiples of the first row, then those of the next."""
    return (rows[:, None, :] * shares[:, None]).reshape(-1, rows.shape[1])


@njit(cache=True)
def add_chances(
    chances: Float64[Array, "means sizes"],
    at: Float64[Array, "laws classes"],
    counts: Float64[Array, "laws classes"],
    found: Float64[Array, "laws sizes"],
) -> None:
    """Adds up the expected groups with at least so many rows; `at`: mean of a class, as a place."""
    for law in range(len(at)):
        for one in range(at.shape[1]):
            held, low = counts[law, one], int(at[law, one])
            part = at[law, one] - low
            if held > 0:
                for size in range(found.shape[1]):
                    chance = chances[low, size] * (1 - part) + chances[low + 1, size] * part
                    found[law, size] += chance * held


def full_buckets(
    largest: Float64[Array, "some groups"],
    shares: Float64[Array, " shares"],
    rest: Float64[Array, "laws 2"],
    noise: float,
) -> tuple[Float64[Array, "laws ranks"], Float64[Array, "laws ranks"]]:
    """Means and variances of the fullest buckets, from fixed draws of buckets and of noise.

    The largest groups of a law are a share of a row of `largest`; `scaled` gives their order.
    `rest`: the rows of all other groups and the sum of their squares, which spread evenly.
    """
    seen, columns = np.empty((DRAWS, len(rest), len(RANKS))), np.ascontiguousarray(largest.T)
    even, spread = rest[:, :1] / BUCKETS, rest[:, 1:] / BUCKETS + noise**2
    for draw in range(DRAWS):
        place = np.floor(mixed_uniform(largest.shape[1], 10 + draw) * BUCKETS).astype(int)
        held, normal = np.zeros((BUCKETS, len(largest))), ndtri(mixed_uniform(BUCKETS, 20 + draw))
        for group, bucket in enumerate(place):
            held[bucket] += columns[group]
        for first in range(0, len(largest), AT_ONCE):
            laws = slice(first * len(shares), (first + AT_ONCE) * len(shares))
            rows = scaled(np.ascontiguousarray(held[:, first : first + AT_ONCE].T), shares)
            rows += even[laws]
            rows += np.sqrt(rows + spread[laws]) * normal
            rows.sort(axis=1)
            seen[draw, laws] = rows[:, BUCKETS - 1 - RANKS]
    return seen.mean(axis=0), seen.var(axis=0) * DRAWS / (DRAWS - 1) + noise**2 / 10
