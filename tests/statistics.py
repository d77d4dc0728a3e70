"""Statistical tests with a stated false-alarm probability, shared by every test that needs one.

A law is anything with `cdf` and `ppf` (every frozen scipy distribution is one). Samples are put
into cells (e_i, e_(i+1)] whose edges are quantiles of the law, so one chi-square test serves
integers and reals. Cells expect at least `CELL` samples, so the chi-square tail can be trusted at
ALPHA. A sample in a cell of no mass fails at once.

Every `assert_fits` belongs beside an `assert_rejects` at `DETECTABLE` times the scale: a test that
cannot fail proves nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from scipy import stats

ALPHA = 1e-9  # false alarms per test
SAMPLES = 20_000  # draws per test
DETECTABLE = 1.10  # the scale fault every test must see
CELLS = 40  # cells per chi-square test, at most
CELL = 100  # expected samples per cell, at least


class Law(Protocol):
    """A distribution on the line."""

    def cdf(self, x: Any) -> Any:
        """P(X <= x)."""

    def ppf(self, q: Any) -> Any:
        """The smallest x with P(X <= x) >= q."""


@dataclass(frozen=True)
class Rounded:
    """The nearest integer to a draw of a continuous law."""

    law: Law

    def cdf(self, x: Any) -> Any:
        return self.law.cdf(np.floor(np.asarray(x, float)) + 0.5)

    def ppf(self, q: Any) -> Any:
        return np.ceil(np.asarray(self.law.ppf(q)) - 0.5)


@dataclass(frozen=True, eq=False)
class Table:
    """Values in increasing order and their probabilities."""

    values: np.ndarray
    masses: np.ndarray

    @classmethod
    def of(cls, masses: Mapping[Any, float]) -> Table:
        values = sorted(masses)
        return cls(np.array(values), np.array([masses[value] for value in values]))

    def cdf(self, x: Any) -> Any:
        total = np.concatenate(([0.0], np.cumsum(self.masses)))
        return total[np.searchsorted(self.values, x, side="right")] / total[-1]

    def ppf(self, q: Any) -> Any:
        total = np.cumsum(self.masses)
        at = np.searchsorted(total, np.asarray(q) * total[-1], side="left")
        return self.values[np.minimum(at, len(self.values) - 1)]


def gaussian(sigma: float, centre: float = 0.0) -> Law:
    """The continuous Gaussian."""
    return stats.norm(centre, sigma)


def gaussian_sum(n: int, sigma: float) -> Law:
    """The sum of n Gaussians."""
    return stats.norm(0.0, sigma * n**0.5)


def rounded_gaussian(sigma: float, centre: float = 0.0) -> Law:
    """round(centre + sigma G)."""
    return Rounded(stats.norm(centre, sigma))


def rounded_laplace(scale: float, centre: float = 0.0) -> Law:
    """round(centre + Laplace(scale))."""
    return Rounded(stats.laplace(centre, scale))


def discrete_gaussian(sigma: float, centre: float = 0.0) -> Law:
    """Masses proportional to exp(-(k - centre)^2 / (2 sigma^2)) on the integers."""
    reach = int(np.ceil(12 * sigma)) + 2
    values = np.arange(round(centre) - reach, round(centre) + reach + 1)
    masses = np.exp(-((values - centre) ** 2) / (2 * sigma**2))
    return Table(values, masses / masses.sum())


def discrete_laplace(scale: float) -> Law:
    """Masses proportional to exp(-|k| / scale) on the integers."""
    return stats.dlaplace(1 / scale)


def p_value(samples: Any, law: Law) -> float:
    """Chi-square p-value of `samples` against `law`; 0 if a sample is impossible under it."""
    flat = np.ravel(np.asarray(samples))
    if len(flat) < 2 * CELL:
        raise ValueError(f"a fit test needs at least {2 * CELL} samples, not {len(flat)}")
    cells = int(min(CELLS, len(flat) // CELL))
    edges = np.unique(law.ppf(np.arange(1, cells) / cells))
    masses = np.diff(np.concatenate(([0.0], law.cdf(edges), [1.0])))
    counts = np.bincount(np.searchsorted(edges, flat, side="left"), minlength=len(masses))
    if np.any(counts[masses <= 0] > 0):
        return 0.0
    expected, seen = merge(masses * len(flat), counts.astype(float))
    if len(expected) == 1:
        raise ValueError("the law has a single cell: a fit test against it cannot fail")
    return float(stats.chi2.sf(np.sum((seen - expected) ** 2 / expected), len(expected) - 1))


def merge(expected: np.ndarray, seen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Joins neighbouring cells until each expects at least CELL samples."""
    joined: list[tuple[float, float]] = []
    open_expected = open_seen = 0.0
    for one, other in zip(expected, seen, strict=True):
        open_expected, open_seen = open_expected + one, open_seen + other
        if open_expected >= CELL:
            joined.append((open_expected, open_seen))
            open_expected = open_seen = 0.0
    last = joined.pop() if joined else (0.0, 0.0)
    joined.append((last[0] + open_expected, last[1] + open_seen))
    return np.array([pair[0] for pair in joined]), np.array([pair[1] for pair in joined])


