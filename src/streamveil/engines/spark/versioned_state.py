"""The state of a shard as a base and the deltas of the steps since: a step costs only its rows.

A step writes its delta: the rows that changed the shard, as in the embedded engine's log. When
deltas have grown to about the size of the state, or are many, it writes a base as well. If replicas
are seldom found, because tasks move among many executors, it writes a base after a few steps.
Between steps the state stays in the executor's replica, so it is read only if there is none.

Every delta names the tag of the version before it, and its own tag is the checksum of all that. So
a tag stands for a whole history: a replica, base or delta of another history (a directory restored
half, another state in the same place) is never mixed in. Deltas are functions of the history and
the step's rows alone. So tasks that run twice make equal deltas, and a task with another delta is
refused (`shards`). Bases may differ in layout, never in meaning, and carry the tag of the delta
beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from streamveil.dataflow import State
from streamveil.engines.spark.shards import BASE, DELTA, Shards, share_of
from streamveil.engines.spark.state_cache import Replica, Stamp
from streamveil.errors import StoreError
from streamveil.types import Array

LONGEST = 64  # deltas since a base: each is a step that a task without a replica repeats
FARTHEST = 8  # deltas that a replica may lack; a replica further behind is not used
COLD = 4  # deltas repeated for lack of a replica after which a step writes a base for later tasks
SPREAD = 0.618  # shards write their bases at different steps


@dataclass(frozen=True)
class Chain:
    """One shard of one stage. `load`: from arrays that it may keep, or from nothing."""

    shards: Shards
    stage: str
    shard: int
    load: Callable[[Mapping[str, Array] | None], State]
    save: Callable[[State], dict[str, Array]]
    replay: Callable[[State, dict[str, Array], int], None]  # repeats a delta's step

    def open(self, version: int) -> Held:
        """The state of a version, to be changed by one step."""
        replica = Replica.of(self._name)
        try:
            found = replica and replica.take()
            held = self._caught_up(*found, version) if found else None
            state, stamp = held or self._rebuilt(version)
            cold = 0 if held else stamp.links
        except BaseException:
            if replica is not None:
                replica.close()
            raise
        return Held(self, state, stamp, replica, cold)

    @property
    def _name(self) -> str:
        return f"{self.shards.job}-{self.stage}-{self.shard}"

    def _caught_up(
        self, stamp: Stamp, arrays: dict[str, Array], version: int
    ) -> tuple[State, Stamp] | None:
        """A replica's state with the deltas it lacks; None if it has another history."""
        if not 0 <= version - stamp.version <= FARTHEST:
            return None
        if stamp.tag != self.shards.tag(self.stage, self.shard, stamp.version):
            return None
        try:
            return self._played(self.load(arrays), stamp, version)
        except StoreError:
            return None

    def _rebuilt(self, version: int) -> tuple[State, Stamp]:
        """The state of a version, from storage alone."""
        place = self.stage, self.shard
        base = self.shards.newest_base(*place, version)
        if not base:
            return self._played(self.load(None), Stamp(0, self.shards.start, 0, 0), version)
        part = self.shards.get(*place, base, BASE)
        tag = int(part.facts["tag"])
        if self.shards.tag(*place, base) != tag:
            raise self._mixed(base)
        return self._played(self.load(part.arrays), Stamp(base, tag, 0, 0), version)

    def _played(self, state: State, stamp: Stamp, version: int) -> tuple[State, Stamp]:
        for step in range(stamp.version + 1, version + 1):
            part = self.shards.get(self.stage, self.shard, step, DELTA)
            if part.facts["after"] != stamp.tag:
                raise self._mixed(step)
            self.replay(state, part.arrays, step)
            stamp = Stamp(step, part.tag, stamp.logged + part.size, stamp.links + 1)
        return state, stamp

    def _mixed(self, version: int) -> StoreError:
        return StoreError(
            f"version {version} of shard {self.shard} ({self.stage}) does not follow from the one"
            " before it.\n  to fix  restore the directory from a backup of one moment"
        )


@dataclass
class Held:
    """A shard's state while a task works on it; this task alone has its replica."""

    chain: Chain
    state: State
    stamp: Stamp
    replica: Replica | None
    cold: int  # deltas repeated to rebuild the state from storage alone
    arrays: dict[str, Array] | None = None  # the committed state

    def __enter__(self) -> Held:
        return self

    def __exit__(self, failed: object, *_: object) -> None:
        """Leaves the committed state to the next task; this one must not use it any more."""
        if self.replica is None:
            return
        with closing(self.replica) as replica:
            if self.arrays is not None and failed is None:
                replica.give(self.stamp, self.arrays)

    def commit(self, delta: dict[str, Array], counters: dict[str, int]) -> dict[str, Any]:
        """Writes a step's delta, and a base if it is time; returns a report with `counters`."""
        chain, before = self.chain, self.stamp
        version, place = before.version + 1, (chain.stage, chain.shard)
        part = chain.shards.put(*place, version, DELTA, ({"after": before.tag}, delta))
        logged, links, size = before.logged + part.size, before.links + 1, part.size
        arrays = chain.save(self.state)
        share = 0.5 + 0.5 * (SPREAD * chain.shard % 1)
        whole = sum(array.nbytes for array in arrays.values())
        rebase = logged > share * whole or links >= share * LONGEST or self.cold >= COLD
        if rebase:
            size += chain.shards.put(*place, version, BASE, ({"tag": part.tag}, arrays)).size
            logged, links = 0, 0
        self.stamp, self.arrays = Stamp(version, part.tag, logged, links), arrays
        told = {**counters, "bytes": size, "bases": int(rebase)}
        return {"counters": told, "tags": share_of(*place, part.tag)}
