"""What private rows say of their own shape, for a price: the expectations that a forecast needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamveil.accounts.ledger import Ledger
from streamveil.calibrate import gaussian_sigma
from streamveil.compiled import ndtri
from streamveil.compiler.by_unit import UnitFacts, by_rows, middle_of_each, shape_of
from streamveil.compiler.error_forecast import (
    MOST_REPEATS,
    drawn_lengths,
    expected,
    tail_of,
)
from streamveil.compiler.group_sizes import (
    BUCKET_WEIGHT,
    WEIGHT,
    Units,
    groups_by_size,
    likely_laws,
    rows_by_bucket,
)
from streamveil.compiler.numbered_rows import compiled_times, first_counted
from streamveil.compiler.numbering import GroupRows, ValueRows, taken
from streamveil.compiler.unit_sample import WORDS, UnitSample, level_for, most_units
from streamveil.compiler.unit_sizes import ROW_EDGES, ROW_ENDS, fitted_units
from streamveil.compiler.value_sizes import POWERS, ValueSizes, with_tail
from streamveil.core.accounting import Budget, Neighbours
from streamveil.core.accounting.guarantee import Guarantee, Loss
from streamveil.core.measure import about
from streamveil.core.noise import Noise
from streamveil.core.noisy import post_process, values
from streamveil.core.sensitivity import histograms_move
from streamveil.dataflow.windows import protected
from streamveil.errors import PlanError
from streamveil.plan import Aggregate, Plan
from streamveil.plan.look import COUNTED, HISTOGRAM, LAWS, VALUES, is_open, open_values
from streamveil.plan.options import (
    EXPECTED_MOST_ROWS,
    EXPECTED_REPEATS,
    EXPECTED_ROWS,
    EXPECTED_UNITS,
)
from streamveil.types import Array, Bool, Float64, Int64

SAMPLE_WEIGHT = 16  # the noise of the number that says how large a sample is, in times of a bin's
SHARES = 1  # which histogram holds shares; 0 holds units by rows
SHARE_QUANTA = 256  # of the share of rows that repeat a group
VALUE_EDGES = 2.0 ** np.arange(-20, 41)
SIGNED_EDGES = np.concatenate([-POWERS[::-1], [0.0], POWERS])
LOOKS = 400  # sums of bins that are compared with their noise, at most
DEVIATIONS = float(-ndtri(0.05 / LOOKS / 2))  # which none of them misses by, with 95 %
BEYOND = 0.01  # share of units that may have more rows than counted
OUTSTANDING = 4.0  # deviations above which a bin holds units: of noise alone, once in 350 looks
TOLD = 1e-5  # share of units below which a bin is left out
LENGTHS = 16  # rows of so many units stand for all
TELLING = 0.05  # share of units that stands out where the histogram tells the law of rows
CERTAIN = float(-ndtri(1e-9 / (len(SIGNED_EDGES) + 1)))  # which no bin passes by noise alone
TOGETHER = (2, 4, 8, 16)  # bins of values side by side that are added up
OF_ZERO = np.isin(np.arange(len(SIGNED_EDGES) + 1), (len(POWERS), len(POWERS) + 1))
BESIDE = 2.0  # the same, for bins next to such a one
FEWEST = 5.0  # deviations of all units together below which nothing is said
VAGUE = 2.5  # a mean whose upper end is so many times its lower one is no ground for a choice


@dataclass(frozen=True)
class Survey:
    """Histograms over privacy units, with noise.

    Algorithm: every unit (in every scope) adds 1 to the bin of its number of rows; to the same bin
        of a second histogram the share of its rows that repeat a group it had; 1 to the bin of the
        size of its first value (where values are summed), and of one value of each expression
        without bounds, by sign and power of the root of 2 (Wilson et al. 2020,
        doi:10.2478/popets-2020-0025, approximate bounds). Beside them, one random row of each unit:
        the numbers of groups with at least so many of those rows (`groups_by_size`), and the rows
        of groups that fall into buckets by chance (`rows_by_bucket`). Bins are fixed, counts get
        Gaussian noise. What is said of them comes with an interval, but for bounds and groups.
        Where rows can be read again and units have no periods (`sampled`), of many units a sample
        is counted (`UnitSample`): how many units are in the smallest sample, with noise, says which
        one. Bins then stand for as many times more units.
    Protects: all rows of one unit within one scope.
    Guarantee: a Gaussian of mu^2 = (histograms + 1 / WEIGHT^2 + 1 / BUCKET_WEIGHT^2) / sigma^2,
        and 1 / SAMPLE_WEIGHT^2 more before the division where a sample may be counted; `periods`
        times as much where they are kept apart, for each period of a unit once.
    Proof: a unit more adds at most 1 to one bin of each histogram and touches nothing else, as bins
        depend on that unit's rows alone; and 1 to one of the numbers of groups and to one bucket of
        rows, whichever rows were chosen and whichever buckets groups fall into, whose noise is
        WEIGHT and BUCKET_WEIGHT times as large. Rows and buckets are chosen by words that no other
        noise uses. A unit more adds at most 1 to the units of the smallest
        sample, whose noise is SAMPLE_WEIGHT times as large. Fix what that number said: a unit
        outside the sample that it chose then changes nothing, one inside what it changes among all.
        A second part that the first one's answer chose adds up in squares like any other, and rows
        are read again where a smaller sample than the chosen one was kept.
        Where windows keep periods apart, rows of `periods` public unit-periods alone are taken,
        each by its own time: `histograms_move` says what noise that takes.
        Means, quantiles and what a forecast makes of them are post-processing, and so is what is
        not said when the noise is too large.
    Numerics: integer counts, shares in quanta of 1 / SHARE_QUANTA that are rounded down, exactly
        rounded noise.
    """

    budget: Budget
    histograms: int
    protects: Neighbours
    sampled: bool = False
    periods: int | None = None  # that are looked at, where windows keep them apart

    @property
    def sigma(self) -> Fraction:
        """The noise of every bin."""
        return gaussian_sigma(self._moved, self.budget)

    @property
    def _moved(self) -> Fraction:
        lighter = [WEIGHT, BUCKET_WEIGHT] + [SAMPLE_WEIGHT] * self.sampled
        return histograms_move(self.histograms, lighter, self.periods)

    @property
    def guarantee(self) -> Guarantee:
        """Of all histograms together."""
        loss = Loss(gaussian=self._moved**2 / self.sigma**2)
        return Guarantee(self.protects, loss, separate=self.periods is not None)


class Measured(NamedTuple):
    """A number, and between which ends the truth lies: all ends of a survey with 95 %."""

    value: float
    low: float
    high: float

    @property
    def sure(self) -> bool:
        """Whether a choice may rest on it."""
        return self.high <= VAGUE * self.low


@dataclass(frozen=True)
class Learned:
    """What the survey says, and how sure it is; None where the noise hides it."""

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

    @property
    def sure(self) -> bool:
        """Whether the noise leaves enough to choose from."""
        return self.rows is not None and self.rows.sure

    @property
    def numbers(self) -> list[tuple[str, Measured]]:
        """What is known, by the names of options where there are such."""
        named = {
            EXPECTED_UNITS.name: self.units, EXPECTED_ROWS.name: self.rows,
            EXPECTED_MOST_ROWS.name: self.most, EXPECTED_REPEATS.name: self.repeats,
            "99 of 100 values at most": self.high,
        }  # fmt: skip
        return [(name, found) for name, found in named.items() if found is not None]

    @property
    def options(self) -> dict[str, float]:
        """As the options of a query; none where a choice would follow the noise."""
        known = {name: found.value for name, found in self.numbers if name.startswith("expected")}
        return known if self.sure else {}


class BinsOf(NamedTuple):
    """What noisy bins are of; settings."""

    expressions: tuple[str, ...] = ()  # without bounds
    summed: str | None = None  # the one that is summed with bounds
    times: int = 1  # so many units stand for each that was counted


Rows: TypeAlias = pa.Table | Iterable[pa.Table] | Callable[[], Iterable[pa.Table]]


def survey(  # noqa: PLR0913  (who asks, of what, for which price, and how)
    plan: Plan,
    rows: Rows,
    budget: Budget,
    noise: Noise,
    ledger: Ledger | None = None,
    threads: int = 1,
    within: tuple[int, int] | None = None,
) -> tuple[Learned, Guarantee]:
    """Charges, counts, draws, and says what rows look like. No row leaves this function.

    `rows`: a table, or its parts in turn, the first of which may be empty; or what gives them, and
    again if asked. Nothing that is said depends on the number of threads. `within`: the first and
    the last unit-period that is looked at, each of which is to cost a unit that is there the budget
    once.
    """
    if budget.is_pure:
        raise PlanError("a survey uses Gaussian noise, which needs a delta")
    expressions, counted = open_values(plan), counted_plan(plan)
    valued = first_counted(counted).function == "sum"
    again = reader(rows)
    asked = Survey(
        budget, 2 + valued + len(expressions), protected(plan.unit, plan.periods),
        sampled=again is not None and plan.periods is None,
        periods=None if within is None else within[1] - within[0] + 1,
    )  # fmt: skip
    if ledger is not None:
        ledger.charge(f"survey for {plan.name}", asked.guarantee)

    def read(sample: UnitSample | None = None) -> tuple[GroupRows, list[ValueRows]]:
        parts: Any = rows if again is None else again()
        parts = parts if within is None else (rows_within(plan, part, within) for part in parts)
        return taken(plan, counted, expressions, parts, threads, sample)

    (groups, opened), level = sampled(asked, read, noise) if asked.sampled else (read(), 0)
    words = noise.at("rows to survey").words(groups.rows.units)
    kept = groups.units.kept(level)
    shape = UnitFacts(*(some[kept] for some in shape_of(groups.rows, words, threads)))
    counts = histograms(shape, groups.first[kept] if valued else None)
    counts += [signed_bins(middle_of_each(one.rows)[one.units.kept(level)]) for one in opened]
    scales = [asked.sigma * quanta_at(place) for place in range(len(counts))]
    counts.append(groups_by_size(shape.cell))
    words = noise.at("buckets to survey").words(groups.groups)
    counts.append(rows_by_bucket(shape.cell, words))
    scales += [asked.sigma * WEIGHT, asked.sigma * BUCKET_WEIGHT]
    noisy = [
        about(exact.astype(np.float64), scale, noise.at("survey", place))
        for place, (exact, scale) in enumerate(zip(counts, scales, strict=True))
    ]
    summed = first_counted(counted).expression if valued else None
    what = BinsOf(expressions, summed, 2**level)
    found = values(post_process(learned, float(asked.sigma), what, *noisy))
    ends = {text: one.ends for text, one in zip(expressions, opened, strict=True) if one.ends}
    return replace(found, ends=ends), asked.guarantee


def rows_within(plan: Plan, rows: pa.Table, within: tuple[int, int]) -> pa.Table:
    """The rows of some unit-periods, by each row's own time; a row without one counts nowhere."""
    times = compiled_times(plan, rows.schema)
    assert times is not None  # noqa: S101  (periods ask for times)
    assert plan.periods is not None  # noqa: S101  (`within` numbers them)
    found = times(rows)
    numbers = plan.periods.numbers(np.asarray(pc.fill_null(found, 0)))
    kept = (numbers >= within[0]) & (numbers <= within[1]) & np.asarray(pc.is_valid(found))
    return rows if kept.all() else rows.filter(pa.array(kept))


