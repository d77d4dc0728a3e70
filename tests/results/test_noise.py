"""Covariances between steps against dense decoders and against the code that draws the noise."""

import numpy as np
import pytest

from streamveil.core.noise import Place, SeededNoise
from streamveil.core.noisy import values
from streamveil.core.release import blt_of, count_weighted
from streamveil.counters import BltCounter
from streamveil.dataflow.grouping import counter_facts, counter_from
from streamveil.dataflow.published_keys import Spread
from streamveil.results.noise import covariance, weighted_covariance
from tests.counters.examples import NAMES, SIGMA, examples
from tests.counters.oracle import factors
from tests.statistics import ALPHA, SAMPLES, assert_fits, assert_rejects, gaussian

HORIZON, LATE = 13, 6


def matrix(counter, opened, horizon=HORIZON):
    """What is claimed: the covariance of all steps, of a key that starts at one of them."""
    first = np.array([opened])
    rows = [
        [covariance(counter, t, s, first)[0] for s in range(1, horizon + 1)]
        for t in range(1, horizon + 1)
    ]
    return np.array(rows)


@pytest.mark.parametrize("opened", [1, 2, LATE, HORIZON])
@pytest.mark.parametrize("name", NAMES)
def test_it_is_that_of_the_dense_decoder(name, opened):
    counter = examples(HORIZON)[name]
    decoder, encoder = factors(counter, HORIZON)
    if not counter.keyed:  # a draw is made when the last step of its row is there (if it has one)
        made = HORIZON - np.argmax(encoder[:, ::-1] != 0, axis=1)
        used = 1 + np.argmax(decoder != 0, axis=0)
        made = np.where((encoder != 0).any(axis=1), made, used)
        decoder = decoder * (made >= opened)
    scale = 2 if counter.loss().pure else 1
    expected = scale * decoder @ decoder.T * float(SIGMA) ** 2
    claimed = matrix(counter, opened)
    np.testing.assert_allclose(claimed, expected, rtol=0.006, atol=0.35)  # with rounding
    if opened == 1 or counter.keyed:
        stated = counter.std(np.arange(1, HORIZON + 1)) ** 2
        np.testing.assert_allclose(np.diag(claimed), stated, rtol=1e-9)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("opened", [pytest.param(1, marks=pytest.mark.slow), LATE])
def test_it_is_that_of_the_code_that_runs(name, opened):
    counter, noise = examples(HORIZON)[name], SeededNoise(31)
    keys, place = SAMPLES // 2, Place(noise, name)
    state = counter.init(0)
    released = []
    for t in range(1, HORIZON + 1):
        if t == opened:
            state = state.grow(keys)
        ids = np.arange(2 * state.keys, dtype=np.uint64).reshape(-1, 2)
        estimates, state = counter.step(state, np.zeros(state.keys, np.int64), place, ids)
        released.append(np.asarray(estimates, float))
    seen = np.array(released[opened - 1 :])
    claimed = matrix(counter, opened)[opened - 1 :, opened - 1 :]
    # both ends and a difference of neighbours, each with the deviation that is claimed for it
    for combination in ({0: 1}, {-1: 1, 0: -1}, {-1: 1, -2: -1}, {-1: 1, -2: 1, 1: 1}):
        c = np.zeros(len(seen))
        for place, sign in combination.items():
            c[place] += sign
        sd, alone = np.sqrt(c @ claimed @ c), np.sqrt(c**2 @ np.diag(claimed))
        found = c @ seen
        if sd == 0:  # neighbours of a tree may share all their draws
            assert (found == 0).all()
            continue
        if counter.loss().pure:
            assert abs(found.std() / sd - 1) < 0.05
            continue
        jitter = np.random.default_rng(1).uniform(-0.5, 0.5, keys)  # from integers to reals
        law = gaussian(np.sqrt(sd**2 + 1 / 12))
        assert_fits(found + jitter, law, ALPHA)
        if abs(alone / sd - 1) > 0.1:
            assert_rejects(found + jitter, gaussian(np.sqrt(alone**2 + 1 / 12)), ALPHA)


@pytest.mark.parametrize("weighting", ["none", "columns"])
def test_weights_that_fall_enter_draw_by_draw(weighting):
    counter = BltCounter(horizon=HORIZON, sigma=4000, weighting=weighting)
    keys, place = SAMPLES, Place(SeededNoise(5), "weights")
    history = np.repeat([1.0, 0.8, 0.8, 0.3, 0.1], [3, 2, 3, 2, 3])
    history[:2] = np.nan  # starts at step 3
    state, spread, released = counter.init(keys, 2), Spread.empty(counter), []
    ids = np.arange(2 * keys, dtype=np.uint64).reshape(-1, 2)
    spread.grow(1)
    nothing = np.zeros((1, keys), np.int64)
    for t in range(3, HORIZON + 1):
        share = np.full(keys, history[t - 1])
        at = place, ids
        total, state = count_weighted(blt_of(counter), state, nothing, at, share)
        released.append(values(total)[0].astype(float))
        spread.step(counter, t, share[:1])
        known = spread.variances(counter, t, np.array([1]))
        assert weighted_covariance(counter, t, t, history[:, None]) == pytest.approx(known)
    t, s = 8, 7
    parts = [weighted_covariance(counter, *pair, history[:, None])[0]
             for pair in ((t, t), (s, s), (t, s))]  # fmt: skip
    sd = np.sqrt(parts[0] + parts[1] - 2 * parts[2])
    found = released[t - 3] - released[s - 3]
    assert_fits(found, gaussian(sd), ALPHA)
    assert_rejects(found, gaussian(np.sqrt(parts[0] + parts[1])), ALPHA)  # covariance ignored
    plain = covariance(counter, t, t, np.array([3]))[0]
    np.testing.assert_allclose(
        weighted_covariance(counter, t, t, np.where(np.isnan(history), np.nan, 1.0)[:, None]), plain
    )


@pytest.mark.parametrize("name", NAMES)
def test_facts_bring_back_a_counter_with_the_same_noise(name):
    import json

    counter = examples(HORIZON)[name]
    again = counter_from(json.loads(json.dumps(counter_facts(counter))))
    np.testing.assert_allclose(matrix(again, LATE), matrix(counter, LATE), rtol=1e-12)


def test_long_runs_are_quick_and_steps_are_checked():
    counter = BltCounter(horizon=10_000, sigma=9)
    opened = np.array([1, 7_000, 10_000])
    found = covariance(counter, 10_000, 9_000, opened)
    assert found[0] > found[1] > found[2] == 0
    with pytest.raises(ValueError, match="between 1 and"):
        covariance(counter, 10_001, 1, opened)
