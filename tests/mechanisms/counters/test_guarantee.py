"""Guarantees against an independent accountant, and certificates of optimality."""

from __future__ import annotations

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant

from streamveil.mechanisms.counters import BltCounter, DenseCounter
from streamveil.mechanisms.counters.dense import best_factorization
from tests.mechanisms.counters.examples import NAMES, examples
from tests.mechanisms.counters.oracle import factors
from tests.mechanisms.counters.test_conformance import norm

HORIZON = 20


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("moved", "delta"), [(1, 1e-6), (3, 1e-9)])
def test_never_optimistic_against_dp_accounting(name, moved, delta):
    """The accountant gets the true column norm, from the dense encoder."""
    counter = examples(HORIZON)[name]
    _, encoder = factors(counter, HORIZON)
    true = moved * max(norm(counter, column) for column in encoder.T) / float(counter.sigma)
    loss = counter.loss(moved)
    if loss.pure:
        assert loss.epsilon(0) >= true * (1 - 1e-12)
        return
    accountant = PLDAccountant(value_discretization_interval=1e-3)
    accountant.compose(dp_event.GaussianDpEvent(1 / true))
    truth = accountant.get_epsilon(delta)
    # the accountant's own discretization is pessimistic by up to its interval
    assert loss.epsilon(delta) >= truth - 2e-3
    if counter.needs_horizon:
        assert loss.epsilon(delta) <= truth + 2e-3


@pytest.mark.parametrize(("horizon", "known"), [(16, 1.7045), (100, 2.2459)])
def test_the_dense_factorization_meets_its_certificate(horizon, known):
    best = best_factorization(horizon)
    assert best.bound <= best.error <= best.bound * (1 + 2e-6)
    assert best.error == pytest.approx(known, abs=6e-5)
    encoder = np.linalg.inv(best.decoder) @ np.tril(np.ones((horizon, horizon)))
    assert np.linalg.norm(encoder, axis=0).max() <= 1 + 1e-9
    assert np.linalg.norm(best.decoder, axis=1).max() <= best.error * (1 + 1e-9)
    counter = DenseCounter(horizon=horizon, sigma=10)
    assert 1 <= counter.sensitivity <= 1 + 1e-6
    assert counter.slack(1) < 1e-9 * horizon


def test_the_certificate_is_a_bound_for_every_counter():
    bound = best_factorization(HORIZON).bound
    for name, counter in examples(HORIZON).items():
        if "k-ary" not in name:
            decoder, _ = factors(counter, HORIZON)
            error = counter.sensitivity * np.linalg.norm(decoder, axis=1).max()
            assert error >= bound * (1 - 1e-9), name


def test_the_default_is_within_five_percent_of_the_certificate():
    counter = BltCounter(horizon=100, sigma=2**30)
    error = counter.sensitivity * counter.std(np.arange(1, 101)).max() / 2**30
    assert best_factorization(100).bound <= error <= 1.05 * best_factorization(100).bound
    assert counter.state_bytes <= 7 * 8
