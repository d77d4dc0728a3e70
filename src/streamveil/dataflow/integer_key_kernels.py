"""The compiled loops that find keys by the integers they are. Finding them by name is the twin.

A slot is two words: the value, mixed under a secret, and what is known of its key: a group above
the number of the key's row plus one, or, marked `NEW`, the number that a value without a row has in
this micro-batch. Mixing can be undone, so a mixed value is as good as the value; its high half says
where it belongs. The one value that is mixed to 0 has no slot, for 0 marks free ones.

Four slots are a bucket and one line of the cache, filled from the left: four values, which are
compared at once, then what is known of them. A look-up goes on to the next bucket only where one is
full.

Rows are looked at a block at a time, in short loops without a branch: one asks for the buckets of a
block; in the next turn it compares their values, and asks for the next bucket where one is missed.
In the turn after that the few that were missed are looked up, and it is told what was found.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from streamveil.compiled import AHEAD, njit
from streamveil.dataflow.kernels import LOW_HALF, MIX
from streamveil.dataflow.raw_memory import LINE, ask, equal, load64, lowest, store64
from streamveil.dataflow.unit_lookup import WORD, home
from streamveil.types import Array, Int32, Int64, UInt8, UInt16, UInt64

BLOCK = 32  # rows looked at in one loop: a power of two
SLOTS = 4  # of a bucket
WORDS = 2 * SLOTS  # of a bucket
FACTS = np.int64(LINE // 2)  # from a value to what is known of it, in bytes
MOST_BUCKETS = 64  # looked at for a value, whatever values there are
LOAD = 0.7  # share of slots in use at which there are more
PART = 512  # buckets moved at a time when slots are spread
NEW = np.uint64(1 << 63)  # marks the slot of a value whose key has no row yet
MARK = np.uint64(63)
FREE, ONE, TWO = np.uint64(0), np.uint64(1), np.uint64(2)
LENGTH, RING = np.uint64(BLOCK), np.uint64(4)  # rows of a block; blocks whose places are kept


@njit(cache=True, nogil=True)
def mixed(value: Any, secret: Any) -> Any:  # pragma: no cover (compiled)
    """A value as it stands in slots: nobody without the secret can aim at one."""
    word = (np.uint64(value) ^ secret[0]) * MIX
    return (word ^ (word >> WORD)) * secret[1]


@njit(cache=True, nogil=True)
def _start(array: Any) -> Any:  # pragma: no cover (compiled)
    """Where an array of the caller begins; signed, for mixed with signed numbers it is a float."""
    return np.int64(array.ctypes.data)


@njit(cache=True, nogil=True)
def _slot_of(slots: Any, buckets: Any, word: Any) -> Any:  # pragma: no cover (compiled)
    """The address of the slot that holds a mixed value, or else of the first free one; 0: neither.

    And whether it holds the value. `slots`: where the table begins.
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


@njit(cache=True, nogil=True)
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
    """`find_names` for keys that are integers, from row `start` on; stops where slots grow.

    `weights`: by key row plus one, 0 where the key is not shown, and what is said of those. A value
    that is met for the first time takes a free slot and a number. `missing` lists the rows without
    a key row, the number of the value of each, and the row that brought each number; `counts` the
    slots in use, rows that are missing, and numbers.
    """
    firsts = missing[2]
    n, base, buckets = len(values), _start(slots), len(slots) // WORDS
    shown = _start(weights[0])
    wide, most = np.uint64(buckets), np.int64(LOAD * SLOTS * buckets)
    first, second = secret[0], secret[1]
    words, places = np.zeros(4 * BLOCK, np.uint64), np.full(4 * BLOCK, base)
    facts, later = np.empty((2, BLOCK), np.uint64), np.empty((2, BLOCK), np.uint64)
    before = np.uint64(0)  # how many `later` lists of the block that comes next
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
            word = (word ^ (word >> WORD)) * second
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


@njit(cache=True, nogil=True)
def _tell(  # noqa: PLR0913 (compiled)
    begin: Any, facts: Any, n: Any, weights: Any, known: Any, missing: Any, none: Any
) -> Any:  # pragma: no cover (compiled)
    """Says of a block of rows what their slots say, and lists those that have no key row.

    No branch, since it has no pattern. Returns how many rows are listed.
    """
    by_row, entry = weights
    found, weight, hidden, group = known
    rows, numbers, _ = missing
    every = FREE
    for i in range(n):
        row = facts[i] & ((facts[i] >> MARK) - ONE)
        found[begin + np.uint64(i)] = np.int32(row & LOW_HALF) - np.int32(1)
        group[begin + np.uint64(i)] = np.uint16(facts[i] >> WORD)
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


@njit(cache=True, nogil=True)
def keep_values(  # noqa: PLR0913 (one loop over structure-of-arrays state)
    values: Int64[Array, " rows"],
    firsts: Int32[Array, " new"],
    own: Int32[Array, " new"],
    group: UInt16[Array, " rows"],
    slots: UInt64[Array, " words"],
    secret: UInt64[Array, " 2"],
    counts: Int64[Array, " 3"],
) -> None:
    """Writes what is known of new values into their slots; frees those of values without a row.

    `own`: the key row of each, -1: none. One without a slot near is left out.
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
            store64(at + FACTS, (np.uint64(group[firsts[k]]) << WORD) | np.uint64(row + 1))
        elif held and load64(at + FACTS) >= NEW:
            counts[0] -= 1
            _vacate(base, buckets, at)


@njit(cache=True, nogil=True)
def _vacate(slots: Any, buckets: Any, hole: Any) -> None:  # pragma: no cover (compiled)
    """Frees a slot. If its bucket is full, one that had to go on to a later bucket takes its place.

    So buckets stay filled from the left, and full where values went past them.
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


@njit(cache=True, nogil=True)
def _behind(place: Any, start: Any, size: Any) -> Any:  # pragma: no cover (compiled)
    """How far a place is behind another, around the end of a table."""
    return place - start + (size if place < start else 0)


@njit(cache=True, nogil=True)
def _move(slot: Any, to: Any) -> None:  # pragma: no cover (compiled)
    store64(to, load64(slot))
    store64(to + FACTS, load64(slot + FACTS))


@njit(cache=True, nogil=True)
def spread_values(slots: UInt64[Array, " words"], before: int) -> int:
    """Moves the slots of a table of `before` words to where they belong among all, in place.

    From the end on, a part at a time: what is moved goes no further to the front than its part,
    for a value is a few buckets from home, and its home moves by half at least. Returns how
    many values found no room near their place and are left out.
    """
    base, buckets, lost = _start(slots), len(slots) // WORDS, 0
    part = np.empty(PART * WORDS, np.uint64)
    for start in range((before - 1) // len(part) * len(part), -1, -len(part)):
        size = min(len(part), before - start)
        part[:size] = slots[start : start + size]
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


@njit(cache=True, nogil=True)
def _free_near(slots: Any, buckets: Any, word: Any) -> Any:  # pragma: no cover (compiled)
    """The first free slot for a value that has none, word by word: the last was just written."""
    at = slots + home(word, np.uint64(buckets)) * LINE
    for _ in range(MOST_BUCKETS):
        for lane in range(SLOTS):
            if load64(at + 8 * lane) == FREE:
                return at + 8 * lane
        at += LINE
        if at == slots + buckets * LINE:
            at = slots
    return np.int64(0)
