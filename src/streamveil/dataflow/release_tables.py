"""From noisy totals to the columns of releases: post-processing, of many releases at once.

The numbers of a key in a release depend on that key, its release and public numbers alone. So the
keys of several releases are computed together as if they were one, with the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from streamveil.batch import ReleaseColumns
from streamveil.compiled import log_ndtr, ndtr, ndtri
from streamveil.core.accounting import portable
from streamveil.core.noisy import Noisy
from streamveil.dataflow.cut_rows import cut_of_most, cut_summary, kept_rows, with_share
from streamveil.dataflow.outputs import (
    FUNCTIONS,
    TINY,
    Estimate,
    Output,
    Totals,
    quantile_of,
    reach_of,
)
from streamveil.dataflow.release import KeySize, PublishedKeys
from streamveil.kinds import COUNTS, MOMENTS
from streamveil.release_metadata import FACTS, SUFFIXES, TIME, completed
from streamveil.types import Array, Float64, Int32, Int64

# ---- intervals that cover cut rows too

UNEVEN = 3.0  # a group may have lost so many times its share of cut rows; chosen by measurement
FARTHEST = 60.0  # deviations below an estimate at which the search for its end begins, at most
CORRECTED = 1e-9  # deviations: a lower end further below that of noise alone was corrected
APART = 2.5  # deviations above a threshold from which a count is no longer taken by itself
GUESSED = 0.05  # of the chance of errors: that a count is below its stated bound
SEARCHED = 30  # halvings of the search, which starts with 60 deviations at most
UNSEEN = 1e-3  # of the chance of errors, by which an interval may miss more often
Ends: TypeAlias = tuple[Float64[Array, " rows"], Float64[Array, " rows"]]  # of intervals


class Thresholds(NamedTuple):
    """The thresholds of tests that may have shown groups by their own totals."""

    above: Float64[Array, " keys"]  # the total exceeded this; -inf: no test showed the group
    least: Float64[Array, " keys"]  # the total without noise is at least this
    half: Float64[Array, " keys"]  # rounding may have raised the released total by this

    def at(self, rows: Int64[Array, " rows"]) -> Thresholds:
        """The thresholds of some keys."""
        return Thresholds(*(part[rows] for part in self))


class CutOdds(NamedTuple):
    """Cut rows for each row that was kept, over all shown groups: an estimate with its noise."""

    value: float | Float64[Array, " keys"]  # at least 0
    sd: float | Float64[Array, " keys"]


def with_cut(answer: Estimate, output: Output, odds: CutOdds, confidence: float) -> Estimate:
    """An interval that also holds the rows that contribution bounding cut, three times its share.

    Nobody knows which groups lost the rows: a group that lost more may lie beyond its interval, and
    a note says so (`ALLOWED`). Only for sums of values of one sign.

    Guarantee: groups that lost more have less than a third of the kept rows of the shown groups,
        whatever the data. Every other number is in its interval with the confidence, less `UNSEEN`
        of the chance of errors. In a sum a cut row counts like a kept one.
    Proof: L rows were cut of groups that kept K. Those that each lost more than 3 L / K times what
        they kept, k rows together, lost more than 3 k L / K together and at most L: k < K / 3. K is
        known up to the noise of all groups. For the others see `ends_with_cut`.
    """
    rises = output.function != "sum" or output.low >= 0
    lower, upper = (answer.low, answer.high) if rises else (-answer.high, -answer.low)
    low, high = ends_with_cut(lower, upper, answer.sd, odds, confidence, (output.step, output.room))
    if rises:
        return inwards(replace(answer, low=np.maximum(low, output.least), high=high), output)
    return inwards(replace(answer, low=-high, high=-low), output)


def ends_with_cut(
    lower: Float64[Array, " keys"],
    upper: Float64[Array, " keys"],
    sd: Float64[Array, " keys"],
    odds: CutOdds,
    confidence: float,
    lattice: tuple[float, float] = (0.0, 0.0),
) -> Ends:
    """The ends of an interval for k + x: k was kept, x in [0, c k] was cut, c is 3 times the odds.

    Algorithm: that of Imbens & Manski (2004), doi:10.1111/j.1468-0262.2004.00555.x, with the noise
        of the odds. An interval with room for all of c k misses on one side alone, nearly, and
        reaches 1.64 deviations to each side instead of 1.96.
    Proof: the number has noise e of deviation s, c has f of deviation d, drawn apart. The lower end
        is above k + x only if e > z s + x, the upper one below only if e (1 + c) + k f < -(z r + c
        k - x), where r^2 = (1 + c)^2 s^2 + k^2 d^2. Both are at most Phi(-z - x / s) + Phi(-z - (c
        k - x) / r), which is convex in x, and as s <= r largest at x = 0: `reach` makes it the
        chance of errors. A smaller k or c has a larger reach, so it may be taken from below: k as
        the lower end of 1.96 deviations, which is above the true k only where e > 1.96 s, a miss at
        x = 0 anyway; c by so many deviations that it fails `UNSEEN` as often as an interval. In r,
        k is taken from above, at 1.96 deviations, and c as it is estimated; e f is left out. Tests
        integrate over the noise, and find the chance kept for x from 0 to c k.
        If its own total may have shown a group, e tends to be larger, so the upper end misses at
        most as often. Its lower end is corrected already (`since_published`), and stays.
        Both ends are half a step further out, as in `reach_of`; `lattice` is its step and its room.
    """
    z, far = quantile_of(confidence), quantile_of(1 - 2 * UNSEEN * (1 - confidence))
    plain, half = reach_of(sd, z, *lattice), lattice[0] / 2 + lattice[1]
    kept, most = upper - plain, np.maximum(upper, 0.0)
    room = UNEVEN * np.maximum(odds.value - far * odds.sd, 0.0) * np.maximum(kept - z * sd, 0.0)
    spread = np.hypot((1 + UNEVEN * odds.value) * sd, UNEVEN * most * odds.sd)
    reach = reach_beside(room / np.maximum(spread, TINY), confidence)
    low = np.where(lower < kept - plain - CORRECTED * sd, lower, kept - reach * sd - half)
    return low, kept + UNEVEN * odds.value * np.maximum(kept, 0.0) + reach * spread + half


def reach_beside(room: Float64[Array, " keys"], confidence: float) -> Float64[Array, " keys"]:
    """The least z with Phi(-z) + Phi(-z - room) at most the chance of errors, or a bit more.

    Proof: an iteration from a z that is too small gives one that is large enough, and vice versa.

    >>> reach_beside(np.array([0.0, 1.0, 9.0]), 0.95).round(3).tolist()
    [1.96, 1.681, 1.645]
    """
    miss, most = 1 - confidence, quantile_of(confidence)
    small = np.full_like(room, quantile_of(1 - 2 * miss))
    large = np.full_like(room, most)
    for _ in range(3):
        large = np.minimum(-ndtri(np.maximum(miss - ndtr(-small - room), 0.0)), most)
        small = -ndtri(np.maximum(miss - ndtr(-large - room), 0.0))
    return np.asarray(portable(large))


def since_published(
    count: Totals, thresholds: Thresholds, low: Float64[Array, " rows"], confidence: float
) -> Float64[Array, " rows"]:
    """The lower ends of totals that may have shown their own groups, from those of noise alone.

    Algorithm: the bound on conditional coverage of a union of tests by its last one.
    Proof: a release shows a group if a test of its total has passed so far. Call that S. One of the
        tests is that of this release, so P(S) is at least Phi((m - t) / sd), with t its threshold
        and m the true total, however large the group was at earlier tests and however their noise
        goes together with this. So given S, the noisy total is x or more with a chance of at most
        Phi((m - x) / sd) / Phi((m - t) / sd), where x is above t. That rises with m. So an end
        where it is alpha / 2 is above m in at most alpha / 2 of all cases in which the group is
        shown. A total of t or less says nothing of m but the least that a test lets pass.
        The upper end needs no correction: the larger the noise of a test, the likelier is S, and
        noise of different triggers is nowhere negatively correlated. Such Gaussian numbers are
        associated (Pitt 1982, doi:10.1214/aop/1176993872), so given S the noise is below -z
        deviations at most as often as without it.
        All this holds for all groups of a release, those shown before and those shown now.
        Coins may show groups at the same trigger, whatever their noise: see `tested_above`. Where
        totals alone show them, t at later triggers is that of the last test: for a group that grew
        since, this bound of P(S) is too high.
    """
    x, sd = count.estimate[0], np.sqrt(count.variance[0])
    return np.minimum(mean_above(x, thresholds, sd, (1 - confidence) / 2), low)


def since_counted(
    output: Output, totals: Totals, thresholds: Thresholds, ends: Ends, confidence: float
) -> Ends:
    """The ends of sums that are moved back by the count that shows the group.

    Proof: given that its count shows the group, the noise of the count tends to be larger, and the
        noise of the rest is independent. So where the count has a factor above 0, the noise of both
        together is below -z deviations at most as often, and the upper end holds. The lower end is
        that of the rest plus that of the count by `since_published`, each with half of the chance
        of errors. Below 0 the ends change sides.
        Where the count is `APART` deviations above the threshold, this is much too low. There, a
        lower bound n of the count fails with a part `GUESSED` of the chance of errors. So the group
        is shown with a chance of at least p = Phi((n - t) / sd); given that, the noise of both
        together is above z deviations with a chance of at most Phi(-z) / p, which is the other
        part. Tests integrate that the two rules, each where it is used, miss no more often.
        A count that is seen 2 k deviations above the threshold leaves the interval as it is. If the
        true count is k above it, the group is shown with chance Phi(k), and the interval misses at
        most 1 / Phi(k) times as often as without the condition. If the true count is less, the
        chance to see it that far above, which rises with the true count, is at most
        Phi(-k) / Phi(k): `UNSEEN` of the chance of errors, which comes on top.
    """
    (factor, _), miss = output.factors, (1 - confidence) / 2
    (count, rest), (doubt, sd) = totals.estimate, np.sqrt(totals.variance)
    counted = mean_above(count, thresholds, doubt, miss / 2)
    side, half = (1.0 if factor > 0 else -1.0), output.step / 2 + output.room  # as in `reach_of`
    end = rest + factor * counted - side * (quantile_of(1 - miss) * sd + half)
    fewest = mean_above(count, thresholds, doubt, GUESSED * miss)
    shown = ndtr((fewest - thresholds.above) / doubt)  # the chance of it, at least
    reach = np.maximum(-ndtri((1 - GUESSED) * miss * shown), quantile_of(confidence))
    spread = np.hypot(factor * doubt, sd)
    both = rest + factor * count - side * (portable(reach) * spread + half)
    end = np.where(count > thresholds.above + APART * doubt, both, end)
    low, high = ends
    if factor > 0:
        return np.clip(end, output.least, low), high
    return low, np.maximum(end, high)


def since_divided(
    output: Output, totals: Totals, thresholds: Thresholds, ends: Ends, confidence: float
) -> Ends:
    """The same for a mean, variance or deviation of values whose count shows the group.

    See `ratio_between`; groups near their thresholds are those of `since_counted`.
    """
    count, doubt = totals.estimate[0], np.sqrt(totals.variance[0])

    def fewest(z: float) -> Float64[Array, " rows"]:
        return mean_above(count, thresholds, doubt, float(portable(ndtr(-z))))

    answered, z = FUNCTIONS[output.function], quantile_of(confidence)
    found = answered(output, totals.estimate, totals.variance, z, fewest)
    return np.minimum(found.low, ends[0]), np.maximum(found.high, ends[1])


def near_threshold(
    count: Totals, thresholds: Thresholds, confidence: float
) -> Int64[Array, " rows"]:
    """Groups whose total was seen so near its threshold that its interval is to be corrected.

    See `since_counted` for the others.
    """
    far = 2 * quantile_of(1 - 2 * UNSEEN * (1 - confidence))
    reach = thresholds.above + far * np.sqrt(count.variance[0])
    return np.flatnonzero((count.variance[0] > 0) & (count.estimate[0] <= reach))


def mean_above(
    x: Float64[Array, " keys"], thresholds: Thresholds, sd: Float64[Array, " keys"], chance: float
) -> Float64[Array, " keys"]:
    """The mean of a Gaussian that, seen above a threshold, rounds to x or more with this chance.

    At least `thresholds.least`, and exactly that for an x not above the threshold. `chance` is at
    most a half.

    >>> given = Thresholds(*np.array([[0.0], [-np.inf], [0.0]]))
    >>> float(mean_above(np.array([100.0]), given, np.array([1.0]), 0.5)[0])
    100.0
    """
    low, high = np.maximum(x - FARTHEST * sd, thresholds.least), np.maximum(x, thresholds.least)
    seen = np.maximum(x - thresholds.half, thresholds.above)
    for _ in range(SEARCHED):
        middle = (low + high) / 2
        found = log_ndtr((middle - seen) / sd) - log_ndtr((middle - thresholds.above) / sd)
        above = found > np.log(chance)
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return np.asarray(portable(high))


# ---- from noisy totals to the columns of releases

LARGEST = 2.0**63 - 1024  # of float64 that int64 holds; sums may be larger, counts are not
OPENED, WEIGHT = "opened", "noise_weight"  # public facts that a release carries for each key
Stamp = tuple[str, int, pa.DataType]  # a column that is the same in all rows of a release
Place = tuple[int, int, int]  # window, trigger, step


@dataclass(frozen=True)
class ReleaseShape:
    """The columns of releases, which are the same in all of them."""

    keys: tuple[pa.Field, ...]
    outputs: tuple[Output, ...]
    confidence: float
    size: KeySize | None = None  # how many rows a key has, if a lane tells
    true_intervals: bool = False  # intervals cover the rows over the bound as well


class ReleasePoint(NamedTuple):
    """The public facts of one release: settings."""

    trigger: int
    shared: int | None  # the lane whose totals show groups
    threshold: float  # of these totals at this trigger
    least: float  # total without noise of a group that a test shows
    half: float  # of the quantum to which totals are rounded
    coins: bool  # whether coins show others, whose totals may be below the threshold
    deviation: float  # of the count of cut rows, in quanta
    stamps: tuple[Stamp, ...]
    facts: bytes  # without their last brace
    time: bytes


class Numbers(NamedTuple):
    """The parts of one release, unwrapped."""

    keys: PublishedKeys
    totals: Totals
    floors: Float64[Array, "outputs shown"]  # last values of the outputs that may not fall
    share: Float64[Array, " shown"] | None
    cut: Float64[Array, " bands"] | None  # rows over the bound, in quanta


@dataclass(frozen=True)
class DrawnRelease:
    """A release whose noise is drawn, and whose columns are not made yet."""

    place: Place
    rows: int
    lanes: int
    shape: Noisy[ReleaseShape]
    moment: ReleasePoint
    numbers: tuple[Noisy[Any] | None, ...]  # `Numbers`


def to_columns(
    shape: ReleaseShape, moments: tuple[ReleasePoint, ...], *given: Any
) -> ReleaseColumns:
    """Post-processing: key columns, aggregates with intervals; in order of key bytes.

    `given`: the `Numbers` of each release, one after the other.
    """
    width = len(Numbers._fields)
    parts = [Numbers(*given[at : at + width]) for at in range(0, len(given), width)]
    rows = [len(part.keys.order) for part in parts]
    order, totals = side_by_side(parts, rows)
    fields, found, rising = list(shape.keys), list[pa.Array](), 0
    sizes = None if shape.size is None else shape.size.of(totals)[order]
    lost, odds = cut_of(shape, moments, parts, sizes, rows)
    shared = {one.shared for one in moments} - {None}
    tested = tested_above(moments, parts) if shared else None
    for output in shape.outputs:
        rising += output.monotone
        if output.unbounded:
            add_unknown(fields, found, output, len(order))
            continue
        answer = output.in_order(totals, order, shape.confidence)
        if tested is not None and shared.intersection(output.lanes):
            answer = since_shown(answer, output, totals, order, tested, shape.confidence)
        if odds is not None:
            answer = with_cut(answer, output, odds, shape.confidence)
        if output.monotone:
            answer = risen(answer, joined([p.floors[rising - 1][p.keys.order] for p in parts]))
        value = answer.value
        if output.is_integer and value.dtype.kind == "f":
            whole = np.rint(value)  # may lie outside a narrow interval, which is widened to hold it
            low, high = np.minimum(answer.low, whole), np.maximum(answer.high, whole)
            answer = replace(answer, low=low, high=high)
            value = whole.clip(-LARGEST, LARGEST).astype(np.int64)
        note = {b"bias": output.bias.encode()} if output.bias else None
        add(fields, found, output.name, value, note)
        for suffix, cells in (("_sd", answer.sd), ("_low", answer.low), ("_high", answer.high)):
            add(fields, found, output.name + suffix, cells)
    add(fields, found, OPENED, joined([part.keys.opened for part in parts]))
    if parts[0].share is not None:
        shares = [p.share[p.keys.order] for p in parts if p.share is not None]
        add(fields, found, WEIGHT, joined(shares))
    for nth, (name, _, kind) in enumerate(moments[0].stamps):
        cells = np.repeat(np.array([one.stamps[nth][1] for one in moments], np.int64), rows)
        fields.append(pa.field(name, kind, nullable=False))
        found.append(pa.Array.from_buffers(kind, len(cells), [None, pa.py_buffer(cells)]))
    said = [
        {FACTS: completed(one.facts, cut), TIME: one.time}
        for one, cut in zip(moments, lost, strict=True)
    ]
    return ReleaseColumns(fields, [part.keys.columns for part in parts], found, rows, said)


def side_by_side(parts: Sequence[Numbers], rows: Sequence[int]) -> tuple[Array, Totals]:
    """The keys of all releases as those of one: their order, and their totals."""
    if len(parts) == 1:
        return parts[0].keys.order, parts[0].totals
    starts = np.cumsum([0, *rows[:-1]]).tolist()
    order = [p.keys.order + np.int32(start) for p, start in zip(parts, starts, strict=True)]
    totals = Totals(
        np.concatenate([part.totals.estimate for part in parts], axis=1),
        np.concatenate([part.totals.variance for part in parts], axis=1),
    )
    return np.concatenate(order), totals


def cut_of(
    shape: ReleaseShape,
    moments: Sequence[ReleasePoint],
    parts: Sequence[Numbers],
    sizes: Float64[Array, " keys"] | None,
    rows: Sequence[int],
) -> tuple[Sequence[dict[str, float] | None], CutOdds | None]:
    """The note of each release on rows over the bound, and how many cut rows a kept one implies.

    `sizes` are rows by key in the order of the release: the last bits of their sum depend on the
    order, and the keys of a window are held in the order in which their rows came.
    """
    bands = [part.cut for part in parts if part.cut is not None]
    if not bands:
        return [None] * len(parts), None
    noisy, sd = np.stack(bands), np.array([one.deviation for one in moments])
    lost = cut_summary(noisy, sd)
    if all(output.function == "count_units" for output in shape.outputs):
        lost = [{**one, "first": True} for one in lost]  # repeated groups are not among them
    if shape.size is None or sizes is None:
        return lost, None
    ends = np.cumsum(rows).tolist()
    own = [sizes[end - some : end] for end, some in zip(ends, rows, strict=True)]
    odds = None
    if shape.true_intervals:
        kept = [kept_rows(one) for one in own]
        odds = CutOdds(*(np.repeat(part / kept, rows) for part in cut_of_most(noisy, sd)))
    if not shape.size.rows:  # the number of rows is not known
        return lost, odds
    return [with_share(*one) for one in zip(lost, own, strict=True)], odds


def joined(parts: list[Array]) -> Array:
    """Arrays end to end."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def tested_above(moments: Sequence[ReleasePoint], parts: Sequence[Numbers]) -> Thresholds:
    """The threshold that a key's total exceeded if it has shown the key; -inf: it has not.

    Where coins show keys too, a key counts as shown by its total if the total is above the
    threshold when the key is first shown. Such a total has the law of one known to be above the
    threshold. A total below it keeps its plain interval, which is wrong where the noise is very low
    or very high. At later triggers the interval is plain.
    """
    found = list[Array]()
    for one, part in zip(moments, parts, strict=True):
        keys = len(part.keys.opened)
        tested = np.full(keys, one.shared is not None)
        if one.shared is not None and one.coins:
            passed = part.totals.estimate[one.shared, part.keys.order] >= one.threshold
            tested = passed & (part.keys.opened == one.trigger)
        above = np.where(tested, one.threshold, -np.inf)
        found.append(np.stack([above, np.full(keys, one.least), np.full(keys, one.half)]))
    return Thresholds(*np.concatenate(found, axis=1))


