"""What makes the keys of one window quick to find. Nothing of it is saved: it can be told again."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from streamveil.operators.addresses import reserved
from streamveil.operators.aggregate import KeyTable, Recognised, Strangers, recognise
from streamveil.operators.hashing import encipher, secret_words
from streamveil.operators.kernels import (
    find_values,
    keep_values,
    put_known,
    spread_values,
    weigh_values,
)
from streamveil.operators.rows import groups_of
from streamveil.types import Array, Int64, UInt8, UInt64

SMALLEST = 64  # slots of new values
PURPOSE = b"slots"


def nothing(words: int) -> UInt64[Array, " words"]:
    """Zeros."""
    return np.zeros(words, np.uint64)


@dataclass(repr=False)  # secret
class Lookup:
    """Key rows by the integers that name their keys, and the weights of shown keys by key row.

    Algorithm: a key that is one integer is known by its value alone, in a slot that holds the row,
        the group and the weight of the key. Only values without a slot are named (AES), each once
        in a micro-batch, since a new value takes a slot at once. Then they are looked up by name,
        which is what decides; a slot repeats it. Where every key row has a slot nothing is left to
        look up. Slots are placed by a hash under a secret. A key that is shown stays shown, so from
        trigger to trigger few weights change.
    Protects: whoever chooses the values of keys cannot make look-ups slow: at most `MOST_STEPS`
        slots are looked at, and a value that finds none of them free is named each time. Only keys
        that have a row keep a slot, so of rows that are turned away nothing is left but free slots,
        no more than one micro-batch needed.
    Memory: 16 bytes a slot, at 0.25 to 0.5 keys and new values a slot; nine bytes a key row.
    """

    slots: UInt64[Array, " words"] = field(default_factory=lambda: nothing(2 * SMALLEST))
    secret: UInt64[Array, " 2"] = field(default_factory=lambda: nothing(2))  # once it is needed
    weights: UInt8[Array, " rows"] = field(default_factory=lambda: np.zeros(0, np.uint8))
    held: Int64[Array, " rows"] = field(default_factory=lambda: np.zeros(0, np.int64))  # values
    weighed: tuple[int, int] = (-1, -1)  # trigger and shown keys that `weights` are of
    counts: Int64[Array, " 3"] = field(default_factory=lambda: np.zeros(3, np.int64))
    room: UInt64[Array, " words"] = field(init=False, default_factory=lambda: nothing(0))

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return self.slots.nbytes + self.weights.nbytes + self.held.nbytes

    def weigh(
        self, table: KeyTable, shown: tuple[Array, Array], now: tuple[int, int]
    ) -> UInt8[Array, " rows"]:
        """The weight of every key row, 0 where it is not shown. `shown`: rows and weights."""
        self._lengthen(table)
        if self.weighed != now:
            weigh_values(*shown, self.weights, self.held, self.slots, self.secret)
            self.weighed = now
        return self.weights

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
        at, own = 0, (np.uint8(weight), known, room, self.counts)
        while (at := find_values(values, self.slots, self.secret, at, *own)) < len(values):
            self._double()
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

    def keep(
        self, table: KeyTable, values: Int64[Array, " new"], rows: Array, group: Array
    ) -> None:
        """Ends what `find` began: new values whose keys have rows keep their slots."""
        self._lengthen(table)
        own = self.slots, self.secret, self.held, self.counts
        keep_values(values, rows, group, self.weights, *own)
        self.counts[1:] = 0

    def _lengthen(self, table: KeyTable) -> None:
        """Zeros for the rows of new keys."""
        more = len(table.names) - len(self.weights)
        if len(self.weights) < table.keys:
            self.weights = np.append(self.weights, np.zeros(more, np.uint8))
            self.held = np.append(self.held, np.zeros(more, np.int64))

    def _double(self) -> None:
        """Twice the slots, the new ones free; in place where there is room."""
        before = len(self.slots)
        if len(self.room) < 2 * before:
            longer = reserved(2 * before, np.uint64)
            longer[:before] = self.slots
            self.room = longer
        self.slots = self.room[: 2 * before]
        self.counts[0] -= spread_values(self.slots, before, self.secret)

    def _clear(self) -> None:
        """No slot in use: all values are named again."""
        self.slots[:] = 0
        self.counts[:] = 0
