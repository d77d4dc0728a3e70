"""COUNT(DISTINCT x): how many different values the accepted rows of a group hold.

Algorithm: a row adds one to the lane of its (window, group) when its value is new there: when no
    accepted row before it, in canonical order, had the same. The lane feeds a counter like any
    other, so the release is a running number of different values.
Protects: what the group-by protects.
Guarantee: that of a lane whose rows move its stream by at most `rows.FIRSTS` = 2.
Proof: Let D = D' + unit u, and fix the releases so far. Which rows of other units are accepted
    depends on their own rows and on releases, so they are the same in D and D'. Take a group k and
    a value x, and let s be the step at which x first appears in k in D', if ever.
    - If u has no accepted row with x in k, or only at steps from s on, x still first appears at s.
    - If u's first accepted row with x in k comes at r < s, the stream of D has one more at r and
      one less at s; if x never appears in D', one more at r and no less.
    So every x of u changes the stream by at most 2 in absolute values summed over steps, and u has
    at most n_k different values in k where it has n_k accepted rows: sum over t of |dx_k,t| is at
    most 2 n_k. Groups without rows of u do not change, and the number of groups that change is
    the one already declared. That is the norm of `Counter.loss` with `reach` 2.
    Weights: the loss is always at a later step than the gain, and weights of keys do not rise, so
    w_r + w_s <= 2 w_r, and w_r is what the filter charged for u's row (see `weighted_loss`). A key
    that opens between r and s turns the gain into a part of its first increment: not before r, and
    still one more and one less.
    What passes the bounding does not depend on the values seen. Nothing is released but the
    counter. The argument holds for any function of x in place of x, so also for its 128-bit name.
Error: that of the counter at twice the reach of COUNT; two values share a 128-bit name, and are
    then counted once, with probability at most n^2 / 2^129 among n values.
Memory: 16 to 32 bytes of name and 5 to 10 of slots for every (window, group, value); up to 60 bytes
    at once while they grow.
Numerics: exact integers.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from streamveil.dataflow.aggregate import KeyTable, key_stage
from streamveil.dataflow.state import Seen, parts
from streamveil.types import Array, Bool, Int64, UInt64

Column = tuple[Bool[Array, " rows"], UInt64[Array, "rows 2"]]  # whether there is a value; names


def see(
    seen: Seen, columns: Mapping[int, Column], windows: Int64[Array, " rows"]
) -> tuple[dict[int, Bool[Array, " rows"]], dict[str, Array]]:
    """For each lane, which accepted rows bring a new value of their group; and what was new.

    Updates `seen`. Each verdict is a function of the rows of one group alone, so any partition of
    the groups gives the same.
    """
    firsts: dict[int, Bool[Array, " rows"]] = {}
    places: list[tuple[int, int, int]] = []
    names = [np.zeros((0, 2), np.uint64)]
    for lane, (present, cells) in columns.items():
        firsts[lane] = np.zeros(len(windows), np.bool_)
        rows = np.flatnonzero(present)
        for window, mine in parts(windows[rows]):
            known = seen.setdefault((window, lane), KeyTable.empty(0))
            start = known.keys
            firsts[lane][rows[mine]] = first_seen(known, cells[rows[mine]])
            names.append(known.names[start : known.keys].copy())
            places.append((window, lane, known.keys - start))
    if not columns:
        return firsts, {}
    return firsts, {
        "seen": np.array(places, np.int64).reshape(-1, 3),
        "seen_names": np.concatenate(names),
    }


def recall(seen: Seen, delta: Mapping[str, Array]) -> None:
    """Does to `seen` what `see` did when it returned this delta."""
    end = 0
    for window, lane, more in delta["seen"].tolist() if "seen" in delta else []:
        start, end = end, end + more
        known = seen.setdefault((window, lane), KeyTable.empty(0))
        known.add_names(delta["seen_names"][start:end])


def first_seen(known: KeyTable, names: UInt64[Array, "rows 2"]) -> Bool[Array, " rows"]:
    """Which rows bring a name that is neither known nor in a row before them. Remembers all.

    >>> first_seen(KeyTable.empty(0), np.array([[7, 1], [9, 1], [7, 1]], np.uint64)).tolist()
    [True, True, False]
    """
    new = np.zeros(len(names), np.bool_)
    new[key_stage(known, names).fresh] = True
    return new
