"""The 32-bit loops of a push against the general ones, at the edges of their range."""

import numpy as np
import pytest

from streamveil.core.accounting import Budget, Neighbours
from streamveil.core.counters import cell_kernels as kernels
from streamveil.core.counters.cells import FITS, LONGEST, CellCounter
from streamveil.sketches import LazySketch

LARGEST = int(kernels.LARGEST_SMALL)


def table_of(pushes, epsilon):
    return LazySketch(kind="count-min", width=8, horizon=16 * pushes, round=16, block=8,
                      protects=Neighbours(relation="event"),
                      budget=Budget(epsilon=epsilon, delta=1e-6)).table  # fmt: skip


@pytest.mark.parametrize("pushes", list(FITS))
@pytest.mark.parametrize("epsilon", [0.01, 1, 8])
def test_small_and_general_buffers_are_the_same(pushes, epsilon):
    table = table_of(pushes, epsilon)
    law = table.law
    assert law.decay == round((1 - law.theta[0]) * 2**32)
    rng = np.random.default_rng(pushes)
    edges = np.array([-LARGEST, LARGEST, 1 - LARGEST, LARGEST - 1, 0, 1, -1], np.int32)
    buffer = np.concatenate([edges, rng.integers(-LARGEST, LARGEST, 993).astype(np.int32)])
    largest = int(9.5 * table.sigma + law.omega[0] * LARGEST)  # what a draw about a buffer can be
    noise = rng.integers(-largest, largest, 1000, endpoint=True).astype(np.int32)
    noise[:7] = [-largest, largest, largest, -largest, largest, -largest, largest]
    pending = rng.integers(-100, 100, 1000).astype(np.int16)
    shown = rng.integers(-1000, 1000, 1000).astype(np.int32)
    general = buffer.copy(), pending.copy(), shown.copy()
    kernels.next_buffer(general[0], noise, law.theta[0], law.unit, law.limit)
    kernels.show(general[2], general[1], noise)
    kernels.finish(shown, pending, buffer, noise, np.int32(law.decay), np.int32(law.bits))
    assert buffer.tolist() == general[0].tolist()
    assert shown.tolist() == general[2].tolist()
    assert not pending.any()
    assert not general[1].any()


def test_buffers_without_a_horizon_take_the_general_loop():
    table = LazySketch(kind="count-min", width=8, horizon=None, round=16,
                       protects=Neighbours(relation="event"),
                       budget=Budget(epsilon=1, delta=1e-6)).table  # fmt: skip
    assert table.law.decay == 0
    counter = CellCounter("blt-1", None)
    omega, theta = (float(value[0]) for value in counter.coefficients)
    two_units_a_step = 2 * np.sqrt(LONGEST) * omega / (1 - theta)
    assert two_units_a_step < counter.rounding_norm(1) < 1.001 * two_units_a_step
