"""The compiled loops of the coin selection."""

from __future__ import annotations

import numpy as np

from streamveil.compiled import njit
from streamveil.prefetch import AHEAD, prefetch
from streamveil.types import Array, Int32, Int64, UInt64


@njit(cache=True)
def take_units(
    pending: Int64[Array, " keys"],
    held: tuple[Array, Array, Array],
    trigger: int,
    least: int,
    undrawn: Int32[Array, " keys"],
    able: Int32[Array, " keys"],
) -> tuple[int, int]:
    """Moves new units of keys that are not shown to their totals, and clears them.

    `held`: units, shifts and opening times of all keys. Of the keys that changed and have at least
    `least` units, lists those without a shift, and those that have that many more than their shift;
    returns how many there are of each.
    """
    units, shift, opens = held
    new = known = 0
    for row in range(len(pending)):
        more = pending[row]
        if more == 0:
            continue
        pending[row] = 0
        if opens[row] < trigger:
            continue
        units[row] += more
        spare = units[row] - least
        if spare < 0:
            continue
        if shift[row] < 0:
            undrawn[new] = row
            new += 1
        elif spare >= shift[row]:
            able[known] = row
            known += 1
    return new, known


@njit(cache=True)
def take_asked(
    names: UInt64[Array, " words"],
    held: tuple[Array, Array],
    rows: Int32[Array, " some"],
    ids: UInt64[Array, "some 2"],
    counts: Int64[Array, "2 some"],
) -> None:
    """Names, units and shifts of some keys; `held` has the units and shifts of all."""
    units, shift = held
    for i in range(len(rows)):
        if i + AHEAD < len(rows):
            ahead = np.int64(rows[i + AHEAD])
            prefetch(names, 2 * ahead)
            prefetch(units, ahead)
            prefetch(shift, ahead)
        row = np.int64(rows[i])
        ids[i, 0], ids[i, 1] = names[2 * row], names[2 * row + 1]
        counts[0, i], counts[1, i] = units[row], shift[row]


@njit(cache=True)
def put_times(
    opens: Int32[Array, " keys"],
    rows: Int32[Array, " some"],
    times: Int64[Array, " some"],
    far: int,
    soon: Int64[Array, " some"],
) -> int:
    """Writes opening times, `far` for all that are later; lists the keys that had none before."""
    found = 0
    for i in range(len(rows)):
        row, time = rows[i], min(times[i], far)
        if time < far and opens[row] == far:
            soon[found] = row
            found += 1
        opens[row] = time
    return found
