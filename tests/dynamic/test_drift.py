"""The two inequalities behind models that are carried over: what one update can add."""

import numpy as np

RNG = np.random.default_rng(11)


def potential(histogram, weights):
    """F = n * relative entropy of the data to the model."""
    n = histogram.sum()
    part = histogram[histogram > 0] / n
    return n * float((part * np.log(part / weights[histogram > 0])).sum())


def tables(count):
    for _ in range(count):
        domain = int(RNG.integers(2, 40))
        histogram = RNG.integers(0, 6, domain)
        histogram[RNG.integers(0, domain)] += 2
        weights = RNG.dirichlet(np.full(domain, RNG.choice([0.3, 1, 5]))) + 1e-12
        yield histogram, weights / weights.sum()


def test_an_insertion_with_mixing_adds_at_most_ln_n():
    worst = -np.inf
    for histogram, weights in tables(3000):
        n, domain = histogram.sum(), len(histogram)
        mixed = (n * weights + 1 / domain) / (n + 1)
        after = histogram.copy()
        after[RNG.integers(0, domain)] += 1
        drift = potential(after, mixed) - potential(histogram, weights)
        worst = max(worst, drift / np.log(domain))
    assert 0.5 < worst <= 1 + 1e-9


def test_a_deletion_adds_at_most_one_plus_ln_n():
    worst = -np.inf
    for histogram, weights in tables(3000):
        n = histogram.sum()
        after = histogram.copy()
        after[RNG.choice(np.flatnonzero(histogram))] -= 1
        drift = potential(after, weights) - potential(histogram, weights)
        worst = max(worst, drift / (1 + np.log(n)))
    assert 0.1 < worst <= 1 + 1e-9


def test_without_mixing_an_insertion_can_cost_any_amount():
    histogram, weights = np.array([5, 0]), np.array([1 - 1e-30, 1e-30])
    drift = potential(np.array([5, 1]), weights) - potential(histogram, weights)
    assert drift > 20 * np.log(2)
