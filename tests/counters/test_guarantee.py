"""Guarantees against an independent accountant, and certificates of optimality."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant

from benchmarks.counters import best_factorization
from streamveil.counters import BltCounter
from tests.counters.examples import NAMES, examples
from tests.counters.oracle import factors
from tests.counters.test_conformance import norm

HORIZON = 20


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("moved", "sigma"), [(1, 2), (3, Fraction(13, 2)), (2, 40.0)])
def test_never_optimistic_against_dp_accounting(name, moved, sigma):
    """A grid of moves, scales and deltas; the accountant gets the dense encoder's column norm."""
    counter = replace(examples(HORIZON)[name], sigma=sigma)
    true = moved * largest_column(name) / float(sigma)
    loss = counter.loss(moved)
    if loss.pure:
        assert loss.epsilon(0) >= true * (1 - 1e-12)
        return
    slack = 0.0 if counter.needs_horizon else loss.mu() - true  # columns of later steps
    for delta in (1e-3, 1e-6, 1e-9, 1e-12):
        truth = accountant(round(true, 12)).get_epsilon(delta)
        # the accountant's own discretization is pessimistic by up to its interval
        assert loss.epsilon(delta) >= truth - 2e-3 * (1 + truth)
        if not slack:
            assert loss.epsilon(delta) <= truth + 2e-3 * (1 + truth)


@cache
def largest_column(name: str) -> float:
    counter = examples(HORIZON)[name]
    return max(norm(counter, column) for column in factors(counter, HORIZON)[1].T)


@cache
def accountant(mu: float) -> PLDAccountant:
    made = PLDAccountant(value_discretization_interval=1e-3)
    made.compose(dp_event.GaussianDpEvent(1 / mu))
    return made


@pytest.mark.parametrize(("horizon", "known"), [(16, 1.7045), (100, 2.2459)])
def test_the_dense_factorization_meets_its_certificate(horizon, known):
    best = best_factorization(horizon)
    assert best.bound <= best.error <= best.bound * (1 + 2e-6)
    assert best.error == pytest.approx(known, abs=6e-5)
    encoder = np.linalg.inv(best.decoder) @ np.tril(np.ones((horizon, horizon)))
    assert np.linalg.norm(encoder, axis=0).max() <= 1 + 1e-9
    assert np.linalg.norm(best.decoder, axis=1).max() <= best.error * (1 + 1e-9)


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
