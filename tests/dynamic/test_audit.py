"""Attacks on whole mechanisms: two neighbouring tables, all releases, a proven lower bound."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from benchmarks.papers.qiu_yi import Published
from streamveil.core.noise import SeededNoise
from streamveil.dynamic import Changes, ContinualMwem, FullyDynamic, SignedCounter
from streamveil.dynamic.buckets import Repaired
from streamveil.linear import Direct, Matrix, Mwem, Place, Share, noisy_queries
from tests.audit.attack import distinguish
from tests.statistics import ALPHA

HALVES = Matrix.of([[1.0, 0.0], [0.0, 1.0]])
PURE, ZCDP = Share("pure", Fraction(1)), Share("zcdp", Fraction(1, 2))
NONE = np.zeros(0, np.int64)
STEPS = 3


def changes(*, with_record):
    """One record of label 0 is born at step 1 and goes at step 3; label 1 is always there."""
    one = np.zeros(1 if with_record else 0, np.int64)
    born = Changes(np.concatenate([one, np.array([1])]), updates=1 + len(one))
    gone = Changes(NONE, one, np.ones(len(one), np.int64), len(one))
    return [born, Changes(), gone]


def outputs(mechanism, trials, seed, *, with_record):
    rows = []
    stream = changes(with_record=with_record)
    noise = SeededNoise(seed)
    for trial in range(trials):
        place = Place(noise, "audit", (trial,))
        state = mechanism.init(place)
        seen = []
        for change in stream:
            mechanism.step(state, change, place)
            seen.append(mechanism.answers(state).values)
        rows.append(np.concatenate(seen))
    return np.array(rows)


def attack(mechanism, trials):
    inside = outputs(mechanism, trials, 1, with_record=True)
    outside = outputs(mechanism, trials, 2, with_record=False)
    return distinguish(inside, outside, ALPHA)


TREE = FullyDynamic.repaired(noisy_queries(HALVES), PURE, horizon=STEPS)
COUNTER = SignedCounter(strategy=Direct(HALVES), share=ZCDP, horizon=STEPS)
SLOW = [
    FullyDynamic.repaired(noisy_queries(HALVES), ZCDP, horizon=STEPS),
    FullyDynamic.repaired(Mwem(queries=HALVES, rounds=1), PURE, horizon=STEPS),
    ContinualMwem(queries=HALVES, share=ZCDP, horizon=STEPS, rounds=1),
    FullyDynamic(
        static=noisy_queries(HALVES), share=Share("pure", 2), horizon=None,
        bucket=Published(static=noisy_queries(HALVES)), plan="published",
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    "mechanism", [TREE, COUNTER, *(pytest.param(m, marks=pytest.mark.slow) for m in SLOW)]
)
def test_no_attack_refutes_the_guarantee(mechanism):
    assert not attack(mechanism, 900).violates(mechanism.guarantee.epsilon)


@pytest.mark.parametrize(
    "mechanism", [TREE, COUNTER, pytest.param(SLOW[0], marks=pytest.mark.slow)]
)
def test_a_mechanism_with_a_quarter_of_its_noise_is_caught(mechanism):
    claim = mechanism.guarantee.epsilon
    more = mechanism.share.scale(4 if mechanism.share.kind == "pure" else 16)
    assert attack(replace(mechanism, share=more), 600).violates(claim)


@pytest.mark.slow
def test_a_bucket_that_forgets_to_pay_for_deletions_is_caught():
    """The planted fault: the base and the deletions each spend everything, ten times over."""

    class Forgetful(Repaired):
        def _split(self, share):
            return (share, share.scale(8), share.scale(8), share)

    bucket = Forgetful(static=noisy_queries(HALVES))
    wrong = replace(TREE, bucket=bucket)
    assert attack(wrong, 1000).violates(TREE.guarantee.epsilon)
