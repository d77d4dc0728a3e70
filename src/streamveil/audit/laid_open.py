"""Runs a group-by with its noise laid open: the inputs of each counter, coin and test of totals.

The run is that of the embedded engine, function by function; a few functions are replaced by others
that note their arguments and go on. A second run follows the transcript of the first: counters give
the totals that the first run released, and the same groups are published. The releases of the two
runs must then be equal, and their inputs may differ by one unit's rows only.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from streamveil.batch import Batch, Release
from streamveil.core.accounting.coin_table import waits
from streamveil.core.counters.kernels import blt_run, blt_step
from streamveil.core.noise import Draws, Noise, SeededNoise
from streamveil.core.noisy import values
from streamveil.core.selection.coins import FAR, CoinSelection, SelectionTable
from streamveil.core.selection.gaussian import GaussianSelection
from streamveil.core.selection.total_test import TotalTest
from streamveil.dataflow.group_by import GroupBy
from streamveil.types import Array

Stream = tuple[str, tuple[Any, ...]]  # purpose and path of the draws of one counter in one window
Key = tuple[int, int]  # the name of a group
Law = tuple[Array, Array, float, list[float]]  # of a step: `Taken`'s, and the spread of each group
KERNELS = {"blt_step": blt_step, "blt_run": blt_run, "waits": waits}
MISSED = {"group-by/missed": "group-by/select"}  # steps that a counter takes before its first row


class OpenDraws:
    """Draws that know their address."""

    def __init__(self, inner: Draws, purpose: str, path: tuple[Any, ...]) -> None:
        self.inner, self.purpose, self.path = inner, purpose, path
        self.words, self.words_for, self.silent = inner.words, inner.words_for, inner.silent

    def at(self, purpose: str, *path: int | bytes) -> OpenDraws:
        """See `Draws.at`."""
        inner = self.inner.at(purpose, *path)
        return OpenDraws(inner, self.purpose, (*self.path, purpose, *path))


class OpenNoise:
    """Seeded noise whose draws know their address."""

    secure = False

    def __init__(self, seed: int) -> None:
        self.inner: Noise = SeededNoise(seed)
        self.derive = self.inner.derive

    def at(self, purpose: str, *path: int | bytes) -> OpenDraws:
        """See `Noise.at`."""
        return OpenDraws(self.inner.at(purpose, *path), purpose, path)


class Taken(NamedTuple):
    """One step of one group's counter: what entered, and the public numbers of its noise."""

    entered: int  # quanta
    keep: Array
    drain: Array
    scale: float  # D_t
    spread: float  # of the fresh noise
    released: bool  # else nobody sees the estimate


@dataclass
class Transcript:
    """The groups that the first of two runs publishes, and when: any choice is a transcript."""

    at: Callable[[int, Key], int]  # (window, group) -> the trigger from which it is published
    published: dict[tuple[int, Key], int] = field(default_factory=dict)
    by_test: dict[tuple[int, Key], int] = field(default_factory=dict)
    totals: dict[tuple[Stream, int], dict[Key, int]] = field(default_factory=dict)
    leads: bool = True


def nested() -> Any:
    """An empty dictionary of notes under three names."""
    return defaultdict(lambda: defaultdict(dict))


@dataclass
class Seen:
    """The inputs of the mechanisms of one run."""

    steps: dict[Stream, dict[Key, dict[int, Taken]]] = field(default_factory=nested)
    units: dict[int, dict[Key, dict[int, int]]] = field(default_factory=nested)
    tested: dict[int, dict[Key, dict[int, int]]] = field(default_factory=nested)
    estimates: dict[int, dict[Key, dict[int, float]]] = field(default_factory=nested)
    rates: list[tuple[float, ...]] = field(default_factory=list)  # of the coins that were flipped
    gaps: list[tuple[int, int, int]] = field(default_factory=list)  # units, shift, gap
    tables: list[pa.Table] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


def played(operator: Any, batches: Iterable[Batch], noise: Any) -> Iterator[Release]:
    """The releases of an operator over micro-batches."""
    state = operator.init()
    for batch in batches:
        operator.fold(state, batch, noise)
        if batch.closes_step:
            yield from operator.release(state, batch.step, noise)


def run(operator: GroupBy, batches: Iterable[Batch], script: Transcript, seed: int = 1) -> Seen:
    """Runs a group-by over micro-batches; the first run of a script leads, later ones follow."""
    seen = Seen()
    with laid_open(seen, script):
        seen.tables += [one.table for one in played(operator, batches, OpenNoise(seed))]
    script.leads = False
    return seen


