"""A private survey of the shape of the rows: the expectations that a forecast needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamveil.accounts.ledger import Ledger
from streamveil.calibrate import gaussian_sigma
from streamveil.compiler.by_unit import UnitFacts, by_rows, middle_of_each, shape_of
from streamveil.compiler.group_sizes import BUCKET_WEIGHT, WEIGHT, groups_by_size, rows_by_bucket
from streamveil.compiler.numbered_rows import compiled_times, first_counted
from streamveil.compiler.numbering import GroupRows, ValueRows, taken
from streamveil.compiler.unit_sample import WORDS, UnitSample, level_for, most_units
from streamveil.compiler.unit_sizes import ROW_EDGES
from streamveil.core.accounting import Budget, Neighbours
from streamveil.core.accounting.guarantee import Guarantee, Loss
from streamveil.core.measure import about
from streamveil.core.noise import Noise
from streamveil.core.noisy import post_process, values
from streamveil.core.sensitivity import histograms_move
from streamveil.dataflow.windows import protected
from streamveil.errors import PlanError
from streamveil.kinds import TOTALS
from streamveil.plan import Aggregate, Plan
from streamveil.plan.look import is_open, open_values
from streamveil.runtime.noisy_bins import (
    SHARE_QUANTA,
    SHARES,
    VALUE_EDGES,
    BinsOf,
    Learned,
    learned,
    two_ballots,
)
from streamveil.types import Array, Float64, Int64

SAMPLE_WEIGHT = 16  # times a bin's noise: that of the number that decides the size of a sample


@dataclass(frozen=True)
class Survey:
    """Histograms over privacy units, with noise.

    Algorithm: every unit (in every scope) adds
        - 1 to the bin of its number of rows;
        - to the same bin of a second histogram, the share of its rows but the first that repeat a
          group of the unit, or where rows are many the number of `by_rows`, which is at most 1 too;
        - 1 to the bin of the size of its first value (where values are summed);
        - 1 to a bin of each expression without bounds, by sign and power of the root of 2 (Wilson
          et al. 2020, doi:10.2478/popets-2020-0025, approximate bounds): that of its middle row, or
          if that is 0, on a second ballot, of the middle one of its rows that are not 0.
        Besides these, one random row of each unit counts in the numbers of groups with at least so
        many of those rows (`groups_by_size`), and in the rows of groups that fall into buckets by
        chance (`rows_by_bucket`). Bins are fixed, counts get Gaussian noise. Results have
        intervals, but for bounds and groups. Where rows can be read again and units have no periods
        (`sampled`), only a sample of many units is counted (`UnitSample`); the noisy number of
        units in the smallest sample decides which. Bins then stand for as many times more units.
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
        Means, quantiles and the forecasts from them are post-processing, and so is leaving out
        numbers when the noise is too large.
    Numerics: integer counts, shares in quanta of 1 / SHARE_QUANTA that are rounded down, exactly
        rounded noise.
    """

    budget: Budget
    histograms: int
    protects: Neighbours
    sampled: bool = False
    periods: int | None = None  # that are counted, where windows keep them apart

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
        """The guarantee of all histograms together."""
        loss = Loss(gaussian=self._moved**2 / self.sigma**2)
        return Guarantee(self.protects, loss, separate=self.periods is not None)


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
    """Charges, counts, draws, and returns the shape of the rows. No row leaves this function.

    `rows`: a table, or its parts in turn, the first of which may be empty; or a function that
    returns them, again at each call. No result depends on the number of threads. `within`: the
    first and the last unit-period that is read; each may cost a unit present in it the budget once.
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
    for one in opened:
        own = one.units.kept(level)
        counts.append(two_ballots(*(some[own] for some in middle_of_each(one.rows))))
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
    by_text = dict(zip(expressions, opened, strict=True))
    whole = tuple(text for text, one in by_text.items() if one.whole)
    what = BinsOf(expressions, whole, summed, 2**level)
    found = values(post_process(learned, float(asked.sigma), what, *noisy))
    ends = {text: one.ends for text, one in by_text.items() if one.ends}
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
    """A function that returns all rows at every call; None where they come only once."""
    if isinstance(rows, pa.Table):
        return lambda: [rows]
    return rows if callable(rows) else None


def sampled(
    asked: Survey, read: Callable[[UnitSample], tuple[GroupRows, list[ValueRows]]], noise: Noise
) -> tuple[tuple[GroupRows, list[ValueRows]], int]:
    """Rows that include a sample, and the level of the units to count.

    The level rests on a noisy number; the rows kept meanwhile, on the true one. The margin between
    both (`MARGIN`) is so wide that rows are hardly ever read again.
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
    """The quanta of 1 in a histogram: the most that a unit adds to it."""
    return SHARE_QUANTA if place == SHARES else 1


def counted_plan(plan: Plan) -> Plan:
    """The plan with aggregates that need no bounds; for other answers, with a count of its rows."""
    kept = tuple(agg for agg in plan.aggregates if not is_open(agg) and agg.function in TOTALS)
    rows = Aggregate(name="rows", function="count")
    return replace(plan, aggregates=kept or (rows,))


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
    """The sum of counts of sizes from each edge to the next: whole numbers, exact below 2^53."""
    place = np.searchsorted(ROW_EDGES, np.arange(1, len(counts)), side="right") - 1
    found = np.bincount(place, counts[1:], minlength=len(ROW_EDGES))
    return np.asarray(found.astype(np.int64))
