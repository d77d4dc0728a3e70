"""How far one person who takes part several times can move a counter.

`moved` of `Counter.loss` and `fit` is what these functions return: the norm of the encoder's move,
over all keys, in units of `sensitivity`. Without anything said about time it is sqrt(C c) or less;
rows of one person that are at least `gap` steps apart within a key move it less.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import singledispatch
from math import ceil, sqrt

import numpy as np

from streamveil.core.counters import UP, Counter
from streamveil.core.counters.anytime import AnytimeBltCounter
from streamveil.core.counters.blt import BltCounter
from streamveil.counters.haar import HaarCounter, column_weights
from streamveil.counters.tree import HonakerCounter
from streamveil.types import Array, Float64

LARGEST_TABLE = 10**7  # entries of the allocation table; beyond, its linear bound is used
LONGEST = 2**22  # coefficients summed for a gap; beyond, rows are taken to coincide


@dataclass(frozen=True, kw_only=True)
class Participation:
    """At most `rows` rows of one person, at most `per_key` per key, `gap` steps apart in a key.

    A gap of 0 lets all rows of a key fall into one step.

    Raises:
        ValueError: not 1 <= per_key <= rows, or a gap below 0.

    >>> daily = Participation(rows=30, per_key=10, gap=24)
    >>> daily.most(horizon=100)
    5
    """

    rows: int  # rows of one person over all keys, >= 1
    per_key: int  # rows of one person in one key, 1 to rows
    gap: int = 0  # steps between two of them in a key, >= 0

    def __post_init__(self) -> None:
        if not 1 <= self.per_key <= self.rows:
            raise ValueError(f"per_key must be between 1 and rows, not {self.per_key}")
        if self.gap < 0:
            raise ValueError(f"gap must be at least 0 steps, not {self.gap}")

    def most(self, horizon: int) -> int:
        """Rows of one key that fit into the horizon."""
        return min(self.per_key, 1 + (horizon - 1) // self.gap) if self.gap else self.per_key


def moved_by(counter: Counter, person: Participation) -> float:
    """A bound on the move of all counters together, rounded up; pass it to `loss` or `fit`.

    Proof: rows that move a key by at most 1 each move its encoder by a sum of columns with weights
        in [-1, 1]; `squared_norms` bounds its squared norm by n(k) for k rows. Keys have noise of
        their own, so squares add up, and the worst person spreads `rows` rows over keys, at most
        `per_key` each: the table below maximises sum n(k_i) with sum k_i <= rows. Laplace counters
        are bounded in L1, where every row counts in full.

    >>> counter = BltCounter(horizon=1000, sigma=1)
    >>> moved_by(counter, Participation(rows=8, per_key=2))
    4.00000000000004
    >>> round(moved_by(counter, Participation(rows=8, per_key=2, gap=100)), 3)
    3.285
    """
    if counter.loss().pure:
        return float(person.rows)
    most = person.most(counter.horizon)
    norms = squared_norms(counter, most, person.gap)
    return sqrt(best_allocation(norms, person.rows)) * UP


def best_allocation(norms: Float64[Array, " most+1"], rows: int) -> float:
    """The largest sum of norms[k_i] with sum k_i <= rows; norms[0] = 0."""
    most = len(norms) - 1
    if rows * most > LARGEST_TABLE:  # every k_i rows bring at most the best rate per row
        return float(rows * (norms[1:] / np.arange(1, most + 1)).max())
    best = np.zeros(rows + 1)
    for n in range(1, rows + 1):
        k = min(n, most)
        best[n] = (norms[1 : k + 1] + best[n - k : n][::-1]).max()
    return float(best[rows])


def squared_norms(counter: Counter, most: int, gap: int) -> Float64[Array, " most+1"]:
    """Squared norms of 0..most rows of one key, `gap` steps apart, in units of one row's."""
    counts = np.arange(most + 1)
    together = counts.astype(float) ** 2  # the triangle inequality: all in one step
    if gap == 0 or most < 2:
        return together
    return np.asarray(np.minimum(together, spread_norms(counter, counts, gap)))


@singledispatch
def spread_norms(counter: Counter, counts: Array, gap: int) -> Float64[Array, " counts"]:
    """Counters without a special bound: rows count in full wherever they are."""
    return counts.astype(float) ** 2


