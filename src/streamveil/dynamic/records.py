"""Which record does a deletion remove? Matching raw updates with the records they concern.

`ids`: every record has an id; a deletion names it. `labels`: a deletion names a label, and the copy
inserted last goes (last in, first out). Both are deterministic functions of the stream in which
one record's updates never change which other records are alive.

A deletion without a record is a no-op on the data; so is an insertion of an id that is alive or has
used up its lives. Whether a no-op still counts for a partition depends on what is protected. For
'update' it must: without its insertion a deletion becomes a no-op, and a count that moved by two
would break the guarantee for one. For 'record' it must not: ids may have any number of no-ops, but
only two effective updates per life.

With ids, one row alone ('event', 'update') is not protected: without it, a later insertion of its
id counts that would be a no-op with it. Then one record goes and another comes, each in its own
batch and bucket. Instead all rows of an id are protected: see `protected`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from streamveil.compiled import njit
from streamveil.core.accounting import Neighbours, take_numbers
from streamveil.dynamic.protocol import Changes, whole_numbers
from streamveil.errors import PlanError, StoreError, require_one_of, require_positive
from streamveil.types import Array, Int64

BORN, GONE, NOTHING = 1, 2, 0
DEAD, FREE = -1, -2  # instead of a label
START = 1024
Table = dict[str, Array]


def protected(protects: Neighbours, matching: str) -> Neighbours:
    """The protection of a mechanism for events when ids name records: all rows of an id.

    A mechanism that protects updates is refused: without an insertion of an id the next insertion
    counts instead.
    """
    if matching == "ids" and protects.relation == "update":
        raise PlanError(
            "ids protect all rows of a record, not one of them; this mechanism protects 'update'.\n"
            "  to fix  use a mechanism that protects 'record', or match by labels"
        )
    named = matching == "ids" and protects.relation == "event"
    return replace(protects, relation="record") if named else protects


@njit(cache=True)
def slot_of(key, keys, labels):  # type: ignore[no-untyped-def]
    """The slot of a key of two words, or the free slot that it would take."""
    mask = len(keys) - 1
    word = np.uint64(key[0]) * np.uint64(0x9E3779B97F4A7C15)
    at = np.int64((word ^ (word >> np.uint64(29))) & np.uint64(mask))
    while labels[at] != FREE and (keys[at, 0] != key[0] or keys[at, 1] != key[1]):
        at = (at + 1) & mask
    return at


@njit(cache=True)
def match_ids(signs, ids, points, step, most, keys, labels, births, lives, out):  # type: ignore[no-untyped-def]  # noqa: PLR0913
    """Applies updates in order. `out` rows: what happened, label, birth. Returns new slots used."""
    used = 0
    for i in range(len(ids)):
        at = slot_of(ids[i], keys, labels)
        label = labels[at]
        out[0, i] = NOTHING
        if signs[i] > 0:
            if label == FREE:
                keys[at, 0], keys[at, 1], lives[at] = ids[i, 0], ids[i, 1], 0
                used += 1
            if label < 0 and lives[at] < most:
                labels[at], births[at] = points[i], step
                lives[at] += 1
                out[0, i], out[1, i], out[2, i] = BORN, points[i], step
        elif label >= 0:
            out[0, i], out[1, i], out[2, i] = GONE, label, births[at]
            labels[at] = DEAD
    return used


@njit(cache=True)
def match_labels(signs, points, step, heads, nexts, births, free, out):  # type: ignore[no-untyped-def]  # noqa: PLR0913
    """`match_ids` for labels; stacks are linked lists, `free[0]` heads the list of unused links."""
    for i in range(len(points)):
        point = points[i]
        out[0, i] = NOTHING
        if signs[i] > 0:
            link = free[0]
            free[0] = nexts[link]
            nexts[link], births[link], heads[point] = heads[point], step, link
            out[0, i], out[1, i], out[2, i] = BORN, point, step
            free[1] -= 1
        elif heads[point] >= 0:
            link = heads[point]
            out[0, i], out[1, i], out[2, i] = GONE, point, births[link]
            heads[point], nexts[link], free[0] = nexts[link], free[0], link
            free[1] += 1


@njit(cache=True)
def refill(old_keys, old_labels, old_births, old_lives, keys, labels, births, lives):  # type: ignore[no-untyped-def]  # noqa: PLR0913
    """Moves a table of ids into a larger one."""
    for i in range(len(old_keys)):
        if old_labels[i] != FREE:
            at = slot_of(old_keys[i], keys, labels)
            keys[at, 0], keys[at, 1], labels[at] = old_keys[i, 0], old_keys[i, 1], old_labels[i]
            births[at], lives[at] = old_births[i], old_lives[i]


@dataclass(repr=False)  # secret
class RecordsState:
    """The table of living records, and operator-only counts of ignored updates."""

    arrays: Table
    used: int = 0  # slots of the table of ids
    alive: int = 0
    ignored: dict[str, int] = field(default_factory=lambda: {"insert": 0, "delete": 0})


@dataclass(frozen=True, kw_only=True)
class Records:
    """Turns updates (sign, id, label) of one step into `Changes`.

    `lives` is how often an id may be inserted again after its deletion; guarantees for records are
    for an id with all its lives, by group privacy. Ids that have died are remembered, because a
    second life of an unprotected kind would otherwise go unnoticed.
    Memory: 60 to 120 bytes for each id ever seen; 16 for each living copy of a label.

    Raises:
        PlanError: a setting is out of its range, or a label is not in the domain.
        StoreError: saved records are of another domain or kind of matching.

    >>> book = Records(matching="ids", domain=4, counts_no_ops=False)
    >>> state, one = book.init(), np.array([1])
    >>> came, _ = book.step(state, one, np.array([77]), np.array([2]), step=0)
    >>> went, _ = book.step(state, -one, np.array([77]), np.array([2]), step=1)
    >>> came.born, went.gone
    (array([2]), array([2]))
    """

    matching: Literal["ids", "labels"]  # what a deletion names: a record by id, or a value by label
    domain: int  # number of points of the domain, >= 1
    counts_no_ops: bool  # protects 'update'
    lives: int = 1  # times that an id may be inserted, >= 1

    def __post_init__(self) -> None:
        take_numbers(self)
        require_positive(domain=self.domain, lives=self.lives)
        require_one_of("matching", self.matching, ("ids", "labels"))

    def init(self) -> RecordsState:
        """No records."""
        if self.matching == "ids":
            return RecordsState(empty_ids(START))
        return RecordsState(with_links(np.full(self.domain, -1, np.int64), {}, START))

    def step(
        self,
        state: RecordsState,
        signs: Int64[Array, " n"],
        ids: Int64[Array, "n ..."],
        labels: Int64[Array, " n"],
        step: int,
    ) -> tuple[Changes, Int64[Array, " n"]]:
        """Applies updates in order, in place; also returns their effects (BORN, GONE, NOTHING).

        An id is one word or a pair of them. Words of other types than int64 would be rounded when
        stored: they would not be found again, and could live any number of times.

        Args:
            state: what `init` returned.
            signs: of each update: 1 or -1.
            ids: of each.
            labels: point of each, from 0.
            step: number of the step, from 1.

        Raises:
            PlanError: a label is beyond the domain, a sign is another number, or one is not whole.
        """
        signs, ids = whole_numbers("signs", signs), whole_numbers("ids", ids)
        labels = whole_numbers("labels", labels)
        if signs.ndim != 1 or not signs.shape == labels.shape == ids.shape[:1]:
            raise PlanError("signs, ids and labels must be as many: one of each for an update")
        if ids.shape[1:] not in ((), (2,)):
            raise PlanError(f"ids must be one word each, or two, not of shape {ids.shape[1:]}")
        if np.any(abs(signs) != 1):
            raise PlanError("signs must be 1 (inserts) or -1 (deletes)")
        inserted = signs > 0
        named = inserted if self.matching == "ids" else np.ones(len(signs), bool)
        if np.any((labels[named] < 0) | (labels[named] >= self.domain)):
            raise PlanError(f"labels must be in 0..{self.domain - 1}: check rows before matching")
        out = np.zeros((3, len(signs)), np.int64)
        self._match(state, (signs, ids, labels), step, out)
        born, gone = out[0] == BORN, out[0] == GONE
        ignored = out[0] == NOTHING
        state.alive += int(born.sum()) - int(gone.sum())
        state.ignored["insert"] += int((ignored & inserted).sum())
        state.ignored["delete"] += int((ignored & ~inserted).sum())
        counted = len(signs) if self.counts_no_ops else int((~ignored).sum())
        return Changes(out[1, born], out[1, gone], out[2, gone], counted), out[0]

    def _match(
        self, state: RecordsState, updates: tuple[Array, Array, Array], step: int, out: Array
    ) -> None:
        signs, ids, labels = updates
        room = int((signs > 0).sum())
        if self.matching == "ids":
            pairs = ids if ids.ndim == 2 else np.stack([ids, np.zeros_like(ids)], axis=1)
            grow_ids(state, room)
            table = state.arrays
            state.used += match_ids(
                signs, pairs, labels, step, self.lives,
                table["keys"], table["labels"], table["births"], table["lives"], out,
            )  # fmt: skip
            return
        if room > state.arrays["free"][1]:
            more = max(room, len(state.arrays["nexts"]))
            state.arrays = with_links(state.arrays["heads"], state.arrays, more)
        table = state.arrays
        match_labels(
            signs, labels, step, table["heads"], table["nexts"], table["births"], table["free"], out
        )

    def save(self, state: RecordsState) -> Table:
        """The state as arrays."""
        counts = [state.used, state.alive, state.ignored["insert"], state.ignored["delete"]]
        return {**state.arrays, "counts": np.array(counts, np.int64)}

    def load(self, arrays: Table) -> RecordsState:
        """The state back; refuses arrays of another configuration.

        Args:
            arrays: what was saved.

        Raises:
            StoreError: they are of another configuration.
        """
        wanted = {**self.init().arrays, "counts": None}
        if set(arrays) != set(wanted):
            raise StoreError("saved records are of another kind of matching")
        if self.matching == "labels" and len(arrays["heads"]) != self.domain:
            raise StoreError("saved records are of another domain")
        used, alive, insert, delete = (int(count) for count in arrays["counts"])
        tables = {name: np.array(arrays[name]) for name in arrays if name != "counts"}
        return RecordsState(tables, used, alive, {"insert": insert, "delete": delete})


def empty_ids(capacity: int) -> Table:
    """A table of ids with that many slots, a power of two."""
    return {
        "keys": np.zeros((capacity, 2), np.int64),
        "labels": np.full(capacity, FREE, np.int64),
        "births": np.zeros(capacity, np.int64),
        "lives": np.zeros(capacity, np.int64),
    }


def grow_ids(state: RecordsState, room: int) -> None:
    """Makes sure that many new ids leave the table at most two thirds full."""
    capacity = len(state.arrays["keys"])
    if 3 * (state.used + room) <= 2 * capacity:
        return
    while 3 * (state.used + room) > 2 * capacity:
        capacity *= 2
    larger, old = empty_ids(capacity), state.arrays
    refill(
        old["keys"], old["labels"], old["births"], old["lives"],
        larger["keys"], larger["labels"], larger["births"], larger["lives"],
    )  # fmt: skip
    state.arrays = larger


def with_links(heads: Array, old: Table, more: int) -> Table:
    """Stacks of labels with `more` unused links added."""
    first = len(old["nexts"]) if old else 0
    chain = np.arange(first + 1, first + more + 1)
    chain[-1] = old["free"][0] if old else -1
    spare = int(old["free"][1]) if old else 0
    nothing = np.zeros(0, np.int64)
    return {
        "heads": heads,
        "nexts": np.concatenate([old.get("nexts", nothing), chain]),
        "births": np.concatenate([old.get("births", nothing), np.zeros(more, np.int64)]),
        "free": np.array([first, spare + more]),
    }
