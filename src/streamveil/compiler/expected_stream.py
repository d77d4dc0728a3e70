"""Streams that one may expect: laws of rows per unit, of groups and of repeated groups.

Nothing here reads data, and nothing is random: draws from a law come from fixed numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import product
from math import exp, inf, log, sqrt
from typing import Any

import numpy as np

from streamveil.compiled import ndtr, ndtri, njit
from streamveil.errors import PlanError
from streamveil.plan import Plan
from streamveil.plan.look import (
    CONCENTRATION,
    HISTOGRAM,
    LAWS,
    MANY_ROWS,
    MEAN_ROWS,
    STREAMS,
    WAYS_OF_UNITS,
    expectations,
)
from streamveil.plan.options import (
    EXPECTATIONS,
    EXPECTED_GROUPS,
    EXPECTED_MOST_ROWS,
    EXPECTED_REPEATS,
    EXPECTED_ROWS,
    EXPECTED_UNITS,
    Limits,
)
from streamveil.types import Array, Bool, Float64, Int64

UNITS = 1_000
DRAWN_ROWS, FEWEST_DRAWN = 50_000, 100  # most rows of all drawn units; least number of units
MOST_ROWS = 1_000  # of one drawn unit; if it has more, each drawn row stands for several
LONG = np.round(MOST_ROWS * 2.0 ** (np.arange(1, 45) / 4))  # rows of such units, up to two million
ROWS_OF_UNITS = np.append(np.arange(1.0, MOST_ROWS + 1), LONG)
NUMBERS = np.append(np.ones(MOST_ROWS), np.gradient(LONG))  # numbers that each of them represents
FARTHEST = 20.0  # times the mean: the largest units of a law, if more than `MOST_ROWS`
CLASSES = 240  # of groups of about equal size
TOKENS_FIRST = 0.5  # share of units whose rows in groups of one come before all others
FEW = 3.0  # rows as which the share over all classes counts
NEAR = 0.25  # width, in the logarithm of sizes, over which the share of cut rows is averaged
GOLDEN = 0x9E3779B97F4A7C15
STEEP = (0.0, 0.8, 1.2, 1.4, 1.6)  # see `ExpectedStream.family`
HEAVY, REPEATS = (3.2, 8.0), (0.0, 0.3)
TOLD_REPEATS = 0.01  # fewer are lost in the noise of a look: no law of groups is fitted to them
STEEPEST = 1.61  # steepest law to compare a share of repeats with; halving it never gives 1
USUAL_UNITS, ROWS_OF_A_GROUP = 1e6, 50.0  # where only the rows of a unit are expected
MOST_REPEATS = 0.9999
SPREAD_OF_REPEATS = 1.5  # times the expected repeats: as many may come by chance alone
MOST_OF_UNITS = 0.99  # the quantile of rows per unit that `most` is
STEEPEST_POWER = 20.0  # of rows, within a bin of a histogram
LIGHT, EVENEST = 50.0, 200.0  # the lightest power, about geometric; the most even gamma law


@dataclass(frozen=True, kw_only=True)
class ExpectedStream:
    """A stream that one may expect within one scope of a unit.

    A unit has n rows with weight (n + b)^-heavy or n^(even - 1) e^-cn; b or c follows from the
    mean. A row has the group of rank k with weight (k + groups / 1000)^-steep or, with a `spread`,
    by a log-normal law; or with chance `repeats` a group its unit had before, or with chance
    `single` a group that no other row has.
    """

    units: float
    rows: float  # of one unit, on average
    groups: int
    most: float | None = None  # rows that 99 of 100 units do not exceed, if known
    again: float | None = None  # share of rows that repeat a group of their unit, if known
    steep: float = 1.4
    heavy: float = 5.0
    even: float = 0.0  # shape of a gamma law of rows, if tails fall faster; 0: by `heavy`
    repeats: float = 0.0
    drawn: int = UNITS  # units that a forecast draws, each standing for the same number of rows
    single: float = 0.0  # share of rows that have a group of their own
    spread: float = 0.0  # deviation of the logarithm of groups' rows; 0: by `steep`
    laws: tuple[tuple[int, float, float, float], ...] = ()  # groups, steep, single, spread
    histogram: tuple[tuple[int, int, float], ...] = ()  # units with from .. to rows, if known
    concentration: tuple[float, float, float] | None = None  # see `concentrations`
    own: float | None = None  # see `concentrated`
    means: tuple[float, ...] = ()  # possible rows of a unit, if the number of units is not known
    likely: tuple[ExpectedStream, ...] = ()  # streams with as many rows: see `likely_streams`
    value: float = 1.0  # what a row adds on average, as a share of the most that it may add
    clamped: float = 0.0  # share of the total of values that lies beyond their bounds
    once: bool = False  # only a unit's first row in a group counts, and no other is cut
    ratio: bool = False  # answers are means or quantiles, in which cut rows take no part
    batches: float = inf  # in which rows come, each at one release; no more than there are releases

    def family(self) -> tuple[ExpectedStream, ...]:
        """The same sizes with other shapes: flat and steep, even and heavy, with repeats or not.

        Shapes are rarely known beforehand: settings are chosen for all of these together. A known
        share of repeats also limits the groups: if some were so large that units meet them again by
        chance, more rows would repeat. The steepest law within that limit replaces the steeper
        ones: there all repeats are in large groups, which a bound per group cuts. Known laws of
        groups (`group_sizes.likely_laws`) replace flat and steep ones, a known histogram of the
        rows of units replaces even and heavy tails. With several `means` of rows, the stream has as
        many rows in each case; with `likely` streams, these are the whole family.
        """
        if self.likely:
            return self.likely
        if self.means:
            every = self.units * self.rows
            return tuple(
                shape
                for mean in self.means
                for shape in replace(self, rows=mean, units=every / mean, means=()).family()
            )
        tails = tuple((heavy, 0.0) for heavy in HEAVY)
        tails = tails if self.most is None else (tail_of(self.rows, self.most),)
        tails = ((self.heavy, self.even),) if self.histogram else tails
        laws = self.laws or tuple((self.groups, steep, 0.0, 0.0) for steep in STEEP)
        shapes = [
            replace(
                self, groups=groups, steep=steep, single=single, spread=spread, heavy=heavy,
                even=even, laws=(), repeats=0.0,
            )
            for (groups, steep, single, spread), (heavy, even) in product(laws, tails)
        ]  # fmt: skip
        if self.concentration is not None:
            parts = concentrations(self.concentration, len(shapes))
            return tuple(concentrated(*one) for one in zip(shapes, parts, strict=True))
        if self.again is None:
            return tuple(replace(one, repeats=part) for one in shapes for part in REPEATS)
        by_chance = [repeated_by_chance(one) for one in shapes]
        most = max(self.again * SPREAD_OF_REPEATS, min(by_chance))
        if max(by_chance) > most and self.again >= TOLD_REPEATS:
            shapes += [steepest(one, self.again) for one in shapes[: len(tails)]]
            by_chance += [self.again] * len(tails)
        return tuple(
            replace(one, repeats=repeats_beyond(one, self.again))
            for one, part in zip(shapes, by_chance, strict=True)
            if part <= most
        )


@lru_cache(maxsize=64)
def steepest(stream: ExpectedStream, again: float) -> ExpectedStream:
    """The stream whose groups are so unequal that chance alone gives the known share of repeats."""
    low, high, stream = 0.0, STEEPEST, replace(stream, spread=0.0)
    for _ in range(8):
        middle = (low + high) / 2
        less = repeated_by_chance(replace(stream, steep=middle)) < again
        low, high = (middle, high) if less else (low, middle)
    return replace(stream, steep=low)


def repeated_by_chance(stream: ExpectedStream) -> float:
    """The share of rows that repeat a group of their unit by chance alone."""
    drawn = draw_stream(stream)
    return 1 - float(drawn.single[drawn.new].sum() / drawn.weight.sum())


def concentrations(known: tuple[float, float, float], some: int) -> Float64[Array, " some"]:
    """Possible concentrations of units with many rows, from the noisy one.

    `known`: the share of rows that repeat a group in units with few rows, the noisy concentration
    of other units, and its deviation. The result is quantiles of the true concentration between 0
    and 1, equally likely, in a mixed order.

    >>> concentrations((0.0, 0.6, 0.001), 2).round(2).tolist()
    [0.6, 0.6]
    >>> concentrations((0.0, 1.1, 0.2), 4).round(2).tolist()
    [0.75, 0.93, 0.86, 0.98]
    """
    _, about, off = known
    off = max(off, 1e-3)
    about = min(max(about, -3 * off), 1 + 3 * off)
    low, high = (float(ndtr((end - about) / off)) for end in (0.0, 1.0))
    mixed = np.array([int(f"{place:08b}"[::-1], 2) for place in range(some)])
    chance = (mixed.argsort().argsort() + 0.5) / some
    return np.asarray(np.clip(about + off * ndtri(low + (high - low) * chance), 0.0, 1.0))


def concentrated(stream: ExpectedStream, many: float) -> ExpectedStream:
    """The stream in which units with few and with many rows keep to their groups as far as known.

    In a unit with many rows, the first share `own` of rows have groups by the law, and each later
    row has the group of one of these. The share is the largest on a grid for which the mean
    concentration of the drawn units reaches `many`, or else the least on the grid.
    """
    few = 0.0 if stream.concentration is None else stream.concentration[0]
    stream = replace(stream, concentration=None)
    drawn = draw_stream(stream)
    lengths = np.diff(drawn.ends, prepend=0)
    heavy = lengths * drawn.times[drawn.ends - 1] > MANY_ROWS
    squares = squares_so_far(drawn, lengths)
    light = ~np.repeat(heavy, lengths)
    part = repeats_of(drawn, few, light) if light.any() else 0.0
    if not heavy.any():
        return replace(stream, repeats=part)
    begin, most = (drawn.ends - lengths)[heavy], lengths[heavy]
    rows = np.log(most * drawn.times[begin])
    shares, told = np.geomspace(1, 1 / MOST_ROWS, 40), []
    for share in shares:
        first = first_rows_of(most, share)
        told.append(float((1 - np.log(first**2 / squares[begin + first - 1]) / rows).mean()))
    place = int(np.searchsorted(np.maximum.accumulate(told), many))
    return replace(stream, own=float(shares[min(place, len(shares) - 1)]), repeats=part)


def first_rows_of(lengths: Int64[Array, " units"], share: float) -> Int64[Array, " units"]:
    """A share of the rows of each unit, at least one row."""
    return np.maximum(np.round(share * lengths), 1).astype(np.int64)


def squares_so_far(drawn: Drawn, lengths: Int64[Array, " units"]) -> Float64[Array, " rows"]:
    """For each row, the sum over groups of squared rows of its unit, up to this row."""
    order = np.argsort(drawn.first, kind="stable")  # by unit and group, then as rows come
    own = drawn.first[order]
    begins = np.flatnonzero(np.append(True, own[1:] != own[:-1]))
    before = np.empty(len(own))
    before[order] = np.arange(len(own)) - np.repeat(begins, np.diff(np.append(begins, len(own))))
    more = 2 * before + 1
    squares = np.cumsum(more)
    start = np.repeat(drawn.ends - lengths, lengths)
    return np.asarray(squares - (squares - more)[start])


def repeats_beyond(stream: ExpectedStream, again: float) -> float:
    """The chance to repeat a group with which all rows repeat as often as known."""
    drawn = draw_stream(stream)
    return repeats_of(drawn, again, drawn.all_rows)


def repeats_of(drawn: Drawn, again: float, some: Bool[Array, " rows"]) -> float:
    """The chance r to repeat a group with which the rows of some units repeat as often as known.

    A share f of rows are the first of a unit and never repeat. A row repeats by chance if its group
    is drawn by the law, and so is that of the row it meets: r (1 - f) + (1 - r)^2 by_chance =
    again. If a drawn row stands for several, all but the first of them repeat anyway.
    """
    single, weight = drawn.single * some, float(drawn.weight[some].sum())
    singles = float(single.sum())
    by_chance = max(0.0, 1 - float(single[drawn.new].sum()) / weight)  # sums are rounded
    if singles < weight * (1 - 1e-9):
        again, by_chance = (
            max(0.0, 1 - (1 - one) * weight / singles) for one in (again, by_chance)
        )
    first = min(1.0, float(single[drawn.ends - 1].sum()) / singles)  # a unit's rows weigh the same
    more, half = max(0.0, again - by_chance), (1 - first) / 2 - by_chance
    root = sqrt(half**2 + by_chance * more)
    found = more / max(half + root, TOLD_REPEATS) if half >= 0 else (root - half) / by_chance
    return min(found, 1.0) if more else 0.0


def expected(
    given: Mapping[str, Any], windows: int, public: int | None = None
) -> ExpectedStream | None:
    """The stream that a query's options expect in one scope of a unit; None: they expect none.

    `public`: the number of all groups, if it is declared.
    """
    rows = EXPECTED_ROWS.of(given)
    if rows is None:
        return None
    for option in EXPECTATIONS:
        number = option.of(given)
        low, high = (0, MOST_REPEATS) if option is EXPECTED_REPEATS else (1, 10**12)
        within = Limits(low, with_low=True)
        if number is not None and not (within.holds(number) and float(number) <= high):
            raise PlanError(f"{option} must be a number between {low} and {high:,}, not {number}")
    most, again = EXPECTED_MOST_ROWS.of(given), EXPECTED_REPEATS.of(given)
    if most is not None and most < rows:
        raise PlanError(f"{EXPECTED_MOST_ROWS} must be at least {EXPECTED_ROWS}, a mean")
    units = float(EXPECTED_UNITS.of(given) or USUAL_UNITS)
    groups, laws = EXPECTED_GROUPS.of(given), given.get(LAWS, ())
    laws = () if groups else tuple(law_of(*law) for law in laws)
    together = given.get(CONCENTRATION)
    few, many, off = (0.0, 0.0, 0.0) if together is None else map(float, together)
    groups = float(groups or max(10.0, units * rows / ROWS_OF_A_GROUP)) * windows
    if public is not None:
        groups = min(groups, public) if EXPECTED_GROUPS.of(given) else public
        laws = tuple((min(law[0], public), law[1], 0.0, law[3]) for law in laws)
    stream = ExpectedStream(
        units=units,
        rows=max(float(rows), 1.01),
        groups=max(1, round(groups)),
        most=None if most is None else float(most),
        again=None if again is None else float(again),
        laws=laws,
        histogram=histogram_of(given.get(HISTOGRAM, ())),
        concentration=None if together is None else (few, many, off),
        means=tuple(max(float(mean), 1.01) for mean in given.get(MEAN_ROWS, ())),
    )
    if STREAMS not in given:
        return stream
    return replace(stream, likely=tuple(likely_streams(given, stream, public)))


def likely_streams(
    given: Mapping[str, Any], stream: ExpectedStream, public: int | None
) -> Iterator[ExpectedStream]:
    """Streams that a first release leaves possible (`first_release.streams`), with known groups."""
    every = stream.units * stream.rows
    ways = [histogram_of(way) for way in given[WAYS_OF_UNITS]]
    means = [mean_rows(way) for way in ways]
    for place, (groups, steep, single, spread, repeats, number) in enumerate(given[STREAMS]):
        way, law = int(number), (round(groups) or stream.groups, steep, single, spread)
        if EXPECTED_GROUPS.of(given):
            law = stream.groups, STEEP[place % len(STEEP)], 0.0, 0.0
        elif public is not None:
            law = min(law[0], public), steep, 0.0, spread
        yield replace(
            stream, rows=means[way], units=every / means[way], histogram=ways[way], laws=(),
            means=(), repeats=repeats, groups=law[0], steep=law[1], single=law[2], spread=law[3],
        )  # fmt: skip


def histogram_of(told: Iterable[Sequence[float]]) -> tuple[tuple[int, int, float], ...]:
    """For each bin of a look: its first and last number of rows, and the share of units."""
    return tuple((int(low), int(high), float(part)) for low, high, part in told)


def law_of(
    groups: float, steep: float, single: float, spread: float = 0.0
) -> tuple[int, float, float, float]:
    """A law of groups from a look; looks of earlier versions have no spread."""
    return max(2, round(groups)), float(steep), float(single), float(spread)


@dataclass(frozen=True)
class Drawn:
    """Rows of the drawn units, unit after unit in order of time, and the law of the groups."""

    ends: Int64[Array, " units"]
    place: Int64[Array, " rows"]  # the class of the row's group
    first: Int64[Array, " rows"]  # the unit's first row in the same group
    time: Float64[Array, " rows"]  # 0..1
    times: Float64[Array, " rows"]  # rows of the same unit and group, one after the other
    weight: Float64[Array, " rows"]  # rows of the stream that a drawn row represents
    totals: Float64[Array, " classes"]  # expected rows of one group
    counts: Float64[Array, " classes"]  # groups
    near: Float64[Array, "classes classes"]  # weights of classes of like sizes in averages

    @cached_property
    def new(self) -> Bool[Array, " rows"]:
        """Whether a row is its unit's first in its group."""
        return np.asarray(self.first == np.arange(len(self.first)))

    @cached_property
    def single(self) -> Float64[Array, " rows"]:
        """The weight of one row; where a drawn row stands for several, that of the first."""
        return np.asarray(self.weight / self.times)

    @cached_property
    def all_rows(self) -> Bool[Array, " rows"]:
        """Every row."""
        return np.ones(len(self.first), np.bool_)

    @cached_property
    def share_of_first(self) -> Float64[Array, " classes"]:
        """The share of rows that are `new`, by class."""
        return averaged(self, self.new / self.times)

    @cached_property
    def of_all(self) -> tuple[Float64[Array, " classes"], np.float64]:
        """`weighed` of all rows."""
        return weighed(self, self.all_rows)


