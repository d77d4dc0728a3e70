"""Snapshots taken by a comparison: when, how many, and what the comparison costs."""

from fractions import Fraction

import numpy as np
import pytest

from benchmarks.papers.snapshots import TriggeredSnapshots
from streamveil.core.noise import SeededNoise, SilentNoise
from streamveil.dynamic import Changes
from streamveil.linear import Marginals, Mwem, Place, Share, noisy_queries

CELLS = Marginals((4,), ((0,),))
PURE, ZCDP = Share("pure", 10), Share("zcdp", Fraction(20))


def churn(steps, size, each):
    """A table of constant size; every step replaces `each` records."""
    yield Changes(np.zeros(size, np.int64), updates=size)
    for t in range(1, steps):
        gone = np.full(each, (t - 1) % 4)
        yield Changes(np.full(each, t % 4), gone, gone * 0, 2 * each)


def run(mechanism, changes, noise):
    place = Place(noise, "t")
    state, taken = mechanism.init(place), []
    for one in changes:
        mechanism.step(state, one, place)
        taken.append(state.taken)
    return state, taken


@pytest.mark.parametrize("share", [PURE, ZCDP])
def test_without_noise_a_snapshot_comes_when_half_has_changed(share):
    mechanism = TriggeredSnapshots(static=noisy_queries(CELLS), share=share, most=6)
    _, taken = run(mechanism, churn(60, 4000, 100), SilentNoise())
    at = [t for t in range(1, 60) if taken[t] > taken[t - 1]]
    assert taken[0] == 1
    assert at == [10, 20, 30, 40, 50]  # 200 updates a step, half of 4000


def test_there_are_never_more_than_planned_and_answers_go_on():
    mechanism = TriggeredSnapshots(static=noisy_queries(CELLS), share=PURE, most=2)
    state, taken = run(mechanism, churn(40, 4000, 100), SilentNoise())
    assert taken[-1] == 2
    assert state.above is None
    assert mechanism.answers(state).values.sum() == pytest.approx(4000)


def test_an_empty_table_takes_no_snapshot_by_noise_alone():
    few = 0
    for seed in range(20):
        mechanism = TriggeredSnapshots(static=Mwem(queries=CELLS), share=ZCDP, most=50)
        _, taken = run(mechanism, (Changes() for _ in range(200)), SeededNoise(seed))
        few += taken[-1] <= 2
    assert few >= 18


def test_the_comparison_is_paid_for_both_updates_of_a_record():
    for share in (PURE, ZCDP):
        mechanism = TriggeredSnapshots(static=noisy_queries(CELLS), share=share, most=5)
        test, one = mechanism.parts[3], mechanism.above.epsilon
        both = 2 * one if share.kind == "pure" else (2 * one) ** 2 / 2
        assert both <= test.amount
        assert both > Fraction(999, 1000) * test.amount
