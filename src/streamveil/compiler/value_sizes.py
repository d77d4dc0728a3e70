"""Sizes of values, also where the noise of a look hides them; and bounds to clamp them to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import hypot, inf, log, log2, sqrt
from typing import NamedTuple

import numpy as np

from streamveil.compiled import gammainc, gammaincinv, ndtr
from streamveil.compiler.error_forecast import errors_of
from streamveil.compiler.expected_stream import expected_stream
from streamveil.compiler.plan_forecast import as_settings, lane_sd, threshold_of, windows_of
from streamveil.compiler.unit_sizes import about_laws, unlikely
from streamveil.dataflow.group_by import GroupBy
from streamveil.dataflow.outputs import TINY, Output
from streamveil.dataflow.release import driver
from streamveil.kinds import SQUARED
from streamveil.plan import Aggregate, Plan
from streamveil.plan.look import LEAST, MOST
from streamveil.types import Array, Float64, Int64

LOGS = np.arange(2 * LEAST, 2 * MOST + 1) / 2
POWERS = 2.0**LOGS  # edges of bins of sizes
MIDDLES = np.append(POWERS[0] / 2, POWERS * (sqrt(2) - 1) / log(sqrt(2)))  # even in the logarithm
FIRST_WHOLE = np.ceil(POWERS)  # number from each edge on; some bins of small sizes hold none
WHOLE_LOGS = np.log2(FIRST_WHOLE - 0.5)  # edges between these numbers
WHOLE_MIDDLES = np.concatenate([[0.0], (FIRST_WHOLE[:-1] + FIRST_WHOLE[1:] - 1) / 2, MIDDLES[-1:]])
DEVIATIONS = np.geomspace(0.1, 6, 24)  # of the logarithm to base 2, of log-normal laws
GAMMAS = (0.3, 0.5, 1.0, 2.0, 4.0, 8.0, 20.0)  # shapes
PARETOS = (1.2, 1.5, 2.0, 2.5, 3.0, 4.0)  # exponents
ENDING = (0.25, 0.5, 1.0, 2.0, 4.0, 10.0, 40.0)  # exponents of x^a up to an end
OFFSETS = np.arange(-12, 13) / 8  # octaves between the seen median and that of a law
WITHIN_BIN = 0.1  # deviation of values in a bin, as a share of its middle
MISFIT = 0.3  # share by which a bin may differ from every law, but for bins beyond those seen
MOSTLY = 6.0  # times as likely beforehand: values go on beyond what is seen
FEWEST_ROWS = 0.5  # if fewer rows are expected beyond a size, none is taken to be there
STRATA = 16  # of laws, equally likely
DOWN, UP = 12, 16  # half octaves in which bounds are tried about the outermost bin that is seen


@dataclass(frozen=True)
class ValueSizes:
    """Units by the size of one of their values, on either side of 0, in bins between `POWERS`."""

    below: Float64[Array, " bins"]
    above: Float64[Array, " bins"]
    share: float = 1.0  # of rows that have such a value; those of all others are 0
    whole: bool = False  # numbers, and no fractions
    unseen: float = 0.0  # fewer units than this, all of one size, hardly stand out of the noise
    likely: tuple[ValueSizes, ...] = ()  # the same by laws of tails that are equally likely

    @property
    def units(self) -> float:
        """How many units there are."""
        return float((self.below + self.above).sum())

    @property
    def mean(self) -> float:
        """The size of a value on average."""
        return self.share * float((self.below + self.above) @ self.middles) / self.units

    @property
    def middles(self) -> Float64[Array, " bins"]:
        """The size that stands for those in a bin."""
        return WHOLE_MIDDLES if self.whole else MIDDLES

    def beyond(self, low: float, high: float) -> float:
        """The share of the sum of all sizes that clamping takes away."""
        below = self.below @ np.maximum(self.middles - max(-low, 0.0), 0.0)
        above = self.above @ np.maximum(self.middles - max(high, 0.0), 0.0)
        share = (below + above) / ((self.below + self.above) @ self.middles)
        return float(f"{share:.3g}")

    def moments(self, low: float, high: float) -> tuple[float, float]:
        """Mean and variance of the values of all rows, once they are clamped."""
        sizes = np.concatenate([-self.middles, self.middles, [0.0]])
        absent = self.units * (1 / self.share - 1)
        weight = np.concatenate([self.below, self.above, [absent]]) / (self.units + absent)
        values = sizes.clip(low, high)
        within = np.where(values == sizes, WITHIN_BIN * sizes, 0.0)
        mean = weight @ values
        return float(mean), float(weight @ ((values - mean) ** 2 + within**2))

    @cached_property
    def laws(self) -> list[ValueSizes]:
        """Possible distributions of sizes, each equally likely."""
        return [replace(one, share=self.share) for one in self.likely] or [self]

    @cached_property
    def variances(self) -> Float64[Array, " laws"]:
        """The variances that values may have."""
        return np.array([max(one.moments(-inf, inf)[1], TINY) for one in self.laws])

    def clamped(self, low: float, high: float) -> Clamping:
        """Bounds, with the shares beyond them."""
        kept = np.array([one.moments(low, high)[1] for one in self.laws])
        lost = np.maximum(1 - kept / self.variances, 0.0).mean()
        unseen = float(f"{self.unseen:.2g}")
        return Clamping(low, high, self.beyond(low, high), unseen, float(f"{lost:.3g}"))


@dataclass(frozen=True)
class Clamping:
    """Bounds of an expression, and the shares that lie beyond.

    Shares assume that values go on as those that are seen. At most `unseen` units have other
    values: far beyond, however large.
    """

    low: float
    high: float
    beyond: float  # of the sum of its values
    unseen: float = 0.0
    variance: float = 0.0  # share of their variance

    @property
    def centre(self) -> float:
        """The middle of the bounds."""
        return (self.low + self.high) / 2


class Tails(NamedTuple):
    """Units in each bin: as `seen` where bins stand out, beyond them by laws, and their chances."""

    seen: Float64[Array, " bins"]
    chance: Float64[Array, " laws"]
    hidden: Float64[Array, "laws bins"]

    def mean(self, rows: float) -> Float64[Array, " bins"]:
        """The mean over laws, at `rows` a unit.

        >>> exact = np.round(1e5 * np.diff(ndtr(LOGS / 3), prepend=0, append=1)).astype(np.int64)
        >>> found = tails(exact, np.where(exact > 500, exact, 0.0), 50.0).mean(rows=1.0)
        >>> exact[93:98].tolist(), found[93:98].round().tolist()
        ([762, 531, 361, 238, 153], [762.0, 531.0, 355.0, 237.0, 154.0])
        """
        return np.asarray(self.seen + none_of_few(self.chance @ self.hidden, rows))

    def strata(self, rows: float) -> list[Float64[Array, " bins"]]:
        """Some laws, equally likely, from the lightest tail to the heaviest.

        The share of a variance beyond a size is the mean of the shares by each law. By the mean law
        it would be that of a few laws, whose squares outweigh all others.
        """
        heavy = np.argsort(self.hidden @ MIDDLES**2, kind="stable")
        places = np.searchsorted(np.cumsum(self.chance[heavy]), (np.arange(STRATA) + 0.5) / STRATA)
        return [self.seen + none_of_few(self.hidden[heavy[place]], rows) for place in places]


def none_of_few(tail: Float64[Array, " bins"], rows: float) -> Float64[Array, " bins"]:
    """A tail, cut off where fewer than `FEWEST_ROWS` rows are expected.

    The mean of a long tail is that of rows which are mostly absent.
    """
    return np.where(np.cumsum(tail[::-1])[::-1] * rows < FEWEST_ROWS, 0.0, tail)


def tails(
    noisy: Int64[Array, " bins"], seen: Float64[Array, " bins"], sigma: float,
    *, whole: bool = False,
) -> Tails:  # fmt: skip
    """The units beyond the bins that stand out, by the laws that fit.

    Algorithm: log-normal, gamma and Pareto laws and powers up to an end, each also cut off where
        the last bin stands out, about the median that is seen. Of each the likelihood of the noisy
        bins from the median on (`about_laws`), those of noise alone too; bins that are seen may
        differ from every law by `MISFIT`. Of `whole` numbers, laws are those of sizes that are
        rounded: some bins hold none.
    """
    some = np.append(0.0, seen[1:])
    if not some.any():
        return Tails(seen, np.ones(1), np.zeros((1, len(seen))))
    last = int(np.flatnonzero(some)[-1])
    upto = np.cumsum(some)
    first = max(int(np.searchsorted(upto, upto[-1] / 2)), 1)
    inside = (upto[-1] / 2 - upto[first - 1]) / some[first]
    median = float(LOGS[first - 1] + inside / 2)
    laws = laws_of_sizes(median, WHOLE_LOGS if whole else LOGS)[:, first:]
    data, standing = noisy[first:], np.arange(first, len(noisy)) <= last
    before = np.repeat([MOSTLY, 1.0], len(laws))
    laws = np.concatenate([laws, laws * standing])
    about = about_laws(data, laws, sigma, MISFIT * standing)
    fit = unlikely(data, about)
    chance = before * np.exp((fit.min() - fit) / 2)
    hidden = np.where(standing, 0.0, about.bins)
    return Tails(seen, chance / chance.sum(), np.pad(hidden, ((0, 0), (first, 0))))


def laws_of_sizes(median: float, edges: Float64[Array, " edges"]) -> Float64[Array, "laws bins"]:
    """The share of values in each bin, by each law that is fitted; all sizes by logarithms."""
    off = (edges - median)[None, :] - OFFSETS[:, None]
    x = 2.0 ** np.clip(off, -200, 200)
    found = [ndtr(off / deviation) for deviation in DEVIATIONS]
    found += [gammainc(shape, gammaincinv(shape, 0.5) * x) for shape in GAMMAS]
    found += [1 - (1 + x * (2 ** (1 / power) - 1)) ** -power for power in PARETOS]
    found += [2.0 ** np.minimum(power * off - 1, 0.0) for power in ENDING]
    return np.diff(np.concatenate(found), prepend=0.0, append=1.0, axis=1)


def clamped(
    plan: Plan, operator: GroupBy, opened: Sequence[Aggregate], sizes: Mapping[str, ValueSizes]
) -> dict[str, Clamping]:
    """Bounds of values for which nobody gave any, by the forecast error of clamping and of noise.

    Post-processing of a look. `operator` runs the `plan` whose `opened` aggregates have the
    outermost bounds that hold the values seen by the look. Values with quantiles keep these.
    """
    found: dict[str, Clamping] = {}
    for text, one in sizes.items():
        asked = {agg.name for agg in opened if agg.expression == text}
        outputs = [output for output in operator.outputs if output.name in asked]
        ordered = any(output.function == "quantile" for output in outputs)
        found[text] = (as_it_is if ordered else least_error)(plan, operator, outputs, one)
    return found


def within_ends(
    found: Mapping[str, Clamping], ends: Mapping[str, tuple[float, float]]
) -> dict[str, Clamping]:
    """Bounds within the range of a value's type; where a look found none, the whole range.

    >>> found = within_ends({"a": Clamping(0.0, 1.4, 0.0, 50.0)}, {"a": (0, 1), "b": (0, 255)})
    >>> [(one.low, one.high, one.unseen) for one in found.values()]
    [(0, 1, 0.0), (0, 255, 0.0)]
    """
    made = dict(found)
    for text, (low, high) in ends.items():
        one = found.get(text, Clamping(low, high, 0.0))
        cut = replace(one, low=max(low, one.low), high=min(high, one.high))
        if (cut.low, cut.high) == (low, high):
            cut = Clamping(low, high, 0.0)
        made[text] = cut if cut.low < cut.high else one
    return made


def as_it_is(_: Plan, __: GroupBy, outputs: Sequence[Output], sizes: ValueSizes) -> Clamping:
    """The bounds that aggregates of an expression have."""
    return sizes.clamped(outputs[0].low, outputs[0].high)


def least_error(
    plan: Plan, operator: GroupBy, outputs: Sequence[Output], sizes: ValueSizes
) -> Clamping:
    """The bounds of sums and moments with the least forecast error, narrower or wider than now.

    The error of several is the sum of their errors, each as a share of its target.
    """
    stream = expected_stream(plan, windows_of(operator))
    last, tried = operator.schedule.triggers, [*reaches(outputs[0], sizes)]
    if stream is None or last is None or not tried:
        return as_it_is(plan, operator, outputs, sizes)
    aggregation = operator.aggregation
    leading, settings = driver(aggregation.lanes), as_settings(operator)
    streams = [replace(one, once=plan.counts_units) for one in stream.family()]

    def cost(output: Output, one: Clamping) -> float:
        squares = output.function in SQUARED
        whole = 1 / (1 / sizes.variances).mean() if squares else sizes.mean
        lost = one.variance if squares else one.beyond
        wide = width_of(one.low, one.high, output.function)
        most, base = wide / whole, noise_of(operator, output, one, sizes) / whole
        if leading == output.lanes[-1]:  # sums show groups, or decide weights
            used = replace(settings, reference=settings.reference * most)
            test = threshold_of(aggregation, last, base, most)
        else:
            used = settings
            test = threshold_of(aggregation, last, lane_sd(operator, leading, last))
        made = (replace(stream, clamped=lost) for stream in streams)
        return sum(errors_of(stream, used, test, last, base).cost for stream in made)

    return min(tried, key=lambda one: sum(cost(output, one) for output in outputs))


def noise_of(operator: GroupBy, output: Output, bounds: Clamping, sizes: ValueSizes) -> float:
    """The deviation of a sum, mean or variance of a row at the last release, with other bounds."""
    sds = [lane_sd(operator, lane, operator.schedule.triggers or 1) for lane in output.lanes]
    narrower, centre = (bounds.high - bounds.low) / (output.high - output.low), bounds.centre
    if output.is_total and len(sds) > 1:
        return hypot(centre * sds[0], narrower * sds[1])
    if len(sds) == len(("rows", "sum", "squares")):  # see `variance_of`
        mean, variance = sizes.moments(bounds.low, bounds.high)
        off = mean - centre
        slopes = variance - off**2, 2 * off * narrower, narrower**2
        return hypot(*(slope * sd for slope, sd in zip(slopes, sds, strict=True)))
    wide = [width_of(one.low, one.high, output.function) for one in (bounds, output)]
    return sds[-1] * wide[0] / wide[1]


def width_of(low: float, high: float, function: str) -> float:
    """The size that noise hides: a sum's larger end, half a mean's range, its square for others."""
    if function in SQUARED:
        return ((high - low) / 2) ** 2
    return (high - low) / 2 if function == "avg" else max(abs(low), abs(high))


def reaches(output: Output, sizes: ValueSizes) -> Iterator[Clamping]:
    """The bounds to try: either end moves to a size, if values are expected so far out."""
    far = [float(POWERS[min(int(np.flatnonzero(side)[-1]), len(POWERS) - 1)]) if side.any() else 0.0
           for side in (sizes.below, sizes.above)]  # fmt: skip
    middle = round(2 * log2(max(abs(output.low), abs(output.high))))
    for half in sorted(range(middle - DOWN, middle + UP + 1), key=lambda one: abs(one - middle)):
        size = 2.0 ** (half / 2)
        low = output.low if output.low >= 0 else 0.0 - min(size, far[0])
        high = output.high if output.high <= 0 else min(size, far[1])
        if low < high and size <= 2 * max(far):
            yield sizes.clamped(low, high)