def mixed_uniform(n: int, salt: int) -> Float64[Array, " n"]:
    """Fixed numbers in (0, 1) without visible pattern (the finalizer of SplitMix64)."""
    word = np.arange(1, n + 1, dtype=np.uint64) * np.uint64(GOLDEN) + np.uint64(salt)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        word = (word ^ (word >> np.uint64(shift))) * np.uint64(factor)
    return np.asarray((((word ^ (word >> np.uint64(31))) >> np.uint64(11)) + 0.5) / 2.0**53)


def group_law(
    stream: ExpectedStream, classes: int = CLASSES
) -> tuple[Float64[Array, " classes"], Float64[Array, " classes"]]:
    """Expected totals of classes of groups, and how many groups each holds."""
    mass, whole, counts = masses(stream.groups, stream.steep, stream.spread, classes)
    rows = stream.units * stream.rows
    totals = rows * (1 - stream.single) * mass / whole
    if not stream.single:
        return totals / counts, counts
    return np.append(totals / counts, 1.0), np.append(counts, round(rows * stream.single))


@lru_cache(maxsize=256)
def edges_of(groups: int, classes: int) -> Float64[Array, " edges"]:
    """The first rank of each class of groups, and one rank behind the last."""
    return np.unique(np.round(np.geomspace(1, groups + 1, classes)))


