"""The compiled loops of the key stage. Each has a plain twin in tests that is its oracle.

A slot of a key table is one word: the low half of the key's name above the number of its row plus
one (0: free). The whole name is compared in the row; the half in the slot avoids most reads of
other keys' rows.
"""

from __future__ import annotations

import numpy as np

from streamveil.compiled import AHEAD, njit, prefetch
from streamveil.core.sensitivity import MOST_QUANTA
from streamveil.dataflow.unit_kernels import (
    DONE,
    GROW_POOL,
    GROW_TABLE,
    HIGH,
    LOAD,
    MOST_PROBES,
    SOON,
    home,
)
from streamveil.types import Array, Bool, Int32, Int64, UInt8, UInt16, UInt64

ENDLESS = 1 << 40
MIX = np.uint64(0x9E3779B97F4A7C15)
LOW_HALF = np.uint64(0xFFFFFFFF)
ONE, TWO = np.uint64(1), np.uint64(2)  # a signed index would be tested for counting from the end


@njit(cache=True)
def peek_rows(
    names: UInt64[Array, " words"],
    t_slots: UInt64[Array, " slots"],
    t_names: UInt64[Array, " key_words"],
    found: Int32[Array, " rows"],
) -> None:
    """The key row of every name, -1 for none; changes no table. A name is two words."""
    capacity = len(t_slots)
    wide = np.uint64(capacity)
    n = len(found)
    for i in range(n):
        if i + AHEAD < n:
            prefetch(t_slots, home(names[2 * (i + AHEAD)], wide))
        if i + SOON < n:
            word = t_slots[home(names[2 * (i + SOON)], wide)]
            prefetch(t_names, 2 * np.int64(word & LOW_HALF) - 2)
        low, high = names[2 * i], names[2 * i + 1]
        slot = home(low, wide)
        found[i] = -1
        while t_slots[slot] != 0:
            word = t_slots[slot]
            row = np.int64(word & LOW_HALF) - 1
            if (word >> HIGH) == (low & LOW_HALF) and (
                t_names[2 * row] == low and t_names[2 * row + 1] == high
            ):
                found[i] = row
                break
            slot += 1
            if slot == capacity:
                slot = 0


@njit(cache=True)
def find_names(  # noqa: PLR0913 (one loop over structure-of-arrays state)
    names: UInt64[Array, " words"],
    t_slots: UInt64[Array, " slots"],
    t_names: UInt64[Array, " key_words"],
    window: np.uint64,
    weights: UInt8[Array, " keys"],
    entry: int,
    found: Int32[Array, " rows"],
    weight: UInt8[Array, " rows"],
    hidden: Bool[Array, " rows"],
    group: UInt16[Array, " rows"],
    missing: Int32[Array, " rows_or_none"],
) -> int:
    """`peek_rows`, and all that the unit stage must know of keys: see `aggregate.Recognised`.

    `weights`: by key row, 0 if the key is not shown. Returns how many rows have no key row, and
    lists these in `missing` unless it is empty.
    """
    wide, shift = np.uint64(len(t_slots)), window * MIX
    n, none, lists = len(found), 0, len(missing) > 0
    for i in range(n):
        if i + AHEAD < n:
            prefetch(t_slots, home(names[2 * (i + AHEAD)], wide))
        if i + SOON < n:
            word = t_slots[home(names[2 * (i + SOON)], wide)]
            prefetch(t_names, 2 * np.int64(word & LOW_HALF) - 2)
        low, high = names[2 * i], names[2 * i + 1]
        slot = np.uint64(home(low, wide))
        row, word = np.uint64(0), t_slots[slot]
        while word != 0:
            row = word & LOW_HALF
            if (word >> HIGH) == (low & LOW_HALF) and (
                t_names[TWO * row - TWO] == low and t_names[TWO * row - ONE] == high
            ):
                break
            row = np.uint64(0)
            slot += ONE
            if slot == wide:
                slot = np.uint64(0)
            word = t_slots[slot]
        shown = weights[row - ONE] if row != 0 else np.uint8(0)
        found[i] = np.int64(row) - 1
        hidden[i] = shown == 0
        weight[i] = shown if shown > 0 else entry
        mixed = high + shift
        mixed = (mixed ^ (mixed >> HIGH)) * MIX
        group[i] = mixed >> np.uint64(48)
        if lists:
            missing[none] = i
        none += int(row == 0)
    return none


@njit(cache=True)
def list_wanted(
    accepted: Bool[Array, " rows"],
    places: Int32[Array, " some"],
    at: Int32[Array, " some"],
    own: Int32[Array, " names"],
    source: Int32[Array, " some"],
) -> int:
    """Lists the first accepted row of every name without a key row; returns how many there are.

    Row places[k] has name at[k]. `own` is the key row of each name; -1 means none, and becomes -2
    if one is wanted. `source` takes the k of each listed row.
    """
    n = 0
    for k in range(len(places)):
        name = at[k]
        wanted = accepted[places[k]] & (own[name] == -1)
        own[name] -= np.int32(wanted)
        source[n] = k
        n += wanted
    return n


