"""What a count would err by on streams that one may expect: for choosing its settings.

Nothing here reads data. A stream is a law of rows per unit, of groups and of repeated groups, drawn
from fixed numbers; its errors under some settings follow from the noise of the mechanisms.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import exp, inf, log, pi, sqrt
from typing import Any

import numpy as np
from numba import njit
from scipy.special import erf

from streamveil.errors import PlanError
from streamveil.types import Array, Bool, Float64, Int64

UNITS = 1_000  # drawn from a law, each standing for the same number of rows
MOST_ROWS = 1_000  # of one drawn unit
CLASSES = 240  # of groups of about equal size
BINS = 8  # of group sizes, for the share of dropped rows
SLOPE = 6.0  # how sharply the chance to be shown rises around its middle
LUCK = 1.2  # deviations by which the largest forecast of a total so far exceeds the total
CAUTION = 2.0  # deviations by which totals are taken too low where groups are public
GOLDEN = 0x9E3779B97F4A7C15
STEEP, HEAVY, REPEATS = (1.2, 1.6), (3.2, 8.0), (0.0, 0.3)  # see `Outlook.family`
UNKNOWN_OPENING = 8.0  # where every group is shown from the start: the unit of references
EXPECTED = (
    "expected_units",
    "expected_rows",
    "expected_most_rows",
    "expected_groups",
    "expected_repeats",
)
USUAL_UNITS, ROWS_OF_A_GROUP = 1e6, 50.0  # where only the rows of a unit are expected
MOST_REPEATS = 0.95
MOST_OF_UNITS = 0.99  # what `most` is a quantile of


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """A stream that one may expect within one scope of a unit.

    A unit has n rows, weight (n + b)^-heavy with b from the mean; a row has the group of rank k,
    weight (k + groups / 1000)^-steep, or with chance `repeats` a group its unit had before.
    """

    units: float
    rows: float  # of one unit, on average
    groups: int
    most: float | None = None  # rows that 99 of 100 units do not exceed, if known
    again: float | None = None  # share of rows that repeat a group of their unit, if known
    steep: float = 1.4
    heavy: float = 5.0
    repeats: float = 0.0

    def family(self) -> tuple[Outlook, ...]:
        """The same sizes with other shapes: flat and steep, even and heavy, with repeats or not.

        Shapes are rarely known beforehand: settings are chosen for all of these together.
        """
        tails = HEAVY if self.most is None else (tail_of(self.rows, self.most),)
        again = REPEATS if self.again is None else (self.again,)
        return tuple(
            replace(self, steep=steep, heavy=heavy, repeats=repeats)
            for steep, heavy, repeats in product(STEEP, tails, again)
        )


def expected(options: Mapping[str, Any], windows: int) -> Outlook | None:
    """The stream that the options of a query expect in one scope of a unit; None: they do not."""
    rows = options.get("expected_rows")
    if rows is None:
        return None
    numbers = {name: options.get(name) for name in EXPECTED}
    for name, number in numbers.items():
        low, high = (0, MOST_REPEATS) if name == "expected_repeats" else (1, 10**12)
        if number is not None and not low <= float(number) <= high:
            raise PlanError(f"{name} must be a number between {low} and {high:,}")
    most, again = numbers["expected_most_rows"], numbers["expected_repeats"]
    if most is not None and most < rows:
        raise PlanError("expected_most_rows must be at least expected_rows, a mean")
    units = float(numbers["expected_units"] or USUAL_UNITS)
    groups = float(numbers["expected_groups"] or max(10.0, units * rows / ROWS_OF_A_GROUP))
    return Outlook(
        units=units,
        rows=max(float(rows), 1.01),
        groups=max(2, round(groups * windows)),
        most=None if most is None else float(most),
        again=None if again is None else float(again),
    )


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is to be chosen for a table selection with weights."""

    rows: float  # rows in different small groups that one unit may have: bound / entry_weight**2
    slots: int  # groups not yet shown that one unit may enter
    share: float  # of mu, for the values
    reference: float  # total up to which a group keeps its entry weight


