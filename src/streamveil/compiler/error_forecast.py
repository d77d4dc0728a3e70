"""What a count would err by on streams that one may expect: for choosing its settings.

Nothing here reads data. A stream is a law of rows per unit, of groups and of repeated groups, drawn
from fixed numbers; its errors under some settings follow from the noise of the mechanisms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import product
from math import exp, inf, log, pi, sqrt
from typing import Any, Literal, NamedTuple

import numpy as np

from streamveil.compiled import erf, erfc, ndtr, ndtri, njit
from streamveil.errors import PlanError
from streamveil.plan.look import HISTOGRAM, LAWS, MEAN_ROWS
from streamveil.plan.options import (
    EXPECTATIONS,
    EXPECTED_GROUPS,
    EXPECTED_MOST_ROWS,
    EXPECTED_REPEATS,
    EXPECTED_ROWS,
    EXPECTED_UNITS,
)
from streamveil.types import Array, Bool, Float64, Int64

UNITS = 1_000
DRAWN_ROWS, FEWEST_DRAWN = 50_000, 100  # of drawn units together; units, whatever rows they have
MOST_ROWS = 1_000  # of one drawn unit
CLASSES = 240  # of groups of about equal size
FEW = 3.0  # rows that the share over all classes counts as
NEAR = 0.25  # width, in the logarithm of sizes, over which the share of cut rows is averaged
SLOPE = 6.0  # how sharply the chance to be shown by coins rises around its middle
APART = 0.3  # of the range of values: how far the mean of cut rows may lie from that of the others
LUCK = 1.2  # deviations by which the largest forecast of a total so far exceeds the total
CAUTION = 2.0  # deviations by which totals are taken too low where groups are public
ROUNDS = 3  # of bounding and of when groups open, each from the other
GOLDEN = 0x9E3779B97F4A7C15
STEEP = (0.0, 0.8, 1.2, 1.4, 1.6)  # see `ExpectedStream.family`
HEAVY, REPEATS = (3.2, 8.0), (0.0, 0.3)
TOLD_REPEATS = 0.01  # fewer are lost in the noise of a look: no law of groups is made of them
STEEPEST = 1.61  # of laws that a share of repeats is compared with; none of its halves is 1
USUAL_UNITS, ROWS_OF_A_GROUP = 1e6, 50.0  # where only the rows of a unit are expected
MOST_REPEATS = 0.95
SPREAD_OF_REPEATS = 1.5  # times the repeats that are expected which chance may bring
MOST_OF_UNITS = 0.99  # what `most` is a quantile of
LIGHT, EVENEST = 50.0, 200.0  # the lightest power, about geometric; the most even gamma law
Kind = Literal["table", "gaussian", "totals", "public"]


@dataclass(frozen=True, kw_only=True)
class ExpectedStream:
    """A stream that one may expect within one scope of a unit.

    A unit has n rows, weight (n + b)^-heavy with b from the mean, or n^(even - 1) e^-cn with c from
    it; a row has the group of rank k, weight (k + groups / 1000)^-steep or, with a `spread`, by a
    log-normal law, or with chance `repeats` a group its unit had before, or with chance `single`
    one that no other row has.
    """

    units: float
    rows: float  # of one unit, on average
    groups: int
    most: float | None = None  # rows that 99 of 100 units do not exceed, if known
    again: float | None = None  # share of rows that repeat a group of their unit, if known
    steep: float = 1.4
    heavy: float = 5.0
    even: float = 0.0  # shape of a gamma law of rows, where tails fall faster; 0: by `heavy`
    repeats: float = 0.0
    drawn: int = UNITS  # units that a forecast draws, each standing for the same number of rows
    single: float = 0.0  # share of rows that have a group of their own
    spread: float = 0.0  # deviation of the logarithm of groups' rows; 0: by `steep`
    laws: tuple[tuple[int, float, float, float], ...] = ()  # groups, steep, single, spread
    histogram: tuple[tuple[int, int, float], ...] = ()  # units with from .. to rows, if known
    means: tuple[float, ...] = ()  # other rows of a unit, if the same rows may be of other units
    value: float = 1.0  # what a row adds on average, as a share of the most that it may add
    clamped: float = 0.0  # share of all that values add up to, beyond their bounds
    once: bool = False  # only a unit's first row in a group counts, and no other is cut
    ratio: bool = False  # answers are means or quantiles: what is cut takes no part in them

    def family(self) -> tuple[ExpectedStream, ...]:
        """The same sizes with other shapes: flat and steep, even and heavy, with repeats or not.

        Shapes are rarely known beforehand: settings are chosen for all of these together. A share
        of repeats that is known tells of the groups as well: where some are so large that units
        meet them again by chance, more rows than that would repeat. For the steepest, the steepest
        that it allows stands in: there all repeats are in large groups, which a bound per group
        cuts. Known laws of groups (`group_sizes.likely_laws`) stand in for flat and steep ones, a
        known histogram of the rows of units for even and heavy tails. Where a unit has one of some
        `means` of rows, all units together have as many in each.
        """
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
        if self.again is None:
            return tuple(replace(one, repeats=part) for one in shapes for part in REPEATS)
        by_chance = [repeated_by_chance(one) for one in shapes]
        most = max(self.again * SPREAD_OF_REPEATS, min(by_chance))
        if max(by_chance) > most and self.again >= TOLD_REPEATS:
            shapes += [steepest(one, self.again) for one in shapes[: len(tails)]]
            by_chance += [self.again] * len(tails)
        return tuple(
            replace(one, repeats=repeats_beyond(one, self.again, part))
            for one, part in zip(shapes, by_chance, strict=True)
            if part <= most
        )


@lru_cache(maxsize=64)
def steepest(stream: ExpectedStream, again: float) -> ExpectedStream:
    """The stream with groups so unequal that units meet them again by chance as often as known."""
    low, high, stream = 0.0, STEEPEST, replace(stream, spread=0.0)
    for _ in range(8):
        middle = (low + high) / 2
        less = repeated_by_chance(replace(stream, steep=middle)) < again
        low, high = (middle, high) if less else (low, middle)
    return replace(stream, steep=low)


def repeated_by_chance(stream: ExpectedStream) -> float:
    """The share of rows that repeat a group of their unit though nothing makes them."""
    drawn = draw_stream(stream)
    again = drawn.first < np.arange(len(drawn.first))
    return float(drawn.weight[again].sum() / drawn.weight.sum())


def repeats_beyond(stream: ExpectedStream, again: float, by_chance: float) -> float:
    """The chance r to repeat a group by which rows do as often as known.

    A share f of rows are a unit's first ones and never do. By chance a row does if it is new, and
    the one that it meets as well: r (1 - f) + (1 - r)^2 by_chance = again.
    """
    drawn = draw_stream(stream)
    first = drawn.weight[drawn.ends - 1].sum() / drawn.weight.sum()  # a unit's rows weigh the same
    more, half = max(0.0, again - by_chance), (1 - float(first)) / 2 - by_chance
    return min(more / max(half + sqrt(half**2 + by_chance * more), TOLD_REPEATS), 1.0)


def expected(
    given: Mapping[str, Any], windows: int, public: int | None = None
) -> ExpectedStream | None:
    """The stream that the options of a query expect in one scope of a unit; None: they do not.

    `public`: all groups, where their number is declared.
    """
    rows = EXPECTED_ROWS.of(given)
    if rows is None:
        return None
    for option in EXPECTATIONS:
        number = option.of(given)
        low, high = (0, MOST_REPEATS) if option is EXPECTED_REPEATS else (1, 10**12)
        if number is not None and not low <= float(number) <= high:
            raise PlanError(f"{option} must be a number between {low} and {high:,}")
    most, again = EXPECTED_MOST_ROWS.of(given), EXPECTED_REPEATS.of(given)
    if most is not None and most < rows:
        raise PlanError(f"{EXPECTED_MOST_ROWS} must be at least {EXPECTED_ROWS}, a mean")
    units = float(EXPECTED_UNITS.of(given) or USUAL_UNITS)
    groups, laws = EXPECTED_GROUPS.of(given), given.get(LAWS, ())
    laws = () if groups else tuple(law_of(*law) for law in laws)
    groups = float(groups or max(10.0, units * rows / ROWS_OF_A_GROUP)) * windows
    if public is not None:
        groups = min(groups, public) if EXPECTED_GROUPS.of(given) else public
        laws = tuple((min(law[0], public), law[1], 0.0, law[3]) for law in laws)
    return ExpectedStream(
        units=units,
        rows=max(float(rows), 1.01),
        groups=max(1, round(groups)),
        most=None if most is None else float(most),
        again=None if again is None else float(again),
        laws=laws,
        histogram=tuple((int(a), int(b), float(part)) for a, b, part in given.get(HISTOGRAM, ())),
        means=tuple(max(float(mean), 1.01) for mean in given.get(MEAN_ROWS, ())),
    )


def law_of(
    groups: float, steep: float, single: float, spread: float = 0.0
) -> tuple[int, float, float, float]:
    """A law of groups as a look says it, or as it was said before laws had a spread."""
    return max(2, round(groups)), float(steep), float(single), float(spread)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is to be chosen."""

    kind: Kind  # of selection
    quadratic: float = inf  # squared rows of one unit, in entry weights: bound / entry_weight**2
    max_rows: float = inf  # of one unit
    per_group: float = inf  # rows of one unit in a group
    entered: float = inf  # groups of one unit
    slots: int = 0  # table: hidden groups one unit is counted in
    share: float = 1.0  # of mu (Gaussian selection: of mu squared), for the values; 1: of all
    reference: float = inf  # total up to which a group keeps its entry weight
    entry: int = 64  # quanta of the entry weight; weights are rounded down

    @property
    def moved(self) -> float:
        """Squared L2 reach of one unit over all groups, in rows of entry weight."""
        full, rest = divmod(self.max_rows, self.per_group) if self.max_rows < inf else (inf, 0.0)
        once = min(self.per_group, self.max_rows)
        return min(self.quadratic, inf if once == inf else full * once**2 + rest**2)

    @property
    def groups(self) -> float:
        """Groups one unit can be counted in."""
        return min(self.quadratic, self.max_rows, self.entered)


