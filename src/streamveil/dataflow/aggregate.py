"""Exact per-key sums of one window between two triggers. The key stage of the dataflow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from streamveil.dataflow.bounding import UnitRows
from streamveil.dataflow.kernels import (
    ENDLESS,
    add_given,
    add_hits,
    add_lanes,
    enter_rows,
    find_names,
    list_wanted,
    peek_rows,
    put_known,
    settle_rows,
)
from streamveil.dataflow.keys import cells_of, from_offsets
from streamveil.dataflow.release_kernels import take_cells
from streamveil.dataflow.unit_kernels import GROW_POOL, GROW_TABLE, LOAD, MOST_PROBES
from streamveil.types import Array, Bool, Int32, Int64, UInt8, UInt16, UInt64

SMALLEST = 64  # slots of a new table
KINDS = (np.int32, np.uint8, np.bool_, np.uint16)  # of the columns of `Recognised`


class KeyRows(NamedTuple):
    """Accepted rows as the key stage sees them, in canonical order."""

    lanes: Int64[Array, "rows lanes"]  # quanta to add
    hits: Int64[Array, "rows levels"]  # places of histogram lanes to add one to; -1: none


class Recognised(NamedTuple):
    """What is known of each row's key before bounding; everything but `rows` is public."""

    rows: Int32[Array, " rows"]  # of the key table; -1: a key never seen in this window
    weight: UInt8[Array, " rows"]
    hidden: Bool[Array, " rows"]  # whether the key is not yet published
    group: UInt16[Array, " rows"]  # what a unit remembers of (window, key): `rows.groups_of`

    @classmethod
    def empty(cls, rows: int) -> Recognised:
        """Room for so many rows."""
        return cls(*(np.empty(rows, kind) for kind in KINDS))

    def of_units(self, unit: UInt64[Array, " rows"]) -> UnitRows:
        """The rows as the unit stage sees them."""
        return UnitRows(unit, self.group, self.weight, self.hidden)


class Strangers(NamedTuple):
    """Rows whose keys had to be named, since no quicker look-up found their key rows."""

    places: Int32[Array, " strange"]  # the rows
    at: Int32[Array, " strange"]  # the name of each, among `names`
    names: UInt64[Array, "some 2"]
    own: Int32[Array, " some"]  # the key row of each name, -1 where it has none
    firsts: Int32[Array, " some"]  # the first row of each name; or none at all


class Found(NamedTuple):
    """Where each row's key lives, and which rows brought keys never seen in this window."""

    rows: Int32[Array, " rows"]
    fresh: Int64[Array, " new"]  # positions in the batch, in the order of the new key rows


@dataclass(repr=False)  # secret
class KeyTable:
    """The keys of one window: names, exact bytes, and sums not yet released.

    Rows are numbered in the order of first appearance and never move; `slots` finds them by the
    high bits of the name. Everything else the release keeps per key is an array by row number.
    Memory: 16 bytes of name, 12 of slots, 8 per lane and the key's own bytes.
    """

    slots: Array
    names: Array
    pending: Array
    ends: Array  # of each key in `heap`
    heap: UInt8[Array, " bytes"]
    meta: Array  # keys, scratch

    NAMES = ("slots", "names", "pending", "ends", "heap", "meta")

    @classmethod
    def empty(cls, lanes: int) -> KeyTable:
        """No key yet."""
        return cls(
            np.zeros(SMALLEST, np.uint64),
            np.zeros((SMALLEST, 2), np.uint64),
            np.zeros((SMALLEST, lanes), np.int64),
            np.zeros(SMALLEST + 1, np.int64),
            np.zeros(SMALLEST, np.uint8),
            np.zeros(2, np.int64),
        )

    @property
    def keys(self) -> int:
        """How many keys have been seen."""
        return int(self.meta[0])

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(getattr(self, name).nbytes for name in self.NAMES)

    def key_bytes(self, rows: Int64[Array, " rows"]) -> pa.Array:
        """The exact bytes of some keys."""
        starts = np.empty(len(rows) + 1, np.int64)
        return from_offsets(take_cells(self.heap, self.ends, rows, starts), starts)

    def name_keys(self, start: int, encoded: pa.Array) -> None:
        """Stores the bytes of the key rows from `start` on."""
        lengths = np.diff(
            np.frombuffer(encoded.buffers()[1], np.int64, len(encoded) + 1, encoded.offset * 8)
        )
        data, _ = cells_of([encoded])
        self.ends = _room(self.ends, start + len(lengths) + 1)
        self.ends[start + 1 : start + 1 + len(lengths)] = self.ends[start] + np.cumsum(lengths)
        self.heap = _room(self.heap, int(self.ends[start]) + len(data))
        self.heap[self.ends[start] : self.ends[start] + len(data)] = data

    def add_keys(self, names: UInt64[Array, "new 2"], encoded: pa.Array) -> None:
        """Appends keys known to be new, in order, as `key_stage` did when it first met them."""
        start = self.keys
        self.add_names(names)
        self.name_keys(start, encoded)

    def add_names(self, names: UInt64[Array, "new 2"]) -> None:
        """Appends names known to be new, in order, without the bytes of their keys."""
        start = self.keys
        self.make_room(len(names))
        self.names[start : start + len(names)] = names
        self.meta[0] += len(names)
        at = start
        while True:
            at = settle_rows(self.names[: self.keys], self.slots, at, MOST_PROBES)
            if at == self.keys:
                break
            self._grow_slots(at, 2 * len(self.slots))

    def make_room(self, more: int) -> None:
        """Grows once for so many more keys, to the size that adding them one by one would reach."""
        keys, slots, rows = self.keys + more, len(self.slots), len(self.names)
        while keys > int(LOAD * slots):
            slots *= 2
        while keys > rows:
            rows *= 2
        if slots > len(self.slots):
            self._grow_slots(self.keys, slots)
        if rows > len(self.names):
            self._grow_rows(rows)

    def _grow_slots(self, rows: int, slots: int) -> None:
        self.slots = np.zeros(slots, np.uint64)
        settle_rows(self.names[:rows], self.slots, 0, ENDLESS)

    def _grow_rows(self, rows: int) -> None:
        self.names, self.pending = _room(self.names, rows), _room(self.pending, rows)