@lru_cache(maxsize=1024)
def masses(
    groups: int, steep: float, spread: float = 0.0, classes: int = CLASSES
) -> tuple[Float64[Array, " classes"], float, Float64[Array, " classes"]]:
    """Classes of groups by rank: the weight of each, the total weight, and the groups of each.

    In a log-normal law, the groups of ranks up to k hold ndtr(spread + ndtri(k / groups)) of all
    rows.
    """
    edges = edges_of(groups, classes)
    low, high = edges[:-1], edges[1:]
    if spread:
        mass = np.diff(ndtr(spread + ndtri((edges - 1) / groups)))
    else:
        shift, power = groups / 1000 - 0.5, 1 - steep
        mass = ((high + shift) ** power - (low + shift) ** power) / power  # integral over the ranks
    return mass, mass.sum(), high - low


def row_law(rows: float, heavy: float, even: float = 0.0) -> Float64[Array, " sizes"]:
    """Share of units by their rows, over the first of `ROWS_OF_UNITS`: 1, 2, ..."""
    sizes = up_to(max(MOST_ROWS, FARTHEST * rows))
    n, numbers = ROWS_OF_UNITS[:sizes], NUMBERS[:sizes]

    def law(size: float) -> Float64[Array, " sizes"]:  # its mean grows with the size
        powers = -heavy * np.log((n + size - 1) / size)
        logs = (even - 1) * np.log(n) - n / size if even else powers
        weights = np.exp(logs - logs.max()) * numbers
        return np.asarray(weights / weights.sum())

    low, high = -6.0, 20.0  # of the logarithm of the size
    for _ in range(40):
        middle = (low + high) / 2
        mean = float((law(exp(middle)) * n).sum())
        low, high = (middle, high) if mean < rows else (low, middle)
    return law(exp(high))


