"""The units that a look keeps: all of them or, if there are many, a sample by their names."""

from __future__ import annotations

import numpy as np

from streamveil.compiled import njit
from streamveil.dataflow.integer_key_index import mixed
from streamveil.types import Array, Int64, UInt8, UInt64

WORDS = 6  # random words that a sample needs
LEVELS = 6  # the smallest sample is one unit in 2^6
FEWEST = 1 << 20  # up to so many units a look keeps all
OF_SIGMA = 1 << 15  # the same, in deviations of a bin
MARGIN = 1.5  # how far the number of units may be from its noisy one


def most_units(sigma: float) -> int:
    """Up to how many units a look keeps all: so many that neither noise nor sampling matters."""
    return max(FEWEST, int(OF_SIGMA * sigma))


def level_for(noisy: Int64[Array, " 1"], most: int) -> int:
    """Post-processing: the first level with few enough units, from the number in the last level.

    >>> [level_for(np.array([units >> LEVELS]), FEWEST) for units in (10**5, 10**6, 10**7, 10**9)]
    [0, 1, 4, 6]
    """
    units = float(noisy[0]) * 2**LEVELS
    few = (level for level in range(LEVELS) if MARGIN * units <= most << level)
    return next(few, LEVELS)


class UnitSample:
    """Which units a look keeps: those of at least a level, which rises while rows come.

    Algorithm: a unit's level is the number of zeros at the start of its name, mixed with random
        words. One unit in 2^l has at least level l. While more than `most` units have the level
        that is kept, that level rises by one, to `highest` at most. Rows of units below it are left
        out from then on.
    Proof: a unit's level follows from its name and from random words. So all rows of a unit are in
        the sample or none is, and rows of others play no part. The level that is kept depends on
        all rows. Therefore it only says from which level on a sample is whole, and `survey` draws
        which one is used.
    """

    def __init__(self, words: UInt64[Array, " 6"], most: int, highest: int = LEVELS) -> None:
        self.secret, self.key = words[:2] | np.uint64(1), words[2:].tobytes()
        self.most, self.highest, self.level = most, highest, 0

    def levels(self, names: UInt64[Array, " words"], each: int) -> UInt8[Array, " rows"]:
        """The level of the unit of every row, from names of `each` words."""
        found = np.empty(len(names) // each, np.uint8)
        levels_of(names, each, self.secret, found)
        return found


@njit(cache=True)
def levels_of(
    names: UInt64[Array, " words"],
    each: int,
    secret: UInt64[Array, " 2"],
    found: UInt8[Array, " rows"],
) -> None:
    """The level of every row's unit, by the first of `each` words of its name."""
    step = np.int64(each)
    for i in range(len(found)):
        word, level = mixed(names[step * i], secret), np.int64(0)
        for at in range(LEVELS):  # without a branch
            level += np.int64(word >> np.uint64(63 - at) == 0)
        found[i] = level
