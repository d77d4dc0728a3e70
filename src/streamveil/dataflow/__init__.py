"""The stages of a group-by: arrive, bound, total, open, release. Here: what a job runs.

Every private continual mechanism is a streaming operator. The runtime decides when an operator is
called, where its state lies and who reads its releases. The group-by, the sketches and the changing
tables are all operators.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Protocol, runtime_checkable

import numpy as np

from streamveil.batch import Batch, Release
from streamveil.core.accounting.guarantee import Guarantee
from streamveil.core.noise import Noise
from streamveil.types import Array, Int64

State = Any  # each operator's own; mutable, never shown, saved only as arrays
Arrays = dict[str, Array]


@runtime_checkable
class Operator(Protocol):
    """A private streaming operator.

    The runtime's promise: `fold` is called once per micro-batch in order; `release` once when a
    step closes, after the fold of its last micro-batch; the delta is durable before anything
    released is visible outside. The operator's promise: `fold` and `release` are deterministic
    functions of (state, arguments, noise), so recovery (load, then apply/release again) gives the
    same bytes; the guarantee covers everything `release` ever returns.

    An operator may also have `portions(state)`, which saves the state in pieces: the arrays that
    must be saved at once, and functions that return one more portion each. A later portion may
    already hold later micro-batches; `load` takes all portions together, and `apply` then repeats
    the micro-batches since the first portion, also those that some portions hold already.

    And it may split `release` in two: `draw` draws the noise of a step and changes the state, and
    `releases_of` makes the tables of what was drawn at some consecutive steps.
    """

    @property
    def kind(self) -> str:
        """Names the saved format, e.g. 'group-by'."""

    @property
    def guarantee(self) -> Guarantee:
        """Charged once, when the job is created."""

    def init(self) -> State:
        """The state before any row."""

    def fold(self, state: State, batch: Batch, noise: Noise) -> Arrays:
        """Adds one micro-batch to the state, in place. Returns the logical delta to log.

        Draws no noise; `noise` only derives keys for fingerprints. Bad rows are counted, never
        raised.
        """

    def apply(self, state: State, delta: Arrays) -> None:
        """Repeats, from a logged delta, what `fold` did to the state."""

    def release(self, state: State, step: int, noise: Noise) -> list[Release]:
        """Closes a step: everything that becomes public at it, possibly nothing. In place."""

    def save(self, state: State) -> Arrays:
        """The whole state as plain arrays (views are fine; the runtime writes them out)."""

    def load(self, arrays: Arrays) -> State:
        """The state back from `save`; raises StoreError when the arrays do not fit the config."""

    def counters(self, state: State) -> dict[str, int]:
        """Operator-only health numbers (rows dropped by reason, sizes). Never published."""


# ---- rejected rows

NOT_FINITE = "not a finite number"
BOUNDED = "over the contribution bound"  # as it should be: no fault of the row


def count(into: dict[str, int], more: Mapping[str, int]) -> None:
    """Adds counts by reason; counts of 0 add no reason.

    >>> reject_counts = {"late": 1}
    >>> count(reject_counts, {"late": 2, "null unit": 0})
    >>> reject_counts
    {'late': 3}
    """
    for reason, rows in more.items():
        if rows:
            into[reason] = into.get(reason, 0) + rows


def repeated(value: np.int64, rows: int) -> Int64[Array, " rows"]:
    """One item, repeated without memory; not to be written to.

    >>> repeated(np.int64(3), 2).tolist()
    [3, 3]
    """
    return np.ndarray(rows, np.int64, np.int64(value).tobytes(), 0, (0,))


def total(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """The sums of counts by reason; reasons with 0 stay.

    >>> total([{"late": 1}, {"late": 2, "null unit": 0}])
    {'late': 3, 'null unit': 0}
    """
    reasons = dict.fromkeys(chain.from_iterable(counts))
    return {reason: sum(some.get(reason, 0) for some in counts) for reason in reasons}