def up_to(rows: float) -> int:
    """How many of `ROWS_OF_UNITS` are at most `rows`."""
    return int(np.searchsorted(ROWS_OF_UNITS, rows, side="right"))


def known_rows(histogram: tuple[tuple[int, int, float], ...]) -> Float64[Array, " sizes"]:
    """Share of units by their rows, over `ROWS_OF_UNITS`.

    Within a bin shares follow the power of rows that leads from the bin before to the bin behind,
    if these are adjacent: tails fall within their bins as well.

    >>> known_rows(((1, 1, 30.0), (2, 3, 8.0), (1024, 1447, 1.0)))[:4].round(2).tolist()
    [30.0, 5.71, 2.29, 0.0]
    >>> known_rows(((1, 1, 30.0), (1024, 1447, 1.0))).nonzero()[0].tolist()
    [0, 1000, 1001]
    """
    law = np.zeros(len(ROWS_OF_UNITS))
    for place, (low, high, units) in enumerate(histogram):
        last = max(up_to(high), 1)
        first = min(up_to(low - 1), last - 1)
        power = _power(histogram, place)
        shares = NUMBERS[first:last] * (ROWS_OF_UNITS[first:last] / high) ** power
        law[first:last] += units * shares / shares.sum()
    return law


def mean_rows(histogram: tuple[tuple[int, int, float], ...]) -> float:
    """Rows of a unit, on average.

    >>> mean_rows(((1, 1, 30.0), (2, 2, 10.0)))
    1.25
    """
    law = known_rows(histogram)
    return float(law @ ROWS_OF_UNITS / law.sum())