@njit(cache=True)
def enter_rows(  # noqa: PLR0913, C901 (one loop over structure-of-arrays state)
    names: UInt64[Array, " words"],
    at: Int32[Array, " some"],
    own: Int32[Array, " names"],
    source: Int32[Array, " wanted"],
    start: int,
    t_slots: UInt64[Array, " slots"],
    t_names: UInt64[Array, " key_words"],
    meta: Int64[Array, " 2"],
) -> tuple[int, int]:
    """Gives the listed names their key rows, from source[start] on; appends new keys.

    Stops where a table must grow. `meta` holds the number of keys and how many are new; source[j]
    becomes the k that brought new key j.
    """
    capacity = len(t_slots)
    wide = np.uint64(capacity)
    most = np.int64(LOAD * capacity)
    n = len(source)
    for j in range(start, n):
        if j + AHEAD < n:
            prefetch(t_slots, home(names[2 * at[source[j + AHEAD]]], wide))
        if j + SOON < n:
            word = t_slots[home(names[2 * at[source[j + SOON]]], wide)]
            prefetch(t_names, 2 * np.int64(word & LOW_HALF) - 2)
        name = at[source[j]]
        low, high = names[2 * name], names[2 * name + 1]
        slot, probes, row = home(low, wide), 0, np.int64(-1)
        while t_slots[slot] != 0:
            word = t_slots[slot]
            if (word >> HIGH) == (low & LOW_HALF):
                row = np.int64(word & LOW_HALF) - 1
                if t_names[2 * row] == low and t_names[2 * row + 1] == high:
                    break
                row = np.int64(-1)
            slot += 1
            probes += 1
            if slot == capacity:
                slot = 0
        if row < 0:
            row = meta[0]
            if row >= most or probes > MOST_PROBES:
                return j, GROW_TABLE
            if 2 * row >= len(t_names):
                return j, GROW_POOL
            t_names[2 * row] = low
            t_names[2 * row + 1] = high
            t_slots[slot] = (low << HIGH) | np.uint64(row + 1)
            source[meta[1]] = source[j]
            meta[0] += 1
            meta[1] += 1
        own[name] = row
    return n, DONE


@njit(cache=True)
def put_known(
    places: Int32[Array, " some"], at: Int32[Array, " some"], own: Array, known: Array
) -> None:
    """Copies a fact of each name to the rows with that name: own[at[k]] to known[places[k]]."""
    for k in range(len(places)):
        known[places[k]] = own[at[k]]


@njit(cache=True)
def settle_rows(
    names: UInt64[Array, "keys 2"], t_slots: UInt64[Array, " slots"], start: int, patience: int
) -> int:
    """Enters key rows from `start` on, in row order; returns the first that finds no room."""
    capacity = len(t_slots)
    most = np.int64(LOAD * capacity)
    for row in range(start, len(names)):
        if row + AHEAD < len(names):
            prefetch(t_slots, home(names[row + AHEAD, 0], np.uint64(capacity)))
        slot, probes = home(names[row, 0], np.uint64(capacity)), 0
        while t_slots[slot] != 0:
            slot += 1
            probes += 1
            if slot == capacity:
                slot = 0
        if patience < ENDLESS and (row >= most or probes > patience):
            return row
        t_slots[slot] = (names[row, 0] << HIGH) | np.uint64(row + 1)
    return len(names)


@njit(cache=True)
def keep_rows(  # noqa: PLR0913 (one pass instead of three)
    accepted: Bool[Array, " rows"],
    unit: UInt64[Array, " rows"],
    found: Int32[Array, " rows"],
    first: UInt8[Array, " rows"],
    kept_unit: UInt64[Array, " kept_plus_1"],
    kept_row: Int32[Array, " kept_plus_1"],
    kept_first: UInt8[Array, " kept_plus_1"],
) -> None:
    """Gathers the wanted values of accepted rows; the last cell takes those of other rows."""
    n = 0
    for i in range(len(accepted)):
        kept_unit[n] = unit[i]
        kept_row[n] = found[i]
        kept_first[n] = first[i]
        n += accepted[i]


@njit(cache=True)
def add_given(
    pending: Int64[Array, " cells"],
    found: Array,
    first: UInt8[Array, " rows"],
    units: tuple[Array, Array],
    rows: Int64[Array, " others"],
    lanes: int,
) -> None:
    """Adds one to every lane in `rows`, and to each lane in `units` whose bit of `first` is set.

    `units`: the lanes, and the bit of each.
    """
    counting, bits = units
    for i in range(len(found)):
        if i + AHEAD < len(found):
            prefetch(pending, lanes * np.int64(found[i + AHEAD]))
        cell = lanes * np.int64(found[i])
        for k in range(len(counting)):
            pending[cell + counting[k]] += np.int64(first[i] & bits[k] != 0)
        for lane in rows:
            pending[cell + lane] += 1


@njit(cache=True)
def add_lanes(
    pending: Int64[Array, "keys lanes"],
    found: Array,
    lanes: Int64[Array, "rows some"],
    places: Int64[Array, " some"],
) -> None:
    """Adds every row's increments to some lanes of its key; see `sensitivity.MOST_QUANTA`."""
    for i in range(len(found)):
        for at in range(len(places)):
            total = pending[found[i], places[at]] + lanes[i, at]
            pending[found[i], places[at]] = min(max(total, -MOST_QUANTA), MOST_QUANTA)


@njit(cache=True)
def add_hits(pending: Int64[Array, "keys nodes"], found: Array, hits: Array) -> None:
    """Adds one to every node a row hits; negative nodes are skipped."""
    for i in range(len(found)):
        for level in range(hits.shape[1]):
            if hits[i, level] >= 0:
                pending[found[i], hits[i, level]] += 1
