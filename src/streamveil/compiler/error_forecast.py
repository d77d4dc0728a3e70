"""The expected errors of a count on streams that one may expect: for choosing its settings.

The errors on an `ExpectedStream` under some settings follow from the noise of the mechanisms.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf, log, pi, sqrt
from typing import Literal, NamedTuple

import numpy as np

from streamveil.compiled import erf, erfc, ndtri, njit
from streamveil.compiler.expected_stream import ExpectedStream, averaged, draw_stream
from streamveil.core.release import WeightRule
from streamveil.types import Array, Bool, Float64, Int64

SLOPE = 6.0  # how sharply the chance to be shown by coins rises around its middle
APART = 0.3  # of the range of values: how far the mean of cut rows may lie from that of the others
LUCK = 1.2  # deviations by which the largest forecast so far of a total exceeds that total
CAUTION = 2.0  # deviations by which totals are taken too low where groups are public
ROUNDS = 3  # of computing what bounding keeps and when groups open, each from the other
Kind = Literal["table", "gaussian", "totals", "public"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings that are chosen."""

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
    """The public numbers of the mechanisms to which settings apply."""

    mu: float  # of all Gaussian releases, if they were alone
    part: float = 1.0  # of mu squared, for the total that is forecast
    people: float = 0.0  # the same for a count of units beside that total; 0: there is none
    beside: float = 0.0  # mu of all releases beside the Gaussian selection's part of delta; 0: mu
    spread: float  # deviation at the last release of a counter with sensitivity 1 and mu 1
    triggers: int = 1_000  # of one window
    half: float = 0.0  # units that show half of all groups, with two slots and a share of 2/3; or 0
    delta: float = 1e-9  # for thresholds of the Gaussian selection
    offset: int = 0  # units that do not count

    def coins(self, slots: int, share: float) -> float:
        """`half` for other slots and shares, within 10 % of that of the designs.

        The formula treats the selection as a Gaussian test on sqrt(slots) moves with the rest of
        mu.
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
    """The selection's threshold at the last release, and the noise of its test."""

    units: float  # public groups: the rows from which on weights may fall
    deviation: float = 0.0  # of a Gaussian selection or a test of totals
    people: float = 0.0  # deviation of a count of units beside the forecast total; 0: none


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
    """The numbers of classes of groups on which their errors depend."""

    counts: Float64[Array, " classes"]  # groups
    shown: Float64[Array, " classes"]  # share of them
    totals: Float64[Array, " classes"]  # of one group


class LeftOut(NamedTuple):
    """What a release shows of groups and what it leaves out, without noise."""

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


@lru_cache(maxsize=1)  # errors against all totals and against bounded ones are computed in turn
def left_out(
    stream: ExpectedStream, settings: Settings, test: Threshold, triggers: int, base: float
) -> LeftOut:
    """What the last release shows: see `errors_of`."""
    drawn = draw_stream(replace(stream, clamped=0.0, ratio=False, batches=inf))
    steps, asked = min(triggers, stream.batches), test.units
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
    # the first round assumes that nothing is shown or cut
    middle = asked / (averaged(drawn, drawn.all_rows) if public else drawn.share_of_first)
    opens = np.full(len(totals), -1.0)
    for _ in range(ROUNDS):
        before, opens = opens, np.minimum(np.ceil(steps * middle / totals), float(steps))
        if (opens == before).all():  # so is all that follows: the same rows are hidden
            break
        hidden, weight = hide(drawn.place, step, opens, 1 / growth, steps / WeightRule.growth)
        kept, entered = admit(drawn.ends, drawn.first, drawn.times, hidden, weight, limits)
        met = (new & (kept > 0)) / drawn.times  # one row of a unit in a group
        if public:
            break
        counted = {"table": entered / drawn.times, "gaussian": met}.get(settings.kind, kept)
        middle = asked / np.maximum(averaged(drawn, counted, hidden), 0.002)
    share = averaged(drawn, 1 - kept)
    lost = totals * (share + (1 - share) * stream.clamped)
    if settings.kind == "table":
        if settings.max_rows < inf:  # units that have used up their rows open nothing more
            middle = asked / averaged(drawn, entered / drawn.times)
        shown = 1 / (1 + (middle / totals) ** SLOPE)
    elif settings.kind == "totals":
        shown = erfc((asked - totals + lost) / (test.deviation * sqrt(2))) / 2
    elif settings.kind == "gaussian":
        units = totals * averaged(drawn, met)
        shown = erfc((asked - units) / (test.deviation * sqrt(2))) / 2
    else:
        shown = np.ones(len(totals))
    late = np.clip(1 - opens / steps, 0, 1)  # of the releases with falling weights
    more = np.sqrt(1 + (growth**2 - 1) * late)
    cut = float((drawn.weight * (1 - kept)).sum() / drawn.of_all[1])
    people = None
    if test.people:
        units, without = (
            totals * drawn.share_of_first,
            totals * averaged(drawn, (new & (kept == 0)) / drawn.times),
        )
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


@njit(cache=True)  # type: ignore[untyped-decorator]  # numba is untyped
def hide(
    place: Int64[Array, " rows"],
    step: Float64[Array, " rows"],
    opens: Float64[Array, " classes"],
    shown: Float64[Array, " classes"],
    known: float,
) -> tuple[Bool[Array, " rows"], Float64[Array, " rows"]]:
    """Whether a row comes before its group opens, and its weight: 1, later that of its group.

    Before the step from which on a total is `known` weights are larger: see `WeightRule`.
    """
    hidden, weight = np.zeros(len(place), np.bool_), np.ones(len(place))
    for i in range(len(place)):
        hidden[i] = step[i] <= opens[place[i]]
        if not hidden[i]:
            more = max(1.0, known / step[i]) ** (1 / 3)
            weight[i] = min(1.0, shown[place[i]] * more)
    return hidden, weight


@njit(cache=True)  # type: ignore[untyped-decorator]  # numba is untyped
def admit(
    ends: Int64[Array, " units"],
    first: Int64[Array, " rows"],
    times: Float64[Array, " rows"],
    hidden: Bool[Array, " rows"],
    weight: Float64[Array, " rows"],
    limits: Float64[Array, " 5"],
) -> tuple[Float64[Array, " rows"], Bool[Array, " rows"]]:
    """The share of each row that bounding keeps, and the rows that the selection may count.

    A row stands for `times` consecutive rows in its group: the first of them is kept or not, and as
    many of the others as the bounds leave room for. The selection counts such rows if their group
    is hidden. Limits: the quadratic bound in entry weights, slots (which bound what the selection
    counts but not what is kept), rows in a group, rows, groups.
    """
    quadratic, slots, per_group, max_rows = limits[0], limits[1], limits[2], limits[3]
    most = limits[4]
    kept, entered = np.zeros(len(first)), np.zeros(len(first), np.bool_)
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
            kept[i], spent, rows = 1.0, spent + cost, rows + 1
            groups += inside[f] == 0
            if inside[f] == 0 and used < slots:
                entered[i] = True
                used += hidden[i]
            held[f] += weight[i]
            inside[f] += 1
            if times[i] > 1:
                room = np.sqrt(held[f] ** 2 + max(quadratic - spent, 0.0)) - held[f]
                more = min(times[i] - 1, max_rows - rows, per_group - inside[f], room / weight[i])
                cost = weight[i] * more * (2 * held[f] + weight[i] * more)
                kept[i], spent, rows = (1 + more) / times[i], spent + cost, rows + more
                held[f] += weight[i] * more
                inside[f] += more
        at = end
    return kept, entered