@dataclass(frozen=True, kw_only=True)
class ForecastNoise:
    """The public numbers of the mechanisms that settings work on."""

    mu: float  # of all Gaussian releases, were they alone
    part: float = 1.0  # of mu squared, for the total that is forecast
    people: float = 0.0  # the same for a count of units beside it; 0: there is none
    beside: float = 0.0  # of all releases beside the Gaussian selection's part of delta; 0: mu
    spread: float  # deviation at the last release of a counter of sensitivity and mu one
    triggers: int = 1_000  # of one window
    half: float = 0.0  # units that show half of all groups, with two slots and a share of 2/3; or 0
    delta: float = 1e-9  # for thresholds of the Gaussian selection
    offset: int = 0  # units that do not count

    def coins(self, slots: int, share: float) -> float:
        """`half` for other slots and shares, within 10 % of the designs that it stands for.

        As if the selection were a Gaussian test on sqrt(slots) moves with what is left of mu.
        """
        return self.offset + self.half * float((slots / 2) ** 0.6 * sqrt((5 / 9) / (1 - share**2)))

    def total(self, settings: Settings, sd: float) -> float:
        """Rows that a test of totals with such noise asks for at the last trigger (`TotalTest`)."""
        most = min(settings.per_group, settings.max_rows, sqrt(settings.quadratic))
        rows = np.unique(np.round(np.geomspace(1, max(most, 1), 40)))
        last = self.delta / (2 if self.triggers > 1 else 1)
        ways = []
        if settings.max_rows < inf:
            ways.append(rows / settings.max_rows)
        if settings.quadratic < inf:
            ways.append(rows**2 / settings.quadratic)
        asked = [rows - sd * ndtri(last * np.minimum(way, 1.0)) for way in ways]
        return self.offset * most + min(float(way.max()) for way in asked)

    def threshold(self, groups: float, share: float) -> tuple[float, float]:
        """Units that the Gaussian selection asks for at the last trigger, and its deviation."""
        sd = self.spread * sqrt(groups) / ((self.beside or self.mu) * sqrt(share))
        last = self.delta / groups / (2 if self.triggers > 1 else 1)
        return 1 + self.offset + sd * tail_quantile(last), sd