@dataclass(frozen=True, kw_only=True)
class Noise:
    """The public numbers of the mechanisms that settings work on."""

    mu: float  # of all Gaussian releases, were they alone
    spread: float  # deviation at the last release of a counter of sensitivity and mu one
    half: float  # units that show half of all groups, with two slots and a share of 2/3; or 0

    def opening(self, slots: int, share: float) -> float:
        """`half` for other slots and shares, within 10 % of the designs that it stands for.

        As if the selection were a Gaussian test on sqrt(slots) moves with what is left of mu.
        """
        if not self.half:
            return 0.0
        return self.half * float((slots / 2) ** 0.6 * sqrt((5 / 9) / (1 - share**2)))


@dataclass(frozen=True)
class Errors:
    """Expected errors over all groups at the last release."""

    keys: float
    linf: float
    l1: float
    l2: float


@dataclass(frozen=True)
class Drawn:
    """Rows of the drawn units, unit after unit in order of time, and the law of the groups."""

    ends: Int64[Array, " units"]
    size: Float64[Array, " rows"]  # expected total of the row's group
    first: Int64[Array, " rows"]  # the unit's first row in the same group
    time: Float64[Array, " rows"]  # 0..1
    weight: Float64[Array, " rows"]  # rows of the stream that it stands for
    totals: Float64[Array, " classes"]
    counts: Float64[Array, " classes"]


def mixed_uniform(n: int, salt: int) -> Float64[Array, " n"]:
    """Fixed numbers in (0, 1) without visible pattern (the finalizer of SplitMix64)."""
    word = np.arange(1, n + 1, dtype=np.uint64) * np.uint64(GOLDEN) + np.uint64(salt)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        word = (word ^ (word >> np.uint64(shift))) * np.uint64(factor)
    return np.asarray((((word ^ (word >> np.uint64(31))) >> np.uint64(11)) + 0.5) / 2.0**53)


def group_law(outlook: Outlook) -> tuple[Float64[Array, " classes"], Float64[Array, " classes"]]:
    """Expected totals of classes of groups, and how many groups each holds."""
    edges = np.unique(np.round(np.geomspace(1, outlook.groups + 1, CLASSES)))
    low, high = edges[:-1], edges[1:]
    shift, power = outlook.groups / 1000 + 0.5, 1 - outlook.steep
    mass = ((high + shift) ** power - (low + shift) ** power) / power  # integral over the ranks
    totals = outlook.units * outlook.rows * mass / mass.sum()
    return totals / (high - low), high - low


def row_law(rows: float, heavy: float) -> Float64[Array, " sizes"]:
    """Share of units with n = 1, 2, ... rows."""
    n = np.arange(1, MOST_ROWS + 1)

    def law(shift: float) -> Float64[Array, " sizes"]:
        weights = np.exp(-heavy * np.log((n + shift) / (1 + shift)))
        return np.asarray(weights / weights.sum())

    low, high = -6.0, 16.0  # log of 1 + shift
    for _ in range(40):
        middle = (low + high) / 2
        mean = float((law(exp(middle) - 1) * n).sum())
        low, high = (middle, high) if mean < rows else (low, middle)
    return law(exp(high) - 1)


@lru_cache(maxsize=64)
def tail_of(rows: float, most: float) -> float:
    """The exponent with which 99 of 100 units have at most so many rows."""
    low, high = log(2.05), log(50.0)
    for _ in range(20):
        middle = (low + high) / 2
        within = float(row_law(rows, exp(middle))[: int(most)].sum())
        low, high = (middle, high) if within < MOST_OF_UNITS else (low, middle)
    return exp(high)


