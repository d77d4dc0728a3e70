"""What a look at the rows of a first release says of those of all releases."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import product
from math import sqrt
from typing import Any, NamedTuple

import numpy as np

from streamveil.compiler.design_choice import USUAL_ROWS
from streamveil.compiler.expected_stream import (
    MOST_ROWS,
    ROWS_OF_UNITS,
    STEEP,
    Drawn,
    ExpectedStream,
    draw_stream,
    expected,
    known_rows,
)
from streamveil.compiler.unit_sizes import MISFIT, ROW_EDGES, ROW_ENDS, SeenUnits
from streamveil.plan.look import CONCENTRATION, LAWS, MEAN_ROWS, STREAMS, VALUES, WAYS_OF_UNITS
from streamveil.plan.options import EXPECTED_ROWS, EXPECTED_UNITS
from streamveil.types import Array, Float64

MOSTLY_OWN = 0.5  # share of rows in groups of their own that makes a first release tell no others
HEAVY, EVEN = (3.2, 5.0, 8.0), (1.0, 2.0, 5.0, 20.0)  # powers and gamma laws of rows
SIZES = np.geomspace(0.1, 3_000, 150)  # b of powers, about the mean of gamma laws
AT_ANY_TIME = 2.0  # times as likely beforehand: units that are there in all releases
FAR = 1e9  # releases, of which no two rows of a unit are in one
APART = 4  # rows in a release from which on units may stand out beside a law
OUTSTANDING, BESIDE = 4.0, 2.0  # deviations by which they do, and bins next to such a one
TOLD = 1e-5  # share of units below which a bin is left out
FEWEST, FARTHEST = 1.01, 300.0  # rows of a unit, on average, that laws may have
WAYS = 8  # in which units may have rows and repeat groups; coprime to `design_choice.FEW`
MIXED = tuple((int(f"{place:03b}"[::-1], 2) + 0.5) / WAYS for place in range(WAYS))
REPEATS = np.linspace(0, 1, 65)  # chances to repeat a group that are weighed
DRAWN_REPEATS = (0.0, 0.3, 0.7, 1.0)  # those for which streams are drawn
RARELY = 3  # beforehand, a chance r to repeat a group is as likely as (1 - r)^RARELY
UNSURE = 0.1  # share by which repeats may differ from what is drawn
DRAWN = 250  # units that are drawn for it


class Way(NamedTuple):
    """How many rows units have, and how long they are there."""

    rows: float  # on average
    there: float  # number of releases over which the rows of a unit are spread
    histogram: tuple[tuple[int, int, float], ...]  # as `ExpectedStream` says it
    apart: bool = False  # whether no two rows of a unit are in one release


def of_all_releases(
    known: dict[str, Any], releases: int, seen: SeenUnits | None, met: int | None = None
) -> dict[str, Any]:
    """What a look at the rows of the first of some releases says of those of all of them.

    As many rows come in each, by the same law of groups. A law by which most of these rows are in
    groups of their own says nothing of other groups, which may be what later rows are in: where
    all do, groups are any usual ones. Of units it tells less: others may come in each release, or
    the same ones come back. What is `seen` of them fits some `likely_ways`, each with chances to
    repeat a group: these are the streams that settings are chosen for. Where a first release alone
    has more rows of a unit than is usual, units are devices rather than visitors: that they are
    there once, always, or in between is as likely, in groups as concentrated. The rows of one unit,
    in its period, come into `met` of these releases at most: into one, and it tells all of units,
    which are then others in each.

    >>> known = {"expected_units": 1000.0, "expected_rows": 100.0}
    >>> for name, value in of_all_releases(known, 16, None).items():
    ...     print(name, value)
    expected_units 1000.0
    expected_rows 1600.0
    mean_rows [100.0, 400.0, 1600.0]
    >>> of_all_releases(known, 1, None) == known
    True
    >>> of_all_releases(known, 10, None, met=1)
    {'expected_units': 10000.0, 'expected_rows': 100.0}
    """
    if releases == 1:
        return known
    laws = [law for law in known.get(LAWS, ()) if law.single < MOSTLY_OWN]
    kept = {name: told for name, told in {LAWS: laws, VALUES: known.get(VALUES)}.items() if told}
    units, rows = known[EXPECTED_UNITS.name], known[EXPECTED_ROWS.name]
    if met == 1:
        more = {EXPECTED_UNITS.name: float(f"{units * releases:.3g}")}
        return {name: told for name, told in known.items() if name != LAWS} | more | kept
    most = met or releases
    ways = [] if seen is None or rows > USUAL_ROWS[-1] else likely_ways(seen, most)
    means = sorted({way.rows for way in ways}) or [rows, rows * sqrt(most), rows * most]
    if not ways and CONCENTRATION in known:
        kept[CONCENTRATION] = known[CONCENTRATION]
    found = kept | {
        EXPECTED_UNITS.name: float(f"{units * rows * releases / means[-1]:.3g}"),
        EXPECTED_ROWS.name: float(f"{means[-1]:.3g}"),
    }
    if seen is not None and ways:
        found |= {
            STREAMS: [*streams(found, ways, seen)],
            WAYS_OF_UNITS: [way.histogram for way in ways],
        }
    return found | {MEAN_ROWS: [float(f"{mean:.3g}") for mean in means]}


def streams(known: dict[str, Any], ways: list[Way], seen: SeenUnits) -> Iterator[tuple[float, ...]]:
    """Each law of groups with each way of units, and a chance to repeat a group that fits both.

    Groups, steep, single, spread (no groups: as many as the query expects) and repeats, as
    `ExpectedStream` says them, and the number of the way.
    """
    whole = expected(known, 1)
    assert whole is not None  # noqa: S101  (rows are known)
    every = whole.units * whole.rows
    laws = whole.laws or tuple((0, steep, 0.0, 0.0) for steep in STEEP)
    for law, (number, way) in product(laws, enumerate(ways)):
        groups, steep, single, spread = law
        stream = replace(
            whole, units=every / way.rows, rows=way.rows, groups=groups or whole.groups,
            steep=steep, single=single, spread=spread, histogram=way.histogram, laws=(),
            drawn=DRAWN,
        )  # fmt: skip
        there = FAR if way.apart else way.there
        repeats = likely_repeats(stream, there, seen, MIXED[number])
        yield tuple(float(f"{one:.4g}") for one in (*law, repeats, number))


# ---- how many rows units have


def likely_ways(seen: SeenUnits, releases: int) -> list[Way]:
    """Ways that stand for all by which units may have been seen so in one of some releases.

    Algorithm: a unit is there in one release, in the geometric mean, or in all, `AT_ANY_TIME` times
        as likely; a row of it is then in the first one with one chance in so many. Or each of its
        rows is in another release, if what is seen fits that as well. For each, the likelihood of
        noisy bins about those of laws on a grid (even in the logarithm of the mean), with the
        number of units that fits best, Gaussian noise, the draw of a sample and `MISFIT` of a bin.
        Bins of `APART` rows or more that stand out of all that are units beside the law, with as
        many rows in each release that they are there in; to need some is as unlikely as to miss by
        `OUTSTANDING` deviations. A law whose mean is not usual counts for less. Of all laws,
        ordered by how long units are there and by their means, those at even places of the sum.

    >>> bins = np.zeros(len(ROW_EDGES), np.int64)
    >>> bins[:3] = 6_000, 750, 63  # 30,000 units with one row and five more by chance, in 24
    >>> ways = likely_ways(SeenUnits(bins, 5.0, 1, 0.0, 0.01), 24)
    >>> [round(way.rows, 1) for way in ways if way.there == 24]
    [5.6, 6.0, 6.0, 6.4, 6.9]
    """
    means, laws, before = laws_of_rows()
    few, many = np.minimum(1.0, (means - 1) / (USUAL_ROWS[0] - 1)), USUAL_ROWS[-1] / means
    usual = few**2 * np.minimum(1.0, many)
    fits, chances, best = [], [], np.inf
    always = float(releases)
    for there, apart in ((1.0, False), (sqrt(releases), False), (always, False), (always, True)):
        shares, met = seen_of_laws(there, apart=apart)
        units = np.maximum(shares @ seen.units, 0.0) / (shares**2).sum(axis=1)
        about = units[:, None] * shares
        spread = seen.sigma**2 + seen.times * about + (MISFIT * about) ** 2
        missed = (seen.units - about) / np.sqrt(spread)
        beside = (missed > OUTSTANDING) & (ROW_EDGES >= APART)
        fit = (np.where(beside, OUTSTANDING, missed) ** 2 + np.log(spread)).sum(axis=1)
        chance = before * np.exp((fit.min() - fit) / 2)
        worse = max(fit.min() - best, 0.0) if apart else 0.0
        best = min(best, fit.min())
        near = np.pad(beside, ((0, 0), (1, 1)))
        beside |= (near[:, 2:] | near[:, :-2]) & (missed > BESIDE) & (ROW_EDGES >= APART)
        more = np.where(beside, seen.units - about, 0.0)
        fits += [(law, there, apart, units[law] / met[law], more[law]) for law in range(len(laws))]
        often = AT_ANY_TIME if there == always else 1.0
        chances.append(often * usual * chance / chance.sum() * np.exp(-worse / 2))
    chance = np.cumsum(np.concatenate(chances))
    middles = (np.arange(WAYS) + 0.5) / WAYS * chance[-1]
    chosen = (fits[place] for place in np.searchsorted(chance, middles))
    return [
        way_of(laws[law] * units, more, there, apart=apart)
        for law, there, apart, units, more in chosen
    ]


def way_of(
    units: Float64[Array, " sizes"], more: Float64[Array, " bins"], there: float, *, apart: bool
) -> Way:
    """The way of units by a law, and of those beside it, by their rows in one release."""
    units = units[: int(there)] if apart else units
    found = [
        (int(low), int(high), float(units[int(low) - 1 : int(high)].sum()))
        for low, high in zip(ROW_EDGES, ROW_ENDS, strict=True)
        if low <= MOST_ROWS
    ]
    found += [
        (round(there * ROW_EDGES[place]), round(there * ROW_ENDS[place]), float(more[place]))
        for place in np.flatnonzero(more)
    ]
    whole = sum(number for _, _, number in found)
    parts = [(low, high, float(f"{number / whole:.4g}")) for low, high, number in found]
    histogram = tuple(one for one in parts if one[-1] > TOLD)
    law = known_rows(histogram)
    rows = float(law @ ROWS_OF_UNITS / law.sum())
    return Way(rows, there, histogram, apart=apart)


@lru_cache(maxsize=1)
def laws_of_rows() -> tuple[
    Float64[Array, " laws"], Float64[Array, "laws sizes"], Float64[Array, " laws"]
]:
    """Laws of rows, ordered by their means: means, shares of units, chances beforehand."""
    n, size, found = np.arange(1.0, MOST_ROWS + 1), SIZES[:, None], []
    for heavy, even in [(heavy, 0.0) for heavy in HEAVY] + [(0.0, even) for even in EVEN]:
        powers = -heavy * np.log1p((n - 1) / size)
        logs = (even - 1) * np.log(n) - n * even / size if even else powers
        shares = np.exp(logs - logs.max(axis=1)[:, None])
        shares /= shares.sum(axis=1)[:, None]
        means = shares @ n
        before = np.gradient(np.log(means))
        for place in np.flatnonzero((means >= FEWEST) & (means < FARTHEST)):
            found.append((means[place], shares[place], before[place]))
    found.sort(key=lambda one: float(one[0]))
    every, laws, chances = (np.array(one) for one in zip(*found, strict=True))
    return every, laws, chances


@lru_cache(maxsize=8)
def seen_of_laws(
    there: float, *, apart: bool = False
) -> tuple[Float64[Array, "laws bins"], Float64[Array, " laws"]]:
    """The share of units in each bin of rows, by each law, of those that are in one release.

    And what part of all units these are. Each row is in it with one chance in `there`; `apart`: no
    two rows of a unit are in one release, so none has more rows than there are releases.
    """
    n = np.arange(1, MOST_ROWS + 1)
    chance = np.eye(MOST_ROWS)
    if apart:
        chance = np.where((n == 1) & (n[:, None] <= there), n[:, None] / there, 0.0)
    elif there > 1:
        logs = np.append(0.0, np.cumsum(np.log(n)))  # of factorials
        rest = np.maximum(n[:, None] - n, 0)
        made = logs[n][:, None] - logs[n] - logs[rest] - n * np.log(there)
        made += rest * np.log1p(-1 / there)
        chance = np.where(n <= n[:, None], np.exp(made), 0.0)
    place = np.searchsorted(ROW_EDGES, n, side="right") - 1
    first = np.searchsorted(place, np.arange(len(ROW_EDGES)))
    inside = first < MOST_ROWS
    by_bin = np.zeros((MOST_ROWS, len(ROW_EDGES)))
    by_bin[:, inside] = np.add.reduceat(chance, first[inside], axis=1)
    found = laws_of_rows()[1] @ by_bin
    met = found.sum(axis=1)
    return found / met[:, None], met


# ---- how often they repeat a group


def likely_repeats(stream: ExpectedStream, there: float, seen: SeenUnits, chance: float) -> float:
    """A quantile of the chance to repeat a group, where in one release so many rows were seen to.

    `chance`: which quantile. Noise that hides what repeats leaves the chance as it is beforehand.
    """
    part = [
        repeated_in_part(draw_stream(replace(stream, repeats=repeats)), there)
        for repeats in DRAWN_REPEATS
    ]
    share = np.interp(REPEATS, DRAWN_REPEATS, part)
    spread = seen.off**2 + (UNSURE * share) ** 2
    fit = (seen.again - share) ** 2 / spread + np.log(spread)
    likely = np.cumsum(np.exp((fit.min() - fit) / 2) * (1 - REPEATS) ** RARELY)
    return float(REPEATS[int(np.searchsorted(likely, chance * likely[-1]))])


def repeated_in_part(drawn: Drawn, there: float) -> float:
    """The share of rows that repeat a group of their unit, among one in `there` of all rows.

    Of a unit's n rows in a group, n / there are expected among these, and the group with the
    chance 1 - (1 - 1 / there)^n.
    """
    rows = np.bincount(drawn.first, drawn.times, len(drawn.first))[drawn.new]
    met = -np.expm1(rows * np.log1p(-1 / there)) if there > 1 else np.minimum(rows, 1.0)
    units = drawn.single[drawn.new]
    return 1 - there * float(units @ met) / float(units @ rows)
