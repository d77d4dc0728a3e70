"""Which groups are among the k largest, as far as noisy numbers can tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf, isnan, log

import numpy as np
import pyarrow as pa

from streamveil.compiled import ndtri
from streamveil.errors import at_least
from streamveil.release_metadata import Facts
from streamveil.results.intervals import Interval, RoundedPart, open_ends, plain
from streamveil.types import Array, Bool, Int64

HIDDEN_SHARE = 0.5  # of the error probability, for groups that are not shown


@dataclass(frozen=True, eq=False)
class Ranked:
    """Intervals that hold for all groups at once, and the ranks they leave open."""

    interval: Interval
    best: Int64[Array, " keys"]  # the best rank that a group may have
    worst: Int64[Array, " keys"]  # and the worst
    certain: Bool[Array, " keys"]
    order: Int64[Array, " possible"]  # groups that may be among the k largest, largest number first
    note: str
    hides: int  # how many groups certainly have more than any group that is not shown


ENTERED, LEFT, STAYED, OPEN = "entered", "left", "stayed", "open"


def moved(now: tuple[int | None, int | None], before: tuple[int | None, int | None], k: int) -> str:
    """How a group came to be where it is, from its best and worst ranks, None where unknown.

    A group that is not shown has the best rank left for such groups. If both lists hold at once, so
    do the conclusions from them.

    >>> moved((1, 2), (4, 9), 3), moved((4, None), (1, 3), 3), moved((1, 2), (2, 5), 3)
    ('entered', 'left', 'open')
    """
    inside = [worst is not None and worst <= k for _, worst in (now, before)]
    outside = [best is not None and best > k for best, _ in (now, before)]
    if all(inside):
        return STAYED
    if inside[0] and outside[1]:
        return ENTERED
    return LEFT if outside[0] and inside[1] else OPEN


def rank(
    value: Array,
    sd: Array,
    k: int,
    confidence: float,
    hidden: tuple[Facts | None, float, int],
    parts: Sequence[RoundedPart] = (),
) -> Ranked:
    """Ranks by simultaneous intervals.

    Algorithm: each of n shown groups gets a Gaussian interval at error alpha / n. A group is
        certainly among the k largest when fewer than k groups reach above its lower end (itself
        counted); possibly, when fewer than k others lie wholly above its upper end.
    Proof: with probability 1 - alpha all intervals hold (union bound, whatever the dependence), and
        then every statement about ranks is true.
    A group without a number may be anywhere: its interval holds everything.
    Groups that are not shown: `hidden` is (what keeps them hidden, the most that one privacy unit
        adds to one of them, how many to allow for). The test at this release did not show such a
        group, which for one above the `ceiling` has probability below alpha / (2 m); half of alpha
        is spent on m of them, which are all there are if there are no more. A group that is not
        above the ceiling counts m better ones.
    """
    at_least(1, k=k)
    facts, most, allowed = hidden
    alpha = 1 - confidence
    own = alpha * (1 - HIDDEN_SHARE) if allowed else alpha
    z = -float(ndtri(own / (2 * max(len(value), 1))))
    interval = plain(value, sd**2, z, parts)
    top = ceiling(facts, most, alpha * HIDDEN_SHARE, allowed)
    low, high = open_ends(interval.low, interval.high)
    lows, highs = np.sort(low), np.sort(high)
    best = 1 + len(lows) - np.searchsorted(lows, high, side="right")
    worst = len(highs) - np.searchsorted(highs, low, side="left")
    worst = worst + np.where(low <= top, allowed, 0)
    possible = np.flatnonzero(best <= k)
    order = possible[np.argsort(-interval.value[possible], kind="stable")]
    hides = int((low > top).sum())
    return Ranked(interval, best, worst, worst <= k, order, note(top, allowed, confidence), hides)


def ceiling(facts: Facts | None, most: float, alpha: float, groups: int) -> float:
    """The number that none of so many hidden groups exceeds, with probability 1 - alpha."""
    if not groups:
        return -inf
    if not facts or isnan(most):
        return inf
    if "sd" in facts:
        units = facts["threshold"] - facts["sd"] * float(ndtri(alpha / groups))
    else:  # the geometric number reaches j with probability exp(-rate j)
        units = facts["threshold"] + ceil(log(groups / alpha) / facts["rate"]) - 1
    return float(max(units, 0.0) * most)


def note(top: float, allowed: int, confidence: float) -> str:
    """The note on groups that no release shows."""
    share = f"{confidence:.4g}"
    if not allowed:
        return f"ranks and intervals hold for all groups at once with confidence {share}"
    if top == inf:
        return "nothing is known of hidden groups, so no group is certain"
    return (
        f"ranks and intervals hold for all groups at once with confidence {share}, hidden groups"
        f" included: if there are at most {allowed:,}, none of them exceeds {top:,.0f}"
    )


def with_ranks(table: pa.Table, ranked: Ranked) -> pa.Table:
    """The possible groups, best first, with the ranks that they may have.

    The worst rank is null where hidden groups might rank higher.
    """
    worst = pa.array(ranked.worst, mask=ranked.worst > table.num_rows)
    columns = {"rank_best": ranked.best, "rank_worst": worst, "certain": ranked.certain}
    for name, column in columns.items():
        table = table.append_column(name, pa.array(column))
    return table.take(pa.array(ranked.order))


def with_moves(tables: list[pa.Table], lists: list[Ranked], keys: int, k: int) -> pa.Table:
    """The possible groups of two lists, those of the first in its order, and how each moved.

    A group of the earlier list that is no longer shown has no number.
    """
    names = tables[0].column_names[:keys]
    places = [
        {tuple(row.values()): at for at, row in enumerate(table.select(names).to_pylist())}
        for table in tables
    ]
    found = [list(place) for place in places]
    wanted = [found[0][at] for at in lists[0].order]
    wanted += [found[1][at] for at in lists[1].order if found[1][at] not in set(wanted)]

    def ranks(side: int, key: tuple[object, ...]) -> tuple[int | None, int | None]:
        ranked, at = lists[side], places[side].get(key)
        if at is None:
            return ranked.hides + 1, None
        worst = int(ranked.worst[at])
        return int(ranked.best[at]), worst if worst <= len(found[side]) else None

    now, before = ([ranks(side, key) for key in wanted] for side in (0, 1))
    here = pa.array([places[0].get(key) for key in wanted], pa.int64())
    columns = {
        name: pa.array([key[at] for key in wanted], tables[0].schema.field(name).type)
        for at, name in enumerate(names)
    }
    for name in tables[0].column_names[keys:]:
        columns[name] = tables[0].column(name).combine_chunks().take(here)
    for said, pairs in (("rank", now), ("before", before)):
        for at, end in enumerate(("best", "worst")):
            columns[f"{said}_{end}"] = pa.array([pair[at] for pair in pairs], pa.int64())
    columns["moved"] = pa.array([moved(*pair, k) for pair in zip(now, before, strict=True)])
    return pa.table(columns)
