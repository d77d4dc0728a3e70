"""The running code against dense matrices, exactly: a unit of noise at a time, T up to 1,000."""

from __future__ import annotations

import numpy as np
import pytest

from streamveil.core import counters
from streamveil.core.counters import kernels
from streamveil.core.noise import Place, SilentNoise
from streamveil.counters import (
    AnytimeBltCounter,
    BltCounter,
    HonakerCounter,
    KaryTreeCounter,
    tree,
)
from streamveil.counters.kary import blocks_of
from tests.counters.oracle import factors

SIGMA = 4.0
NODES = 3000  # that a tree draws, at most
UNIT = 2**40  # quanta of one unit of a tree's integer noise

FEEDBACK = {
    "blt": (BltCounter(horizon=1000, sigma=SIGMA), 1000),
    "blt plain": (BltCounter(horizon=1000, sigma=SIGMA, weighting="none"), 1000),
    "anytime": (AnytimeBltCounter(sigma=SIGMA, tuned=1000), 1000),
}


@pytest.mark.parametrize("name", FEEDBACK)
def test_the_recursion_is_the_dense_decoder(name, monkeypatch):
    """Key j gets one unrounded unit of noise, at step j: its estimates are column j of B."""
    counter, horizon = FEEDBACK[name]

    def unit(draws, ids, offset, spread):
        impulse = np.zeros(horizon)
        impulse[unit.step] = spread
        return offset + impulse

    for module in (kernels, counters):
        monkeypatch.setattr(module, "gaussian_about", unit)
    state, estimates = counter.init(horizon), []
    for t in range(horizon):
        unit.step = t
        noisy, state = counter.step(state, np.zeros(horizon, np.int64), Place(SilentNoise(), "x"))
        estimates.append(noisy)
    decoder, _ = factors(counter, horizon)
    np.testing.assert_allclose(np.array(estimates) / SIGMA, decoder, atol=1e-8)
    covariance = np.array(estimates) @ np.array(estimates).T / SIGMA**2
    np.testing.assert_allclose(covariance, decoder @ decoder.T, rtol=1e-7, atol=1e-7)


TREES = {
    "honaker": HonakerCounter(horizon=100, sigma=SIGMA),  # its dense oracle is slow
}


@pytest.mark.parametrize("name", TREES)
def test_stored_tree_noise_has_the_covariance_of_the_dense_decoder(name, monkeypatch):
    """Key j gets one unit of noise, in the j-th node that is drawn: column j of a decoder."""
    counter, drawn = TREES[name], [0]

    def unit(draws, ids, keys, rows, sigma):
        noise = np.zeros((rows, keys), np.int64)
        noise[np.arange(rows), drawn[0] + np.arange(rows)] = UNIT
        drawn[0] += rows
        return noise

    monkeypatch.setattr(tree, "gaussian_rows", unit)
    state, estimates, nothing = counter.init(NODES), [], np.zeros(NODES, np.int64)
    for _ in range(counter.horizon):
        noisy, state = counter.step(state, nothing, Place(SilentNoise(), "x"))
        estimates.append(noisy / UNIT)
    assert drawn[0] <= NODES
    assert_same_covariance(np.array(estimates), factors(counter, counter.horizon)[0])


def kary_row(counter, t):
    return {(level, i): sign for level, i, sign in blocks_of(t, counter.arity, counter.levels)}


@pytest.mark.parametrize(
    ("counter", "row"),
    [
        (KaryTreeCounter(horizon=1000, sigma=SIGMA), kary_row),
        (KaryTreeCounter(horizon=1000, sigma=SIGMA, k=3), kary_row),
    ],
)
def test_addressed_noise_has_the_covariance_of_the_dense_decoder(counter, row):
    rows = [row(counter, t) for t in range(1, 1001)]
    place = {node: i for i, node in enumerate(sorted({node for r in rows for node in r}))}
    made = np.zeros((1000, len(place)))
    for t, entries in enumerate(rows):
        for node, size in entries.items():
            made[t, place[node]] = size
    assert_same_covariance(made, factors(counter, 1000)[0])


def assert_same_covariance(found, decoder):
    expected = decoder @ decoder.T
    np.testing.assert_allclose(found @ found.T, expected, rtol=1e-7, atol=1e-7 * expected.max())


@pytest.mark.parametrize(
    "counter",
    [
        *(counter for counter, horizon in FEEDBACK.values() if horizon == 1000),
        KaryTreeCounter(horizon=1000, sigma=SIGMA),
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
