"""Update streams for the experiments on changing tables: drifting mixtures with a set size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from streamveil.dynamic import Changes
from streamveil.linear import Queries


@dataclass
class Stream:
    """Changes of every step, and what is true after it."""

    changes: list[Changes]
    truth: list[np.ndarray]  # answers to all queries
    sizes: list[int]
    domain: int

    @property
    def updates(self) -> int:
        return sum(change.updates for change in self.changes)


def mixture(rng: np.random.Generator, bits: int, parts: int = 4) -> Callable[..., np.ndarray]:
    """Labels of records born at a step: products of coins that drift at their own speeds."""
    phase = rng.uniform(0, 2 * np.pi, (parts, bits))
    speed = rng.uniform(0.005, 0.04, (parts, bits))
    shift = 1 << np.arange(bits)[::-1]

    def born(step: int, n: int) -> np.ndarray:
        chance = 0.5 + 0.45 * np.sin(phase + speed * step)
        which = rng.integers(0, parts, n)
        return (rng.random((n, bits)) < chance[which]) @ shift

    return born


def drifting(
    seed: int, queries: Queries, bits: int, sizes: list[int], churn: float = 0.25
) -> Stream:
    """`sizes[q]` records are there after step q; a part `churn` of the smaller size is replaced."""
    rng = np.random.default_rng(seed)
    born_at = mixture(rng, bits)
    labels, births = np.zeros(0, np.int64), np.zeros(0, np.int64)
    changes, truth = [], []
    histogram = np.zeros(1 << bits, np.int64)
    for step, size in enumerate(sizes, start=1):
        replaced = int(churn * min(size, len(labels)))
        leaving = min(len(labels), max(len(labels) - size, 0) + replaced)
        gone = rng.choice(len(labels), leaving, replace=False)
        fresh = born_at(step, size - len(labels) + leaving)
        changes.append(Changes(fresh, labels[gone], births[gone], len(fresh) + leaving))
        np.add.at(histogram, fresh, 1)
        np.subtract.at(histogram, labels[gone], 1)
        kept = np.ones(len(labels), bool)
        kept[gone] = False
        labels = np.concatenate([labels[kept], fresh])
        births = np.concatenate([births[kept], np.full(len(fresh), step)])
        truth.append(np.ldexp(queries.exact(histogram).astype(float), -queries.shift))
    return Stream(changes, truth, list(sizes), 1 << bits)