def tail_quantile(chance: float) -> float:
    """The number of deviations that a Gaussian exceeds with this small chance."""
    low, high = 0.0, 40.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if erfc(middle / sqrt(2)) / 2 > chance else (low, middle)
    return high


@dataclass(frozen=True)
class Errors:
    """Expected errors over all groups at the last release."""

    keys: float
    linf: float
    l1: float
    l2: float
    cut: float  # share of rows over the contribution bound
    people: Errors | None = None  # of a count of units beside it

    @property
    def cost(self) -> float:
        """What a choice minimises: a percent of l1 counts as two of l2 and four of the largest."""
        beside = 0.0 if self.people is None else self.people.cost
        return log(self.l1) + log(self.l2) / 2 + log(self.linf) / 4 + beside


@dataclass(frozen=True)
class Drawn:
    """Rows of the drawn units, unit after unit in order of time, and the law of the groups."""

    ends: Int64[Array, " units"]
    place: Int64[Array, " rows"]  # the class of the row's group
    first: Int64[Array, " rows"]  # the unit's first row in the same group
    time: Float64[Array, " rows"]  # 0..1
    weight: Float64[Array, " rows"]  # rows of the stream that it stands for
    totals: Float64[Array, " classes"]  # expected rows of one group
    counts: Float64[Array, " classes"]  # groups
    near: Float64[Array, "classes classes"]  # how much classes of like sizes share what is averaged

    @cached_property
    def new(self) -> Bool[Array, " rows"]:
        """Whether a row is its unit's first in its group."""
        return np.asarray(self.first == np.arange(len(self.first)))

    @cached_property
    def all_rows(self) -> Bool[Array, " rows"]:
        """Every row."""
        return np.ones(len(self.first), np.bool_)

    @cached_property
    def share_of_first(self) -> Float64[Array, " classes"]:
        """The share of rows that are `new`, by class."""
        return averaged(self, self.new)

    @cached_property
    def of_all(self) -> tuple[Float64[Array, " classes"], np.float64]:
        """All rows, as `weighed` has them."""
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


