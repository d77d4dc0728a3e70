"""An index of the keys of one window by integer value; its oracle is finding them by name.

It is rebuilt on restart, never saved.

A slot is two words: the value, mixed under a secret, and a fact about its key. The fact is a group
above the number of the key's row plus one or, marked `NEW`, the number of a value without a row in
this micro-batch. Mixing can be undone, so a mixed value stands for the value; its high half says
where it belongs. The one value that is mixed to 0 has no slot, for 0 marks free slots.

Four slots are a bucket and one cache line, filled from the left: four values, which are compared at
once, then their four facts. A look-up goes on to the next bucket only if a bucket is full.

Rows are looked up a block at a time, in short loops without a branch. The first turn prefetches the
buckets of a block. The next turn compares their values, and prefetches the next bucket of each row
that missed. The turn after that looks up those few rows, and writes the facts of the whole block.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from streamveil.compiled import AHEAD, njit
from streamveil.dataflow.aggregate import KeyTable, Recognised, Strangers, recognise
from streamveil.dataflow.hashing import encipher, secret_words
from streamveil.dataflow.kernels import LOW_HALF, MIX, put_known
from streamveil.dataflow.raw_memory import (
    LINE,
    ask,
    equal,
    lengthen,
    load64,
    lowest,
    reserved,
    store64,
)
from streamveil.dataflow.rows import groups_of
from streamveil.dataflow.unit_kernels import HIGH, home
from streamveil.types import Array, Int32, Int64, UInt8, UInt16, UInt64

BLOCK = 32  # rows looked up in one loop: a power of two
SLOTS = 4  # of a bucket
WORDS = 2 * SLOTS  # of a bucket
FACTS = np.int64(LINE // 2)  # bytes from a value to its fact
MOST_BUCKETS = 64  # searched for a value, whatever values there are
LOAD = 0.7  # share of slots in use at which the table grows
PART = 512  # buckets moved at a time when slots are spread
NEW = np.uint64(1 << 63)  # marks the slot of a value whose key has no row yet
MARK = np.uint64(63)
FREE, ONE, TWO = np.uint64(0), np.uint64(1), np.uint64(2)
LENGTH, RING = np.uint64(BLOCK), np.uint64(4)  # rows of a block; blocks whose places are kept


@njit(cache=True)
def mixed(value: Any, secret: Any) -> Any:  # pragma: no cover (compiled)
    """A value in the form that slots hold: nobody without the secret can aim at a slot."""
    word = (np.uint64(value) ^ secret[0]) * MIX
    return (word ^ (word >> HIGH)) * secret[1]


@njit(cache=True)
def _start(array: Any) -> Any:  # pragma: no cover (compiled)
    """The address of a caller's array; signed, as signed and unsigned together give a float."""
    return np.int64(array.ctypes.data)


@njit(cache=True)
def _slot_of(slots: Any, buckets: Any, word: Any) -> Any:  # pragma: no cover (compiled)
    """The address of the slot that holds a mixed value, or of the first free one; 0: neither.

    Also whether it holds the value. `slots`: the address of the table.
    """
    at = slots + home(word, np.uint64(buckets)) * LINE
    for _ in range(MOST_BUCKETS):
        hit, free = equal(at, word), equal(at, FREE)
        if (hit | free) != 0 and word != FREE:
            return at + 8 * lowest(hit if hit != 0 else free), hit != 0
        at += LINE
        if at == slots + buckets * LINE:
            at = slots
    return np.int64(0), False