def reader(rows: Rows) -> Callable[[], Iterable[pa.Table]] | None:
    """What gives all rows, as often as it is asked; None where they come once."""
    if isinstance(rows, pa.Table):
        return lambda: [rows]
    return rows if callable(rows) else None


def sampled(
    asked: Survey, read: Callable[[UnitSample], tuple[GroupRows, list[ValueRows]]], noise: Noise
) -> tuple[tuple[GroupRows, list[ValueRows]], int]:
    """Rows of a sample at least, and the level of the units to count.

    The level rests on a noisy number; what was kept meanwhile, on the true one. They are so far
    apart (`MARGIN`) that rows are hardly ever read again.
    """
    words, sigma = noise.at("sample to survey").words(WORDS), float(asked.sigma)
    sample = UnitSample(words, most_units(sigma))
    found = read(sample)
    number = about(
        found[0].units.least.astype(np.float64), asked.sigma * SAMPLE_WEIGHT,
        noise.at("units to survey"),
    )  # fmt: skip
    level = values(post_process(level_for, number, most_units(sigma)))
    if level < sample.level:
        found = read(UnitSample(words, most_units(sigma), highest=level))
    return found, level


def quanta_at(place: int) -> int:
    """What a histogram counts 1 as: the most that a unit adds to it."""
    return SHARE_QUANTA if place == SHARES else 1


