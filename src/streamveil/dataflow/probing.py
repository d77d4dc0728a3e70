"""What all compiled loops over hash tables share: the place of a name."""

from __future__ import annotations

from typing import Any

import numpy as np

from streamveil.compiled import njit

DONE, GROW_TABLE, GROW_POOL = 0, 1, 2
LOAD = 0.8  # share of slots in use at which a table grows
MOST_PROBES = 512  # names that arrive sorted fill a table from one end: grow where it is crowded
SOON = 16  # rows between asking for what a slot points to and reading it
WORD = np.uint64(32)


@njit(cache=True, nogil=True)
def home(name: np.uint64, capacity: np.uint64) -> Any:  # pragma: no cover (compiled)
    """The first slot to try: slots are in the order of names, for any capacity below 2^32."""
    return np.int64(((name >> WORD) * capacity) >> WORD)