def since_shown(
    answer: Estimate,
    output: Output,
    totals: Totals,
    order: Int32[Array, " keys"],
    thresholds: Thresholds,
    confidence: float,
) -> Estimate:
    """Intervals of groups that one of their totals may have shown."""
    lanes, count = np.array(output.lanes), np.array(output.lanes[:1])
    rows = near_threshold(some_of(totals, count, order), thresholds, confidence)
    if not len(rows):
        return answer
    near, low, high = some_of(totals, lanes, order[rows]), answer.low.copy(), answer.high.copy()
    if len(lanes) == 1:
        low[rows] = since_published(near, thresholds.at(rows), low[rows], confidence)
        return inwards(replace(answer, low=low), output)
    correct = since_divided if output.function in MOMENTS else since_counted
    ends = low[rows], high[rows]
    low[rows], high[rows] = correct(output, near, thresholds.at(rows), ends, confidence)
    return inwards(replace(answer, low=low, high=high), output)


def some_of(totals: Totals, lanes: Int64[Array, " some"], keys: Int32[Array, " some"]) -> Totals:
    """The totals of some lanes and keys."""
    cells = np.ix_(lanes, keys)
    found = (totals.estimate[cells], totals.variance[cells])
    return Totals(*map(np.ascontiguousarray, found))


