"""Rows on their way between stages: columns by name, divided by shard and joined again.

Spark carries one opaque cell for each piece of rows and shard, never the rows: turning columns into
Spark's rows and back would cost more than all the work on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from streamveil.dataflow.keys import cells_of, from_cells
from streamveil.engines.spark.columns import pack, unpack
from streamveil.types import Array, Int64, UInt64

ENDS, BYTES = "key_lengths", "key_bytes"
Counts = dict[str, int]  # reason -> rows left out; operator-only


@dataclass(frozen=True, repr=False)  # secret
class Rows:
    """Columns of one length, rows in source order; with keys, the exact bytes of each row's."""

    columns: dict[str, Array]
    keys: pa.Array | None = None  # large_binary; None for public keys, which every shard knows

    def __getitem__(self, name: str) -> Array:
        return self.columns[name]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def take(self, places: Int64[Array, " some"]) -> Rows:
        """Some rows."""
        keys = None if self.keys is None else self.keys.take(pa.array(places))
        return Rows({name: column[places] for name, column in self.columns.items()}, keys)

    def by_shard(self, words: UInt64[Array, " rows"], shards: int) -> list[Rows]:
        """The rows of every shard, by words that are uniform; order is kept within each."""
        if shards == 1:
            return [self]
        home = (words % np.uint64(shards)).astype(np.min_scalar_type(shards))
        sorted_rows = self.take(np.argsort(home, kind="stable"))
        ends = np.cumsum(np.bincount(home, minlength=shards))
        return [sorted_rows.slice(int(end - n), int(end)) for n, end in
                zip(np.diff(ends, prepend=0), ends, strict=True)]  # fmt: skip

    def slice(self, start: int, stop: int) -> Rows:
        """The rows [start, stop)."""
        keys = None if self.keys is None else self.keys.slice(start, stop - start)
        return Rows({name: column[start:stop] for name, column in self.columns.items()}, keys)


@dataclass(frozen=True, repr=False)  # secret
class Piece:
    """Rows of one shard from one place; pieces are ordered by place, not by arrival."""

    place: int
    rows: Rows | None  # None: only facts
    facts: dict[str, Any] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """The piece as Spark carries it."""
        columns: dict[str, Array] = {}
        if self.rows is not None:
            columns = dict(self.rows.columns)
            if self.rows.keys is not None:
                columns |= key_columns(self.rows.keys)
        facts = {"place": self.place, "rows": self.rows is not None, "facts": self.facts}
        return b"".join(pack(facts, columns))

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> Piece:
        """The inverse of `to_bytes`."""
        head, columns = unpack(data)
        if not head["rows"]:
            return cls(head["place"], None, head["facts"])
        keys = None
        if ENDS in columns:
            keys = from_cells(columns.pop(BYTES), np.cumsum(columns.pop(ENDS)))
        return cls(head["place"], Rows(columns, keys), head["facts"])


def joined(pieces: Sequence[Piece]) -> Rows | None:
    """All rows in source order; None without any."""
    ordered = [p.rows for p in sorted(pieces, key=lambda p: p.place) if p.rows is not None]
    if not ordered:
        return None
    columns = {
        name: np.concatenate([rows[name] for rows in ordered]) for name in ordered[0].columns
    }
    keys = [rows.keys for rows in ordered]
    return Rows(columns, None if keys[0] is None else pa.concat_arrays(keys))


def key_columns(keys: pa.Array) -> dict[str, Array]:
    """The lengths and the bytes of keys, as columns."""
    data, ends = cells_of([keys])
    return {ENDS: np.diff(ends, prepend=0), BYTES: data}
