"""Noise that is computed from an address instead of stored: for counters with random access.

A keyed counter draws the noise of a tree node from an address that names the node, so nothing is
stored. All its steps must have ONE place: new noise about the same totals at every step would
average away. The state holds a mark of the address and every step compares it.
"""

from __future__ import annotations

from typing import ClassVar, Protocol

import numpy as np

from streamveil.core.counters import (
    CounterState,
    Estimates,
    Ids,
    Increments,
    Stepping,
    column,
    zeros,
)
from streamveil.core.noise import Draws
from streamveil.types import Array, Int64, UInt64


class Readable(Protocol):
    """What `Keyed` needs of the counter it is part of."""

    def _read(
        self, totals: Int64[Array, " keys"], t: int, draws: Draws, ids: Ids | None = None
    ) -> Int64[Array, " keys"]:
        """The release of step t from the exact totals alone."""


class Keyed(Stepping):
    """The state and the step of every keyed counter: the exact total (row 0), the mark (row 1)."""

    keyed: ClassVar[bool] = True

    @property
    def state_bytes(self) -> int:
        """See `Counter`."""
        return 16

    def init(self, keys: int, t: int = 0) -> CounterState:
        """See `Counter.init`."""
        return zeros(t, keys, whole=2, real=0)

    def _skipped(
        self, state: CounterState, steps: int, draws: Draws, ids: Ids | None
    ) -> CounterState:
        """See `Counter`. A block's noise is drawn when the block is first used."""
        return CounterState(state.t + steps, state.whole, state.real)

    def _advance(
        self: Readable, state: CounterState, increments: Increments, draws: Draws, ids: Ids | None
    ) -> tuple[Estimates, CounterState]:
        """See `Steppable`; `draws` have the same address at every step."""
        total = state.whole[0] + column(increments, state.keys)
        marks = check_mark(state.whole[1], mark_of(draws))
        t = state.t + 1
        return self._read(total, t, draws, ids), CounterState(
            t, np.stack([total, marks]), state.real
        )


def node_words(
    draws: Draws, ids: Ids | None, keys: int, level: int, index: int
) -> UInt64[Array, " keys"]:
    """One word per key for one node of a tree."""
    node = draws.at("node", level, index)
    return node.words(keys) if ids is None else node.words_for(ids, 1)[:, 0]


def mark_of(draws: Draws) -> int:
    """A number that tells addresses apart, never 0; reveals nothing about their noise."""
    return int(draws.at("mark").words(1)[0] >> np.uint64(2)) + 1


def check_mark(marks: Int64[Array, " keys"], mark: int) -> Int64[Array, " keys"]:
    """The marks after a step; raises when a column was fed from another address before."""
    if np.any((marks != 0) & (marks != mark)):
        raise ValueError(
            "a keyed counter was given two places: its noise would average away.\n"
            "  to fix  pass the same place at every step, or let counter.stream(...) own the noise"
        )
    return np.full(len(marks), mark, np.int64)
