"""Numbers from noisy histograms over privacy units: post-processing, each with its interval."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from streamveil.compiled import ndtri
from streamveil.compiler.by_unit import even_groups
from streamveil.compiler.expected_stream import (
    MOST_REPEATS,
    drawn_lengths,
    expected,
    mean_rows,
    tail_of,
)
from streamveil.compiler.group_sizes import Units, likely_laws
from streamveil.compiler.unit_sizes import (
    BESIDE,
    OUTSTANDING,
    ROW_EDGES,
    ROW_ENDS,
    TOLD,
    SeenUnits,
    fitted_units,
    outstanding,
)
from streamveil.compiler.value_sizes import POWERS, ValueSizes, tails
from streamveil.plan.look import CONCENTRATION, HISTOGRAM, LAWS, MANY_ROWS, VALUES
from streamveil.plan.options import (
    EXPECTED_MOST_ROWS,
    EXPECTED_REPEATS,
    EXPECTED_ROWS,
    EXPECTED_UNITS,
)
from streamveil.types import Array, Bool, Float64, Int64

SHARES = 1  # which histogram holds shares; 0 holds units by rows
SHARE_QUANTA = 256  # of the share of rows that repeat a group, or of its logarithm: see `by_rows`
MANY = ROW_EDGES > MANY_ROWS  # bins of units of which concentration is told
ROWS = (ROW_EDGES + ROW_ENDS) / 2  # the number of rows that stands for a bin
VALUE_EDGES = 2.0 ** np.arange(-20, 41)
SIGNED_EDGES = np.concatenate([-POWERS[::-1], [0.0], POWERS])
LOOKS = 400  # sums of bins that are compared with their noise, at most
DEVIATIONS = float(-ndtri(0.05 / LOOKS / 2))  # all these sums are within so many, with 95 %
BEYOND = 0.01  # share of units that may have more rows than counted
PAIR = 2  # the fewest rows of which one can repeat a group
LENGTHS = 16  # rows of so many units stand for all
TELLING = 0.05  # share of units that stands out where the histogram tells the law of rows
CERTAIN = float(-ndtri(1e-9 / (len(SIGNED_EDGES) + 1)))  # no bin exceeds it by noise alone
TOGETHER = (2, 4, 8, 16)  # bins of values side by side that are added up
ZERO = len(POWERS) + 1  # the bin of 0 and of all that is smaller than sizes
OF_ZERO = np.isin(np.arange(len(SIGNED_EDGES) + 1), (len(POWERS), len(POWERS) + 1))
FEWEST = 5.0  # deviations of all units together below which nothing is said
VAGUE = 2.5  # no choice rests on a mean whose upper end is so many times its lower one


class Measured(NamedTuple):
    """A number with its interval; all intervals of a survey hold together with 95 %."""

    value: float
    low: float
    high: float

    @property
    def sure(self) -> bool:
        """Whether a choice may rest on it."""
        return self.high <= VAGUE * self.low


@dataclass(frozen=True)
class Learned:
    """The results of a survey, with intervals; None where the noise hides a number."""

    units: Measured | None = None
    rows: Measured | None = None  # of one unit, on average; more than `cap` count as `cap`
    most: Measured | None = None  # rows that 99 of 100 units do not exceed
    repeats: Measured | None = None  # share of rows that repeat a group of their unit
    high: Measured | None = None  # what 99 of 100 values do not exceed
    cap: float | None = None  # rows that at most 1 of 100 units exceed, in any case
    likely: dict[str, Any] = field(default_factory=dict)  # options by bins above the noise
    bounds: dict[str, tuple[float, float]] = field(default_factory=dict)  # outermost, of values
    sizes: dict[str, ValueSizes] = field(default_factory=dict)  # of the same
    ends: dict[str, tuple[float, float]] = field(default_factory=dict)  # that types give: public
    seen: SeenUnits | None = None  # where something is known of them

    @property
    def sure(self) -> bool:
        """Whether the noise leaves enough to choose from."""
        return self.rows is not None and self.rows.sure

    @property
    def numbers(self) -> list[tuple[str, Measured]]:
        """All known numbers, under the names of options where there are such."""
        named = {
            EXPECTED_UNITS.name: self.units, EXPECTED_ROWS.name: self.rows,
            EXPECTED_MOST_ROWS.name: self.most, EXPECTED_REPEATS.name: self.repeats,
            "99 of 100 values at most": self.high,
        }  # fmt: skip
        return [(name, found) for name, found in named.items() if found is not None]

    @property
    def options(self) -> dict[str, float]:
        """The numbers as options of a query; none where a choice would follow the noise."""
        known = {name: found.value for name, found in self.numbers if name.startswith("expected")}
        return known if self.sure else {}


class BinsOf(NamedTuple):
    """The things that noisy bins count; settings."""

    expressions: tuple[str, ...] = ()  # without bounds
    whole: tuple[str, ...] = ()  # those whose values have no fractions
    summed: str | None = None  # the one that is summed with bounds
    times: int = 1  # so many units stand for each that was counted


def learned(sigma: float, asked: BinsOf, *noisy: Int64[Array, " bins"]) -> Learned:
    """Post-processing: all numbers from noisy bins.

    Bins of values without bounds come after the shapes, then the numbers of groups by size, and the
    rows in buckets. Bins of a sample become those of all units, with more noise; its groups stay
    those of its rows, and laws are fitted to them as to all.
    """
    (expressions, whole, summed, times), (*counted, sizes, buckets) = asked, noisy
    bins, of_groups, sigma = [times * some for some in counted], sigma, times * sigma
    shapes, signed = bins[: len(bins) - len(expressions)], bins[len(bins) - len(expressions) :]
    known = likely(shapes, sigma)
    bounds, valued, seen = {}, {}, None
    for text, ballots in zip(expressions, signed, strict=True):
        found = values_by_size(ballots, sigma, known, whole=text in whole)
        if found is not None:
            bounds[text], valued[text] = found
    if known and tells(known[EXPECTED_UNITS.name], sigma):
        known[HISTOGRAM] = by_rows = histogram_of(shapes, sigma)
        known[EXPECTED_ROWS.name] = mean = max(1.0, float(f"{mean_rows(tuple(by_rows)):.3g}"))
        known[EXPECTED_MOST_ROWS.name] = max(known[EXPECTED_MOST_ROWS.name], mean)
    if known:
        together = concentration_of(shapes, sigma)
        known |= {} if together is None else {CONCENTRATION: together}
        units = units_of(known, shapes, sigma)
        seen = SeenUnits(shapes[0], sigma, times, units.repeats, units.off)
        units = units._replace(number=units.number / times)
        known[LAWS] = likely_laws(sizes, buckets, units, of_groups)
        every = {text: float(f"{one.mean:.3g}") for text, one in valued.items()}
        if summed is not None:
            every[summed] = mean_size(shapes[2], VALUE_EDGES, sigma)
        known[VALUES] = {text: size for text, size in every.items() if size}
    return replace(
        learn(shapes, sigma, times), likely=known, bounds=bounds, sizes=valued, seen=seen
    )


def signed_bins(sizes: Float64[Array, " units"]) -> Int64[Array, " bins"]:
    """Counts of values: below all edges, between each two, from the last one on."""
    place = np.searchsorted(SIGNED_EDGES, sizes, side="right")
    return np.bincount(place, minlength=len(SIGNED_EDGES) + 1).astype(np.int64)


def two_ballots(
    sizes: Float64[Array, " units"], other: Bool[Array, " units"]
) -> Int64[Array, " bins"]:
    """Counts of values of the middle row of each unit, then of the `other` rows of those with 0."""
    return np.concatenate([signed_bins(sizes[~other]), signed_bins(sizes[other])])


def by_size(
    noisy: Int64[Array, " bins"], sigma: float
) -> tuple[Int64[Array, " bins"], float, float | None, bool]:
    """From two ballots: bins of sizes, their noise, the share of rows with one, and if 0 occurs.

    If the second ballot has so many units that both together stand out better, bins are of values
    other than 0, and the first ballot gives the share of rows that have one (None: noise hides it).
    Otherwise bins are those of the first ballot, with 0 for the units of the second (share 1).
    Once in 40 times, 0 is said to occur when it does not, which widens bounds of a mean to 0; a 0
    that is missed would move the mean. Units of the second ballot are searched at the sizes that
    either ballot shows.

    >>> for own in (50, 160, 350, 360):
    ...     sizes = np.array([3.0] * 360 + [0.0] * 500)
    ...     bins = two_ballots(sizes, (np.arange(860) >= own) & (sizes > 0))
    ...     spread, share, zero = by_size(bins, 10.0)[1:]
    ...     print(round(spread, 1), share and round(share, 3), zero)
    14.1 None True
    14.1 0.186 True
    10.0 1.0 False
    10.0 1.0 False
    """
    first, second = np.split(noisy, 2)
    shown, also = (holding_values(some, sigma) & ~OF_ZERO for some in (first, second))
    sized, others = first[shown].sum(), second[shown | also].sum()
    zero = bool(others > BESIDE * sigma * (shown | also).sum() ** 0.5)
    if sized and sized + others < 2**0.5 * sized:
        bins = first.copy()
        bins[ZERO] += others if zero else 0
        return bins, sigma, 1.0, zero
    share = float(sized / (sized + others + max(first[ZERO], 0))) if sized else None
    return np.where(OF_ZERO, 0, first + second), sigma * 2**0.5, share, True


def values_by_size(
    ballots: Int64[Array, " bins"], sigma: float, known: dict[str, Any], *, whole: bool
) -> tuple[tuple[float, float], ValueSizes] | None:
    """The bounds of values, and their sizes; None where noise hides them.

    If middle rows show nothing but 0, a unit with another value has at least one such row, and
    hardly more.
    """
    bins, spread, share, zero = by_size(ballots, sigma)
    found, rows = likely_bounds(bins, spread), known.get(EXPECTED_ROWS.name, 1.0)
    if found is None:
        return None
    sizes = value_sizes(bins, spread, rows, whole=whole)
    if share is None:
        share = sizes.units / (known.get(EXPECTED_UNITS.name, sizes.units) * rows)
    bounds = (min(found[0], 0.0), max(found[1], 0.0)) if zero else found
    return bounds, replace(sizes, share=min(share, 1.0))


def value_sizes(
    noisy: Int64[Array, " bins"], sigma: float, rows: float, *, whole: bool
) -> ValueSizes:
    """The number of units with values of each size, with tails beyond what is seen, by laws."""
    seen = np.where(holding_values(noisy, sigma), noisy, 0).astype(np.float64)
    below, above = slice(len(POWERS), None, -1), slice(len(POWERS) + 1, None)
    found = [tails(noisy[side], seen[side], sigma, whole=whole) for side in (below, above)]
    pairs = zip(found[0].strata(rows), found[1].strata(rows), strict=True)
    likely = tuple(ValueSizes(low, high, whole=whole) for low, high in pairs)
    return ValueSizes(
        found[0].mean(rows), found[1].mean(rows), whole=whole, unseen=CERTAIN * sigma, likely=likely
    )


def mean_size(noisy: Int64[Array, " bins"], edges: Array, sigma: float) -> float:
    """The mean absolute size of values, by bins between edges of that size.

    0 where no bin stands out of the noise.

    >>> bins = signed_bins(np.array([3.0] * 500 + [-0.3] * 500))
    >>> mean_size(bins, np.abs(SIGNED_EDGES), 10.0)
    1.83
    """
    ends = np.sqrt(np.append(edges[0], edges) * np.append(edges, edges[-1]))
    counts = np.where(outstanding(noisy, sigma), noisy, 0)
    return float(f"{float((counts * ends).sum()) / max(int(counts.sum()), 1):.3g}")


def likely_bounds(noisy: Int64[Array, " bins"], sigma: float) -> tuple[float, float] | None:
    """The ends of the outermost bins that hold values; None where none but 0 stands out of noise.

    A far bin of noise alone would widen the bounds, and so the noise: that happens once in 10^8.
    Where only 0 stands out, noise hides how large other values are: bounds about 0 would clamp them
    all.

    >>> bins = signed_bins(np.array([3.0] * 500 + [-0.3] * 500))
    >>> low, high = likely_bounds(bins, 10.0)
    >>> round(low, 3), high
    (-0.354, 4.0)
    """
    holding = holding_values(noisy, sigma)
    standing = np.flatnonzero(holding)
    if not holding[~OF_ZERO].any():
        return None
    edges = np.concatenate([SIGNED_EDGES[:1], SIGNED_EDGES, SIGNED_EDGES[-1:]])
    low, high = float(edges[standing[0]]), float(edges[standing[-1] + 1])
    return (low, high) if low < high else (-abs(low), abs(high))


def holding_values(noisy: Int64[Array, " bins"], sigma: float) -> Bool[Array, " bins"]:
    """Bins of values that stand out; if only that of 0 does, bins that stand out together.

    These are among the fewest adjacent bins that hold more than noise: those above it, or all.

    >>> bins = signed_bins(np.array([0.0] * 900 + [3.0] * 60 + [5.0] * 60))
    >>> outstanding(bins, 10.0, CERTAIN).sum(), holding_values(bins, 10.0).sum()
    (np.int64(1), np.int64(3))
    """
    sized = np.where(OF_ZERO, 0, noisy)
    if outstanding(sized, sigma, CERTAIN).any():
        return outstanding(noisy, sigma, CERTAIN)
    zero = OF_ZERO & (noisy > CERTAIN * sigma)
    for width in TOGETHER:
        sums = np.convolve(sized, np.ones(width), mode="valid")
        begins = np.flatnonzero(sums > CERTAIN * width**0.5 * sigma)
        if len(begins):
            near = np.zeros(len(noisy), np.bool_)
            near[np.unique(begins[:, None] + np.arange(width))] = True
            near &= ~OF_ZERO
            above = near & (noisy > BESIDE * sigma)
            return np.asarray(zero | (above if above.any() else near))
    return zero


def learn(noisy: list[Int64[Array, " bins"]], sigma: float, times: int = 1) -> Learned:
    """Numbers with intervals from noisy bins, of a sample `times` as small as all units.

    Proof: each result is a sum of bins, or a ratio of two, at one of fewer than `LOOKS` places
        (bins up to which rows are distinguished, tails whose share is computed). Each misses by
        more than DEVIATIONS of its own noise with probability 0.05 / LOOKS, so none does with
        95 %, whichever places the noise chose. A ratio w / n lies between r and s when w - r n and
        w - s n, sums of bins again, have opposite signs beyond their noise. The ends also allow for
        sizes anywhere within their bins. Means cap rows where at most 1 of 100 units has more, and
        so does the share of rows that repeat a group: the few rows beyond drown in the noise of
        empty bins. A sample adds the variance of its draw to each bin (`variances`), and noise and
        draw together are about Gaussian. Shares take the variance of units: for 0 <= s <= 1 the
        square of s w - r n is at most w^2 + (r n)^2.
    """
    total = float(noisy[0].sum())
    if total < FEWEST * sigma * len(noisy[0]) ** 0.5:
        return Learned()
    spread = variances(noisy[0], sigma, times)
    most = _quantile(noisy[0], ROW_ENDS, ROW_EDGES, spread)
    off = DEVIATIONS * float(spread.sum()) ** 0.5
    units = Measured(float(f"{total:.3g}"), total - off, total + off)
    high = None
    if len(noisy) > 2:
        above = np.append(VALUE_EDGES, 2 * VALUE_EDGES[-1])
        by_value = variances(noisy[2], sigma, times)
        high = _quantile(noisy[2], above, np.append(0.0, VALUE_EDGES), by_value)
    if most is None:
        return Learned(units=units, high=high)
    low, top = np.minimum(ROW_EDGES, most.high), np.minimum(ROW_ENDS, most.high)
    repeats = _share(noisy[0], noisy[SHARES] / SHARE_QUANTA, (low, top), spread)
    rows = _mean(noisy[0], low, top, spread)
    if rows is not None:
        rows = Measured(round(max(rows.value, 1.0), 2), max(rows.low, 1.0), max(rows.high, 1.0))
    return Learned(units, rows, most, repeats, high, most.high)


def variances(noisy: Int64[Array, " bins"], sigma: float, times: int) -> Float64[Array, " bins"]:
    """The variances of bins, from noise and the draw of a sample; rather too large.

    A bin of n units, of which one in `times` was drawn, has the variance n (times - 1); n is at
    most two deviations of the noise more than it seems.
    """
    return np.asarray(sigma**2 + (times - 1) * (np.maximum(noisy, 0) + 2 * sigma))


def likely(noisy: list[Int64[Array, " bins"]], sigma: float) -> dict[str, Any]:
    """The expectations for a forecast: estimates from the bins that stand out of the noise.

    They are estimates for a choice, not statements: they have no intervals. Beyond all bins that
    stand out, a law that fits these says what few units have. Empty where no bin stands out.

    >>> bins = [np.zeros(len(ROW_EDGES), np.int64), np.zeros(len(ROW_EDGES), np.int64)]
    >>> bins[0][:3], bins[1][2] = (500, 300, 200), 40 * SHARE_QUANTA
    >>> for name, value in likely(bins, 10.0).items():
    ...     print(name, value)
    expected_units 1060.0
    expected_rows 1.88
    expected_most_rows 5.0
    expected_repeats 0.0471
    """
    standing, rows = holding_units(noisy, sigma), units_by_rows(noisy, sigma)
    if not standing.any():
        return {}
    units = float(rows.sum())
    again = np.where(standing, repeating(noisy[0], noisy[SHARES] / SHARE_QUANTA), 0.0)
    most = ROW_ENDS[int(np.searchsorted(np.cumsum(rows), (1 - BEYOND) * units))]
    mean = max(1.0, float((rows * ROWS).sum()) / units)
    seen = float((rows * ROWS)[standing].sum())
    repeated = float((again * ROWS).sum()) / seen
    found = {"units": units, "rows": mean, "most_rows": max(most, mean), "repeats": repeated}
    said = {
        f"expected_{name}": float(f"{value:.3g}") if value > 1e-3 else 0.0
        for name, value in found.items()
    }
    said[EXPECTED_REPEATS.name] = min(said[EXPECTED_REPEATS.name], MOST_REPEATS)
    return said


def repeating(
    units: Int64[Array, " bins"], told: Float64[Array, " bins"]
) -> Float64[Array, " bins"]:
    """Units times the share of their rows that repeat a group, from the numbers of `by_rows`.

    For units with many rows, rather too much: as if their groups were equal.
    """
    groups = even_groups(ROWS, told / np.maximum(units, 1))
    return np.asarray(np.where(MANY, units * (1 - groups / ROWS), told * (1 - 1 / ROWS)))


def concentration_of(
    noisy: list[Int64[Array, " bins"]], sigma: float
) -> tuple[float, float, float] | None:
    """How far rows keep to few groups, where units with many rows stand out: two means over rows.

    For units with few rows this is the share that repeats a group, for those with many the
    concentration; with the deviation of its noise, by which it may be below 0 or above 1.
    """
    units, told = noisy[0], noisy[SHARES] / SHARE_QUANTA
    standing = holding_units(noisy, sigma)
    if not (standing & MANY).any():
        return None
    few, many = (
        float((told * rows)[which].sum()) / max(float((units * ROWS)[which].sum()), 1.0)
        for which, rows in ((standing & ~MANY, ROWS - 1), (standing & MANY, ROWS))
    )
    held = ROWS[standing & MANY], units[standing & MANY]
    apart = 2 * sigma * float((held[0] ** 2).sum()) ** 0.5 / max(float(held[0] @ held[1]), 1.0)
    return round(min(max(few, 0.0), 1.0), 3), round(2 * many - 1, 3), round(apart, 3)


def histogram_of(noisy: list[Int64[Array, " bins"]], sigma: float) -> list[tuple[int, int, float]]:
    """Ranges of rows (from, to), each with the share of units that have so many."""
    units = units_by_rows(noisy, sigma)
    return [
        (int(ROW_EDGES[place]), int(ROW_ENDS[place]), float(f"{units[place] / units.sum():.4g}"))
        for place in np.flatnonzero(units > TOLD * units.sum())
    ]


def units_by_rows(noisy: list[Int64[Array, " bins"]], sigma: float) -> Float64[Array, " bins"]:
    """Bins above the noise as they are, and those beyond the last of them by the law that fits.

    Where noise hides much, very many laws fit: then no units are taken to be beyond.
    """
    standing, units = holding_units(noisy, sigma), noisy[0]
    seen = np.where(standing, np.maximum(units, 0), 0).astype(np.float64)
    if not tells(seen.sum(), sigma):
        return seen
    beyond = np.arange(len(units)) > np.flatnonzero(standing)[-1]
    return np.where(beyond, fitted_units(units, sigma), seen)


def tells(units: float, sigma: float) -> bool:
    """Whether a bin of one unit in twenty would stand out."""
    return OUTSTANDING * sigma <= TELLING * units


def holding_units(noisy: list[Int64[Array, " bins"]], sigma: float) -> Bool[Array, " bins"]:
    """Bins of rows that stand out by their units, or by these and the shares that they repeat.

    Units of many rows repeat most of them: then both histograms agree, with independent noise.

    >>> bins = np.array([[900, 0, 45], [0, 0, 40 * SHARE_QUANTA]])
    >>> holding_units([*bins], 10.0).tolist(), outstanding(bins[0], 10.0).tolist()
    ([True, False, True], [True, False, False])
    """
    units, again = noisy[0], noisy[SHARES] / SHARE_QUANTA
    return outstanding(units, sigma) | outstanding(units + again, sigma * 2**0.5)


def _share(
    units: Int64[Array, " bins"],
    shares: Float64[Array, " bins"],
    ends: tuple[Array, Array],
    spread: Float64[Array, " bins"],
) -> Measured | None:
    """The share of rows that repeat, of units whose rows lie between the ends of their bin.

    The r for which sum((size - 1) * shares) - r * sum(size * units) may be noise (Fieller 1954), at
    both ends of the sizes. For units with many rows only concentration is known, which implies
    hardly anything: between none and all of their rows repeat.
    """
    found, (low, top) = [], ends
    least, most = np.where(MANY, 0.0, shares), np.where(MANY, units, shares)
    for own, over, under in ((least, low - ~MANY, top), (most, top - ~MANY, low)):
        off = DEVIATIONS**2 * spread
        above = float((own * over).sum()), float((off * over**2).sum())
        below = float((units * under).sum()), float((off * under**2).sum())
        between = _between(above, below)
        if between is None or below[0] <= 0:
            return None
        found.append(between)
    low_end, high_end = max(found[0][0], 0.0), min(found[1][1] + 1 / SHARE_QUANTA, 1.0)
    middle = repeating(units, shares) * (low + top)
    share = float(middle.sum() / (units * (low + top)).sum())
    return Measured(round(min(max(share, low_end), high_end, MOST_REPEATS), 3), low_end, high_end)


def _mean(
    noisy: Int64[Array, " bins"], low: Array, high: Array, spread: Float64[Array, " bins"]
) -> Measured | None:
    """The mean over units whose sizes lie between the ends of their bins; None: noise alone."""
    total = float(noisy.sum())
    found = [_ratio(noisy, size, spread) for size in (low, high)]
    if total <= 0 or found[0] is None or found[1] is None:
        return None
    middle = float((noisy * (low + high)).sum()) / 2 / total
    ends = max(found[0][0], float(low.min())), min(found[1][1], float(high.max()))
    return Measured(min(max(middle, ends[0]), ends[1]), *ends)


def _ratio(
    noisy: Int64[Array, " bins"], size: Array, spread: Float64[Array, " bins"]
) -> tuple[float, float] | None:
    """The r for which sum(size * bins) - r * sum(bins) may be noise (Fieller 1954)."""
    off = DEVIATIONS**2 * spread
    top = float((noisy * size).sum()), float((off * size**2).sum())
    bottom = float(noisy.sum()), float(off.sum())
    return _between(top, bottom, float((off * size).sum()))


def _between(
    top: tuple[float, float], bottom: tuple[float, float], both: float = 0.0
) -> tuple[float, float] | None:
    """The ends of the r for which top - r * bottom may be noise; None where they are no interval.

    Each number comes with the square of its largest noise; `both`: the same for their product.
    """
    (y, y_off), (x, x_off) = top, bottom
    a, b, c = x**2 - x_off, y * x - both, y**2 - y_off
    if a <= 0:
        return None
    root = max(b * b - a * c, 0.0) ** 0.5
    return (b - root) / a, (b + root) / a


def _quantile(
    noisy: Int64[Array, " bins"], ends: Array, starts: Array, spread: Float64[Array, " bins"]
) -> Measured | None:
    """The number that 99 of 100 units do not exceed; None where noise hides it."""
    tails = np.append(np.cumsum(noisy[::-1])[::-1][1:], 0)  # units beyond each bin
    excess = tails - BEYOND * noisy.sum()  # above 0: more than 1 of 100
    upto = np.cumsum(spread)  # of bins that count with -BEYOND; the others count with 1 - BEYOND
    off = DEVIATIONS * np.sqrt(upto * BEYOND**2 + (upto[-1] - upto) * (1 - BEYOND) ** 2)
    if not (excess[-1] < -off[-1]):
        return None
    value, high = (int(np.argmax(excess + more < 0)) for more in (0.0, off))
    low = int(np.argmax(excess - off < 0))
    return Measured(float(ends[value]), float(starts[low]), float(ends[high]))


def units_of(known: dict[str, Any], noisy: list[Int64[Array, " bins"]], sigma: float) -> Units:
    """The known numbers of units, for the laws of their groups."""
    stream = expected(known, 1)
    assert stream is not None  # noqa: S101  (a look that knows something knows the rows)
    if not stream.histogram and stream.most is not None:
        heavy, even = tail_of(stream.rows, stream.most)
        stream = replace(stream, heavy=heavy, even=even)
    held = holding_units(noisy, sigma) | (
        ROW_EDGES == PAIR
    )  # where noise hides pairs, it is theirs
    told = noisy[SHARES] / SHARE_QUANTA / np.maximum(noisy[0], 1)
    moved = 2 * even_groups(ROWS, told) / ROWS * np.log(ROWS)  # by one more of what is told
    off = np.where(MANY, ROWS * np.minimum(moved, 1.0), ROWS - 1)[held]
    off = sigma * float((off**2).sum()) ** 0.5 / (stream.units * stream.rows)
    together = (None, 0.0) if stream.concentration is None else stream.concentration[1:]
    lengths = drawn_lengths(stream, LENGTHS)
    return Units(stream.units, lengths, stream.again or 0.0, off, *together)