def _power(bins: tuple[tuple[int, int, float], ...], place: int) -> float:
    """The power of rows that units follow over a bin and adjacent bins; 0: there are none."""
    first = place - (place > 0 and bins[place - 1][1] + 1 == bins[place][0])
    last = place + (place + 1 < len(bins) and bins[place][1] + 1 == bins[place + 1][0])
    (a, b, before), (c, d, behind) = bins[first], bins[last]
    if first == last or not before or not behind:
        return 0.0
    power = log(behind / before * (b - a + 1) / (d - c + 1)) / log(sqrt(c * d / (a * b)))
    return min(max(power, -STEEPEST_POWER), STEEPEST_POWER)


@lru_cache(maxsize=64)
def tail_of(rows: float, most: float) -> tuple[float, float]:
    """`heavy` and `even` of the law by which 99 of 100 units have at most so many rows.

    A power law falls as slowly as it can; a law that must fall faster than geometric is a gamma.
    """

    def within(heavy: float, even: float) -> float:
        return float(row_law(rows, heavy, even)[: up_to(most)].sum())

    light = within(LIGHT, 0.0) < MOST_OF_UNITS
    low, high = (0.0, log(EVENEST)) if light else (log(2.05), log(LIGHT))
    for _ in range(20):
        middle = (low + high) / 2
        less = within(LIGHT, exp(middle)) if light else within(exp(middle), 0.0)
        low, high = (middle, high) if less < MOST_OF_UNITS else (low, middle)
    return (LIGHT, exp(high)) if light else (exp(high), 0.0)


