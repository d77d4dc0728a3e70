"""Dense encoders and decoders, built from definitions and never from the code under test."""

from __future__ import annotations

from functools import singledispatch

import numpy as np

from streamveil.counters import (
    AnytimeBltCounter,
    BltCounter,
    Counter,
    HonakerCounter,
    KaryTreeCounter,
)


@singledispatch
def factors(counter: Counter, horizon: int) -> tuple[np.ndarray, np.ndarray]:
    """(B, C) of the first `horizon` steps: B C = running sums, noise of scale sigma between."""
    raise NotImplementedError(type(counter).__name__)


def lower_toeplitz(coefficients: np.ndarray) -> np.ndarray:
    n = len(coefficients)
    i, j = np.indices((n, n))
    return np.where(i >= j, coefficients[np.abs(i - j)], 0.0)


def inverse_series(coefficients: np.ndarray) -> np.ndarray:
    inverse = np.zeros(len(coefficients))
    inverse[0] = 1 / coefficients[0]
    for k in range(1, len(coefficients)):
        inverse[k] = -inverse[0] * np.dot(coefficients[1 : k + 1], inverse[:k][::-1])
    return inverse


def feedback_factors(c: np.ndarray, scales: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    n = len(c)
    decoder = np.tril(np.ones((n, n))) @ np.diag(scales) @ lower_toeplitz(inverse_series(c))
    encoder = lower_toeplitz(c) @ np.diag(1 / scales)
    return decoder, encoder


@factors.register
def _(counter: BltCounter, horizon: int) -> tuple[np.ndarray, np.ndarray]:
    c = counter.blt.encoder(horizon)
    return feedback_factors(c, counter.schedule.scales(1, horizon))


def tree_nodes(horizon: int, levels: int) -> list[tuple[int, int]]:
    """(start, length) of every block of at most `levels` levels that completes in time."""
    return [
        (start, 2**level)
        for level in range(levels)
        for start in range(0, horizon - 2**level + 1, 2**level)
    ]


def node_matrix(nodes: list[tuple[int, int]], horizon: int) -> np.ndarray:
    rows = np.zeros((len(nodes), horizon))
    for row, (start, length) in zip(rows, nodes, strict=True):
        row[start : start + length] = 1
    return rows


@factors.register
def _(counter: HonakerCounter, horizon: int) -> tuple[np.ndarray, np.ndarray]:
    """Best linear unbiased estimator from the nodes completed by t, by least squares."""
    nodes = tree_nodes(horizon, counter.levels)
    encoder = node_matrix(nodes, horizon)
    decoder = np.zeros((horizon, len(nodes)))
    for t in range(1, horizon + 1):
        done = np.array([start + length <= t for start, length in nodes])
        decoder[t - 1, done] = np.linalg.pinv(encoder[done, :t]).sum(axis=0)
    return decoder, encoder


@factors.register
def _(counter: AnytimeBltCounter, horizon: int) -> tuple[np.ndarray, np.ndarray]:
    return feedback_factors(counter.inner.blt.encoder(horizon), np.ones(horizon))


@factors.register
def _(counter: KaryTreeCounter, horizon: int) -> tuple[np.ndarray, np.ndarray]:
    """Prefixes by exhaustive descent: at each level the nearest block boundary is approached."""
    k, levels = counter.arity, counter.levels
    used: dict[tuple[int, int], int] = {}
    entries = []
    for t in range(1, horizon + 1):
        position = 0
        for level in reversed(range(levels)):
            length = k**level
            # lower levels reach at most (length - 1) / 2 either way
            while abs(t - position) > (length - 1) // 2:
                forward = t > position
                start = position if forward else position - length
                column = used.setdefault((level, start), len(used))
                entries.append((t - 1, column, 1 if forward else -1))
                position += length if forward else -length
        assert position == t
    decoder, encoder = np.zeros((horizon, len(used))), np.zeros((len(used), horizon))
    for row, column, sign in entries:
        decoder[row, column] = sign
    for (level, start), column in used.items():
        encoder[column, start : start + k**level] = 1
    return decoder, encoder
