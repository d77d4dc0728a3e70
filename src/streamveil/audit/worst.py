"""The search for the pair of neighbours on which a query loses most of what it claims."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from streamveil.audit.account import QueryAccount, account
from streamveil.audit.laid_open import Key, Seen, Transcript, run
from streamveil.audit.neighbours import Pair, World, drawn
from streamveil.dataflow.group_by import GroupBy

KEYS = 8
STEPS = 8  # that are run, at most


@dataclass(frozen=True)
class Tried:
    """One pair of neighbours and its account."""

    pair: Pair
    account: QueryAccount


def accounts(operator: GroupBy, seed: int, pairs: int) -> Iterator[Tried]:
    """Accounts of so many pairs."""
    rng = np.random.default_rng(seed)
    world = World.of(operator, KEYS)
    made = replace(operator, bind=world.bind)
    steps = min(STEPS, operator.schedule.steps or STEPS)
    for _ in range(pairs):
        pair = drawn(world, rng, steps)
        yield Tried(pair, judged(made, world, pair, int(rng.integers(2**32))))


def judged(operator: GroupBy, world: World, pair: Pair, seed: int) -> QueryAccount:
    """The account of one pair: the run without the unit leads, the run with it follows."""
    early = seed % 3 > 0

    def opens(window: int, key: Key) -> int:
        return 1 if early else 1 + (key[0] ^ window ^ seed) % (pair.steps + 2)

    script = Transcript(opens)
    sides: list[Seen] = []
    for with_unit in (False, True):
        sides.append(run(operator, pair.batches(world, with_unit=with_unit), script, seed))
    return account(operator, sides[1], sides[0], script)
