"""Throughput as ratios of CPU time inside one process, with room for a busy machine."""

import time

import numpy as np
import pytest

from benchmarks.plain_sketches import CountMin, PunctualSketch
from streamveil.core.accounting import Budget, Neighbours
from streamveil.core.noise import SeededNoise
from streamveil.sketches import LazySketch

LENGTH = 2**19
KEYS = (np.random.default_rng(0).zipf(1.3, LENGTH) % 2**32).astype(np.uint32)
FIELDS = dict(kind="count-min", horizon=LENGTH, protects=Neighbours(relation="event-change"),
              budget=Budget(epsilon=0.3, delta=1e-6))  # fmt: skip


def cpu(task, keys):
    """Smallest CPU time per key of several runs."""
    best = np.inf
    for _ in range(9):
        start = time.thread_time()
        task(keys)
        best = min(best, (time.thread_time() - start) / len(keys))
    return best


@pytest.mark.slow
def test_noise_costs_little_at_sixteen_arrivals_a_column_and_punctual_costs_a_thousand_times_more():
    floor = CountMin(width=2000)
    lazy = LazySketch(width=800, round=16 * 800, block=800, **FIELDS)
    punctual = PunctualSketch(width=33, **FIELDS)
    counting = cpu(floor.update, KEYS)
    ours = cpu(lambda keys: lazy.open(SeededNoise(1)).update(keys), KEYS)
    every = cpu(lambda keys: punctual.open(SeededNoise(1)).update(keys), KEYS[: 2**11])
    assert ours < counting / 0.6
    assert every > 100 * ours
