"""Names, order and columns of the published keys of a window: a cache, never stored."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from streamveil.core.accounting import portable
from streamveil.core.counters import Counter
from streamveil.core.counters.kernels import advance_spread
from streamveil.core.release import blt_of
from streamveil.dataflow.aggregate import KeyTable
from streamveil.dataflow.hashing import text_buffers
from streamveil.dataflow.keys import Types, decode_keys, sort_keys
from streamveil.dataflow.release_kernels import (
    interleave,
    mark_keys,
    merge_keys,
    settle_ties,
    take_names,
)
from streamveil.types import Array, Float64, Int32, Int64, UInt64

# ---- the precision of keys with weights


@dataclass(repr=False)
class Spread:
    """The variance of the noise of shown keys: public, exact for any late start.

    In two parts, because all lanes of a query share the counter's shape but not its sigma. Rows of
    both: the covariance of the buffers (upper triangle), their covariance with the total, and the
    variance of the total.
    """

    rows: Float64[Array, "cells columns"]  # of noise of sigma 1: a key's, or as below if no weights
    rounding: Float64[Array, "cells cohorts"]  # of all keys that start together

    @classmethod
    def empty(cls, counter: Counter) -> Spread:
        """No keys."""
        blt = blt_of(counter)
        d = 0 if blt is None else blt.buffers
        nothing = np.zeros((d * (d + 1) // 2 + d + 1, 0))
        return cls(nothing, nothing)

    @classmethod
    def after(cls, counter: Counter, triggers: tuple[int, ...], share: float | None) -> Spread:
        """The noise of one cohort in one column after these steps alone, at this share."""
        found = cls.empty(counter)
        found.grow(1)
        for trigger in triggers:
            found.step(counter, trigger, None if share is None else np.array([share]))
        return found

    def grow(self, columns: int, start: Spread | None = None) -> None:
        """Adds a cohort of so many columns, with the noise of `start` or none so far."""
        fresh = np.zeros((len(self.rows), 1))
        rows, rounding = (fresh, fresh) if start is None else (start.rows, start.rounding)
        self.rows = np.hstack([self.rows, np.repeat(rows, columns, axis=1)])
        self.rounding = np.hstack([self.rounding, rounding])

    def step(
        self, counter: Counter, trigger: int, share: Float64[Array, " columns"] | None
    ) -> None:
        """One more trigger. `share` None: all are 1. Counters of any sigma give the same."""
        blt = blt_of(counter)
        if blt is None or not self.rows.shape[1]:
            return
        scale = blt.schedule.scale(trigger)
        drawn = np.ones(self.rows.shape[1]) if share is None else (1 / share) ** 2
        rounded = np.full(self.rounding.shape[1], 1 / (12 * scale**2))
        for rows, fresh in ((self.rows, drawn), (self.rounding, rounded)):
            advance_spread(rows, blt.schedule.keep, blt.schedule.drain, scale, fresh)

    def variances(
        self, counter: Counter, trigger: int, sizes: Int64[Array, " cohorts"]
    ) -> Float64[Array, " keys"]:
        """The variances of one lane's counter at the last step, for cohorts of these sizes.

        For counters other than BLTs: that of a key counted from the first trigger, never less.
        """
        if blt_of(counter) is None:
            sd = counter.std(np.array([trigger]))[0]
            return np.full(sizes.sum(), float(portable(sd)) ** 2)
        noise, rounding = self.rows[-1], self.rounding[-1].repeat(sizes)
        noise = noise if len(noise) == len(rounding) else np.repeat(noise, sizes)
        return np.asarray(noise * float(counter.sigma) ** 2 + rounding)


# ---- a cache of published keys, never stored

WORD_BITS = 64  # bits


@dataclass(repr=False)  # secret
class KeyCache:
    """Names of the shown keys in the order they were shown; all else in the order of their bytes.

    Keys are only ever added: new ones are sorted, decoded and merged into the cached ones.
    Memory: 36 to 40 bytes for each shown key, and its columns.
    """

    names: UInt64[Array, "room 2"] = field(default_factory=lambda: np.zeros((0, 2), np.uint64))
    named: int = 0
    order: Int32[Array, " shown"] = field(default_factory=lambda: np.zeros(0, np.int32))
    marks: UInt64[Array, " shown"] = field(default_factory=lambda: np.zeros(0, np.uint64))
    opened: Int64[Array, " shown"] = field(default_factory=lambda: np.zeros(0, np.int64))
    columns: list[pa.Array] | None = None

    def names_of(self, table: KeyTable, rows: Int64[Array, " shown"]) -> UInt64[Array, "shown 2"]:
        """The names of all shown keys, which are these rows of the table."""
        if len(rows) > len(self.names):
            wider = np.empty((len(rows) * 5 // 4, 2), np.uint64)
            wider[: self.named] = self.names[: self.named]
            self.names = wider
        if len(rows) > self.named:
            take_names(table.names.reshape(-1), rows[self.named :], self.names[self.named :])
            self.named = len(rows)
        return self.names[: len(rows)]

    def sort(
        self,
        table: KeyTable,
        rows: Int64[Array, " shown"],
        cohorts: Int64[Array, "2 cohorts"],
        types: Types,
    ) -> None:
        """Brings `order`, `opened` and `columns` up to date with the shown keys."""
        known = len(self.order)
        if self.columns is not None and len(rows) == known:
            return
        inner, marks = sorted_keys(table.key_bytes(rows[known:]))
        order, places = inner + known, np.zeros(len(inner), np.int64)
        if known:
            merge_keys(
                table.heap, table.ends, rows, (self.order, self.marks), (order, marks), places
            )
        cohort = np.searchsorted(np.cumsum(cohorts[1]), order, side="right")
        columns = decode_keys(table.key_bytes(rows[order]), types) if types else []
        if self.columns:
            columns = [
                joined(old, more, places) for old, more in zip(self.columns, columns, strict=True)
            ]
        self.columns = columns
        self.order = merged(self.order, order.astype(np.int32), places)
        self.marks = merged(self.marks, marks, places)
        self.opened = merged(self.opened, cohorts[0][cohort], places)


def sorted_keys(encoded: pa.Array) -> tuple[Int64[Array, " keys"], UInt64[Array, " keys"]]:
    """The order of keys by their bytes, and their marks in that order."""
    data, starts = text_buffers(encoded)
    marks = mark_keys(data, starts)
    order = np.argsort(marks)
    if not settle_ties(data, starts, marks, order):
        order = sort_keys(encoded)
    return order, marks[order]


def joined(old: pa.Array, new: pa.Array, places: Int64[Array, " new"]) -> pa.Array:
    """`merged` for columns."""
    kind = old.type
    if (
        old.null_count
        or new.null_count
        or not pa.types.is_primitive(kind)
        or kind.bit_width != WORD_BITS
    ):
        index = merged(np.arange(len(old)), np.arange(len(old), len(old) + len(new)), places)
        return pa.concat_arrays([old, new]).take(pa.array(index))
    first, second = (
        np.frombuffer(part.buffers()[1], np.int64, len(part), part.offset * 8)
        for part in (old, new)
    )
    both = pa.py_buffer(merged(first, second, places))
    return pa.Array.from_buffers(kind, len(old) + len(new), [None, both])


def merged(old: Array, new: Array, places: Int64[Array, " new"]) -> Array:
    """Merges two arrays: each new item comes after as many old ones as its place says."""
    both = np.empty(len(old) + len(new), old.dtype)
    interleave(old, new, places, both)
    return both