@lru_cache(maxsize=1024)
def masses(
    groups: int, steep: float, spread: float = 0.0, classes: int = CLASSES
) -> tuple[Float64[Array, " classes"], float, Float64[Array, " classes"]]:
    """Classes of groups by rank: the weight of each and of all together, and its groups.

    Of a log-normal law, the groups of the ranks up to k hold ndtr(spread + ndtri(k / groups)) of
    all rows.
    """
    edges = np.unique(np.round(np.geomspace(1, groups + 1, classes)))
    low, high = edges[:-1], edges[1:]
    if spread:
        mass = np.diff(ndtr(spread + ndtri((edges - 1) / groups)))
    else:
        shift, power = groups / 1000 - 0.5, 1 - steep
        mass = ((high + shift) ** power - (low + shift) ** power) / power  # integral over the ranks
    return mass, mass.sum(), high - low


def row_law(rows: float, heavy: float, even: float = 0.0) -> Float64[Array, " sizes"]:
    """Share of units with n = 1, 2, ... rows."""
    n = np.arange(1, MOST_ROWS + 1)

    def law(size: float) -> Float64[Array, " sizes"]:  # its mean grows with the size
        powers = -heavy * np.log((n + size - 1) / size)
        logs = (even - 1) * np.log(n) - n / size if even else powers
        weights = np.exp(logs - logs.max())
        return np.asarray(weights / weights.sum())

    low, high = -6.0, 16.0  # of the logarithm of the size
    for _ in range(40):
        middle = (low + high) / 2
        mean = float((law(exp(middle)) * n).sum())
        low, high = (middle, high) if mean < rows else (low, middle)
    return law(exp(high))


