"""The search for the pair of neighbours on which a query loses most of what it claims."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from streamveil.audit.account import QueryAccount, account
from streamveil.audit.laid_open import Key, Seen, Transcript, run
from streamveil.audit.neighbours import Pair, World, drawn
from streamveil.dataflow.dp_sqlp import RoundTotalling
from streamveil.dataflow.gaussian_selection import GaussianSelection
from streamveil.dataflow.group_by import GroupBy
from streamveil.dataflow.key_weights import blt_of
from streamveil.dataflow.protocol import Operator
from streamveil.errors import PlanError

KEYS = 8
STEPS = 8  # that are run, at most


@dataclass(frozen=True)
class Tried:
    """One pair of neighbours and its account."""

    pair: Pair
    account: QueryAccount


def accounts(
    operator: GroupBy, seed: int, pairs: int, change: Callable[[GroupBy], GroupBy] = lambda one: one
) -> Iterator[Tried]:
    """Accounts of so many pairs; what `change` makes of the operator runs against its claims."""
    require_laid_open(operator)
    rng = np.random.default_rng(seed)
    world = World.of(operator, KEYS)
    runs = change(replace(operator, bind=world.bind))
    steps = min(STEPS, operator.schedule.steps or STEPS)
    for _ in range(pairs):
        pair = drawn(world, rng, steps)
        yield Tried(pair, judged(operator, runs, world, pair, int(rng.integers(2**32))))


def judged(operator: GroupBy, runs: GroupBy, world: World, pair: Pair, seed: int) -> QueryAccount:
    """The account of one pair: the run without the unit leads, the run with it follows."""
    early = seed % 3 > 0

    def opens(window: int, key: Key) -> int:
        return 1 if early else 1 + (key[0] ^ window ^ seed) % (pair.steps + 2)

    script = Transcript(opens)
    sides: list[Seen] = []
    for with_unit in (False, True):
        sides.append(run(runs, pair.batches(world, with_unit=with_unit), script, seed))
    return account(operator, sides[1], sides[0], script)


def require_laid_open(operator: Operator) -> None:
    """Refuses what the account does not see into: it would find nothing and say so."""
    if not isinstance(operator, GroupBy) or isinstance(operator.totalling, RoundTotalling):
        raise PlanError(
            "the exact account covers group-by queries of the default preset, not sketches,"
            " changing tables and 'dp-sqlp'"
        )
    totalling = operator.totalling
    chosen = totalling.selection
    more = [chosen.counter] if isinstance(chosen, GaussianSelection) else []
    if any(blt_of(counter) is None for counter in (*totalling.counters, *more)):
        raise PlanError(
            "the exact account covers the counters 'blt' and 'anytime-blt'.\n"
            "  to fix  use counter = 'auto'"
        )
