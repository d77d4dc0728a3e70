"""Several pairs of neighbours in two runs.

What enters a counter, a coin or a test belongs to a group, and so to one pair. With all added
units against none of them, what one unit moves is what differs in the groups of its pair: each
pair is judged alone, and by the whole claim. A unit that moved the groups of another pair would
be charged there. What says nothing of a group (releases that differ, the laws of coins) is a
fault of the first pair.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from streamveil.audit.account import (
    Claims,
    QueryAccount,
    claims_of,
    faults_of_runs,
    judge_parts,
)
from streamveil.audit.laid_open import Key, OpenNoise, Seen, Transcript, keys_of
from streamveil.audit.laid_open_rounds import RoundsSeen, faults_of_rounds, judge_rounds
from streamveil.audit.neighbours import (
    BEYOND,
    STRIDE,
    MadeUpRow,
    Pair,
    World,
    drawn,
    with_another_unit,
)
from streamveil.audit.worst import (
    FOLLOW,
    STEPS,
    Tried,
    follow,
    lead,
    require_laid_open,
    world_of,
)
from streamveil.dataflow.group_by import GroupBy
from streamveil.dataflow.rows import names_of

UNITS = 10_000  # of a pair, at most


def together(pairs: Sequence[Pair]) -> Pair:
    """All pairs as one, in which the units of all are added."""
    shared, added = (
        tuple(moved(row, place) for place, rows in enumerate(parts) for row in rows)
        for parts in ([pair.shared for pair in pairs], [pair.added for pair in pairs])
    )
    return replace(pairs[0], shared=shared, added=added)


def moved(row: MadeUpRow, place: int) -> MadeUpRow:
    """A row with the unit and the group of a pair's own."""
    step, unit, time, key, values = row
    return MadeUpRow((step, unit + UNITS * place, time, key + STRIDE * place, values))


def places_of(world: World, pairs: int, seed: int) -> dict[Key, int]:
    """Which pair each group belongs to, by its name."""
    reached = world.keys + BEYOND + 1
    numbers = [STRIDE * place + key for place in range(pairs) for key in range(reached)]
    columns = [
        pa.array(column, kind)
        for column, kind in zip(
            zip(*(world.key(number) for number in numbers), strict=True), world.types, strict=True
        )
    ]
    names = names_of(columns, len(numbers), OpenNoise(seed).derive("group-by/keys"))
    found = dict(zip(keys_of(names, len(numbers)), (n // STRIDE for n in numbers), strict=True))
    return found | {(0, column): column // world.width for column in range(pairs * world.width)}


@dataclass(frozen=True)
class Judged:
    """Two runs, and which pair each group belongs to."""

    operator: GroupBy
    claims: Claims
    places: dict[Key, int]
    pairs: int

    def accounts(self, one: Seen, other: Seen, script: Transcript) -> Iterator[QueryAccount]:
        """The account of each pair; the first run has the units' rows."""
        faults = faults_of_runs(self.operator, one, other)
        sides = zip(self._apart(one), self._apart(other), strict=True)
        for place, (mine, without) in enumerate(sides):
            found = QueryAccount(faults=list(faults) if place == 0 else [])
            judge_parts(self.operator, self.claims, (mine, without), script, found)
            yield found

    def rounds(self, one: RoundsSeen, other: RoundsSeen) -> Iterator[QueryAccount]:
        """The same of the preset dp-sqlp."""
        faults = faults_of_rounds(one, other)
        sides = zip(self._rounds_apart(one), self._rounds_apart(other), strict=True)
        for place, (mine, without) in enumerate(sides):
            found = QueryAccount(faults=list(faults) if place == 0 else [])
            judge_rounds(self.operator, self.claims, (mine, without), found)
            yield found

    def _apart(self, seen: Seen) -> list[Seen]:
        found = [Seen() for _ in range(self.pairs)]
        for stream, groups in seen.steps.items():
            for key, steps in groups.items():
                found[self.places[key]].steps[stream][key] = steps
        for name in ("units", "tested", "estimates"):
            for window, groups in getattr(seen, name).items():
                for key, steps in groups.items():
                    getattr(found[self.places[key]], name)[window][key] = steps
        return found

    def _rounds_apart(self, seen: RoundsSeen) -> list[RoundsSeen]:
        found = [RoundsSeen(noise=seen.noise, limits=seen.limits) for _ in range(self.pairs)]
        for tree, steps in seen.entered.items():
            found[self.places[tree[3]]].entered[tree] = steps
        return found


def judged_of(operator: GroupBy, world: World, pairs: int, seed: int) -> Judged:
    """How the two runs of so many pairs are judged."""
    places = places_of(world, pairs, seed)
    return Judged(operator, claims_of(operator), places, pairs)


def accounts_of_many(operator: GroupBy, seed: int, runs: int, beside: int) -> Iterator[Tried]:
    """The accounts of so many pairs at once (`together`), again and again."""
    require_laid_open(operator)
    rng, world = np.random.default_rng(seed), world_of(operator, beside)
    running = replace(operator, bind=world.bind)
    steps, pairs = min(STEPS, operator.schedule.steps or STEPS), list[Pair]()
    for nth in range(runs):
        if nth % FOLLOW:
            pairs = [with_another_unit(world, rng, pair) for pair in pairs]
        else:
            pairs = [drawn(world, rng, steps) for _ in range(beside)]
            once = int(rng.integers(2**32))
            judged = judged_of(operator, world, beside, once)
            led = lead(running, world, together(pairs), once)
        added = follow(running, world, together(pairs), led)
        if operator.aggregation.restarts:
            found = judged.rounds(added, led.seen)
        else:
            found = judged.accounts(added, led.seen, led.script)
        yield from map(Tried, pairs, found)