@spread_norms.register
def _(counter: BltCounter, counts: Array, gap: int) -> Array:
    scheduled = counter.weighting == "columns"
    if counter.horizon > LONGEST:
        return counts.astype(float) ** 2
    return toeplitz_norms(counter.blt.encoder(counter.horizon), counts, gap, scheduled=scheduled)


@spread_norms.register
def _(counter: AnytimeBltCounter, counts: Array, gap: int) -> Array:
    c = counter.inner.blt.encoder(min(LONGEST, 16 * counter.tuned))
    square, seen = counter.sensitivity**2, float((c**2).sum())
    # what lies beyond the coefficients summed is added by the triangle inequality
    near = np.sqrt(toeplitz_norms(c, counts, gap, scheduled=False) * seen)
    return np.asarray((near + counts * np.sqrt(max(square - seen, 0.0))) ** 2 / square)


def toeplitz_norms(
    c: Float64[Array, " n"], counts: Array, gap: int, *, scheduled: bool
) -> Float64[Array, " counts"]:
    """For an encoder with coefficients c >= 0 that never grow, with or without equal columns.

    Proof: let P_m(n) = sum_(r < n) c_r c_(r+m). Columns m apart, the later with n rows left, have
        the product P_m(n) without and P_m(n) S_T / sqrt(S_n S_(n+m)) with equal columns. Both fall
        with m (c falls, S grows). Products are not negative, so weights 1 are the worst. Without
        column scales P also grows with n, so steps 1, 1 + gap, 1 + 2 gap .. are the worst for every
        pair at once: the bound is the norm of their sum, and attained. With equal columns, rows l
        places apart in a person's list are at least l * gap steps apart and have a product of at
        most rho(l gap) = its maximum over n: k rho(0) + 2 sum_(l < k) (k - l) rho(l gap).
    """
    if np.any(np.diff(c) > 1e-12) or np.any(c < 0):
        return counts.astype(float) ** 2
    if scheduled:
        return _scheduled_norms(c, counts, gap)
    total, norms = np.zeros(len(c)), np.zeros(len(counts))
    for k in range(1, len(counts)):
        start = (k - 1) * gap
        total[start:] += c[: max(0, len(c) - start)]
        norms[k] = (total**2).sum()
    return np.asarray(norms / (c**2).sum()) * UP


def _scheduled_norms(c: Float64[Array, " n"], counts: Array, gap: int) -> Array:
    squares = np.cumsum(c**2)
    rho = np.zeros(len(counts))
    for i in range(1, len(counts)):
        distance = i * gap
        if distance >= len(c):
            break
        product = np.cumsum(c[: len(c) - distance] * c[distance:])
        rho[i] = (product / np.sqrt(squares[: len(product)] * squares[distance:])).max() * UP
    # sum_(l < k) (k - l) rho_l for every k: sums of sums
    pairs = np.concatenate([[0.0, 0.0], np.cumsum(np.cumsum(rho[1:]))])[: len(counts)]
    return np.asarray(counts + 2 * pairs)


@spread_norms.register
def _(counter: HonakerCounter, counts: Array, gap: int) -> Array:
    return block_norms([1.0] * counter.levels, [2**i for i in range(counter.levels)], counts, gap)


@spread_norms.register
def _(counter: HaarCounter, counts: Array, gap: int) -> Array:
    entries = [w * c for w, c in zip(counter.weights, column_weights(counter.levels), strict=True)]
    lengths = [2**counter.levels] + [2**level for level in range(1, counter.levels + 1)]
    return block_norms(entries, lengths, counts, gap)


def block_norms(
    entries: list[float], lengths: list[int], counts: Array, gap: int
) -> Float64[Array, " counts"]:
    """For encoders whose rows are blocks of one length per level with entries of one size.

    Proof: a block of length b holds at most m = ceil(b / gap) rows; level by level the squared sums
        are at most sum over blocks of (rows in it)^2 <= k min(k, m).
    """
    total = np.zeros(len(counts))
    for entry, length in zip(entries, lengths, strict=True):
        total += entry * counts * np.minimum(counts, ceil(length / gap))
    return np.asarray(total / sum(entries)) * UP
