"""No mechanism draws two releases from one address, however its noise is passed around."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
import sys
import threading
from contextlib import suppress
from fractions import Fraction

import numpy as np
import pytest

from streamveil import linear
from streamveil.core.accounting import Budget, Neighbours
from streamveil.core.noise import KeyedNoise, Place, SeededNoise, SilentNoise
from streamveil.counters import choose, skip
from streamveil.dynamic import DisjointDoubling, GrowingClassifier, LiveTable, Rerun
from streamveil.errors import (
    BudgetError,
    PlanError,
    ReusedNoiseError,
    StoreError,
    UncopiedNoiseError,
)
from streamveil.linear.budget_shares import Meter, Share
from streamveil.sketches import HeavyHitters, LazySketch
from tests.core.every import CELLS, HALF, HISTOGRAM, cases, drawing
from tests.counters.examples import NAMES, examples

CASES = cases()
WITHIN = {"Stepping", "Difference"}  # parts of others
BY_DESIGN = {  # draws as arguments, and why that is no release of its own
    "SelectionTable": "a key's draw is a function of the key and its number of units",
    "Share": "scales of noise: called by mechanisms with draws of their place",
}


def test_every_mechanism_that_draws_is_in_the_table():
    known = {type(case.mechanism).__name__ for case in CASES.values()} | WITHIN
    assert {name for name, kinds in drawing().items() if "Place" in kinds} <= known
    assert {name for name, kinds in drawing().items() if "Draws" in kinds} == set(BY_DESIGN)


@pytest.mark.parametrize("name", CASES)
def test_a_second_run_at_the_same_place_is_refused(name):
    case, place = CASES[name], Place(SeededNoise(1), "run")
    released = case.run(case.mechanism, place)
    with pytest.raises(ReusedNoiseError, match="at address run"):
        case.run(case.mechanism, place)
    assert case.run(case.mechanism, place.again()) == released  # a replay


@pytest.mark.parametrize("name", NAMES)
def test_two_steps_from_one_state_are_refused(name):
    """As by a caller who does not pass the new state on."""
    counter, place = examples(9)[name], Place(SeededNoise(1), "step")
    state, ones = counter.init(2), np.ones(2, np.int64)
    counter.step(state, ones, place)
    with pytest.raises(ReusedNoiseError):
        counter.step(state, 5 * ones, place)


@pytest.mark.parametrize("name", NAMES)
def test_draws_in_the_place_of_a_place_are_refused(name):
    """The same draws at every step made one secret row readable with 98 % certainty."""
    counter, draws = examples(9)[name], SeededNoise(1).at("hoisted", 1)
    with pytest.raises(ValueError, match=r"must be a Place[^$]*counter\.stream"):
        counter.step(counter.init(2), np.ones(2, np.int64), draws)
    if not counter.keyed:
        with pytest.raises((TypeError, PlanError), match=r"must be (a )?Place"):
            skip(counter, counter.init(1), 3, draws)


@pytest.mark.parametrize("name", NAMES)
def test_a_stream_is_its_counter_step_by_step_and_can_be_resumed_anywhere(name):
    counter, noise = CASES[name].mechanism, KeyedNoise.fresh()
    shape = (4, 3, counter.width) if name == "vector" else (4, 3)
    rows = np.random.default_rng(3).integers(0, 9, shape)
    stream = counter.stream(keys=3, noise=noise)
    saved, released = [stream.save()], []
    for row in rows:
        released.append(stream.step(row))
        saved.append({part: array.copy() for part, array in stream.save().items()})
    assert stream.t == 4
    once = bytes(saved[0]["address"])
    place, state = Place(noise, "counter", (b"counter", once)), counter.init(3)
    for t, row in enumerate(rows):
        estimates, state = counter.step(state, row, place)
        np.testing.assert_array_equal(estimates, released[t])
        resumed = counter.resume(saved[t], noise)
        assert resumed.t == t
        for later in range(t, 4):
            np.testing.assert_array_equal(resumed.step(rows[later]), released[later])


@pytest.mark.parametrize("horizon", [100, 1000])
@pytest.mark.parametrize("budget", [Budget(epsilon=1), Budget(epsilon=1, delta=1e-9)])
def test_what_choose_gives_is_used_the_same_way_keyed_or_not(horizon, budget):
    counter = choose(horizon, budget).counter
    stream = counter.stream(keys=2)
    first, second = stream.step([5, 0]), stream.step([0, 1])
    assert len(first) == len(second) == 2
    assert stream.t == 2


def open_one(kind, noise):
    """Something that the library opens, under one name."""
    budget, protects = Budget(epsilon=1, delta=1e-6), Neighbours(relation="event")
    sketch = {"horizon": 64, "protects": protects, "budget": budget, "flushes": 1}
    if kind == "counter":
        return examples(9)["blt"].stream(keys=3, noise=noise)
    if kind == "table":
        rerun = Rerun(static=linear.noisy_queries(CELLS), share=HALF, steps=2)
        return LiveTable.open(rerun, noise, "t")
    if kind == "classifier":
        plan = DisjointDoubling(start=20, budget=budget)
        return GrowingClassifier(features=2, classes=(0, 1), schedule=plan, noise=noise)
    if kind == "sketch":
        return LazySketch(kind="count-min", width=33, **sketch).open(noise)
    return HeavyHitters(bits=8, width=64, **sketch).open(noise)


def released(kind, live):
    """Its first release."""
    if kind == "counter":
        return live.step([0, 0, 0])
    if kind == "table":
        live.tick()
        return live.answers().values
    if kind == "classifier":
        return live.partial_fit(np.zeros((40, 2)), np.zeros(40)).coef_
    live.flush()
    if kind == "sketch":
        return live.published().table
    return np.concatenate([level.table.ravel() for level in live.published().levels])


def opened(kind, noise):
    """The first release of something that the library opens, under one name."""
    return released(kind, open_one(kind, noise))


KINDS = ["counter", "table", "classifier", "sketch", "heavy-hitters"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("copied", [copy.deepcopy, pickle.dumps])
def test_what_owns_its_noise_is_not_copied(kind, copied):
    live = open_one(kind, KeyedNoise.fresh())
    others = (pickle.PicklingError,) if kind == "classifier" else ()  # trainers are not pickled
    with pytest.raises((UncopiedNoiseError, *others), match=r"draw the same noise|Can't pickle"):
        copied(live)


@pytest.mark.parametrize("kind", KINDS)
def test_a_forked_process_draws_nothing_from_what_its_parent_opened(kind):
    live, context = open_one(kind, KeyedNoise.fresh()), multiprocessing.get_context("fork")
    told = context.Queue()

    def draw():
        try:
            told.put(np.asarray(released(kind, live)).tolist())
        except UncopiedNoiseError as error:
            told.put(str(error))

    child = context.Process(target=draw)
    child.start()
    assert "forked since" in told.get(timeout=100)
    child.join()
    assert len(released(kind, live))


def test_a_shallow_copy_of_a_stream_is_the_same_stream():
    stream = examples(9)["blt"].stream(noise=SilentNoise())
    other = copy.copy(stream)
    assert [stream.step([1])[0], other.step([2])[0], stream.step([4])[0]] == [1, 3, 7]
    assert stream.t == other.t == 3


def test_threads_take_the_steps_of_a_stream_and_the_charges_of_a_meter_in_turn():
    stream, meter = examples(400)["blt"].stream(noise=SilentNoise()), Meter(Share("pure", 1))
    totals, charged = [], []

    def work():
        for _ in range(100):
            totals.append(int(stream.step([1])[0]))
            with suppress(BudgetError):
                charged.append(meter.charge(Share("pure", Fraction(1, 200))))

    threads, every = [threading.Thread(target=work) for _ in range(4)], sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(every)
    assert sorted(totals) == list(range(1, 401))
    assert (len(charged), meter.spent) == (200, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_opened_twice_under_one_secret_and_name_has_other_noise(kind):
    noise = KeyedNoise.fresh()
    assert not np.array_equal(opened(kind, noise), opened(kind, noise))
    seeded = [opened(kind, SeededNoise(3)) for _ in range(2)]
    np.testing.assert_array_equal(*seeded)  # tests stay reproducible


def test_a_stream_is_resumed_with_the_noise_it_was_opened_with():
    counter = examples(9)["blt"]
    with pytest.raises(StoreError, match="another kind of noise"):
        counter.resume(counter.stream(noise=SilentNoise()).save(), KeyedNoise.fresh())
    with pytest.raises(StoreError, match="another kind of noise"):
        counter.resume(counter.stream().save(), SilentNoise())


def test_the_memory_of_a_place_is_that_of_all_places_inside_it():
    place = Place(SeededNoise(1), "p")
    linear.noisy_queries(CELLS).release(HISTOGRAM, HALF, place.inside(1))
    with pytest.raises(ReusedNoiseError, match="p/1/rows was drawn before"):
        linear.noisy_queries(CELLS).release(HISTOGRAM, HALF, place.inside(1))
    linear.noisy_queries(CELLS).release(HISTOGRAM, HALF, place.inside(2))