def drawn_lengths(stream: ExpectedStream, drawn: int) -> Int64[Array, " units"]:
    """Rows of the drawn units, each of which stands for the same number of rows."""
    known = stream.histogram
    law = known_rows(known) if known else row_law(stream.rows, stream.heavy, stream.even)
    sizes = ROWS_OF_UNITS[: len(law)].astype(np.int64)
    law = law * sizes
    edges = np.cumsum(law) / law.sum()
    middles = (np.arange(drawn) + 0.5) / drawn
    return np.asarray(sizes[np.minimum(np.searchsorted(edges, middles), len(sizes) - 1)])


@lru_cache(maxsize=64)
def draw_stream(stream: ExpectedStream) -> Drawn:
    """Draws units in proportion to their rows, so that heavy units are well represented."""
    rows = drawn_lengths(stream, stream.drawn)
    most = int(np.minimum(rows, MOST_ROWS).sum())
    if most > DRAWN_ROWS:  # fewer units of many rows give the same precision
        fewer = round(stream.drawn * DRAWN_ROWS / most)
        rows = drawn_lengths(stream, max(FEWEST_DRAWN, fewer))
    lengths = np.minimum(rows, MOST_ROWS)
    ends = np.cumsum(lengths)
    n, start = int(ends[-1]), np.repeat(ends - lengths, lengths)
    order = np.arange(n) - start
    totals, counts = group_law(stream)
    mass = np.cumsum(totals * counts)
    which = np.minimum(
        np.searchsorted(mass, mixed_uniform(n, 1) * mass[-1], side="right"), len(mass) - 1
    )
    group = np.cumsum(counts)[which] - 1 - np.floor(mixed_uniform(n, 4) * counts[which])
    earlier = start + (mixed_uniform(n, 3) * order).astype(np.int64)
    source = np.where(mixed_uniform(n, 2) < stream.repeats, earlier, np.arange(n))
    if stream.own is not None:
        heavy, first = np.repeat(rows > MANY_ROWS, lengths), first_rows_of(lengths, stream.own)
        own = start + (mixed_uniform(n, 3) * np.repeat(first, lengths)).astype(np.int64)
        kept = np.where(order < np.repeat(first, lengths), np.arange(n), own)
        source = np.where(heavy, kept, source)
    for _ in range(int(lengths.max()).bit_length()):
        source = source[source]
    if stream.single:
        source = source[tokens_first(which[source] == len(totals) - 1, lengths)]
    named = group[source] + (counts.sum() + 1.0) * np.repeat(np.arange(len(lengths)), lengths)
    _, first, back = np.unique(named, return_index=True, return_inverse=True)
    per_unit, size = stream.units * stream.rows / len(lengths), np.log(totals)
    near = np.exp(-(((size[:, None] - size[None, :]) / NEAR) ** 2) / 2)
    drawn = Drawn(
        ends, which[source], first[back], (order + 0.5) / np.repeat(lengths, lengths),
        np.repeat(rows / lengths, lengths), per_unit / np.repeat(lengths, lengths), totals, counts,
        near,
    )  # fmt: skip
    return first_rows(drawn) if stream.once else drawn


