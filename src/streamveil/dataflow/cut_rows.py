"""A private count of the rows that the contribution bound cut, in every release.

An interval that covers noise alone does not show how many rows the bound left out. A small share of
the budget pays for a private count of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from streamveil.compiled import ndtri
from streamveil.core.accounting import portable
from streamveil.core.counters import Counter
from streamveil.core.counters import CounterState as CounterState
from streamveil.core.mechanism import BANDS, BASE, CutCounter
from streamveil.core.noise import Address, Place
from streamveil.core.noisy import Noisy
from streamveil.core.release import count
from streamveil.release_metadata import SURELY
from streamveil.types import Array, Float64, Int64, UInt64

WORTH = BASE ** np.arange(BANDS - 1, -1, -1)  # quanta of a row in each band
ENDS = np.cumsum(BASE ** np.arange(BANDS))  # the last cut row of a unit that is in each band
BAND = np.uint64(7)  # the bits of a cell that name its band: `BANDS` is below 8
NAMES = np.stack([np.zeros(BANDS), np.arange(1, BANDS + 1)], axis=1).astype(np.uint64)
MOST_KNOWN, AT_ONCE = 1 << 10, 1 << 6  # deviations that are remembered, and computed together
ALWAYS_TOLD = 2  # bands that an upper bound always covers: the first 5 cut rows
ALWAYS_WIDENED = 3  # bands that `intervals = 'true'` always includes: the first 21 cut rows
QUIET = 2.0  # deviations below which a band counts as empty for intervals, with all above it


@dataclass(repr=False)  # secret
class CutUnits:
    """The cut rows of each unit so far, of one scope. Units in order of their fingerprints."""

    units: UInt64[Array, " units"] = field(default_factory=lambda: np.zeros(0, np.uint64))
    rows: Int64[Array, " units"] = field(default_factory=lambda: np.zeros(0, np.int64))

    def add(
        self, units: UInt64[Array, " some"], rows: Int64[Array, " some"]
    ) -> Int64[Array, " some"]:
        """Adds cut rows of different units, in order; returns what each had before."""
        at = np.searchsorted(self.units, units)
        known = np.zeros(len(units), np.bool_)
        inside = at < len(self.units)
        known[inside] = self.units[at[inside]] == units[inside]
        before = np.zeros(len(units), np.int64)
        before[known] = self.rows[at[known]]
        self.rows[at[known]] += rows[known]
        fresh = ~known
        self.units = np.insert(self.units, at[fresh], units[fresh])
        self.rows = np.insert(self.rows, at[fresh], rows[fresh])
        return before


def bands_of(places: Int64[Array, " rows"]) -> Int64[Array, " rows"]:
    """The band of a unit's i-th cut row, i from 1; `BANDS` beyond the last.

    >>> bands_of(np.array([1, 2, 5, 6, 1365, 1366])).tolist()
    [0, 1, 1, 2, 5, 6]
    """
    return np.searchsorted(ENDS, places)


def bands_in(
    known: CutUnits, unit: UInt64[Array, " cut"]
) -> tuple[Int64[Array, " cut"], tuple[Array, Array]]:
    """The band of every cut row of one scope, and the units with their rows.

    Rows are in canonical order.
    """
    order = np.argsort(unit, kind="stable")
    ordered = unit[order]
    first = np.flatnonzero(np.append(len(unit) > 0, ordered[1:] != ordered[:-1]))
    units, rows = ordered[first], np.diff(np.append(first, len(unit)))
    before = known.add(units, rows)
    places = np.arange(1, len(unit) + 1) - np.repeat(first, rows) + np.repeat(before, rows)
    band = np.empty(len(unit), np.int64)
    band[order] = bands_of(places)
    return band, (units, rows)


def cut_in(bands: Int64[Array, " cut"]) -> Int64[Array, " bands"]:
    """The quanta that cut rows add to each band."""
    return np.bincount(bands, minlength=BANDS)[:BANDS] * WORTH


class HiddenRows(NamedTuple):
    """Cut rows of groups that are not shown, in order of their cells.

    A cell is a band of a group: the first word of the group's name, with the band in its last bits.
    Where two groups share a cell, the rows of both count when the first of them is shown; each row
    still counts once.
    """

    cells: UInt64[Array, " cells"]
    rows: Int64[Array, " cells"]

    @classmethod
    def of(cls, groups: UInt64[Array, " rows"], bands: Int64[Array, " rows"]) -> HiddenRows:
        """Cut rows, one by one, by the first word of the name of their group."""
        cells, rows = np.unique(groups & ~BAND | bands.astype(np.uint64), return_counts=True)
        return cls(cells, rows.astype(np.int64))

    @classmethod
    def together(cls, parts: Sequence[HiddenRows]) -> HiddenRows:
        """The rows of all parts, without cells that have none."""
        cells = np.concatenate([np.zeros(0, np.uint64), *(one.cells for one in parts)])
        rows = np.concatenate([np.zeros(0, np.int64), *(one.rows for one in parts)])
        order = np.flatnonzero(rows)
        order = order[np.argsort(cells[order], kind="stable")]
        cells, rows = cells[order], rows[order]
        first = np.flatnonzero(np.append(len(cells) > 0, cells[1:] != cells[:-1]))
        return cls(cells[first], np.add.reduceat(rows, first))

    def take(self, groups: UInt64[Array, " some"]) -> Int64[Array, " bands"]:
        """Removes the rows of some groups, in place; returns how many were in each band."""
        lowest = np.unique(groups & ~BAND)
        starts = np.searchsorted(self.cells, lowest)
        sizes = np.searchsorted(self.cells, lowest | BAND, side="right") - starts
        mine = np.repeat(starts + sizes - sizes.cumsum(), sizes) + np.arange(sizes.sum())
        bands = (self.cells[mine] & BAND).astype(np.int64)
        found = np.bincount(bands, self.rows[mine], BANDS).astype(np.int64)
        self.rows[mine] = 0
        return found


@dataclass(repr=False)  # secret
class CutBands:
    """The bands of one window: the rows since the last release, and their counter.

    Rows of groups that are not shown wait for the release that shows them.
    """

    pending: Int64[Array, " bands"]
    counted: CounterState
    hidden: list[HiddenRows] = field(default_factory=list)

    @classmethod
    def empty(cls, cut: CutCounter) -> CutBands:
        """A window without cut rows."""
        return cls(np.zeros(BANDS, np.int64), cut.counter.init(BANDS))

    def hide(self, rows: HiddenRows) -> None:
        """Adds cut rows of hidden groups; parts are joined whenever their number has doubled."""
        if not len(rows.rows):
            return
        self.hidden.append(rows)
        if sum(len(one.rows) for one in self.hidden[1:]) > len(self.hidden[0].rows):
            self.hidden = [HiddenRows.together(self.hidden)]

    def show(self, groups: UInt64[Array, " new"]) -> None:
        """Counts the rows that groups lost before this release, which first shows them."""
        for rows in self.hidden if len(groups) else ():
            self.pending += rows.take(groups) * WORTH

    def release(self, cut: CutCounter, at: Address) -> Noisy[Array]:
        """One trigger: the noisy bands so far, in quanta. In place."""
        place = Place(at.noise, "group-by/cut", (at.job, at.window))
        noisy, self.counted = count(cut.counter, self.counted, self.pending, place, NAMES)
        self.pending = np.zeros(BANDS, np.int64)
        return noisy

    def to_arrays(self) -> dict[str, Array]:
        """Everything, as arrays to store."""
        waiting = HiddenRows.together(self.hidden)
        hidden = {"hidden_cells": waiting.cells, "hidden_rows": waiting.rows}
        return {"pending": self.pending, **self.counted.to_arrays(), **hidden}

    @classmethod
    def from_arrays(cls, arrays: dict[str, Array]) -> CutBands:
        """The inverse of `to_arrays`."""
        made = cls(np.array(arrays["pending"]), CounterState.from_arrays(arrays))
        made.hide(HiddenRows(np.array(arrays["hidden_cells"]), np.array(arrays["hidden_rows"])))
        return made


class Deviations(dict[int, float]):
    """Standard deviations of the noise in the total of a band, in quanta, by trigger."""

    def __init__(self, counter: Counter) -> None:
        self.counter = counter

    def __missing__(self, trigger: int) -> float:
        if len(self) >= MOST_KNOWN:
            self.clear()
        some = np.arange(trigger, min(trigger + AT_ONCE, self.counter.horizon + 1))
        self.update(zip(some.tolist(), portable(self.counter.std(some)).tolist(), strict=True))
        return self[trigger]


def cut_summary(
    noisy: Float64[Array, "releases bands"],
    sd: Float64[Array, " releases"],
    confidence: float = 0.95,
) -> list[dict[str, float]]:
    """Post-processing: rows cut, and an upper bound; from quanta and their deviation.

    `rows` counts the bands that are filled, as far as noise shows it: a unit fills its bands from
    the first on. The bound covers the first `each` cut rows of every unit: the first two bands, and
    one band more than are filled.

    Proof of the bound: the noisy sums of the first k bands, k = 2..6, are Gaussian (rounding aside)
        around the rows in these bands. With the stated confidence all five bounds, each
        ndtri(1 - (1 - confidence) / 5) deviations above its sum, hold together: so does the one
        that the noisy bands chose.

    >>> cut_summary(np.array([[2e6, 1e5, 0.0, 0.0, 0.0, 0.0]]), np.array([1000.0]))[0]
    {'rows': 2344, 'sd': 4.026, 'high': 2381.0, 'each': 21}
    """
    totals, spreads, filled = _first_bands(noisy, sd, SURELY)
    releases = np.arange(len(sd))
    own = releases, np.maximum(filled, 1) - 1
    further = releases, np.clip(filled, ALWAYS_TOLD - 1, BANDS - 1)
    above = float(ndtri(1 - (1 - confidence) / (BANDS - ALWAYS_TOLD + 1)))
    high = totals[further] + above * spreads[further]
    columns = totals[own], spreads[own], high, further[1]
    found = zip(*(column.tolist() for column in columns), strict=True)
    return [
        {
            "rows": max(round(one), 0),
            "sd": _short(spread),
            "high": _short(max(most, one, 0.0)),
            "each": (BASE ** (band + 1) - 1) // (BASE - 1),
        }
        for one, spread, most, band in found
    ]


def _first_bands(
    noisy: Float64[Array, "releases bands"], sd: Float64[Array, " releases"], above: float
) -> tuple[Float64[Array, "releases bands"], Float64[Array, "releases bands"], Int64[Array, " r"]]:
    """Rows of the first k bands, their deviations, and how many bands are filled.

    The filled bands are the first ones, as long as each is more than `above` deviations over 0.
    """
    each, rows = sd[:, None] / WORTH, noisy / WORTH
    filled = np.cumprod(rows > above * each, axis=1).sum(axis=1)
    return np.cumsum(rows, axis=1), np.sqrt(np.cumsum(each**2, axis=1)), filled


def with_share(lost: dict[str, float], sizes: Float64[Array, " keys"]) -> dict[str, float]:
    """Post-processing: adds the share of all rows that was cut, and an upper bound of it.

    Where hardly any row is shown, there is no share: a bound on rows says nothing about it.
    """
    kept = kept_rows(sizes)
    if kept <= 1:
        return lost
    ends = {"share": lost["rows"], "share_high": lost["high"]}
    return lost | {name: round(rows / (rows + kept), 4) for name, rows in ends.items()}


def cut_of_most(
    noisy: Float64[Array, "releases bands"], sd: Float64[Array, " releases"]
) -> tuple[Float64[Array, " releases"], Float64[Array, " releases"]]:
    """Post-processing: rows cut, in the bands that noise may hide, and their deviation.

    The first three, and all that the noise shows to be filled.

    >>> rows, sd = cut_of_most(np.array([[2e6, 1e5, 0.0, 0.0, 0.0, 0.0]]), np.array([1000.0]))
    >>> float(rows[0]), float(sd[0].round(1))
    (2343.75, 16.1)
    """
    totals, spreads, filled = _first_bands(noisy, sd, QUIET)
    own = np.arange(len(sd)), np.maximum(filled, ALWAYS_WIDENED) - 1
    return np.maximum(totals[own], 0.0), spreads[own]


def kept_rows(sizes: Float64[Array, " keys"]) -> float:
    """The rows of all shown keys, at least one."""
    return max(float(np.maximum(sizes, 0).sum()), 1.0)


def _short(number: float) -> float:
    return float(f"{number:.4g}")


def saved(units: dict[int, CutUnits]) -> dict[str, Array]:
    """The units of all scopes, as arrays to store."""
    arrays: dict[str, Array] = {"cut_periods": np.array(list(units), np.int64)} if units else {}
    for period, known in units.items():
        arrays |= {f"cut{period}/units": known.units, f"cut{period}/rows": known.rows}
    return arrays


def loaded(arrays: Any) -> dict[int, CutUnits]:
    """The inverse of `saved`."""
    periods = arrays["cut_periods"].tolist() if "cut_periods" in arrays else []
    return {
        period: CutUnits(
            np.array(arrays[f"cut{period}/units"]), np.array(arrays[f"cut{period}/rows"])
        )
        for period in periods
    }