def known_rows(histogram: tuple[tuple[int, int, float], ...]) -> Float64[Array, " sizes"]:
    """Share of units with n = 1, 2, ... rows; more than `MOST_ROWS` stand as so many more units.

    >>> known_rows(((1, 1, 30.0), (2, 3, 8.0), (2000, 2000, 1.0)))[[0, 1, 2, 3, 999]].tolist()
    [30.0, 4.0, 4.0, 0.0, 2.0]
    """
    law = np.zeros(MOST_ROWS)
    for low, high, units in histogram:
        more = max(1.0, (low + high) / 2 / MOST_ROWS)
        first, last = min(low, MOST_ROWS) - 1, min(high, MOST_ROWS)
        law[first:last] += units * more / (last - first)
    return law


@lru_cache(maxsize=64)
def tail_of(rows: float, most: float) -> tuple[float, float]:
    """`heavy` and `even` of the law by which 99 of 100 units have at most so many rows.

    Powers fall as slowly as they must; what falls faster than a geometric law is a gamma law.
    """

    def within(heavy: float, even: float) -> float:
        return float(row_law(rows, heavy, even)[: int(most)].sum())

    light = within(LIGHT, 0.0) < MOST_OF_UNITS
    low, high = (0.0, log(EVENEST)) if light else (log(2.05), log(LIGHT))
    for _ in range(20):
        middle = (low + high) / 2
        less = within(LIGHT, exp(middle)) if light else within(exp(middle), 0.0)
        low, high = (middle, high) if less < MOST_OF_UNITS else (low, middle)
    return (LIGHT, exp(high)) if light else (exp(high), 0.0)


def drawn_lengths(stream: ExpectedStream, drawn: int) -> Int64[Array, " units"]:
    """Rows of some units, each standing for the same number of rows."""
    known = stream.histogram
    law = known_rows(known) if known else row_law(stream.rows, stream.heavy, stream.even)
    law = law * np.arange(1, MOST_ROWS + 1)
    edges = np.cumsum(law) / law.sum()
    middles = (np.arange(drawn) + 0.5) / drawn
    return np.asarray(np.minimum(np.searchsorted(edges, middles), MOST_ROWS - 1) + 1)


@lru_cache(maxsize=64)
def draw_stream(stream: ExpectedStream) -> Drawn:
    """Units chosen in proportion to their rows, so that heavy ones are well represented."""
    lengths = drawn_lengths(stream, stream.drawn)
    if lengths.sum() > DRAWN_ROWS:  # fewer units of many rows tell as much
        fewer = round(stream.drawn * DRAWN_ROWS / int(lengths.sum()))
        lengths = drawn_lengths(stream, max(FEWEST_DRAWN, fewer))
    ends = np.cumsum(lengths)
    n, start = int(ends[-1]), np.repeat(ends - lengths, lengths)
    order = np.arange(n) - start
    totals, counts = group_law(stream)
    mass = np.cumsum(totals * counts)
    which = np.minimum(
        np.searchsorted(mass, mixed_uniform(n, 1) * mass[-1], side="right"), len(mass) - 1
    )
    group = np.cumsum(counts)[which] - 1 - np.floor(mixed_uniform(n, 4) * counts[which])
    source = np.where(mixed_uniform(n, 2) < stream.repeats, start + (
        mixed_uniform(n, 3) * order).astype(np.int64), np.arange(n))  # fmt: skip
    for _ in range(int(lengths.max()).bit_length()):
        source = source[source]
    named = group[source] + (counts.sum() + 1.0) * np.repeat(np.arange(len(lengths)), lengths)
    _, first, back = np.unique(named, return_index=True, return_inverse=True)
    per_unit, size = stream.units * stream.rows / len(lengths), np.log(totals)
    near = np.exp(-(((size[:, None] - size[None, :]) / NEAR) ** 2) / 2)
    drawn = Drawn(
        ends, which[source], first[back], (order + 0.5) / np.repeat(lengths, lengths),
        per_unit / np.repeat(lengths, lengths), totals, counts, near,
    )  # fmt: skip
    return first_rows(drawn) if stream.once else drawn


def first_rows(drawn: Drawn) -> Drawn:
    """Only the first row of each unit in each group; totals are units."""
    new, units = drawn.new, drawn.totals * drawn.share_of_first
    return replace(
        drawn, ends=np.cumsum(new)[drawn.ends - 1], place=drawn.place[new],
        first=np.arange(int(new.sum())), time=drawn.time[new], weight=drawn.weight[new],
        totals=units,
    )  # fmt: skip


