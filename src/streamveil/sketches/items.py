"""The keys of rows that a sketch counts, as words or texts, and how they are saved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from streamveil.dataflow.keys import cells_of, from_cells
from streamveil.dataflow.state import Index
from streamveil.types import Array, UInt64

Items: TypeAlias = "UInt64[Array, ' rows'] | pa.Array"  # words, or binary texts


def chosen(items: Items, places: Index) -> Items:
    """The keys of some rows.

    >>> chosen(np.array([5, 6]), np.array([1])).tolist()
    [6]
    """
    if isinstance(items, np.ndarray) or isinstance(places, slice):
        return items[places]
    return items.take(pa.array(places))


def packed(items: Items) -> dict[str, Array]:
    """Keys as arrays that can be saved.

    >>> unpacked(packed(pa.array([b"a", b"bc"], pa.large_binary()))).to_pylist()
    [b'a', b'bc']
    """
    if isinstance(items, np.ndarray):
        return {"word": items}
    data, ends = cells_of([items])
    return {"text": data, "text_end": ends}


def unpacked(kept: Mapping[str, Array]) -> Items:
    """The inverse of `packed`."""
    return kept["word"] if "word" in kept else from_cells(kept["text"], kept["text_end"])
