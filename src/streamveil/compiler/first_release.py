"""From a look at the rows of the first release to expectations of all releases.

One release shows how many rows units have in it, but not how many they will have: its units may
never come back, or come in every release. A `Way` is one answer to that. `likely_ways` finds the
ways that fit the look; `of_all_releases` turns them into the streams that settings are chosen for.
"""

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
    STEEP,
    Drawn,
    ExpectedStream,
    draw_stream,
    expected,
    mean_rows,
)
from streamveil.compiler.unit_sizes import (
    OUTSTANDING,
    ROW_EDGES,
    ROW_ENDS,
    TOLD,
    SeenUnits,
    about_laws,
    in_bins,
    outstanding,
)
from streamveil.plan.look import CONCENTRATION, LAWS, MEAN_ROWS, STREAMS, VALUES, WAYS_OF_UNITS
from streamveil.plan.options import EXPECTED_ROWS, EXPECTED_UNITS
from streamveil.types import Array, Float64

MOSTLY_OWN = 0.5  # a law with this share of rows in groups of one row says nothing of other groups
LIKELY_HEAVY, LIKELY_EVEN = (3.2, 5.0, 8.0), (1.0, 2.0, 5.0, 20.0)  # power and gamma laws of rows
LIKELY_SIZES = np.geomspace(0.1, 3_000, 150)  # b of power laws, about the mean of gamma laws
AT_ANY_TIME = 2.0  # prior weight of units that are present in all releases; for others it is 1
FAR = 1e9  # so many releases that no two rows of a unit are in the same one
APART = 4  # units with at least so many rows in a release may stand out from a law
FEWEST, FARTHEST = 1.01, 300.0  # the least and the largest mean of rows of a unit by a law
WAYS = 8  # that stand for all; coprime to `design_choice.FEW`
MIXED = tuple((int(f"{place:03b}"[::-1], 2) + 0.5) / WAYS for place in range(WAYS))
REPEATS = np.linspace(0, 1, 65)  # chances that a row repeats a group of its unit
DRAWN_REPEATS = (0.0, 0.3, 0.7, 1.0)  # chances for which streams are drawn
RARELY = 3  # the prior density of the chance r is proportional to (1 - r)^RARELY
UNSURE = 0.1  # share by which the repeats of a stream may differ from those of the drawn one
DRAWN = 250  # units of a drawn stream


class Way(NamedTuple):
    """How many rows units have over all releases, and in how many releases they have them."""

    rows: float  # the mean
    there: float  # releases over which the rows of a unit are spread
    histogram: tuple[tuple[int, int, float], ...]  # as `ExpectedStream` says it
    apart: bool = False  # whether no two rows of a unit are in one release


