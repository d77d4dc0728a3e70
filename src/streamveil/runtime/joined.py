"""Deltas of several micro-batches as one: equal names end to end, so that small arrays are few.

An array `NAME` is followed by `NAME|rows`: how many rows each micro-batch has in it, -1 where it
has no such array. Arrays that cannot be laid end to end are kept apart, as `NAME|0`, `NAME|1`, ...
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from streamveil.types import Array

ROWS, BETWEEN = "rows", "|"


def joined(deltas: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """Deltas in their order, as one.

    >>> {name: array.tolist() for name, array in joined([{"n": np.ones(2)}, {}]).items()}
    {'n': [1.0, 1.0], 'n|rows': [2, -1]}
    """
    found: dict[str, Array] = {}
    for name in dict.fromkeys(name for delta in deltas for name in delta):
        parts = [delta.get(name) for delta in deltas]
        there = [part for part in parts if part is not None]
        if len({(part.dtype, part.ndim, part.shape[1:]) for part in there}) == 1 and there[0].ndim:
            found[name] = np.concatenate(there)
            rows = [-1 if part is None else len(part) for part in parts]
            found[name + BETWEEN + ROWS] = np.array(rows, np.int64)
        else:
            apart = {f"{name}{BETWEEN}{turn}": part for turn, part in enumerate(parts)}
            found |= {key: part for key, part in apart.items() if part is not None}
    return found


def parted(arrays: Mapping[str, Array], deltas: int) -> list[dict[str, Array]]:
    """The inverse of `joined`, of so many deltas.

    >>> parted(joined([{"n": np.ones(2)}, {}]), 2)
    [{'n': array([1., 1.])}, {}]
    """
    found: list[dict[str, Array]] = [{} for _ in range(deltas)]
    for key, array in arrays.items():
        name, _, which = key.rpartition(BETWEEN)
        if which == ROWS:
            ends = np.cumsum(np.maximum(array, 0))
            for delta, rows, end in zip(found, array.tolist(), ends.tolist(), strict=True):
                if rows >= 0:
                    delta[name] = arrays[name][end - rows : end]
        elif name and which.isdigit() and key + BETWEEN + ROWS not in arrays:
            found[int(which)][name] = array
    return found