def counted_plan(plan: Plan) -> Plan:
    """The plan with what can be counted before bounds are known; of other answers, its rows."""
    kept = tuple(agg for agg in plan.aggregates if not is_open(agg) and agg.function in COUNTED)
    rows = Aggregate(name="rows", function="count")
    return replace(plan, aggregates=kept or (rows,))


def learned(sigma: float, asked: BinsOf, *noisy: Int64[Array, " bins"]) -> Learned:
    """Post-processing: all that is said of noisy bins.

    Those of values without bounds come after the shapes, then the numbers of groups by size, and
    the rows in buckets. Bins of a sample become those of all units, with more noise; its groups
    stay those of its rows, of which laws are made as of all.
    """
    (expressions, summed, times), (*counted, sizes, buckets) = asked, noisy
    bins, of_groups, sigma = [times * some for some in counted], sigma, times * sigma
    shapes, signed = bins[: len(bins) - len(expressions)], bins[len(bins) - len(expressions) :]
    bounds = {
        text: found
        for text, bins in zip(expressions, signed, strict=True)
        if (found := likely_bounds(bins, sigma)) is not None
    }
    known = likely(shapes, sigma)
    rows = known.get(EXPECTED_ROWS.name, 1.0)
    valued = {text: value_sizes(bins, sigma, rows)
             for text, bins in zip(expressions, signed, strict=True) if text in bounds}  # fmt: skip
    if known and tells(known[EXPECTED_UNITS.name], sigma):
        known[HISTOGRAM] = histogram_of(shapes, sigma)
    if known:
        units = units_of(known, shapes, sigma)
        units = units._replace(number=units.number / times)
        known[LAWS] = likely_laws(sizes, buckets, units, of_groups)
        every = {text: float(f"{one.mean:.3g}") for text, one in valued.items()}
        if summed is not None:
            every[summed] = mean_size(shapes[2], VALUE_EDGES, sigma)
        known[VALUES] = {text: size for text, size in every.items() if size}
    return replace(learn(shapes, sigma, times), likely=known, bounds=bounds, sizes=valued)