@lru_cache(maxsize=64)
def draw_stream(outlook: Outlook) -> Drawn:
    """Units chosen in proportion to their rows, so that heavy ones are well represented."""
    law = row_law(outlook.rows, outlook.heavy) * np.arange(1, MOST_ROWS + 1)
    edges = np.cumsum(law) / law.sum()
    middles = (np.arange(UNITS) + 0.5) / UNITS
    lengths = np.minimum(np.searchsorted(edges, middles), MOST_ROWS - 1) + 1
    ends = np.cumsum(lengths)
    n, start = int(ends[-1]), np.repeat(ends - lengths, lengths)
    place = np.arange(n) - start
    totals, counts = group_law(outlook)
    mass = np.cumsum(totals * counts)
    which = np.searchsorted(mass, mixed_uniform(n, 1) * mass[-1], side="right")
    source = np.where(mixed_uniform(n, 2) < outlook.repeats, start + (
        mixed_uniform(n, 3) * place).astype(np.int64), np.arange(n))  # fmt: skip
    for _ in range(int(lengths.max()).bit_length()):
        source = source[source]
    per_unit = outlook.units * outlook.rows / UNITS
    return Drawn(
        ends, totals[np.minimum(which, len(totals) - 1)][source], source,
        (place + 0.5) / np.repeat(lengths, lengths), per_unit / np.repeat(lengths, lengths),
        totals, counts,
    )  # fmt: skip


def errors(outlook: Outlook, settings: Settings, noise: Noise) -> Errors:
    """The expected errors of a count with some settings."""
    opening = noise.opening(settings.slots, settings.share)
    base = noise.spread * sqrt(settings.rows) / (noise.mu * settings.share)
    return errors_of(outlook, settings, base, opening)


def errors_of(outlook: Outlook, settings: Settings, base: float, opening: float) -> Errors:
    """The expected errors of a count whose small groups have noise `base` at the last release.

    Error: a group of total T is shown with chance 1 / (1 + (middle / T)^6), where the middle is
        the number of rows that bring as many accepted units as the selection asks for. A shown
        group errs by its dropped rows and by Gaussian noise that grows as the cube root of its
        total beyond the reference; a hidden one by its total. Where all groups are public, the
        middle is where a weight starts to fall.
    """
    drawn = draw_stream(outlook)
    middle, reference, slots = CAUTION * base, settings.reference, inf
    if opening:
        middle, slots = 1.3 * opening, float(settings.slots)
        reference = settings.reference / (1 + LUCK * base / opening)
    limits = np.array([settings.rows, slots, reference, middle])
    kept, entered = admit(drawn.ends, drawn.size, drawn.first, drawn.time, limits)
    for _ in range(2 * (opening > 0)):
        hidden = drawn.size * drawn.time < middle
        share = drawn.weight[entered].sum() / max(drawn.weight[hidden].sum(), 1e-9)
        limits[3] = middle = opening / max(float(share), 0.02)
        kept, entered = admit(drawn.ends, drawn.size, drawn.first, drawn.time, limits)
    totals, counts = drawn.totals, drawn.counts
    lost = totals * dropped(drawn, kept, middle)
    shown = 1 / (1 + (middle / totals) ** SLOPE) if opening else np.ones(len(totals))
    sd = base * np.maximum(1, totals / reference) ** (1 / 3)
    near = sd * sqrt(2 / pi) * np.exp(-(lost**2) / (2 * sd**2)) + lost * erf(lost / (sd * sqrt(2)))
    far = lost + sd * np.sqrt(2 * np.log(1 + counts))
    return Errors(
        float((counts * shown).sum()),
        float(np.maximum(shown * far, (1 - shown) * totals).max()),
        float((counts * (shown * near + (1 - shown) * totals)).sum()),
        sqrt(float((counts * (shown * (sd**2 + lost**2) + (1 - shown) * totals**2)).sum())),
    )


def dropped(drawn: Drawn, kept: Bool[Array, " rows"], middle: float) -> Float64[Array, " classes"]:
    """Share of rows that bounding drops, by class of groups; read off for bins of sizes."""
    size = np.log(drawn.size)
    edges = np.quantile(size[drawn.size > middle], np.linspace(0, 1, BINS + 1)) if (
        drawn.size > middle).any() else np.array([0.0, 1.0])  # fmt: skip
    place = np.clip(np.searchsorted(edges, size) - 1, 0, len(edges) - 2)
    whole = np.bincount(place, drawn.weight, len(edges) - 1)
    held = np.bincount(place, drawn.weight * kept, len(edges) - 1)
    share = 1 - held / np.maximum(whole, 1e-9)
    return np.asarray(np.interp(np.log(drawn.totals), (edges[1:] + edges[:-1]) / 2, share))


