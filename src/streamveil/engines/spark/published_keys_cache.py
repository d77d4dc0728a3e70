"""The facts on published groups for the unit stage: key shards write them, workers keep them.

All of them were released. If no fact on a group changes after it was published, a key shard writes
only new groups, and a worker adds them to those it has. Otherwise a key shard writes all groups at
every step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from streamveil.dataflow.group_by import GroupBy
from streamveil.dataflow.state import State
from streamveil.engines.spark import stages
from streamveil.engines.spark.shards import BASE, DELTA, Shards
from streamveil.errors import StoreError

STAGE = "public"
JOBS = 2  # remembered by one worker
FARTHEST = 64  # steps that a worker catches up


class Step(NamedTuple):
    """One step of one key shard, with the tags of its state before and after."""

    shard: int
    number: int
    after: int
    tag: int
    whole: bool  # whether the state was written whole


@dataclass
class MetGroups:
    """The published groups of a job that one worker knows."""

    version: int
    tags: list[int]  # of the key shards
    groups: stages.PublishedGroups


MET: dict[str, MetGroups] = {}


def tell(
    operator: GroupBy, shards: Shards, step: Step, state: State, before: dict[int, int]
) -> None:
    """Writes the groups that a key shard's step published. `before`: how many each window had."""
    place = STAGE, step.shard, step.number
    if not stages.facts_matter(operator):
        return
    if not stages.facts_last(operator):
        shards.write(*place, step.tag, stages.published_facts(operator, state))
        return
    new = stages.published_facts(operator, state, before)
    shards.put(*place, DELTA, ({"after": step.after, "tag": step.tag}, new))
    if step.whole:
        shards.put(*place, BASE, ({"tag": step.tag}, stages.published_facts(operator, state)))


def of_shards(
    operator: GroupBy, shards: Shards, number: int, version: int
) -> stages.PublishedGroups:
    """The published groups of `number` key shards after a step, if bounding needs them."""
    if not stages.facts_matter(operator):
        return stages.PublishedGroups.of(operator, stages.published_facts(operator, State()))
    if not stages.facts_last(operator):
        found = [shards.read(STAGE, shard, version) for shard in range(number)]
        read = [part for part in found if part is not None]
        require_tags(shards, version, [part.facts["tag"] for part in read])
        return all_of(operator, [part.arrays for part in read])
    name = f"{shards.root}|{shards.origin}|{number}"
    held = MET.pop(name, None)
    if held is None or not caught_up(operator, shards, held, version):
        held = met_whole(operator, shards, number, version)
    held.groups.forget(operator, version)
    while len(MET) >= JOBS:
        MET.pop(next(iter(MET)))
    MET[name] = held
    return held.groups


def all_of(operator: GroupBy, found: list[stages.Facts]) -> stages.PublishedGroups:
    """The published groups of several shards."""
    found = [stages.published_facts(operator, State()), *found]
    return stages.PublishedGroups.of(
        operator, {name: np.concatenate([facts[name] for facts in found]) for name in found[0]}
    )


def caught_up(operator: GroupBy, shards: Shards, held: MetGroups, version: int) -> bool:
    """Brings a worker's groups to a version; False if they have another history."""
    if not 0 <= version - held.version <= FARTHEST:
        return False
    try:
        for shard, tag in enumerate(held.tags):
            if held.version == version:
                if version and shards.get(STAGE, shard, version, DELTA).facts["tag"] != tag:
                    return False
            else:
                met = shard, held.version, tag
                held.tags[shard] = follow(operator, shards, held.groups, met, version)
    except StoreError:
        return False
    held.version = version
    return True


def met_whole(operator: GroupBy, shards: Shards, number: int, version: int) -> MetGroups:
    """The published groups, read from storage alone."""
    bases = [shards.newest_base(STAGE, shard, version) if version else 0 for shard in range(number)]
    parts = {
        shard: shards.get(STAGE, shard, base, BASE) for shard, base in enumerate(bases) if base
    }
    made = all_of(operator, [part.arrays for part in parts.values()])
    tags = [parts[s].facts["tag"] if s in parts else shards.start for s in range(number)]
    for shard, base in enumerate(bases):
        tags[shard] = follow(operator, shards, made, (shard, base, tags[shard]), version)
    require_tags(shards, version, tags)
    return MetGroups(version, tags, made)


def require_tags(shards: Shards, version: int, told: list[int]) -> None:
    """Raises StoreError if the tags are not those of the stored key shards."""
    if version and shards.tags("key", version, len(told)) != told:
        raise StoreError(f"what was published at step {version} belongs to another state")


def follow(
    operator: GroupBy,
    shards: Shards,
    made: stages.PublishedGroups,
    met: tuple[int, int, int],
    version: int,
) -> int:
    """Adds the groups that a shard wrote after `met` (shard, step, tag); returns its last tag."""
    shard, first, tag = met
    for step in range(first + 1, version + 1):
        part = shards.get(STAGE, shard, step, DELTA)
        if part.facts["after"] != tag:
            raise StoreError(f"what shard {shard} showed at step {step} belongs to another state")
        made.add(operator, part.arrays)
        tag = int(part.facts["tag"])
    return tag