def units_of(known: dict[str, Any], noisy: list[Int64[Array, " bins"]], sigma: float) -> Units:
    """What is known of units, for the laws of their groups."""
    stream = expected(known, 1)
    assert stream is not None  # noqa: S101  (a look that knows something knows the rows)
    if not stream.histogram and stream.most is not None:
        heavy, even = tail_of(stream.rows, stream.most)
        stream = replace(stream, heavy=heavy, even=even)
    middle = ((ROW_EDGES + ROW_ENDS) / 2)[holding_units(noisy, sigma)]
    off = sigma * float((middle**2).sum()) ** 0.5 / (stream.units * stream.rows)
    return Units(stream.units, drawn_lengths(stream, LENGTHS), stream.again or 0.0, off)


def signed_bins(sizes: Float64[Array, " units"]) -> Int64[Array, " bins"]:
    """Counts of values: below all edges, between each two, from the last one on."""
    place = np.searchsorted(SIGNED_EDGES, sizes, side="right")
    return np.bincount(place, minlength=len(SIGNED_EDGES) + 1).astype(np.int64)


def value_sizes(noisy: Int64[Array, " bins"], sigma: float, rows: float) -> ValueSizes:
    """How many units have values of which size, with the tails that laws add to what is seen."""
    seen = np.where(holding_values(noisy, sigma), noisy, 0).astype(np.float64)
    below, above = slice(len(POWERS), None, -1), slice(len(POWERS) + 1, None)
    return ValueSizes(*(with_tail(noisy[side], seen[side], sigma, rows) for side in (below, above)))