def forecast(
    stream: ExpectedStream, settings: Settings, noise: ForecastNoise, *, bounded: bool = False
) -> Errors:
    """The expected errors of a count, or of a sum in rows of its mean value, with some settings.

    `bounded`: of groups that are shown beside the totals of their rows within the bounds.
    """
    value, stream = stream.value, replace(stream, value=1.0)
    base = noise.spread * sqrt(settings.moved) / value
    if settings.kind in ("gaussian", "totals"):
        base /= (noise.beside or noise.mu) * sqrt(settings.share)
    else:
        base /= noise.mu * settings.share
    part = noise.part
    if settings.kind == "gaussian":  # the units that show groups are those that are counted
        part /= 1 - noise.people
    base /= sqrt(part)
    test = Threshold(CAUTION * base)
    if settings.kind == "table":
        test = Threshold(noise.coins(settings.slots, settings.share))
    elif settings.kind == "gaussian":
        test = Threshold(*noise.threshold(settings.groups, 1 - settings.share or noise.part))
    elif settings.kind == "totals":
        test = Threshold(noise.total(settings, base * value) / value, base)
    if noise.people:
        people = base * value * sqrt(settings.groups / settings.moved * part / noise.people)
        gaussian = settings.kind == "gaussian"
        test = test._replace(people=test.deviation if gaussian else people)
    settings = replace(settings, reference=settings.reference / value)
    return errors_of(stream, settings, test, noise.triggers, base, bounded=bounded)


class Threshold(NamedTuple):
    """What the selection asks for at the last release, and how it is asked."""

    units: float  # public groups: the rows from which on weights may fall
    deviation: float = 0.0  # of a Gaussian selection or a test of totals
    people: float = 0.0  # of a count of units beside the total that is forecast; 0: there is none


def errors_of(
    stream: ExpectedStream,
    settings: Settings,
    test: Threshold,
    triggers: int,
    base: float,
    *,
    bounded: bool = False,
) -> Errors:
    """The expected errors of a count whose small groups have noise `base` at the last release.

    Error: a group of total T is shown by coins with chance 1 / (1 + (m / T)^6), where the middle m
        is the number of rows that bring as many counted units as the selection asks for, in groups
        about as large (small ones open late, when units repeat them more) up to when they open, or
        to the end where a unit's rows are bounded by number; by a Gaussian selection when its noisy
        units pass the last threshold, by a test of totals when its noisy rows do. Rows of a group
        are hidden up to the trigger that shows it. A shown group errs by its cut rows and by
        Gaussian noise that grows, once it is shown, as the cube root of its total beyond the
        reference; a hidden one by its total. Where all groups are public, weights fall once a total
        is beyond doubt. Beside `bounded` totals no cut row of a shown group is an error; a hidden
        group still errs by all of its rows, or to hide it would seem cheaper than it is. A count of
        units beside it errs by those whose first row in a group is cut. A mean or quantile errs, as
        a share of the range of values, by the noise over its kept rows and by `APART` of the share
        that is cut; a hidden group by the whole range, whatever its total.
    """
    made = left_out(stream, settings, test, triggers, base)
    if stream.ratio:
        return made.norms_of_ratios(base * made.more)
    errors = made.norms(base * made.more, bounded=bounded)
    people = made.people and made.people.norms(test.people * made.more, bounded=bounded)
    return replace(errors, people=people)


class Shown(NamedTuple):
    """Classes of groups, as far as their errors depend on them."""

    counts: Float64[Array, " classes"]  # groups
    shown: Float64[Array, " classes"]  # share of them
    totals: Float64[Array, " classes"]  # of one group