@contextmanager
def laid_open(seen: Seen, script: Transcript) -> Iterator[None]:
    """Replaces the functions at which data meets noise by others that note their inputs."""
    spy = Spy(seen, script)
    with ExitStack() as stack:
        for name, honest in KERNELS.items():
            heard = partial(getattr(spy, name), honest)
            for module in users_of(name, honest, len(sys.modules)):
                stack.enter_context(replaced(module, name, heard))
        for owner, name, noting in (
            (CoinSelection, "step", spy.coins),
            (SelectionTable, "next_opening", spy.next_opening),
            (GaussianSelection, "step", spy.thresholds),
            (TotalTest, "passing", spy.passing),
            (TotalTest, "noise", spy.test_noise),
        ):
            stack.enter_context(spied(owner, name, noting))
        yield


@lru_cache(maxsize=64)
def users_of(name: str, honest: Any, modules: int) -> tuple[Any, ...]:
    """The loaded modules that call a function by its name."""
    return tuple(
        module
        for module in list(sys.modules.values())
        if getattr(module, "__dict__", {}).get(name) is honest
    )


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Gives an attribute another value for the length of a block."""
    honest = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, honest)


def spied(owner: type, name: str, noting: Callable[..., Any]) -> AbstractContextManager[None]:
    """Replaces a method of a class, for a block, by one that notes and gets the original."""
    honest = getattr(owner, name)

    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        return noting(partial(honest, self), self, *arguments, **named)

    return replaced(owner, name, call)


class Spy:
    """The functions that note."""

    def __init__(self, seen: Seen, script: Transcript) -> None:
        self.seen, self.script = seen, script
        self.hidden = False  # the noise of groups that are not published is being drawn
        self.shifts: set[int] = set()
        self.asked: list[tuple[int, int]] = []

    # ---- counters

    def blt_step(
        self, honest: Any, total: Array, real: Array, increments: Array, step: Any, *source: Any
    ) -> Any:
        """Notes one step of a counter of many groups: each lane as if it were alone."""
        made, after = honest(total, real, increments, step, *source)
        return self._heard(increments, step, made, *source), after

    def _heard(self, increments: Array, step: Any, made: Array, draws: Any, ids: Any) -> Array:
        if draws.silent or not isinstance(draws, OpenDraws):
            self.seen.faults.append("a counter steps without noise")
            return made
        names, t = keys_of(ids, increments.shape[1]), int(draws.path[-1])
        law = step.keep, step.drain, float(step.scale), step.spreads.tolist()
        found = []
        for lane, (entered, totals) in enumerate(zip(increments, made, strict=True)):
            path = draws.path[:-1]
            if lane:
                path = (path[0], path[1] + lane, *path[2:])
            self._note(((draws.purpose, path), t), names, entered, law)
            found.append(self._as_scripted(((draws.purpose, path), t), names, totals))
        return np.stack(found)

    def _note(self, at: tuple[Stream, int], names: list[Key], entered: Array, step: Law) -> None:
        (stream, t), (keep, drain, scale, spreads) = at, step
        heard, released = self.seen.steps[stream], not self.hidden
        made = dict[tuple[int, float], Taken]()  # most groups get nothing, with one noise
        for place, (key, new) in enumerate(zip(names, entered.tolist(), strict=True)):
            spread = spreads[place] if len(spreads) > 1 else spreads[0]
            taken = made.get((new, spread))
            if taken is None:
                taken = Taken(new, keep, drain, scale, spread, released)
                made[new, spread] = taken
            steps = heard[key]
            known = steps.get(t)
            if known is not None:  # a test of totals drew it; it is released later
                twice = known.released and released
                if twice or known.spread != spread or (known.entered and self.hidden):
                    self.seen.faults.append(f"{stream[0]}: one draw serves two releases")
            steps[t] = taken

    def _as_scripted(self, place: tuple[Stream, int], names: list[Key], made: Array) -> Array:
        if self.hidden:
            return made
        totals = self.script.totals
        if self.script.leads:
            totals[place] = dict(zip(names, made.tolist(), strict=True))
            return made
        known = totals.get(place, {})
        return np.array(
            [known.get(key, own) for key, own in zip(names, made.tolist(), strict=True)], made.dtype
        ).reshape(made.shape)

    def blt_run(self, honest: Any, pair: Any, run: Any, draws: Any, ids: Any) -> Any:
        """Notes steps that a counter takes before a group's first row."""
        purpose = MISSED.get(draws.purpose, draws.purpose)
        heard = self.seen.steps[purpose, draws.path]
        for key in keys_of(ids, len(pair[0])):
            for i in range(len(run.scales)):
                one = run.step(i)
                taken = Taken(0, one.keep, one.drain, one.scale, one.spread, released=False)
                heard[key][i + 1] = taken
        return honest(pair, run, draws, ids)

    # ---- selection

    def coins(self, honest: Any, opening: Any, *given: Any) -> Any:
        """Notes units that enter coins; the script decides which groups are published."""
        state, units, names, trigger, at = given
        self._note_units(units, names, trigger, at.window)
        state, passing = honest(state, units, names, trigger, at)
        counts = self.seen.units[at.window]
        for key in keys_of(names[passing], len(passing)):
            if sum(counts[key].values()) <= 1 + opening.offset:  # and others that do not count
                self.seen.faults.append("a group that one unit alone may have is published")
        return state, self._published(names, trigger, at.window)

    def thresholds(self, honest: Any, selection: Any, *given: Any) -> Any:
        """Notes units that enter counters whose estimates are tested."""
        state, units, names, trigger, at = given
        self._note_units(units, names, trigger, at.window)
        state, passing = honest(state, units, names, trigger, at)
        limit = float(selection.threshold(trigger))
        passed = values(selection.counts(state, passing))
        if len(passed) and passed.min() <= limit:
            self.seen.faults.append("group-by/select: a group passes below its threshold")
        for key in keys_of(names, len(names)):
            self.seen.estimates[at.window][key][trigger] = limit
        return state, self._published(names, trigger, at.window)

    def _note_units(self, units: Array, names: Array, trigger: int, window: int) -> None:
        for key, count in zip(keys_of(names, len(names)), units.tolist(), strict=True):
            self.seen.units[window][key][trigger] = int(count)

    def _published(self, names: Array, trigger: int, window: int) -> Array:
        script, rows = self.script, []
        for row, key in enumerate(keys_of(names, len(names))):
            place = window, key
            if script.leads and place not in script.published and place not in script.by_test:
                some = sum(self.seen.units[window][key].values()) > 0
                if some and script.at(window, key) <= trigger:
                    script.published[place] = trigger
            if script.published.get(place) == trigger:
                rows.append(row)
        return np.array(rows, np.int64)

    def next_opening(self, honest: Any, table: Any, *given: Any) -> Any:
        """Notes the coins of groups whose units have changed."""
        draws, ids, units, shift, step = given
        self.asked = list(zip(units.tolist(), shift.tolist(), strict=True))
        if not self.shifts.issuperset(shift.tolist()):
            self.seen.faults.append("the shift of a group was never drawn")
        return honest(draws, ids, units, shift, step)

    def waits(self, honest: Any, words: Any, rates: Any, exact: Any, which: Any, most: int) -> Any:
        """Notes the law from which coins and shifts are drawn."""
        self.seen.rates.append(tuple(float(rate) for rate in exact))
        found = honest(words, rates, exact, which, most)
        if len(rates) == 1:
            self.shifts |= set(np.minimum(found, FAR).tolist())
        else:
            gaps = np.asarray(which).tolist()
            self.seen.gaps += [
                (units, shift, gap) for (units, shift), gap in zip(self.asked, gaps, strict=True)
            ]
        return found

    # ---- the test of totals

    def passing(
        self, honest: Any, test: Any, totals: Array, names: Array, trigger: int, at: Any
    ) -> Any:
        """Notes the totals of groups that are not published."""
        keys, script, rows = keys_of(names, len(names)), self.script, []
        honest(totals, names, trigger, at)
        for row, (key, total) in enumerate(zip(keys, totals.tolist(), strict=True)):
            self.seen.tested[at.window][key][trigger] = int(total)
            place = at.window, key
            if script.leads and total >= test.floor and script.at(*place) <= trigger + 1:
                script.by_test[place] = trigger
            if script.by_test.get(place) == trigger:
                rows.append(row)
        return np.array(rows, np.int64)

    def test_noise(self, honest: Any, test: Any, *arguments: Any) -> Any:
        """Notes the noise of tests before a group is published."""
        with replaced(self, "hidden", value=True):
            return honest(*arguments)


def keys_of(ids: Any, count: int) -> list[Key]:
    """The groups of the columns of a counter."""
    if ids is None:
        return [(0, column) for column in range(count)]
    return list(map(tuple, np.asarray(ids)[:count].tolist()))