def tokens_first(
    single: Bool[Array, " rows"], lengths: Int64[Array, " units"]
) -> Int64[Array, " rows"]:
    """An order of rows, unit by unit: in some units rows in groups of one come first.

    Groups of one are often tokens of a session, with which a unit begins. They take the unit's
    slots, and leave none for the groups that follow.
    """
    unit = np.repeat(np.arange(len(lengths)), lengths)
    sooner = single & (mixed_uniform(len(lengths), 5) < TOKENS_FIRST)[unit]
    return np.lexsort((~sooner, unit))


def first_rows(drawn: Drawn) -> Drawn:
    """Only the first row of each unit in each group; totals are units."""
    new, units = drawn.new, drawn.totals * drawn.share_of_first
    return replace(
        drawn, ends=np.cumsum(new)[drawn.ends - 1], place=drawn.place[new],
        first=np.arange(int(new.sum())), time=drawn.time[new], times=np.ones(int(new.sum())),
        weight=drawn.single[new], totals=units,
    )  # fmt: skip


def averaged(
    drawn: Drawn, rows: Array, among: Bool[Array, " rows"] | None = None
) -> Float64[Array, " classes"]:
    """The share of `rows` in the rows `among`, by class, averaged over classes of like sizes.

    `rows` is a share of each drawn row, from 0 to 1. The share over all classes counts as `FEW`
    more rows of each class.
    """
    if among is None:
        number, (whole, total) = len(rows), drawn.of_all
    else:
        number, (whole, total) = int(np.count_nonzero(among)), weighed(drawn, among)
        rows = rows * among
    held, part = weighed(drawn, rows)
    few, share = FEW * total / max(number, 1), part / max(total, 1e-9)
    return np.asarray((held + few * share) / np.maximum(whole + few, 1e-9))