class LeftOut(NamedTuple):
    """What a release shows of groups and what it leaves out, before noise."""

    groups: Shown
    lost: Float64[Array, " classes"]  # rows, or units, of a shown group that are cut
    more: Float64[Array, " classes"]  # noise over that of small groups
    cut: float  # share of all rows
    people: LeftOut | None  # of a count of units beside it

    def norms(self, sd: Float64[Array, " classes"], *, bounded: bool) -> Errors:
        """The errors with noise of such deviations; `bounded`: beside the totals of kept rows."""
        keys = float(self.groups.counts @ self.groups.shown)
        return Errors(keys, *norms(self.groups, self.lost * (not bounded), sd), self.cut)

    def norms_of_ratios(self, sd: Float64[Array, " classes"]) -> Errors:
        """The same of answers over the kept rows, in the range of values: at most 1 each."""
        counts, shown, totals = self.groups
        kept = np.maximum(totals - self.lost, sd)  # no error is more than the range
        whole = Shown(counts, shown, np.ones(len(counts)))
        off = norms(whole, APART * self.lost / totals, sd / kept)
        return Errors(float(counts @ shown), *off, self.cut)


@lru_cache(maxsize=1)  # errors beside all totals and beside bounded ones are asked for in turn
def left_out(
    stream: ExpectedStream, settings: Settings, test: Threshold, triggers: int, base: float
) -> LeftOut:
    """What the last release shows: see `errors_of`."""
    drawn = draw_stream(replace(stream, clamped=0.0, ratio=False))
    steps, asked = triggers, test.units
    totals, counts, reference = drawn.totals, drawn.counts, settings.reference
    if settings.kind == "table":
        reference /= 1 + LUCK * base / asked
    growth = np.maximum(1, totals / reference) ** (1 / 3)
    growth = settings.entry / np.maximum(1, np.floor(settings.entry / growth))
    limits = np.array(
        [settings.quadratic, settings.slots or inf, settings.per_group, settings.max_rows,
         settings.entered]
    )  # fmt: skip
    step = np.ceil(drawn.time * steps)
    new, public = drawn.new, settings.kind == "public"
    # at first, as if nothing were shown or cut
    middle = asked / (averaged(drawn, drawn.all_rows) if public else drawn.share_of_first)
    for _ in range(ROUNDS):
        opens = np.minimum(np.ceil(steps * middle / totals), steps + 1.0)
        hidden, weight = hide(drawn.place, step, opens, 1 / growth)
        kept, entered = admit(drawn.ends, drawn.first, hidden, weight, limits)
        if public:
            break
        counted = entered if settings.kind == "table" else kept
        if settings.kind == "gaussian":
            counted = kept & new
        middle = asked / np.maximum(averaged(drawn, counted, hidden), 0.002)
    share = averaged(drawn, ~kept)
    lost = totals * (share + (1 - share) * stream.clamped)
    if settings.kind == "table":
        if settings.max_rows < inf:  # units that have used up their rows open nothing more
            middle = asked / averaged(drawn, entered)
        shown = 1 / (1 + (middle / totals) ** SLOPE)
    elif settings.kind == "totals":
        shown = erfc((asked - totals + lost) / (test.deviation * sqrt(2))) / 2
    elif settings.kind == "gaussian":
        units = totals * averaged(drawn, kept & new)
        shown = erfc((asked - units) / (test.deviation * sqrt(2))) / 2
    else:
        shown = np.ones(len(totals))
    late = np.clip(1 - opens / steps, 0, 1)  # of the releases with falling weights
    more = np.sqrt(1 + (growth**2 - 1) * late)
    cut = float(drawn.weight[~kept].sum() / drawn.of_all[1])
    people = None
    if test.people:
        units, without = totals * drawn.share_of_first, totals * averaged(drawn, new & ~kept)
        people = LeftOut(Shown(counts, shown, units), without, more, cut, None)
    return LeftOut(Shown(counts, shown, totals), lost, more, cut, people)


def norms(
    groups: Shown, lost: Float64[Array, " classes"], sd: Float64[Array, " classes"]
) -> tuple[float, float, float]:
    """The largest, l1 and l2 error of totals that lack what is lost and have such noise."""
    counts, shown, totals = groups
    about = np.exp(-(lost**2) / (2 * sd**2))
    near = sd * sqrt(2 / pi) * about + lost * erf(lost / (sd * sqrt(2)))
    far = lost + sd * np.sqrt(2 * np.log(1 + counts))
    return (
        float(np.maximum(shown * far, (1 - shown) * totals).max()),
        float((counts * (shown * near + (1 - shown) * totals)).sum()),
        sqrt(float((counts * (shown * (sd**2 + lost**2) + (1 - shown) * totals**2)).sum())),
    )


