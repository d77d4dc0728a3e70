"""No mechanism draws two releases from one address, however its noise is passed around."""

from __future__ import annotations

import numpy as np
import pytest

from streamveil import linear
from streamveil.core.accounting import Budget, Neighbours
from streamveil.core.noise import KeyedNoise, Place, SeededNoise, SilentNoise
from streamveil.counters import choose, skip
from streamveil.dynamic import DisjointDoubling, GrowingClassifier, LiveTable, Rerun
from streamveil.errors import PlanError, ReusedNoiseError, StoreError
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


def opened(kind, noise):
    """The first release of something that the library opens, under one name."""
    budget, protects = Budget(epsilon=1, delta=1e-6), Neighbours(relation="event")
    sketch = {"horizon": 64, "protects": protects, "budget": budget, "flushes": 1}
    if kind == "counter":
        return examples(9)["blt"].stream(keys=3, noise=noise).step([0, 0, 0])
    if kind == "table":
        table = LiveTable.open(Rerun(static=linear.noisy_queries(CELLS), share=HALF, steps=2),
                               noise, "t")  # fmt: skip
        table.tick()
        return table.answers().values
    if kind == "classifier":
        plan = DisjointDoubling(start=20, budget=budget)
        model = GrowingClassifier(features=2, classes=(0, 1), schedule=plan, noise=noise)
        return model.partial_fit(np.zeros((40, 2)), np.zeros(40)).coef_
    if kind == "sketch":
        live = LazySketch(kind="count-min", width=33, **sketch).open(noise)
        live.flush()
        return live.published().table
    live = HeavyHitters(bits=8, width=64, **sketch).open(noise)
    live.flush()
    return np.concatenate([level.table.ravel() for level in live.published().levels])


@pytest.mark.parametrize("kind", ["counter", "table", "classifier", "sketch", "heavy-hitters"])
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
