"""The search for the pair of neighbours that realises the largest part of a query's claim."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from math import sqrt
from typing import Any

import numpy as np

from streamveil.audit.account import TOGETHER, MechanismLoss, QueryAccount, account
from streamveil.audit.laid_open import Key, Transcript, run
from streamveil.audit.laid_open_rounds import RoundsTold, account_of_rounds, run_rounds
from streamveil.audit.laid_open_sketches import CellNoise, run_sketch, sketch_account
from streamveil.audit.neighbours import Examined, Pair, World, drawn, varied, with_another_unit
from streamveil.batch import Batch
from streamveil.core.release import blt_of
from streamveil.core.selection.gaussian import GaussianSelection
from streamveil.dataflow import Operator
from streamveil.dataflow.group_by import GroupBy
from streamveil.dataflow.grouping import rule_entry
from streamveil.errors import PlanError
from streamveil.sketches.operator import SketchQuery

KEYS = 8
MOST_KEYS = 256
STEPS = 8  # most steps of a run
LONGEST = 200  # steps of a search, to see whole windows
LONG = 0.3  # part of the pairs of a search that go through a whole window
AGAIN = 0.3  # part of the pairs that are variations of the worst so far
MOST_PAIRS = 10**9
FOLLOW = 4  # units that are added, one after another, to the same rows of others


@dataclass(frozen=True)
class Tried:
    """One pair of neighbours and its account."""

    pair: Pair | None  # None: its rows are not shown
    account: QueryAccount


def accounts(
    operator: Examined,
    seed: int,
    pairs: int,
    change: Callable[[Any], Any] = lambda one: one,
    again: float = 0.0,
) -> Iterator[Tried]:
    """Accounts of `pairs` pairs; the operator runs as `change` makes it, against its own claims.

    Pairs are drawn anew, or, a part `again`, are the worst so far with rows at other times. In new
    pairs, `FOLLOW` units in turn join the same rows of others.
    """
    require_laid_open(operator)
    rng, worst, last, best = np.random.default_rng(seed), None, None, 0.0
    world = world_of(operator)
    runs = change(replace(operator, bind=world.bind))
    most = operator.schedule.steps or LONGEST
    few, whole = min(STEPS, most), min(LONGEST, operator.schedule.triggers or STEPS, most)
    judge = judge_of(operator, runs, world, whole if again else few)
    for nth in range(pairs):
        if again and worst is not None and rng.random() < again:
            pair = varied(world, rng, worst)
        elif last is not None and nth % FOLLOW:
            pair = last = with_another_unit(world, rng, last)
        else:
            pair = last = drawn(world, rng, whole if again and rng.random() < LONG else few)
        found = Tried(pair, judge(pair, int(rng.integers(2**32))))
        if worst is None or found.account.mu_squared > best:
            worst, best = pair, found.account.mu_squared
        yield found


def world_of(operator: Examined, blocks: int = 1) -> World:
    """The table that a query reads, with public groups for `blocks` pairs."""
    return World.of(operator, max(KEYS, min(MOST_KEYS, groups_of_one_unit(operator))), blocks)


def groups_of_one_unit(operator: Examined) -> int:
    """The number of groups in which a unit moves a query most: all that it may enter and count in.

    Rows of light groups leave room for more groups, in each of which a unit counts once.
    """
    if isinstance(operator, SketchQuery):
        return KEYS
    bounds = operator.bounds
    if all(lane.kind != "units" for lane in operator.aggregation.lanes):
        return bounds.units_l2_squared
    return bounds.most_groups(rule_entry(operator))


@dataclass
class WorstFound:
    """The largest loss of every mechanism that a search has found, and the faults."""

    parts: dict[str, MechanismLoss] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    pair: Pair | None = None  # of the largest loss of all counters together
    pairs: int = 0
    seconds: float = 0.0

    @property
    def stands(self) -> bool:
        """Whether no loss exceeds its claim."""
        return not self.broken

    def add(self, tried: Tried) -> None:
        """Adds one pair."""
        self.pairs += 1
        self.broken += [fault for fault in tried.account.broken() if fault not in self.broken]
        for part in tried.account.parts:
            known = self.parts.get(part.name)
            if known is None or part.tightness > known.tightness:
                self.parts[part.name] = part
                if part.name == TOGETHER:
                    self.pair = tried.pair

    @property
    def words(self) -> str:
        """The unit's rows of the worst pair."""
        rows = () if self.pair is None else self.pair.added
        steps, keys = sorted({row[0] for row in rows}), {row[3] for row in rows}
        if not rows:
            return "a unit without rows"
        when = f"at step {steps[0]}" if len(steps) == 1 else f"in steps {steps[0]} to {steps[-1]}"
        return f"a unit with {len(rows):,} rows in {len(keys):,} groups {when}"

    @property
    def tightness(self) -> float:
        """The realised part of the claim of all counters together, in mu."""
        part = self.parts.get(TOGETHER)
        return 0.0 if part is None else sqrt(max(part.tightness, 0.0))


