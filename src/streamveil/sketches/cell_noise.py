"""The size of the noise in the cells of a sketch. No guarantee depends on it."""

from __future__ import annotations

from functools import lru_cache
from math import sqrt

import numpy as np

from streamveil.core.counters.cells import DESIGN, CellCounter
from streamveil.types import Array, Float64, Int64


def row_norm(
    counter: CellCounter, push: Int64[Array, " pushes"] | int
) -> Float64[Array, " pushes"]:
    """||B_k||: standard deviation shown at push k (0: none yet) for noise of scale 1."""
    k = np.atleast_1d(np.asarray(push, np.int64))
    if not counter.is_tree:
        return blt_row_norms(counter.name, counter.pushes, _grown(int(k.max(initial=0))))[k]
    if counter.pushes is not None:
        return np.sqrt(np.bitwise_count(k.astype(np.uint64)).astype(np.float64))
    return np.array([_epoch_norm(int(one)) for one in k])


def _epoch_norm(k: int) -> float:
    """The norm of an unbounded tree: totals of the finished epochs, and nodes of the open one."""
    if k == 0:
        return 0.0
    epoch = k.bit_length() - 1
    finished = sum(e + 1 for e in range(epoch))
    local = k - (1 << epoch) + 1
    return sqrt(finished + local.bit_count() * (epoch + 1))


def buffer_norm(counter: CellCounter) -> float:
    """Largest standard deviation of a buffer for noise of scale 1 (tree: of a total)."""
    if counter.is_tree:
        return sqrt(counter.levels)
    size = min(_grown(counter.pushes or DESIGN * 64), 2**16)
    omega, theta = counter.coefficients
    impulse = np.zeros(size)
    impulse[0] = 1
    numerator, denominator = polynomials(omega, theta)
    from scipy.signal import lfilter  # slow to load

    inverse = lfilter(denominator, numerator, impulse)
    return max(float(np.linalg.norm(lfilter([1.0], [1.0, -t], inverse))) for t in theta)


def polynomials(
    omega: Float64[Array, " buffers"], theta: Float64[Array, " buffers"]
) -> tuple[Float64[Array, " terms"], Float64[Array, " terms"]]:
    """C as a rational function: numerator and denominator in powers of the delay."""
    denominator = np.ones(1)
    for t in theta:
        denominator = np.convolve(denominator, [1.0, -t])
    numerator = denominator.copy()
    for i, w in enumerate(omega):
        rest = np.ones(1)
        for j, t in enumerate(theta):
            if j != i:
                rest = np.convolve(rest, [1.0, -t])
        numerator[1 : 1 + len(rest)] += w * rest
    return numerator, denominator


@lru_cache(maxsize=64)
def blt_row_norms(name: str, pushes: int | None, size: int) -> Float64[Array, " size_plus_1"]:
    """||B_k|| for k = 0..size."""
    omega, theta = CellCounter(name, pushes).coefficients
    impulse = np.zeros(size)
    impulse[0] = 1
    numerator, denominator = polynomials(omega, theta)
    from scipy.signal import lfilter  # slow to load

    inverse = lfilter(denominator, numerator, impulse)
    return np.asarray(np.sqrt(np.concatenate([[0.0], np.cumsum(np.cumsum(inverse) ** 2)])))


def _grown(size: int) -> int:
    """The next power of two, so that few sizes are ever computed."""
    return 1 << max(size, 1).bit_length()
