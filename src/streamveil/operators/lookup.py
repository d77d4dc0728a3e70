"""What makes the keys of one window quick to find. Nothing of it is saved: it can be told again."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from streamveil.operators.aggregate import KeyTable, Recognised, recognise
from streamveil.operators.hashing import encipher, secret_words
from streamveil.operators.kernels import find_values, keep_values
from streamveil.types import Array, Int32, Int64, UInt8, UInt16, UInt64

SMALLEST = 64  # slots of new values
LOAD = 0.5  # share of slots in use: a second look costs as much as all the rest
PURPOSE = b"slots"


def nothing(words: int) -> UInt64[Array, " words"]:
    """Zeros."""
    return np.zeros(words, np.uint64)


@dataclass(repr=False)  # secret
class Lookup:
    """Key rows by the integers that name their keys, and the weights of shown keys by key row.

    Algorithm: a key that is one integer is known by its value alone, in a slot that holds the row
        and the group of the key. Only values without a slot are named (AES) and looked up by name,
        which is what decides; a slot repeats it. Slots are placed by a hash under a secret.
    Protects: whoever chooses the values of keys cannot make look-ups slow: at most `MOST_STEPS`
        slots are looked at, and a value that finds none of them free is named each time. Only keys
        that have a row get a slot, so rows that are turned away leave nothing behind.
    Memory: 16 bytes a slot, at 0.25 to 0.5 keys a slot; a byte for each key row.
    """

    slots: UInt64[Array, " words"] = field(default_factory=lambda: nothing(2 * SMALLEST))
    secret: UInt64[Array, " 2"] = field(default_factory=lambda: nothing(2))  # once it is needed
    weights: UInt8[Array, " rows"] = field(default_factory=lambda: np.zeros(0, np.uint8))
    weighed: tuple[int, int] = (-1, -1)  # trigger and shown keys that `weights` are of

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return self.slots.nbytes + self.weights.nbytes

    def weigh(
        self, table: KeyTable, shown: tuple[Array, Array], now: tuple[int, int]
    ) -> UInt8[Array, " rows"]:
        """The weight of every key row, 0 where it is not shown. `shown`: rows and weights."""
        if self.weighed != now or len(self.weights) < table.keys:
            self.weights = np.zeros(len(table.names), np.uint8)
            self.weights[shown[0]] = shown[1]
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
        none = find_values(values, self.slots, self.secret, self.weights, weight, *known, missing)
        places = missing[:none]
        names = encipher(values[places], key, 0)
        if none:
            some = recognise(table, names, window, self.weights, weight)
            for column, found in zip(known, some, strict=True):
                column[places] = found
        return places, names

    def keep(
        self,
        table: KeyTable,
        values: Int64[Array, " some"],
        rows: Int32[Array, " some"],
        group: UInt16[Array, " some"],
    ) -> None:
        """Gives slots to values whose keys have rows; there are no more of these than keys."""
        slots = len(self.slots) // 2
        while table.keys > LOAD * slots:
            slots *= 2
        if 2 * slots > len(self.slots):
            old, self.slots = self.slots.reshape(-1, 2), np.zeros(2 * slots, np.uint64)
            old = old[old[:, 1] != 0]
            facts = old[:, 1]
            before = (facts & np.uint64(0xFFFFFFFF)).astype(np.int32) - np.int32(1)
            self._fill(old[:, 0].view(np.int64), before, (facts >> np.uint64(32)).astype(np.uint16))
        self._fill(values, rows, group)

    def _fill(self, values: Array, rows: Array, group: Array) -> None:
        keep_values(np.ascontiguousarray(values), rows, group, self.slots, self.secret)