def weighed(drawn: Drawn, rows: Array) -> tuple[Float64[Array, " classes"], np.float64]:
    """The weight of some rows: by class, with classes of like sizes, and in total."""
    shares = rows.astype(np.float64)
    each, together = in_classes(drawn.place, drawn.weight, shares, len(drawn.totals))
    return drawn.near @ together, each.sum()


@njit(cache=True)  # type: ignore[untyped-decorator]  # numba is untyped
def in_classes(
    place: Int64[Array, " rows"],
    weight: Float64[Array, " rows"],
    shares: Float64[Array, " rows"],
    classes: int,
) -> tuple[Float64[Array, " rows"], Float64[Array, " classes"]]:
    """The weights of shares of rows, and their sums by class."""
    each, together = np.zeros(len(place)), np.zeros(classes)
    for i in range(len(place)):
        if shares[i] > 0:
            each[i] = weight[i] * shares[i]
            together[place[i]] += each[i]
    return each, together


# ---- the stream that a plan expects


def expected_stream(plan: Plan, windows: int | None) -> ExpectedStream | None:
    """The stream that a query expects in one scope of a unit, by its options or a look."""
    known = expectations(plan.options)
    return expected(known, windows or 1, public_groups(plan, windows))


def public_groups(plan: Plan, windows: int | None) -> int | None:
    """How many groups there are in all windows together; None: not known beforehand.

    A query without keys has one group in a window.
    """
    public = plan.key_set.public if plan.keys else ((),)
    return None if public is None or windows is None else len(public) * windows