def search(operator: Examined, seconds: float, seed: int) -> Iterator[WorstFound]:
    """The findings so far, after every pair, until the time is over."""
    return watched(accounts(operator, seed, MOST_PAIRS, again=AGAIN), WorstFound(), seconds)


def watched(tries: Iterator[Tried], worst: WorstFound, seconds: float) -> Iterator[WorstFound]:
    """The findings so far, after every pair of `tries`, added to earlier ones."""
    before, begun = worst.seconds, time.monotonic()
    for tried in tries:
        worst.add(tried)
        worst.seconds = before + time.monotonic() - begun
        yield worst
        if worst.seconds > before + seconds:
            return


def judge_of(
    operator: Examined, runs: Any, world: World, steps: int
) -> Callable[[Pair, int], QueryAccount]:
    """The function that accounts for a pair of at most `steps` steps, with a seed.

    Pairs with the same rows of others share one run without a unit, and the seed of its first pair.
    """
    compared = compared_by(operator, runs, world, steps)
    led: Led | None = None

    def judge(pair: Pair, seed: int) -> QueryAccount:
        nonlocal led
        if led is None or led.pair.shared is not pair.shared:
            led = lead(runs, world, pair, seed)
        return compared(follow(runs, world, pair, led), led)

    return judge


def compared_by(
    operator: Examined, runs: Any, world: World, steps: int
) -> Callable[[Any, Led], QueryAccount]:
    """The function that compares a run with a unit's rows to the run that led."""
    if isinstance(operator, SketchQuery):
        noise = CellNoise.of(runs, world, steps)
        return lambda added, led: sketch_account(operator, (led.seen, added), noise)
    if operator.aggregation.restarts:
        return lambda added, led: account_of_rounds(operator, added, led.seen)
    return lambda added, led: account(operator, added, led.seen, led.script)


@dataclass(frozen=True)
class Led:
    """The run without a unit's rows, which leads those with them, and its transcript."""

    pair: Pair
    seed: int
    script: Transcript
    told: RoundsTold
    seen: Any


def lead(runs: Any, world: World, pair: Pair, seed: int) -> Led:
    """Runs a pair without its unit."""
    early = seed % 3 > 0

    def opens(window: int, key: Key) -> int:
        return 1 if early else 1 + (key[0] ^ window ^ seed) % (pair.steps + 2)

    led = Led(pair, seed, Transcript(opens), RoundsTold(), None)
    return replace(led, seen=ran(runs, pair.batches(world, with_unit=False), led))


def follow(runs: Any, world: World, pair: Pair, led: Led) -> Any:
    """Runs a pair with its unit, along the transcript of the run without it."""
    return ran(runs, pair.batches(world, with_unit=True), led)


def ran(runs: Any, batches: Iterator[Batch], led: Led) -> Any:
    """One run; it leads if it is the first."""
    if isinstance(runs, SketchQuery):
        return run_sketch(runs, batches, led.seed, led.seen)
    if runs.aggregation.restarts:
        return run_rounds(runs, batches, led.script, led.told, led.seed)
    return run(runs, batches, led.script, led.seed)


def require_laid_open(operator: Operator) -> Examined:
    """Refuses operators that the account cannot see into: it would find no fault."""
    if isinstance(operator, SketchQuery):
        return operator
    if not isinstance(operator, GroupBy):
        raise PlanError("the exact account covers sketches and group-bys, not changing tables")
    aggregation = operator.aggregation
    if aggregation.restarts:
        return operator
    chosen = aggregation.selection
    more = [chosen.counter] if isinstance(chosen, GaussianSelection) else []
    if any(blt_of(counter) is None for counter in (*aggregation.counters, *more)):
        raise PlanError(
            "the exact account covers the counters 'blt' and 'anytime-blt'.\n"
            "  to fix  use counter = 'auto'"
        )
    return operator