def mean_size(noisy: Int64[Array, " bins"], edges: Array, sigma: float) -> float:
    """How large values are on average, whichever their sign, by bins between edges of that size.

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

    A bin of noise alone, far out, would make all noise as much larger: none does, but once in 10^8.
    Where 0 alone stands out, noise hides how large other values are: bounds about 0 would clamp
    them all.

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
    """Bins of values that stand out; where none but that of 0 does, those that do so together.

    Of the fewest bins side by side that hold more than noise: those above it, or all of them.

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


def histograms(
    shape: UnitFacts, first: Float64[Array, " units"] | None
) -> list[Int64[Array, " bins"]]:
    """Exact: units by rows, quanta of their shares of repeats by rows, units by `first` value."""
    most = min(int(shape.rows.max(initial=1)), int(ROW_EDGES[-1]))
    counts = [by_edges(some) for some in by_rows(shape, most, SHARE_QUANTA)]
    if first is None:
        return counts
    place = np.searchsorted(VALUE_EDGES, first, side="right")
    return [*counts, np.bincount(place, minlength=len(VALUE_EDGES) + 1).astype(np.int64)]


def by_edges(counts: Int64[Array, " sizes"]) -> Int64[Array, " bins"]:
    """What sizes count, from each edge to the next: whole numbers, exact below 2^53."""
    place = np.searchsorted(ROW_EDGES, np.arange(1, len(counts)), side="right") - 1
    found = np.bincount(place, counts[1:], minlength=len(ROW_EDGES))
    return np.asarray(found.astype(np.int64))


