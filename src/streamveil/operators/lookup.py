"""What makes the keys of one window quick to find. Nothing of it is saved: it can be told again."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from streamveil.operators.addresses import reserved
from streamveil.operators.aggregate import KeyTable, Recognised, recognise
from streamveil.operators.hashing import encipher, secret_words
from streamveil.operators.kernels import (
    find_values,
    keep_values,
    put_known,
    spread_values,
    weigh_values,
)
from streamveil.types import Array, Int32, Int64, UInt8, UInt64

SMALLEST = 64  # slots of new values
LOAD = 0.5  # share of slots in use: a second look costs as much as all the rest
PURPOSE = b"slots"


def nothing(words: int) -> UInt64[Array, " words"]:
    """Zeros."""
    return np.zeros(words, np.uint64)


@dataclass(repr=False)  # secret
class Lookup:
    """Key rows by the integers that name their keys, and the weights of shown keys by key row.

    Algorithm: a key that is one integer is known by its value alone, in a slot that holds the row,
        the group and the weight of the key. Only values without a slot are named (AES) and looked
        up by name, which is what decides; a slot repeats it. Slots are placed by a hash under a
        secret. A key that is shown stays shown, so from trigger to trigger few weights change.
    Protects: whoever chooses the values of keys cannot make look-ups slow: at most `MOST_STEPS`
        slots are looked at, and a value that finds none of them free is named each time. Only keys
        that have a row get a slot, so rows that are turned away leave nothing behind.
    Memory: 16 bytes a slot, at 0.25 to 0.5 keys a slot; nine bytes for each key row.
    """

    slots: UInt64[Array, " words"] = field(default_factory=lambda: nothing(2 * SMALLEST))
    secret: UInt64[Array, " 2"] = field(default_factory=lambda: nothing(2))  # once it is needed
    weights: UInt8[Array, " rows"] = field(default_factory=lambda: np.zeros(0, np.uint8))
    held: Int64[Array, " rows"] = field(default_factory=lambda: np.zeros(0, np.int64))  # values
    weighed: tuple[int, int] = (-1, -1)  # trigger and shown keys that `weights` are of
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
        into: tuple[Recognised, Int32[Array, " rows"]],
    ) -> tuple[Int32[Array, " missing"], UInt64[Array, "missing 2"]]:
        """As `recognise`, by value. `entry`: window and first weight.

        Returns the rows that had to be named, and their names.
        """
        window, weight = entry
        known, missing = into
        if not self.secret.any():
            low, high = secret_words(key, PURPOSE)
            self.secret = np.array([low, high | np.uint64(1)], np.uint64)
        none = find_values(values, self.slots, self.secret, weight, *known, missing)
        places = missing[:none]
        names = encipher(values[places], key, 0)
        if none:
            some = recognise(table, names, window, self.weights, weight)
            put_known(places, some, known)
        return places, names

    def keep(
        self, table: KeyTable, values: Int64[Array, " rows"], places: Array, known: Recognised
    ) -> None:
        """Gives slots to the values at some places whose keys have rows: no more than keys."""
        self._lengthen(table)
        before = len(self.slots)
        while 2 * table.keys > LOAD * len(self.slots):
            self._double()
        if len(self.slots) > before:
            spread_values(self.slots, before, self.secret)
        facts = known.rows, known.group, self.weights
        keep_values(values, places, *facts, self.slots, self.secret, self.held)

    def _lengthen(self, table: KeyTable) -> None:
        """Zeros for the rows of new keys."""
        more = len(table.names) - len(self.weights)
        if len(self.weights) < table.keys:
            self.weights = np.append(self.weights, np.zeros(more, np.uint8))
            self.held = np.append(self.held, np.zeros(more, np.int64))

    def _double(self) -> None:
        """Twice the slots, the new ones free; in place where there is room."""
        size = 2 * len(self.slots)
        if len(self.room) < size:
            longer = reserved(size, np.uint64)
            longer[: len(self.slots)] = self.slots
            self.room = longer
        self.slots = self.room[:size]
