"""What a group-by remembers, and small codecs between arrays and everything else."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from streamveil.dataflow import repeated
from streamveil.dataflow.aggregate import KeyTable
from streamveil.dataflow.bounding import UnitTable
from streamveil.dataflow.cut_rows import CutUnits, loaded, saved
from streamveil.dataflow.integer_key_index import Lookup
from streamveil.dataflow.keys import Types
from streamveil.dataflow.release import WindowState
from streamveil.errors import StoreError
from streamveil.types import Array, Bool, Int64, UInt8

Index = slice | Array
Seen = dict[tuple[int, int], KeyTable]  # (window, lane) -> names of the values met


class BatchScratch:
    """Memory of one micro-batch that the next one reuses.

    Otherwise the system would map new arrays for each micro-batch and clear all of their pages,
    which takes longer than filling them.
    """

    def __init__(self) -> None:
        self._held: dict[str, Array] = {}

    def take(self, name: str, rows: int, kind: Any) -> Array:
        """Room for so many items, with any content; the same room for the same name."""
        held = self._held.get(name)
        if held is None or len(held) < rows:
            held = self._held[name] = np.empty(rows, kind)
        return held[:rows]

    def count(self, rows: int) -> Int64[Array, " rows"]:
        """0, 1, 2 ..., not to be written to."""
        held = self._held.get("count")
        if held is None or len(held) < rows:
            held = self._held["count"] = np.arange(rows)
            held.setflags(write=False)
        return held[:rows]


@dataclass(repr=False)  # secret
class State:
    """Everything a group-by remembers, and two helpers that are not saved. Mutable; never shown."""

    units: dict[int, UnitTable] = field(default_factory=dict)  # period -> table
    windows: dict[int, WindowState] = field(default_factory=dict)
    seen: Seen = field(default_factory=dict)
    cut: dict[int, CutUnits] = field(default_factory=dict)  # period -> units with cut rows
    types: Types | None = None  # of the key columns, once a schema was seen
    reject_counts: dict[str, int] = field(default_factory=dict)  # reason -> rows left out
    step: int = 0  # last released
    folds: int = 0  # micro-batches so far, where the state is saved in portions
    lookups: dict[int, Lookup] = field(default_factory=dict)  # of windows
    scratch: BatchScratch = field(default_factory=BatchScratch)

    def to_arrays(self) -> dict[str, Array]:
        """Everything, as arrays to store (views)."""
        arrays = {
            "reject_counts": to_bytes(json.dumps(self.reject_counts).encode()),
            "step": np.array(self.step, np.int64),
            "folds": np.array(self.folds, np.int64),
            "periods": np.array(list(self.units), np.int64),
            "windows": np.array(list(self.windows), np.int64),
        }
        if self.types is not None:
            arrays["types"] = types_to_bytes(self.types)
        for period, table in self.units.items():
            arrays |= {f"unit{period}/{name}": getattr(table, name) for name in UnitTable.NAMES}
        for window, held in self.windows.items():
            arrays |= {f"window{window}/{k}": v for k, v in held.to_arrays().items()}
        arrays |= saved(self.cut)
        if self.seen:
            arrays["seen"] = np.array(list(self.seen), np.int64)
        for (window, lane), known in self.seen.items():
            arrays |= {f"seen{window}/{lane}/{name}": getattr(known, name) for name in known.NAMES}
        return arrays

    @classmethod
    def from_arrays(
        cls, arrays: Mapping[str, Array], spans: int, width: int,
        own: Callable[[Array], Array] = np.copy,
    ) -> State:  # fmt: skip
        """The inverse of `to_arrays` for a query of so many spans of lanes and columns of sums.

        `own` gives arrays that may be changed in place.
        """
        try:
            state = cls(
                reject_counts=json.loads(bytes(arrays["reject_counts"])),
                step=int(arrays["step"]),
                folds=int(arrays["folds"]),
                types=types_from_bytes(arrays["types"]) if "types" in arrays else None,
            )
            for period in arrays["periods"].tolist():
                state.units[period] = UnitTable(
                    *(own(arrays[f"unit{period}/{name}"]) for name in UnitTable.NAMES)
                )
            state.cut = loaded(arrays)
            for window in arrays["windows"].tolist():
                start = f"window{window}/"
                inside = {k[len(start) :]: v for k, v in arrays.items() if k.startswith(start)}
                state.windows[window] = WindowState.from_arrays(inside, spans, own)
            for window, lane in arrays["seen"].tolist() if "seen" in arrays else []:
                state.seen[window, lane] = KeyTable(
                    *(own(arrays[f"seen{window}/{lane}/{name}"]) for name in KeyTable.NAMES)
                )
        except (KeyError, ValueError, TypeError):
            raise StoreError("the saved arrays are not the state of this group-by") from None
        if any(held.table.pending.shape[1] != width for held in state.windows.values()):
            raise StoreError("the saved state belongs to a query with other aggregates")
        return state

    def forget(self, window: int) -> None:
        """Drops a window that has made its last release."""
        del self.windows[window]
        self.lookups.pop(window, None)
        for place in [place for place in self.seen if place[0] == window]:
            del self.seen[place]


FEW = 32  # distinct values that are searched one by one, which is faster than to sort


def parts(values: Int64[Array, " rows"]) -> Iterator[tuple[int, Index]]:
    """Every distinct value with the places that hold it; one slice if all values are equal.

    >>> list(parts(np.array([3, 3])))
    [(3, slice(None, None, None))]
    """
    if len(values) == 0:
        return
    if is_constant(values):
        yield int(values[0]), slice(None)
        return
    numbers, counts = np.unique(values, return_counts=True)
    if len(numbers) <= FEW:
        yield from ((value, np.flatnonzero(values == value)) for value in numbers.tolist())
        return
    order = np.argsort(values, kind="stable")
    yield from zip(numbers.tolist(), np.split(order, np.cumsum(counts)[:-1]), strict=True)


def is_constant(values: Int64[Array, " rows"]) -> bool:
    """Whether there are values and all are equal; known at once where one item is repeated."""
    return bool(len(values)) and (values.strides == (0,) or bool((values == values[0]).all()))


def evened(values: Int64[Array, " rows"]) -> Int64[Array, " rows"]:
    """The same values; as one item, repeated without memory, where all are equal."""
    if values.strides == (0,) or not is_constant(values):
        return values
    return repeated(values[0], len(values))


def chosen(
    values: Int64[Array, " rows"], accepted: Bool[Array, " rows"], n: int
) -> Int64[Array, " n"]:
    """The values of the `n` accepted rows; one item stays one item."""
    if len(values) and values.strides == (0,):
        return repeated(values[0], n)
    return values[accepted]


def constant(values: Int64[Array, " rows"]) -> Int64[Array, " few"]:
    """One entry where all are equal; see `spread_out`."""
    return values[:1].copy() if is_constant(values) else values


def spread_out(values: Int64[Array, " few"], rows: int) -> Int64[Array, " rows"]:
    """The inverse of `constant`."""
    return repeated(values[0], rows) if len(values) == 1 else values


def to_bytes(data: bytes) -> UInt8[Array, " bytes"]:
    """Bytes as an array."""
    return np.frombuffer(data, np.uint8)


@lru_cache(64)
def types_to_bytes(types: Types) -> UInt8[Array, " bytes"]:
    """Arrow types of the key columns, as bytes."""
    schema = pa.schema([pa.field(str(i), kind) for i, kind in enumerate(types)])
    return np.frombuffer(schema.serialize(), np.uint8)


def types_from_bytes(data: UInt8[Array, " bytes"]) -> Types:
    """The inverse of `types_to_bytes`."""
    return tuple(pa.ipc.read_schema(pa.py_buffer(np.ascontiguousarray(data))).types)