def of_all_releases(
    known: dict[str, Any], releases: int, seen: SeenUnits | None, met: int | None = None
) -> dict[str, Any]:
    """Turns what is `known` of the first release into expectations of all releases.

    Rows and groups: every release has as many rows as the first, and they follow the same law of
    groups. A law that puts most rows into groups of one row is left out: it says nothing of the
    groups that later rows may be in. If no law is left, any usual groups are expected.

    Units: the same ones may come back in each release, or others come. `likely_ways` are the ways
    that fit what is `seen`; each law of groups with each of them is a stream, with the chance to
    repeat a group that fits both. If units already have more rows in one release than is usual,
    they are devices rather than visitors: they are there once, always, or in between, with equal
    chances, and their groups are as concentrated as seen.

    `met`: the most releases that the rows of one unit, in its period, come into. If it is 1, the
    first release tells all of its units, and each release has others.

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

    A stream is (groups, steep, single, spread, repeats, number of the way); the first five are
    fields of `ExpectedStream`, and 0 groups means as many as the query expects.
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
    """A few ways, equally likely, that stand for all ways that fit what is seen.

    Algorithm: a unit is there in one release, in the geometric mean, or in all of them
        (`AT_ANY_TIME` times as likely); each of its rows is in the first release with the chance
        1 / `there`. Or its rows are apart: no two are in the same release. For each of these four,
        laws of rows lie on a grid that is even in the logarithm of the mean, and the noisy bins
        have a likelihood by each (`about_laws`). Laws whose mean is not usual count for less.
        Bins from `APART` rows on may stand out of a law (`outstanding`): then they hold units
        beside it, which have as many rows in each release that they are there in. Such a bin costs
        a law the likelihood of missing by `OUTSTANDING` deviations at most.
        All laws, ordered by `there` and by their means, have a cumulative chance; the laws at
        `WAYS` even places of it are chosen. None, where every law fits best with no units.

    >>> bins = np.zeros(len(ROW_EDGES), np.int64)
    >>> bins[:3] = 6_000, 750, 63  # 30,000 units with one row and five more by chance, in 24
    >>> ways = likely_ways(SeenUnits(bins, 5.0, 1, 0.0, 0.01), 24)
    >>> [round(way.rows, 1) for way in ways if way.there == 24]
    [5.5, 5.9, 5.9, 6.4, 6.8]
    """
    means, laws, before = laws_of_rows()
    few, many = np.minimum(1.0, (means - 1) / (USUAL_ROWS[0] - 1)), USUAL_ROWS[-1] / means
    usual = few**2 * np.minimum(1.0, many)
    fits, chances, best = [], [], np.inf
    always = float(releases)
    for there, apart in ((1.0, False), (sqrt(releases), False), (always, False), (always, True)):
        shares, met = seen_of_laws(there, apart=apart)
        units, bins, spread = about_laws(seen.units, shares, seen.sigma, times=seen.times)
        missed = (seen.units - bins) / np.sqrt(spread)
        beside = outstanding(missed, 1.0) & (ROW_EDGES >= APART)
        missed = np.where(beside, np.minimum(missed, OUTSTANDING), missed)
        fit = (missed**2 + np.log(spread)).sum(axis=1)
        chance = before * np.exp((fit.min() - fit) / 2)
        worse = max(fit.min() - best, 0.0) if apart else 0.0
        best = min(best, fit.min())
        more = np.where(beside, seen.units - bins, 0.0)
        fits += [(law, there, apart, units[law] / met[law], more[law]) for law in range(len(laws))]
        often = AT_ANY_TIME if there == always else 1.0
        some = (units > 0) | more.any(axis=1)  # a law of no units is none
        chances.append(some * often * usual * chance / chance.sum() * np.exp(-worse / 2))
    chance = np.cumsum(np.concatenate(chances))
    if not chance[-1]:
        return []
    middles = (np.arange(WAYS) + 0.5) / WAYS * chance[-1]
    chosen = (fits[place] for place in np.searchsorted(chance, middles))
    return [
        way_of(laws[law] * units, more, there, apart=apart)
        for law, there, apart, units, more in chosen
    ]


def way_of(
    units: Float64[Array, " sizes"], more: Float64[Array, " bins"], there: float, *, apart: bool
) -> Way:
    """The way by a law of units over all releases, with `more` units by their rows in one."""
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
    return Way(mean_rows(histogram), there, histogram, apart=apart)


@lru_cache(maxsize=1)
def laws_of_rows() -> tuple[
    Float64[Array, " laws"], Float64[Array, "laws sizes"], Float64[Array, " laws"]
]:
    """Laws of rows of a unit, ordered by their means: means, shares of units, prior chances."""
    n, size, found = np.arange(1.0, MOST_ROWS + 1), LIKELY_SIZES[:, None], []
    kinds = [(heavy, 0.0) for heavy in LIKELY_HEAVY] + [(0.0, even) for even in LIKELY_EVEN]
    for heavy, even in kinds:
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
    """By each law, units in one release: their shares by bins of rows, and their part of all units.

    A row is in the release with the chance 1 / `there`; `apart`: no two rows of a unit are in the
    same release, so no unit has more rows than there are releases.
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
    found = laws_of_rows()[1] @ in_bins(chance)
    met = found.sum(axis=1)
    return found / met[:, None], met


# ---- how often they repeat a group


def likely_repeats(stream: ExpectedStream, there: float, seen: SeenUnits, chance: float) -> float:
    """The chance to repeat a group, given the share of rows seen to do so in one release.

    It is the `chance`-quantile of the posterior; where noise hides what repeats, of the prior.
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
    """The share of rows that repeat a group of their unit, in a random part of all rows.

    A row is in the part with the chance 1 / `there`. Of the n rows of a unit in a group, n / there
    are expected in it, and at least one with the chance 1 - (1 - 1 / there)^n: that one is new.
    """
    rows = np.bincount(drawn.first, drawn.times, len(drawn.first))[drawn.new]
    met = -np.expm1(rows * np.log1p(-1 / there)) if there > 1 else np.minimum(rows, 1.0)
    units = drawn.single[drawn.new]
    return 1 - there * float(units @ met) / float(units @ rows)