def key_stage(table: KeyTable, names: UInt64[Array, "rows 2"]) -> Found:
    """Finds or creates the key row of every accepted row. New keys still lack their bytes."""
    rows = np.full(len(names), -1, np.int32)
    return Found(rows, enter(table, names, np.ones(len(names), np.bool_), rows))


def enter(
    table: KeyTable,
    names: UInt64[Array, "some 2"],
    accepted: Bool[Array, " rows"],
    rows: Int32[Array, " rows"],
    strangers: Strangers | None = None,
) -> Int64[Array, " new"]:
    """Gives a key row to every name of an accepted row, and writes it into all rows of that name.

    `strangers`: the rows to look at, if not all in their order; their `own` is completed, too.
    Returns which of them brought new keys.
    """
    if strangers is None:
        every = np.arange(len(rows), dtype=np.int32)
        strangers = Strangers(every, every, names, rows, every[:0])
    places, at, own = strangers.places, strangers.at, strangers.own
    source = np.empty(len(places), np.int32)
    source = source[: list_wanted(accepted, places, at, own, source)]
    if len(strangers.firsts):  # names are distinct, so nearly all are new
        table.make_room(len(source))
    table.meta[1] = 0
    flat, start = names.reshape(-1), 0
    while start < len(source):
        held = table.slots, table.names.reshape(-1), table.meta
        start, full = enter_rows(flat, at, own, source, start, *held)
        if full == GROW_TABLE:
            table._grow_slots(table.keys, 2 * len(table.slots))
        elif full == GROW_POOL:
            table._grow_rows(2 * len(table.names))
    fresh = source[: table.meta[1]].astype(np.int64)
    table.meta[1] = 0
    if own is not rows:
        put_known(places, at, own, rows)
    return fresh


def find_keys(table: KeyTable, names: UInt64[Array, "rows 2"]) -> Int32[Array, " rows"]:
    """The key row of every name, -1 for names never seen; changes nothing."""
    found = np.empty(len(names), np.int32)
    peek_rows(names.reshape(-1), table.slots, table.names.reshape(-1), found)
    return found


def recognise(
    table: KeyTable,
    names: UInt64[Array, "rows 2"],
    window: int,
    weights: UInt8[Array, " keys"],
    entry: int,
    into: Recognised | None = None,
) -> Recognised:
    """Looks up every row's key once. `weights` by key row, 0: not published, so `entry`."""
    known = Recognised.empty(len(names)) if into is None else into
    _recognise(table, names, window, weights, entry, known, np.empty(0, np.int32))
    return known


def recognise_some(
    table: KeyTable,
    names: UInt64[Array, "rows 2"],
    entry: tuple[int, int],
    weights: UInt8[Array, " keys"],
    into: tuple[Recognised, tuple[Array, ...]],
) -> Strangers:
    """As `recognise`; returns which rows have keys never seen.

    `entry`: window and first weight; `into`: room for both.
    """
    known, (room, *_) = into
    window, weight = entry
    none = _recognise(table, names, window, weights, weight, known, room)
    places = room[:none]
    return Strangers(places, places, names, known.rows, room[:0])


def _recognise(  # noqa: PLR0913 (what one compiled loop takes)
    table: KeyTable,
    names: Array,
    window: int,
    weights: Array,
    entry: int,
    known: Recognised,
    missing: Array,
) -> int:
    own, word = table.names.reshape(-1), np.uint64(window % 2**64)
    flat = names.reshape(-1)
    return int(find_names(flat, table.slots, own, word, weights, entry, *known, missing))


def add_rows(
    table: KeyTable, found: Array, rows: KeyRows, places: Int64[Array, " some"] | None = None
) -> None:
    """Adds the increments of accepted rows to their keys: to all lanes, or to those at `places`."""
    width = rows.lanes.shape[1]
    if width:
        add_lanes(table.pending, found, rows.lanes, np.arange(width) if places is None else places)
    if rows.hits.shape[1]:
        add_hits(table.pending, found, rows.hits)


def add_counts(
    table: KeyTable,
    found: Array,
    first: UInt8[Array, " rows"],
    lanes: tuple[Int64[Array, " some"], Int64[Array, " some"], Int64[Array, " others"]],
) -> None:
    """Counts rows: a unit once a group in some lanes, by a bit of `first` each; or all of them."""
    units, bits, rows = lanes
    add_given(table.pending.reshape(-1), found, first, (units, bits), rows, table.pending.shape[1])


def _room(array: Array, rows: int) -> Array:
    if rows <= len(array):
        return array
    larger = np.zeros((max(rows, 2 * len(array)), *array.shape[1:]), array.dtype)
    larger[: len(array)] = array
    return larger
