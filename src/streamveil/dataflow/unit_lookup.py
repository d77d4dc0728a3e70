"""Where the units of rows are: the compiled loops that find slots, a block of rows ahead.

A row is looked at three times before it is decided, each time in a short loop over a block of rows,
so that the processor has many rows under way, and a guess that fails costs no other row. First its
bucket is computed and asked for. A block later the names in it are compared, without a branch,
and the next bucket is asked for where it is full and lacks the unit. A block later the few units
that are not in their first bucket are looked up further on.

What was found is where the unit is, or the free slot it would take. Rows that are decided in the
meantime may enter other units there: who uses it compares the name again. Nothing leaves a table,
so what was found holds as long as no table grows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from streamveil.compiled import njit
from streamveil.dataflow.raw_memory import LINE, ask, equal, lowest
from streamveil.types import Array, Int64, UInt64

# ---- what all compiled loops over hash tables share: the place of a name

DONE, GROW_TABLE, GROW_POOL = 0, 1, 2
LOAD = 0.8  # share of slots in use at which a table grows
MOST_PROBES = 512  # names that arrive sorted fill a table from one end: grow where it is crowded
SOON = 16  # rows between asking for what a slot points to and reading it
WORD = np.uint64(32)


@njit(cache=True, nogil=True)
def home(name: np.uint64, capacity: np.uint64) -> Any:  # pragma: no cover (compiled)
    """The first slot to try: slots are in the order of names, for any capacity below 2^32."""
    return np.int64(((name >> WORD) * capacity) >> WORD)


# ---- where the units of rows are: the compiled loops that find slots, a block of rows ahead

BLOCK = 32  # rows looked at in one loop
AHEAD = 3  # blocks from the one being decided to the one first looked at
RING = AHEAD + 1  # blocks whose places are kept
HEAD = 5  # of a table: address of slots, buckets, units it may hold, address of pool, granules
MOST_BUCKETS = 128  # names that arrive sorted crowd one end: grow where it is crowded
FREE = np.uint64(0)  # the name in a free slot


@njit(cache=True, nogil=True)
def locate(slots: Any, buckets: Any, name: Any, step: Any) -> Any:  # pragma: no cover (compiled)
    """The address of a unit's slot, or of the free one it would take, and whether it is known."""
    at = slots + home(name, np.uint64(buckets)) * step
    while True:
        hit, free = equal(at, name), equal(at, FREE)
        if (hit | free) != 0:
            return at + 8 * lowest(hit if hit != 0 else free), hit != 0
        at += step
        if at == slots + buckets * step:
            at = slots


@njit(cache=True, nogil=True)
def is_far(place: Any, slots: Any, buckets: Any, name: Any, step: Any) -> Any:
    """Whether a free slot is too many buckets behind the one that a unit would like."""
    behind = place - (slots + home(name, np.uint64(buckets)) * step)
    if behind < 0:
        behind += buckets * step
    return behind > MOST_BUCKETS * step


@njit(cache=True, nogil=True)
def block_of(rows: Array, at: Any, turn: Any) -> Any:  # pragma: no cover (compiled)
    """The rows of a block, counted from row `at` on; none before the first and behind the last."""
    start = max(turn, 0) * BLOCK + at
    return rows[start : start + BLOCK] if turn >= 0 else rows[:0]


@njit(cache=True, nogil=True)
def look_ahead(  # noqa: PLR0913 (compiled)
    unit: UInt64[Array, " rows"],
    at: Any,
    turn: Any,
    heads: Int64[Array, " cells"],
    step: Any,
    found: Int64[Array, "turns rows"],
    later: Int64[Array, " cells"],
) -> Any:  # pragma: no cover (compiled)
    """Finds the slots of block `turn + 1`, and looks at the two behind it for the first times.

    `found` has the places of the last blocks, `later` the rows of one that are not in their first
    bucket, and how many there are. A unit is in the table that the low bits of its name say.
    """
    low = np.uint64(len(heads) // HEAD - 1)
    names, places = block_of(unit, at, turn + 1), found[(turn + 1) % RING]
    for k in range(later[BLOCK]):
        i = later[k]
        head = HEAD * np.int64(names[i] & low)
        places[i], _ = locate(heads[head], heads[head + 1], names[i], step)
    names, places = block_of(unit, at, turn + 2), found[(turn + 2) % RING]
    full = np.int64(0)
    for i in range(len(names)):
        hit, free = equal(places[i], names[i]), equal(places[i], FREE)
        either = hit if hit != 0 else free
        ask(places[i] + step * np.int64(either == 0))
        places[i] += 8 * lowest(either | 16)
        later[full] = i
        full += np.int64(either == 0)
    later[BLOCK] = full
    names, places = block_of(unit, at, turn + AHEAD), found[(turn + AHEAD) % RING]
    for i in range(len(names)):
        head = HEAD * np.int64(names[i] & low)
        places[i] = heads[head] + home(names[i], np.uint64(heads[head + 1])) * step
        ask(places[i])
        if step > LINE:
            ask(places[i] + LINE)