def averaged(
    drawn: Drawn, rows: Bool[Array, " rows"], among: Bool[Array, " rows"] | None = None
) -> Float64[Array, " classes"]:
    """The share of such rows among some, by class of groups, averaged over classes of like sizes.

    Where a class has few of these, the share over all classes counts as `FEW` more.
    """
    if among is None:
        number, (whole, total) = len(rows), drawn.of_all
    else:
        number, (whole, total) = int(np.count_nonzero(among)), weighed(drawn, among)
        rows = rows & among
    held, part = weighed(drawn, rows)
    few, share = FEW * total / max(number, 1), part / max(total, 1e-9)
    return np.asarray((held + few * share) / np.maximum(whole + few, 1e-9))


def weighed(
    drawn: Drawn, rows: Bool[Array, " rows"]
) -> tuple[Float64[Array, " classes"], np.float64]:
    """The weight of some rows: by class, together with classes of like sizes, and of all."""
    each, together = in_classes(drawn.place, drawn.weight, rows, len(drawn.totals))
    return drawn.near @ together, each.sum()


@njit(cache=True)  # type: ignore[untyped-decorator]  # numba is untyped
def in_classes(
    place: Int64[Array, " rows"],
    weight: Float64[Array, " rows"],
    rows: Bool[Array, " rows"],
    classes: int,
) -> tuple[Float64[Array, " rows"], Float64[Array, " classes"]]:
    """The weights of such rows, 0 for others, and their sums by class."""
    each, together = np.zeros(len(place)), np.zeros(classes)
    for i in range(len(place)):
        if rows[i]:
            each[i] = weight[i]
            together[place[i]] += weight[i]
    return each, together


@njit(cache=True)  # type: ignore[untyped-decorator]  # numba is untyped
def hide(
    place: Int64[Array, " rows"],
    step: Float64[Array, " rows"],
    opens: Float64[Array, " classes"],
    shown: Float64[Array, " classes"],
) -> tuple[Bool[Array, " rows"], Float64[Array, " rows"]]:
    """Whether a row comes before its group opens, and its weight: 1, or later its group's."""
    hidden, weight = np.zeros(len(place), np.bool_), np.ones(len(place))
    for i in range(len(place)):
        hidden[i] = step[i] <= opens[place[i]]
        if not hidden[i]:
            weight[i] = shown[place[i]]
    return hidden, weight


@njit(cache=True)  # type: ignore[untyped-decorator]  # numba is untyped
def admit(
    ends: Int64[Array, " units"],
    first: Int64[Array, " rows"],
    hidden: Bool[Array, " rows"],
    weight: Float64[Array, " rows"],
    limits: Float64[Array, " 5"],
) -> tuple[Bool[Array, " rows"], Bool[Array, " rows"]]:
    """Bounding: kept rows, and rows that count for the selection of their group if it is hidden.

    Limits: the quadratic bound in entry weights, slots (which bound what the selection counts and
    not what is kept), rows in a group, rows, groups.
    """
    quadratic, slots, per_group, max_rows = limits[0], limits[1], limits[2], limits[3]
    most = limits[4]
    kept, entered = np.zeros(len(first), np.bool_), np.zeros(len(first), np.bool_)
    held, inside = np.zeros(len(first)), np.zeros(len(first))
    at = 0
    for end in ends:
        spent, used, rows, groups = 0.0, 0.0, 0.0, 0.0
        for i in range(at, end):
            f = first[i]
            cost = weight[i] * (2 * held[f] + weight[i])
            if spent + cost > quadratic * (1 + 1e-9):
                continue
            if inside[f] >= per_group or rows >= max_rows:
                continue
            if inside[f] == 0 and groups >= most:
                continue
            kept[i], spent, rows = True, spent + cost, rows + 1
            groups += inside[f] == 0
            if inside[f] == 0 and used < slots:
                entered[i] = True
                used += hidden[i]
            held[f] += weight[i]
            inside[f] += 1
        at = end
    return kept, entered