def inwards(answer: Estimate, output: Output) -> Estimate:
    """The ends of a count's interval moved inwards to whole numbers: it holds the same integers.

    Where the count is moved back by half the rows, ends move to halves.
    """
    if not output.step or not (output.function in COUNTS or output.step == 1):
        return answer
    low, high = (output.step * turn(end / output.step)
                 for turn, end in ((np.ceil, answer.low), (np.floor, answer.high)))  # fmt: skip
    return replace(answer, low=low, high=high)


def risen(answer: Estimate, floor: Float64[Array, " keys"]) -> Estimate:
    """An answer that does not fall below a value."""
    value = np.maximum(floor, answer.value)
    return Estimate(value, answer.sd, answer.low, np.maximum(answer.high, value))


def floors_after(
    shape: ReleaseShape, totals: Totals, floors: Float64[Array, "outputs shown"]
) -> Float64[Array, "outputs shown"]:
    """Post-processing: the last values of the outputs that may not fall, after a release."""
    order = np.arange(floors.shape[1], dtype=np.int32)
    rising = [output for output in shape.outputs if output.monotone]
    found = [output.in_order(totals, order, shape.confidence).value for output in rising]
    return np.asarray(np.maximum(floors, np.array(found).reshape(floors.shape)))


def add(
    fields: list[pa.Field],
    columns: list[pa.Array],
    name: str,
    cells: Array,
    note: dict[bytes, bytes] | None = None,
) -> None:
    """Adds a column without nulls, and its field."""
    columns.append(pa.array(cells))
    fields.append(pa.field(name, columns[-1].type, nullable=False, metadata=note))


def add_unknown(fields: list[pa.Field], columns: list[pa.Array], output: Output, rows: int) -> None:
    """Adds the columns of an aggregate of which nothing is known: null.

    Post-processing: a look said that there are no bounds, and that is the same for all groups.
    """
    first = pa.int64() if output.is_integer else pa.float64()
    for suffix in ("", *SUFFIXES):
        kind = pa.float64() if suffix else first
        columns.append(pa.nulls(rows, kind))
        fields.append(pa.field(output.name + suffix, kind))