@njit(cache=True)  # type: ignore[untyped-decorator]  # numba is untyped
def admit(
    ends: Int64[Array, " units"],
    size: Float64[Array, " rows"],
    first: Int64[Array, " rows"],
    time: Float64[Array, " rows"],
    limits: Float64[Array, " 4"],
) -> tuple[Bool[Array, " rows"], Bool[Array, " rows"]]:
    """Bounding with the weights that groups of their size get: kept rows, entered hidden groups.

    Weights count in entry weights, so the quadratic bound is `limits[0]`.
    """
    rows, slots, reference, middle = limits[0], limits[1], limits[2], limits[3]
    kept, entered = np.zeros(len(size), np.bool_), np.zeros(len(size), np.bool_)
    held = np.zeros(len(size))
    at = 0
    for end in ends:
        spent, used = 0.0, 0.0
        for i in range(at, end):
            f = first[i]
            hidden = size[i] * time[i] < middle
            weight = 1.0
            if not hidden and size[i] > reference:
                weight = (reference / size[i]) ** (1 / 3)
            cost = weight * (2 * held[f] + weight)
            if spent + cost > rows:
                continue
            kept[i], spent = True, spent + cost
            held[f] += weight
            if hidden and held[f] == weight and used < slots:
                entered[i] = True
                used += 1
        at = end
    return kept, entered


ROWS: tuple[float, ...] = tuple(
    round(2.0 ** (place / 3), 1) for place in range(1, 31)
)  # 1.3 to 1,024
REFERENCES = tuple(round(2.0 ** (place / 2), 2) for place in range(-2, 13))  # times the opening
SHARES = (0.5, 0.55, 0.6, 0.64, 0.68, 0.72, 0.76, 0.8)
Place = tuple[int, int, int, int]  # in the four grids
SLOTS = (1, 2, 3, 4, 5, 6)
MOVES = ((1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1), (1, 1, 0, 0), (1, 2, 0, 0))


def regret(outlooks: tuple[Outlook, ...], settings: Settings, noise: Noise) -> float:
    """The mean log of l1 over some streams: a percent counts the same in each."""
    return sum(log(errors(outlook, settings, noise).l1) for outlook in outlooks) / len(outlooks)


@lru_cache(maxsize=64)
def choose(outlook: Outlook, noise: Noise) -> Settings:
    """The settings with the least mean log error over the family: descent on a grid."""
    family = outlook.family()
    place = (9, 5, 4, 1)
    known: dict[Place, float] = {}

    def cost(at: Place) -> float:
        if at not in known:
            known[at] = regret(family, settings_at(at, noise), noise)
        return known[at]

    for step in (2, 1):
        best = min(neighbours(place, step), key=cost)
        while cost(best) < cost(place):
            place = best
            best = min(neighbours(place, step), key=cost)
    return settings_at(place, noise)


def choose_flat(outlook: Outlook, noise: Noise) -> int:
    """The bound in squared rows with the least mean log error where no group has a weight."""
    family, shown = outlook.family(), replace(noise, half=0.0)

    def cost(rows: float) -> float:
        flat = Settings(rows=rows, slots=SLOTS[-1], share=1.0, reference=inf)
        return regret(family, flat, shown)

    best = min((rows for rows in ROWS if rows >= 2), key=cost)
    return round(float(best))


def neighbours(place: Place, step: int) -> Iterator[Place]:
    """Places near one, both ways along every move."""
    lengths = (len(ROWS), len(REFERENCES), len(SHARES), len(SLOTS))
    for move in MOVES:
        for way in (-step, step):
            near = [at + way * by for at, by in zip(place, move, strict=True)]
            if all(0 <= at < length for at, length in zip(near, lengths, strict=True)):
                yield near[0], near[1], near[2], near[3]


def settings_at(place: Place, noise: Noise) -> Settings:
    """The settings of a place in the grid."""
    rows, reference, share, slots = place
    part = SHARES[share] if noise.half else 1.0
    opening = noise.opening(SLOTS[slots], part) or UNKNOWN_OPENING
    return Settings(
        rows=ROWS[rows], slots=SLOTS[slots], share=part, reference=REFERENCES[reference] * opening
    )
