"""The running code against dense matrices, exactly: a unit of noise at a time, T up to 1,000."""

from __future__ import annotations

import numpy as np
import pytest

from streamveil.mechanisms.counters import (
    AnytimeBltCounter,
    BltCounter,
    DenseCounter,
    HaarCounter,
    KaryTreeCounter,
    SmoothTreeCounter,
    SqrtToeplitzCounter,
    kernels,
    noise,
)
from streamveil.privacy.noise import SilentNoise
from tests.mechanisms.counters.oracle import factors

SIGMA = 4.0

FEEDBACK = {
    "blt": (BltCounter(horizon=1000, sigma=SIGMA), 1000),
    "blt plain": (BltCounter(horizon=1000, sigma=SIGMA, weighting="none"), 1000),
    "blt noise": (BltCounter(horizon=1000, sigma=SIGMA, weighting="columns-noise"), 1000),
    "anytime": (AnytimeBltCounter(sigma=SIGMA, tuned=1000), 1000),
    "sqrt": (SqrtToeplitzCounter(horizon=200, sigma=SIGMA), 200),
    "sqrt plain": (SqrtToeplitzCounter(horizon=200, sigma=SIGMA, weighting="none"), 200),
    "dense": (DenseCounter(horizon=100, sigma=SIGMA), 100),
}


@pytest.mark.parametrize("name", FEEDBACK)
def test_the_recursion_is_the_dense_decoder(name, monkeypatch):
    """Key j gets one unrounded unit of noise, at step j: its estimates are column j of B."""
    counter, horizon = FEEDBACK[name]

    def unit(draws, ids, offset, spread):
        impulse = np.zeros(horizon)
        impulse[unit.step] = spread
        return offset + impulse

    for module in (kernels, noise):
        monkeypatch.setattr(module, "gaussian_about", unit)
    state, estimates = counter.init(horizon), []
    for t in range(horizon):
        unit.step = t
        noisy, state = counter.step(state, np.zeros(horizon, np.int64), SilentNoise().at("x"))
        estimates.append(noisy)
    decoder, _ = factors(counter, horizon)
    np.testing.assert_allclose(np.array(estimates) / SIGMA, decoder, atol=1e-8)
    covariance = np.array(estimates) @ np.array(estimates).T / SIGMA**2
    np.testing.assert_allclose(covariance, decoder @ decoder.T, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize(
    "counter",
    [
        *(counter for counter, horizon in FEEDBACK.values() if horizon == 1000),
        HaarCounter(horizon=1000, sigma=SIGMA),
        HaarCounter(horizon=1000, sigma=SIGMA, aim="two-sided"),
        KaryTreeCounter(horizon=1000, sigma=SIGMA),
        SmoothTreeCounter(horizon=1000, sigma=SIGMA),
    ],
    ids=lambda counter: type(counter).__name__,
)
def test_std_and_sensitivity_at_a_thousand_steps(counter):
    decoder, encoder = factors(counter, 1000)
    np.testing.assert_allclose(decoder @ encoder, np.tril(np.ones((1000, 1000))), atol=1e-7)
    rows = np.sqrt((decoder**2).sum(axis=1))
    pure = bool(counter.loss().pure)
    stated = counter.std(np.arange(1, 1001)) / (SIGMA * (np.sqrt(2) if pure else 1))
    np.testing.assert_allclose(stated, rows, rtol=0.006)  # rounding is in what is stated
    columns = np.abs(encoder).sum(axis=0) if pure else np.sqrt((encoder**2).sum(axis=0))
    assert columns.max() <= counter.sensitivity