def learn(noisy: list[Int64[Array, " bins"]], sigma: float, times: int = 1) -> Learned:
    """Numbers with intervals from noisy bins, of a sample `times` as small as all units.

    Proof: what is said is a sum of bins, or a ratio of two, at one of fewer than `LOOKS` places
        (bins up to which rows are told apart, tails of which the share is looked at): each misses
        by more than DEVIATIONS of its own noise with probability 0.05 / LOOKS, so none does with
        95 %, whichever places the noise chose. A ratio w / n lies between r and s when w - r n and
        w - s n, sums of bins again, have opposite signs beyond their noise. The ends also allow for
        sizes anywhere within their bins. Means cap rows where at most 1 of 100 units has more, and
        so does the share of rows that repeat a group: what few units have beyond that drowns in the
        noise of bins that are empty. A sample adds the variance of its draw to each bin
        (`variances`), and noise and draw together are about Gaussian. Of shares that of the units:
        for 0 <= s <= 1 the square of s w - r n is at most w^2 + (r n)^2.
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
    """Of bins: of their noise, and of the draw of a sample, rather too large.

    A bin of n units, of which one in `times` was drawn, has the variance n (times - 1); n is at
    most two deviations of the noise more than it seems.
    """
    return np.asarray(sigma**2 + (times - 1) * (np.maximum(noisy, 0) + 2 * sigma))


def likely(noisy: list[Int64[Array, " bins"]], sigma: float) -> dict[str, Any]:
    """What a forecast should expect: estimates from the bins that stand out of the noise.

    An estimate for a choice, not a statement: it has no interval. What few units have, beyond all
    bins that stand out, is what a law says that fits them. Empty where no bin stands out.

    >>> bins = [np.zeros(len(ROW_EDGES), np.int64), np.zeros(len(ROW_EDGES), np.int64)]
    >>> bins[0][:3], bins[1][2] = (500, 300, 200), 40 * SHARE_QUANTA
    >>> for name, value in likely(bins, 10.0).items():
    ...     print(name, value)
    expected_units 1060.0
    expected_rows 1.88
    expected_most_rows 5.0
    expected_repeats 0.0706
    """
    standing, rows = holding_units(noisy, sigma), units_by_rows(noisy, sigma)
    again = np.where(standing, noisy[SHARES] / SHARE_QUANTA, 0.0)
    if not standing.any():
        return {}
    units, middle = float(rows.sum()), (ROW_EDGES + ROW_ENDS) / 2
    most = ROW_ENDS[int(np.searchsorted(np.cumsum(rows), (1 - BEYOND) * units))]
    mean = max(1.0, float((rows * middle).sum()) / units)
    seen = float((rows * middle)[standing].sum())
    repeated = min(float((again * middle).sum()) / seen, MOST_REPEATS)
    found = {"units": units, "rows": mean, "most_rows": max(most, mean), "repeats": repeated}
    return {
        f"expected_{name}": float(f"{value:.3g}") if value > 1e-3 else 0.0
        for name, value in found.items()
    }


def histogram_of(noisy: list[Int64[Array, " bins"]], sigma: float) -> list[tuple[int, int, float]]:
    """From and to how many rows, and the share of units that have them."""
    units = units_by_rows(noisy, sigma)
    return [
        (int(ROW_EDGES[place]), int(ROW_ENDS[place]), float(f"{units[place] / units.sum():.4g}"))
        for place in np.flatnonzero(units > TOLD * units.sum())
    ]


def units_by_rows(noisy: list[Int64[Array, " bins"]], sigma: float) -> Float64[Array, " bins"]:
    """Bins above the noise as they are, and those beyond the last of them by the law that fits.

    Where noise hides much, as many laws fit as one likes: then no units are beyond.
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

    Units of many rows repeat most of them: then both say the same, with noise of their own.

    >>> bins = np.array([[900, 0, 35], [0, 0, 30 * SHARE_QUANTA]])
    >>> holding_units([*bins], 10.0).tolist(), outstanding(bins[0], 10.0).tolist()
    ([True, False, True], [True, False, False])
    """
    units, again = noisy[0], noisy[SHARES] / SHARE_QUANTA
    return outstanding(units, sigma) | outstanding(units + again, sigma * 2**0.5)


def outstanding(noisy: Array, sigma: float, least: float = OUTSTANDING) -> Bool[Array, " bins"]:
    """Bins above the noise, and those beside them, one after the other, that are likely so.

    One bin of noise alone, far out, would make the mean of rows a hundred times too large.

    >>> outstanding(np.array([50, 25, 21, 0, 39, 0]), 10.0).tolist()
    [True, True, True, False, False, False]
    """
    standing, may = noisy > least * sigma, noisy > BESIDE * sigma
    for _ in range(len(noisy)):
        beside = np.append(standing[1:], False) | np.append(False, standing[:-1])
        standing = standing | (may & beside)
    return np.asarray(standing)


def _share(
    units: Int64[Array, " bins"],
    shares: Float64[Array, " bins"],
    ends: tuple[Array, Array],
    spread: Float64[Array, " bins"],
) -> Measured | None:
    """The share of rows that repeat, of units whose rows lie between the ends of their bin.

    The r for which sum(size * shares) - r * sum(size * units) may be noise (Fieller 1954), at both
    ends of the sizes.
    """
    found, (low, top) = [], ends
    for over, under in ((low, top), (top, low)):
        off = DEVIATIONS**2 * spread
        above = float((shares * over).sum()), float((off * over**2).sum())
        below = float((units * under).sum()), float((off * under**2).sum())
        between = _between(above, below)
        if between is None or below[0] <= 0:
            return None
        found.append(between)
    least, largest = max(found[0][0], 0.0), min(found[1][1] + 1 / SHARE_QUANTA, 1.0)
    middle = float((shares * (low + top)).sum() / (units * (low + top)).sum())
    return Measured(round(min(max(middle, least), largest, MOST_REPEATS), 2), least, largest)


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

    Each number comes with the square of what its noise may be; `both`: the same of their product.
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
    """What 99 of 100 units do not exceed; None where the noise does not tell."""
    tails = np.append(np.cumsum(noisy[::-1])[::-1][1:], 0)  # units beyond each bin
    excess = tails - BEYOND * noisy.sum()  # above 0: more than 1 of 100
    upto = np.cumsum(spread)  # of bins that count with -BEYOND; the others count with 1 - BEYOND
    off = DEVIATIONS * np.sqrt(upto * BEYOND**2 + (upto[-1] - upto) * (1 - BEYOND) ** 2)
    if not (excess[-1] < -off[-1]):
        return None
    value, high = (int(np.argmax(excess + more < 0)) for more in (0.0, off))
    low = int(np.argmax(excess - off < 0))
    return Measured(float(ends[value]), float(starts[low]), float(ends[high]))
