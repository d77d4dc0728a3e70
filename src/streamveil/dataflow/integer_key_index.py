"""An index of the keys of one window. It is rebuilt on restart, never saved."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from streamveil.dataflow.aggregate import KeyTable, Recognised, Strangers, recognise
from streamveil.dataflow.hashing import encipher, secret_words
from streamveil.dataflow.integer_key_kernels import WORDS, find_values, keep_values, spread_values
from streamveil.dataflow.kernels import put_known
from streamveil.dataflow.raw_memory import lengthen, reserved
from streamveil.dataflow.rows import groups_of
from streamveil.types import Array, Int64, UInt8, UInt64

SMALLEST = 64 * WORDS  # words of the slots of a new table: room for a block of rows
HALVES = 1 << 19  # words from which on slots grow by half, not to twice as many
PURPOSE = b"slots"


@dataclass(repr=False)  # secret
class Lookup:
    """Key rows by the integers that name their keys, and the weights of shown keys by key row.

    Algorithm: a key that is one integer is known by its value alone, in a slot that holds the row
        and the group of the key (`value_kernels`). Only values without a slot are named (AES), each
        once in a micro-batch, since a new value takes a slot at once. Then they are looked up by
        name, which is what decides; a slot repeats it. Where every key row has a slot nothing is
        left to look up. Slots are placed by a hash under a secret.
    Protects: whoever chooses the values of keys cannot make look-ups slow: at most `MOST_BUCKETS`
        are looked at, and a value that finds no room in them is named each time. Only keys that
        have a row keep a slot, so of rows that are turned away nothing is left but free slots, no
        more than one micro-batch needed.
    Memory: 16 bytes a slot, at 0.35 (once there are many 0.47) to 0.7 keys and new values a slot; a
        byte a key row.
    """

    slots: UInt64[Array, " words"] = field(default_factory=lambda: reserved(SMALLEST, np.uint64))
    secret: UInt64[Array, " 2"] = field(default_factory=lambda: np.zeros(2, np.uint64))  # if needed
    by_row: UInt8[Array, " rows_plus_1"] = field(default_factory=lambda: np.zeros(1, np.uint8))
    weighed: tuple[int, int] = (-1, -1)  # trigger and shown keys that weights are of
    counts: Int64[Array, " 3"] = field(default_factory=lambda: np.zeros(3, np.int64))
    room: dict[str, Array] = field(init=False, default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return self.slots.nbytes + self.by_row.nbytes

    @property
    def weights(self) -> UInt8[Array, " rows"]:
        """The weight of every key row, 0 where it is not shown, as of the last `weigh`."""
        return self.by_row[1:]

    def weigh(self, table: KeyTable, shown: tuple[Array, Array], now: tuple[int, int]) -> None:
        """Brings weights up to date. `shown`: rows and weights."""
        if len(self.by_row) <= len(table.names):
            lengthen(self, "by_row", len(table.names) + 1)
        if self.weighed != now:
            self.weights[shown[0]] = shown[1]
            self.weighed = now

    def find(
        self,
        table: KeyTable,
        values: Int64[Array, " rows"],
        entry: tuple[int, int],
        key: bytes,
        into: tuple[Recognised, tuple[Array, Array, Array]],
    ) -> Strangers:
        """As `recognise`, by value. `entry`: window and first weight.

        Returns the rows that had to be named. `keep` must follow before the next call.
        """
        window, weight = entry
        known, room = into
        if not self.secret.any():
            low, high = secret_words(key, PURPOSE)
            self.secret = np.array([low, high | np.uint64(1)], np.uint64)
        if self.counts[2]:  # a micro-batch was left half-way: its new values hold slots
            self._clear()
        whole = self.counts[0] == table.keys  # then a value without a slot has no key row
        at, own = 0, ((self.by_row, np.uint8(weight)), known, room, self.counts)
        while (at := find_values(values, self.slots, self.secret, at, *own)) < len(values):
            self._grow()
        _, none, new = self.counts.tolist()
        places, numbers, firsts = room[0][:none], room[1][:none], room[2][:new]
        names = encipher(values[firsts], key, 0)
        if whole:
            rows = np.full(new, -1, np.int32)
            put_known(places, numbers, groups_of(names, np.array([window])), known.group)
        else:
            some = recognise(table, names, window, self.weights, weight)
            rows = some.rows
            for column, kept in zip(some, known, strict=True):
                put_known(places, numbers, column, kept)
        return Strangers(places, numbers, names, rows, firsts)

    def keep(self, values: Int64[Array, " rows"], met: Strangers, known: Recognised) -> None:
        """Ends what `find` began: new values whose keys have rows keep their slots."""
        own = self.slots, self.secret, self.counts
        keep_values(values, met.firsts, met.own, known.group, *own)
        self.counts[1:] = 0

    def _grow(self) -> None:
        """More slots, the new ones free."""
        before = len(self.slots)
        more = before if before < HALVES else before // 2 // WORDS * WORDS
        lengthen(self, "slots", before + more)
        self.counts[0] -= spread_values(self.slots, before)

    def _clear(self) -> None:
        """No slot in use: all values are named again."""
        self.slots[:] = 0
        self.counts[:] = 0
