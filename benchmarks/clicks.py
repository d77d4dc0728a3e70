"""Synthetic workloads of the papers, made again from a seed. None of this is a private path."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from streamveil.types import Array, Float64, Int64

DAY_US = 86_400_000_000
Ids = str  # 'int' or 'text'


@dataclass(frozen=True, kw_only=True)
class Clicks:
    """The synthetic stream of DP-SQLP: many users, few records each, keys of a heavy tail.

    Algorithm: the workload of Zhang et al. (2023, arXiv:2303.18086, section 5.1) in the form that
        gives their published totals: ranks start at 0 in both laws. A user has n records with
        probability proportional to (n + 25)^-6.738, n = 1..100,000; a record has the key of rank
        k = 1..keys with probability proportional to (k + 999)^-1.4; records are shuffled over a
        day. At full size 59 million records, a mean of 5.9 and a 99th percentile of 32 per user.
        `clumpy` makes each record repeat an earlier key of its user with that probability: the
        plain stream has almost no repeats and cannot tell good per-key bounds from bad ones.
    Memory: 24 bytes per record while generating.

    >>> Clicks(users=1000, keys=100).table().num_rows
    5719
    """

    users: int = 10_000_000
    keys: int = 1_000_000
    clumpy: float = 0.0  # probability that a record repeats an earlier key of its user
    seed: int = 7

    def arrays(self) -> tuple[Int64[Array, " records"], Int64[Array, " records"]]:
        """User and key of every record, in order of time."""
        rng = np.random.default_rng(self.seed)
        per_user = drawn(rng, (np.arange(1, 100_001) + 25.0) ** -6.738, self.users) + 1
        users = np.repeat(np.arange(self.users), per_user)
        keys = drawn(rng, (np.arange(1, self.keys + 1) + 999.0) ** -1.4, len(users)) + 1
        if self.clumpy:
            keys = repeated(rng, keys, per_user, self.clumpy)
        order = rng.permutation(len(users))
        return users[order], keys[order]

    def table(self, ids: Ids = "int") -> pa.Table:
        """The whole stream: columns user, key, ts."""
        users, keys = self.arrays()
        return as_table(users, keys, 0, len(users), ids)

    def write(self, path: str | Path, ids: Ids = "int", group_rows: int = 600_000) -> int:
        """Writes the stream to one Parquet file, in row groups; returns the number of records."""
        users, keys = self.arrays()
        parts = (
            as_table(users, keys, start, min(start + group_rows, len(users)), ids)
            for start in range(0, len(users), group_rows)
        )
        write_parquet(Path(path), parts)
        return len(users)


def drawn(rng: Any, weights: Float64[Array, " values"], n: int) -> Int64[Array, " n"]:
    """Indices with probability proportional to their weights."""
    edges = np.cumsum(weights)
    return np.asarray(np.searchsorted(edges, rng.random(n) * edges[-1], side="right"))


def repeated(
    rng: Any, keys: Int64[Array, " records"], per_user: Int64[Array, " users"], share: float
) -> Int64[Array, " records"]:
    """Each record but a user's first takes, with probability `share`, an earlier record's key."""
    ends = np.cumsum(per_user)
    first = np.repeat(ends - per_user, per_user)
    place = np.arange(len(keys))
    earlier = first + (rng.random(len(keys)) * (place - first)).astype(np.int64)
    source = np.where((rng.random(len(keys)) < share) & (place > first), earlier, place)
    while True:  # follow each record to the one whose key it finally takes
        further = source[source]
        if (further == source).all():
            return keys[source]
        source = further


def as_table(
    users: Int64[Array, " records"], keys: Int64[Array, " records"], start: int, end: int, ids: Ids
) -> pa.Table:
    """Records [start, end) with evenly spaced times over one day."""
    ts = np.arange(start, end) * (DAY_US / len(users))
    columns = {"user": pa.array(users[start:end]), "key": pa.array(keys[start:end])}
    if ids == "text":
        columns = {"user": cookies(users[start:end]), "key": pages(keys[start:end])}
    times = pa.array(ts.astype(np.int64)).cast(pa.timestamp("us", "UTC"))
    return pa.table({**columns, "ts": times})


def cookies(numbers: Int64[Array, " records"]) -> pa.Array:
    """A name of 32 hexadecimal digits for every number, as browsers are given."""
    words = np.stack([mixed(numbers), mixed(~numbers)], axis=1)
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)
    data = words.view(np.uint8).reshape(len(numbers), -1)
    text = digits[np.stack([data >> 4, data & 15], axis=2)]
    ends = np.arange(len(numbers) + 1, dtype=np.int32) * 32
    data = pa.py_buffer(np.ascontiguousarray(text))
    return pa.StringArray.from_buffers(len(numbers), pa.py_buffer(ends), data)


def pages(numbers: Int64[Array, " records"]) -> pa.Array:
    """An address of a page for every number."""
    digits = pc.utf8_lpad(pa.array(numbers).cast(pa.string()), 8, "0")
    return pc.binary_join_element_wise("https://www.example.com/page", digits, "/")


def mixed(numbers: Int64[Array, " records"]) -> Array:
    """A bijection of 64-bit words that looks random (the finalizer of SplitMix64)."""
    word = numbers.astype(np.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        word = (word ^ (word >> np.uint64(shift))) * np.uint64(factor)
    return np.asarray(word ^ (word >> np.uint64(31)))


def write_parquet(path: Path, parts: Iterator[pa.Table]) -> None:
    """One file, one row group per part."""
    first = next(parts)
    with pq.ParquetWriter(path, first.schema) as writer:
        writer.write_table(first)
        for part in parts:
            writer.write_table(part)
