"""One short run of every public mechanism on arrays: its releases, all noise at one place."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

import streamveil
from benchmarks.papers.pmw import Pmw, PmwRelease, Sparse
from benchmarks.papers.qiu_yi import Published, Squaring, published
from benchmarks.papers.snapshots import SnapshotDelta, TriggeredSnapshots
from streamveil import dynamic, linear
from streamveil.core.accounting import Budget
from streamveil.core.noise import Place
from streamveil.core.noisy import values
from streamveil.dynamic import Bag, Changes
from streamveil.dynamic.distinct import DistinctCounter
from streamveil.dynamic.partition import TimeVarying
from streamveil.dynamic.schedulers import Founded, PublicSizes
from streamveil.linear.sparse_vector import AboveThreshold
from tests.core.account import LIBRARY
from tests.counters.examples import examples

HALF, RHO = linear.Share("pure", Fraction(1, 2)), linear.Share("zcdp", Fraction(1, 8))
CELLS = linear.Marginals.ways((2, 3), 1)
QUERY = np.array([1.0, 0, 1, 0, 0, 1])
HISTOGRAM = np.array([40, 10, 0, 30, 5, 15])
STEPS = 4
ROWS = np.random.default_rng(1).normal(size=(60, 2)) / 4
SIGNS = np.where(ROWS[:, 0] > 0, 1.0, -1.0)


@dataclass(frozen=True)
class Case:
    """A mechanism and a run of `STEPS` steps (or one release) of it."""

    mechanism: Any
    run: Callable[[Any, Place], list[Any]]


def count(counter: Any, place: Place) -> list[Any]:
    state, released = counter.init(3), []
    for _ in range(STEPS):
        estimates, state = counter.step(state, np.ones(3, np.int64), place)
        released.append(np.asarray(estimates).tolist())
    return released


def release(static: Any, place: Place) -> list[Any]:
    return [static.release(HISTOGRAM, HALF, place, 100.0).values.tolist()]


def follow(mechanism: Any, place: Place) -> list[Any]:
    state, released = mechanism.init(place), []
    grows = isinstance(mechanism, dynamic.InsertionOnly) or getattr(mechanism, "only_grows", False)
    for t in range(1, STEPS + 1):
        here = np.arange(6) % (t + 1)
        gone = np.zeros(0 if grows or t == 1 else 1, np.int64)
        mechanism.step(state, Changes(here, gone, gone + t - 1, len(here) + len(gone)), place)
        released.append(mechanism.answers(state).values.tolist())
    return released


def accumulate(inner: Any, place: Place) -> list[Any]:
    state = inner.init()
    for _ in range(STEPS):
        inner.step(state, Bag.of(np.arange(6)), place)
    return [inner.answers(state).values.tolist()]


def cut(partition: Any, place: Place) -> list[Any]:
    state = partition.init(place)
    return [partition.step(state, 3, place) for _ in range(STEPS)]


def ask(mechanism: Any, place: Place) -> list[Any]:
    """Far below, then far above."""
    state = mechanism.init(place)
    return [repr(mechanism.ask(state, value, 300, place)) for value in (0, 1, 10_000)]


def ask_weights(mechanism: Any, place: Place) -> list[Any]:
    state = mechanism.init(HISTOGRAM, place)
    return [repr(mechanism.ask(state, query, place)) for query in (QUERY, 1 - QUERY, QUERY)]


def ask_live(mechanism: Any, place: Place) -> list[Any]:
    state, released = mechanism.init(place), []
    for _ in range(STEPS):
        mechanism.step(state, Changes(np.repeat(np.arange(6), 20)), 120.0, place)
        released += [repr(mechanism.ask(state, query, place)) for query in (QUERY, 1 - QUERY)]
    return released


def train(trainer: Any, place: Place) -> list[Any]:
    share = RHO if isinstance(trainer, dynamic.NoisyGradientDescent) else HALF
    return [trainer.train(ROWS, SIGNS, share, place).tolist()]


def bucket(plan: Any, place: Place) -> list[Any]:
    state = plan.open(Bag.of(np.repeat(np.arange(6), 200)), 3, HALF, place)
    for _ in range(3):
        plan.step(state, Bag.of(np.arange(6)), place)
    return [plan.answers(state).values.tolist()]


def rerun(schedule: Any, place: Place) -> list[Any]:
    def box(data: Any, share: Any, at: Place) -> float:
        return float(values(share.noisy(0, at.draws(), 1, 1)))

    runs = dynamic.Reruns(schedule, box, lambda start, stop: (start, stop), place)
    released = []
    for _ in range(6):
        runs.arrive(10)
        released.append(runs.answer)
    return released


def cases() -> dict[str, Case]:
    """Name -> case."""
    static = linear.noisy_queries(CELLS)
    found = {name: Case(counter, count) for name, counter in examples(STEPS).items()}
    for one in (
        static,
        linear.Mwem(queries=CELLS, rounds=2),
        PmwRelease(queries=CELLS),
        PublicSizes(static),
    ):
        found[type(one).__name__] = Case(one, release)
    for name, one in changing(static).items():
        found[name] = Case(one, follow)
    for tree in (dynamic.Tree(static, HALF, STEPS), dynamic.Hybrid(static, HALF)):
        found[type(tree).__name__] = Case(tree, accumulate)
    found["Founded"] = Case(Founded(static, HALF, dynamic.Hybrid(static, HALF)), accumulate)
    for part in (TimeVarying(epsilon=1), Squaring(epsilon=1)):
        found[type(part).__name__] = Case(part, cut)
    found["AboveThreshold"] = Case(
        AboveThreshold(epsilon1=Fraction(2, 5), epsilon2=Fraction(3, 5)), ask
    )
    found["Sparse"] = Case(Sparse(share=HALF, halts=3), ask)
    found["Pmw"] = Case(Pmw.practical(HALF, 100, 6, halts=3), ask_weights)
    found["Pmwg"] = Case(dynamic.Pmwg.practical(HALF, start=100, domain=6, halts=3), ask_weights)
    found["LivePmw"] = Case(dynamic.LivePmw(share=HALF, start=100, domain=6, halts=3), ask_live)
    for method in (dynamic.NoisyGradientDescent(), dynamic.OutputPerturbation()):
        found[type(method).__name__] = Case(method, train)
    found["Repaired"] = Case(dynamic.Repaired(static=linear.Mwem(queries=CELLS, rounds=1)), bucket)
    found["Published"] = Case(Published(static=static), bucket)
    budget = Budget(epsilon=1)
    for plan in (
        dynamic.BBScheduler(start=10, budget=budget),
        dynamic.BBImprover(start=10, budget=budget),
        dynamic.DisjointDoubling(start=10, budget=budget),
    ):
        found[type(plan).__name__] = Case(plan, rerun)
    return found


def changing(static: Any) -> dict[str, Any]:
    """The mechanisms for changing tables."""
    direct = linear.Direct(CELLS)
    return {
        "FullyDynamic": dynamic.FullyDynamic.repaired(static, HALF, horizon=STEPS),
        "FullyDynamic published": published(static, HALF),
        "TwoStream": dynamic.TwoStream(static=static, share=HALF, horizon=STEPS),
        "Rerun": dynamic.Rerun(static=static, share=HALF, steps=STEPS),
        "SnapshotDelta": SnapshotDelta(static=static, share=HALF, horizon=STEPS, every=2),
        "InsertionOnly": dynamic.InsertionOnly.sparse(static, HALF),
        "TriggeredSnapshots": TriggeredSnapshots(static=static, share=HALF, most=2),
        "SignedCounter": dynamic.SignedCounter(strategy=direct, share=RHO, horizon=STEPS),
        "TreeCounter": dynamic.TreeCounter(strategy=direct, share=HALF, horizon=STEPS),
        "DistinctCounter": DistinctCounter(cells=CELLS, share=HALF, horizon=STEPS, changes=2),
        "ContinualMwem": dynamic.ContinualMwem(queries=CELLS, share=RHO, horizon=STEPS),
    }


def drawing() -> dict[str, set[str]]:
    """Class -> annotations of noise in its public methods, for all mechanisms that there are."""
    found: dict[str, set[str]] = {}
    for info in pkgutil.walk_packages(streamveil.__path__, "streamveil."):
        if not info.name.startswith(LIBRARY) or info.name == "streamveil.sketches.operator":
            continue
        module = importlib.import_module(info.name)
        for name, one in vars(module).items():
            own = inspect.isclass(one) and one.__module__ == module.__name__
            if own and not name.startswith("_") and not getattr(one, "_is_protocol", False):
                found[name] = found.get(name, set()) | noise_of(one)
    return {name: kinds for name, kinds in found.items() if kinds}


def noise_of(one: type) -> set[str]:
    methods = (getattr(one, name) for name in dir(one) if not name.startswith("_"))
    kinds = {
        str(parameter.annotation)
        for method in methods
        if inspect.isfunction(method) or inspect.ismethod(method)
        for parameter in inspect.signature(method).parameters.values()
    }
    return kinds & {"Place", "Draws"}