@njit(cache=True)
def find_values(  # noqa: PLR0913 (one loop over structure-of-arrays state)
    values: Int64[Array, " rows"],
    slots: UInt64[Array, " words"],
    secret: UInt64[Array, " 2"],
    start: int,
    weights: tuple[UInt8[Array, " keys_plus_1"], np.uint8],
    known: tuple[Array, Array, Array, Array],
    missing: tuple[Array, Array, Array],
    counts: Int64[Array, " 3"],
) -> int:
    """`find_names` for keys that are integers, from row `start` on; stops where slots must grow.

    `weights`: by key row plus one, 0 if the key is not shown; and the weight of keys not shown. A
    value that is met for the first time takes a free slot and a number. `missing` lists the rows
    without a key row, the number of each one's value, and the row that brought each number.
    `counts` holds the numbers of slots in use, of missing rows, and of new values.
    """
    firsts = missing[2]
    n, base, buckets = len(values), _start(slots), len(slots) // WORDS
    shown = _start(weights[0])
    wide, most = np.uint64(buckets), np.int64(LOAD * SLOTS * buckets)
    first, second = secret[0], secret[1]
    words, places = np.zeros(4 * BLOCK, np.uint64), np.full(4 * BLOCK, base)
    facts, later = np.empty((2, BLOCK), np.uint64), np.empty((2, BLOCK), np.uint64)
    before = np.uint64(0)  # rows of the next block that `later` lists
    for begin in range(start - 2 * BLOCK, n if n > start else start - 2 * BLOCK, BLOCK):
        some = min(BLOCK, n - begin) if begin >= start else 0
        if some and counts[0] + some > most:
            return begin
        turn, full, before = np.uint64((begin - start) // BLOCK), before, np.uint64(0)
        told, seen, asked = turn % RING, (turn + ONE) % RING, (turn + TWO) % RING
        mine, next_facts, next_later = turn % TWO, facts[seen % TWO], later[seen % TWO]
        for i in range(BLOCK):
            at = np.uint64(i) + seen * LENGTH  # unsigned: a signed one may count from the end
            hit = equal(places[at], words[at]) * np.int64(words[at] != FREE)
            ask(places[at] + LINE * np.int64(hit == 0))
            next_facts[i] = load64(places[at] + FACTS + 8 * lowest(hit | SLOTS + SLOTS))
            ask(shown + np.int64(next_facts[i] & LOW_HALF))
            next_later[before] = np.uint64(i)
            before += np.uint64(hit == 0)
            word = (np.uint64(values[np.uint64(min(begin + 2 * BLOCK + i, n - 1))]) ^ first) * MIX
            word = (word ^ (word >> HIGH)) * second
            at = np.uint64(i) + asked * LENGTH
            words[at] = word
            places[at] = base + home(word, wide) * LINE
            ask(places[at])
        for k in range(full):
            i = later[mine, k]
            if np.int64(i) >= some:
                break
            word = words[told * LENGTH + i]
            at, held = _slot_of(base, buckets, word)
            if held:
                facts[mine, i] = load64(at + FACTS)
                continue
            facts[mine, i] = NEW | np.uint64(counts[2])
            if at != 0:
                store64(at, word)
                store64(at + FACTS, facts[mine, i])
                counts[0] += 1
            firsts[counts[2]] = begin + np.int64(i)
            counts[2] += 1
        counts[1] = _tell(np.uint64(begin), facts[mine], some, weights, known, missing, counts[1])
    return n


@njit(cache=True)
def _tell(  # noqa: PLR0913 (compiled)
    begin: Any, facts: Any, n: Any, weights: Any, known: Any, missing: Any, none: Any
) -> Any:  # pragma: no cover (compiled)
    """Copies the facts of slots to a block of rows, and lists the rows without a key row.

    The loops have no branch: no processor could predict it. Returns how many rows are listed.
    """
    by_row, entry = weights
    found, weight, hidden, group = known
    rows, numbers, _ = missing
    every = FREE
    for i in range(n):
        row = facts[i] & ((facts[i] >> MARK) - ONE)
        found[begin + np.uint64(i)] = np.int32(row & LOW_HALF) - np.int32(1)
        group[begin + np.uint64(i)] = np.uint16(facts[i] >> HIGH)
        every |= facts[i]
    for i in range(n):
        shown = by_row[np.uint32(found[begin + np.uint64(i)] + 1)]
        unseen = np.uint8(shown == 0)
        hidden[begin + np.uint64(i)] = unseen
        weight[begin + np.uint64(i)] = shown + unseen * entry
    listed = np.uint64(none)
    if every >= NEW:
        for i in range(n):
            rows[listed] = begin + np.uint64(i)
            numbers[listed] = np.int32(facts[i] & LOW_HALF)
            listed += facts[i] >> MARK
    return np.int64(listed)


@njit(cache=True)
def keep_values(  # noqa: PLR0913 (one loop over structure-of-arrays state)
    values: Int64[Array, " rows"],
    firsts: Int32[Array, " new"],
    own: Int32[Array, " new"],
    group: UInt16[Array, " rows"],
    slots: UInt64[Array, " words"],
    secret: UInt64[Array, " 2"],
    counts: Int64[Array, " 3"],
) -> None:
    """Writes the facts of new values into their slots; frees the slots of values without a row.

    `own`: the key row of each value, -1: none. A value with no slot near its place is left out.
    """
    base, buckets, n = _start(slots), len(slots) // WORDS, len(firsts)
    wide = np.uint64(buckets)
    for k in range(n):
        if k + AHEAD < n:
            ask(base + home(mixed(values[firsts[k + AHEAD]], secret), wide) * LINE)
        row, word = np.int64(own[k]), mixed(values[firsts[k]], secret)
        at, held = _slot_of(base, buckets, word)
        if at == 0:
            continue
        if row >= 0:
            counts[0] += np.int64(not held)
            store64(at, word)
            store64(at + FACTS, (np.uint64(group[firsts[k]]) << HIGH) | np.uint64(row + 1))
        elif held and load64(at + FACTS) >= NEW:
            counts[0] -= 1
            _vacate(base, buckets, at)


@njit(cache=True)
def _vacate(slots: Any, buckets: Any, hole: Any) -> None:  # pragma: no cover (compiled)
    """Frees a slot. If its bucket is full, a value that overflowed from it takes the place.

    So buckets stay filled from the left, and those that values went past stay full.
    """
    size = buckets * LINE
    bucket = hole & -LINE  # tables begin at lines
    step = bucket
    while equal(step, FREE) == 0 and _behind(step, bucket, size) < MOST_BUCKETS * LINE:
        step = step + LINE if step + LINE < slots + size else slots
        for lane in range(SLOTS):
            word = load64(step + 8 * lane)
            if word == FREE:
                break
            place = slots + home(word, np.uint64(buckets)) * LINE
            if _behind(step, place, size) >= _behind(step, bucket, size):
                _move(step + 8 * lane, hole)
                hole, bucket = step + 8 * lane, step
                break
    free = equal(bucket, FREE)
    last = bucket + 8 * (lowest(free | 1 << SLOTS) - 1)
    _move(last, hole)
    store64(last, FREE)


@njit(cache=True)
def _behind(place: Any, start: Any, size: Any) -> Any:  # pragma: no cover (compiled)
    """The distance from `start` forward to a place, around the end of a table."""
    return place - start + (size if place < start else 0)


@njit(cache=True)
def _move(slot: Any, to: Any) -> None:  # pragma: no cover (compiled)
    store64(to, load64(slot))
    store64(to + FACTS, load64(slot + FACTS))


@njit(cache=True)
def spread_values(slots: UInt64[Array, " words"], before: int) -> int:
    """Moves the slots of a table's first `before` words to their places in the longer table.

    It goes from the end to the front, a part at a time. No value moves further to the front than
    its part: it is a few buckets from home, and its home moves back by half at least. Returns how
    many values found no room near their place and are left out.
    """
    base, buckets, lost = _start(slots), len(slots) // WORDS, 0
    part = np.empty(PART * WORDS, np.uint64)
    for start in range((before - 1) // len(part) * len(part), -1, -len(part)):
        size = min(len(part), before - start)
        for i in range(size):
            part[i] = load64(base + 8 * (start + i))
        slots[start : start + size] = 0
        for bucket in range(0, size, WORDS):
            for at in range(bucket, bucket + SLOTS):
                if part[at] == FREE:
                    break
                to = _free_near(base, buckets, part[at])
                if to != 0:
                    store64(to, part[at])
                    store64(to + FACTS, part[at + SLOTS])
                else:
                    lost += 1
    return lost


@njit(cache=True)
def _free_near(slots: Any, buckets: Any, word: Any) -> Any:  # pragma: no cover (compiled)
    """The first free slot for a value without one, word by word as they were just written."""
    at = slots + home(word, np.uint64(buckets)) * LINE
    for _ in range(MOST_BUCKETS):
        for lane in range(SLOTS):
            if load64(at + 8 * lane) == FREE:
                return at + 8 * lane
        at += LINE
        if at == slots + buckets * LINE:
            at = slots
    return np.int64(0)


SMALLEST = 64 * WORDS  # words of the slots of a new table: room for a block of rows
HALVES = 1 << 19  # from so many words on, slots grow by half instead of doubling
PURPOSE = b"slots"


@dataclass(repr=False)  # secret
class Lookup:
    """Key rows by the integers that name their keys, and the weights of shown keys by key row.

    Algorithm: a key that is one integer is found by its value alone, in a slot that holds the row
        and the group of the key (`find_values`). Only values without a slot are named (AES), each
        once in a micro-batch, since a new value takes a slot at once. Then they are looked up by
        name. The name decides; a slot repeats its answer. If every key row has a slot, no look-up
        is needed. Slots are placed by a hash under a secret.
    Protects: whoever chooses the values of keys cannot make look-ups slow: at most `MOST_BUCKETS`
        are searched, and a value that finds no room in them is named each time. Only keys that
        have a row keep a slot, so rows that are not accepted leave nothing but free slots, no more
        than one micro-batch needed.
    Memory: 16 bytes a slot, at 0.35 (once there are many 0.47) to 0.7 keys and new values a slot; a
        byte a key row.
    """

    slots: UInt64[Array, " words"] = field(default_factory=lambda: reserved(SMALLEST, np.uint64))
    secret: UInt64[Array, " 2"] = field(default_factory=lambda: np.zeros(2, np.uint64))  # if needed
    by_row: UInt8[Array, " rows_plus_1"] = field(default_factory=lambda: np.zeros(1, np.uint8))
    weighed: tuple[int, int] = (-1, -1)  # trigger and number of shown keys as of the last `weigh`
    counts: Int64[Array, " 3"] = field(default_factory=lambda: np.zeros(3, np.int64))
    room: dict[str, Array] = field(init=False, default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return self.slots.nbytes + self.by_row.nbytes

    @property
    def weights(self) -> UInt8[Array, " rows"]:
        """The weight of every key row as of the last `weigh`; 0: not shown."""
        return self.by_row[1:]

    def weigh(self, table: KeyTable, shown: tuple[Array, Array], now: tuple[int, int]) -> None:
        """Brings weights up to date. `shown`: rows and weights of shown keys."""
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
        """As `recognise`, by value. `entry`: the window, and the weight of keys not shown.

        Returns the rows that had to be named. `keep` must be called before the next `find`.
        """
        window, weight = entry
        known, room = into
        if not self.secret.any():
            low, high = secret_words(key, PURPOSE)
            self.secret = np.array([low, high | np.uint64(1)], np.uint64)
        if self.counts[2]:  # a micro-batch ended half-way: its new values hold slots
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
        """Completes `find`: new values whose keys have rows keep their slots."""
        own = self.slots, self.secret, self.counts
        keep_values(values, met.firsts, met.own, known.group, *own)
        self.counts[1:] = 0

    def _grow(self) -> None:
        """Makes room for more slots."""
        before = len(self.slots)
        more = before if before < HALVES else before // 2 // WORDS * WORDS
        lengthen(self, "slots", before + more)
        self.counts[0] -= spread_values(self.slots, before)

    def _clear(self) -> None:
        """Frees all slots: all values are named again."""
        self.slots[:] = 0
        self.counts[:] = 0