def assert_fits(samples: Any, law: Law, alpha: float = ALPHA) -> None:
    """Fails if samples of `law` would look like this with probability below alpha."""
    p = p_value(samples, law)
    assert p >= alpha, f"samples do not fit their law: p = {p:.3g} < {alpha:g}"


def assert_rejects(samples: Any, law: Law, alpha: float = ALPHA) -> None:
    """Fails unless the samples are seen not to come from `law`."""
    p = p_value(samples, law)
    assert p < alpha, f"the test has no power: p = {p:.3g} >= {alpha:g} for a wrong law"


def rate_p_value(successes: int, trials: int, probability: float) -> float:
    """Exact two-sided binomial p-value."""
    return float(stats.binomtest(int(successes), int(trials), probability).pvalue)


def assert_rate(successes: int, trials: int, probability: float, alpha: float = ALPHA) -> None:
    """Fails if `trials` independent coins of this probability would show it with chance < alpha."""
    p = rate_p_value(successes, trials, probability)
    assert p >= alpha, f"{successes} of {trials} is not a rate of {probability}: p = {p:.3g}"


def assert_rejects_rate(
    successes: int, trials: int, probability: float, alpha: float = ALPHA
) -> None:
    """Fails unless the count is seen not to have this rate."""
    p = rate_p_value(successes, trials, probability)
    assert p < alpha, f"the test has no power: p = {p:.3g} >= {alpha:g} for a wrong rate"


def same_law_p_value(first: Any, second: Any) -> float:
    """Chi-square p-value that two samples come from one law (values are categories in order)."""
    first, second = np.ravel(first), np.ravel(second)
    values = np.unique(np.concatenate([first, second]))
    counts = np.array(
        [
            np.bincount(np.searchsorted(values, part), minlength=len(values))
            for part in (first, second)
        ],
        float,
    )
    pooled = counts.sum(axis=0)
    table = np.array([merge(pooled / 2, row)[1] for row in counts])
    if table.shape[1] < 2:
        raise ValueError("one cell only: the comparison cannot fail")
    return float(stats.chi2_contingency(table, correction=False).pvalue)


def assert_same_law(first: Any, second: Any, alpha: float = ALPHA) -> None:
    """Fails if two samples of one law would differ this much with probability below alpha."""
    p = same_law_p_value(first, second)
    assert p >= alpha, f"the two samples differ in law: p = {p:.3g} < {alpha:g}"


def assert_different_law(first: Any, second: Any, alpha: float = ALPHA) -> None:
    """Fails unless the two samples are seen to differ in law."""
    p = same_law_p_value(first, second)
    assert p < alpha, f"the test has no power: p = {p:.3g} >= {alpha:g} for different laws"
