"""Multiplicative weights in place: only the points that a query counts are touched.

A distribution is kept up to a factor, so the cost of a step is the number of points that the query
counts; for cells of marginals and for boxes the points are a view of the table, without a copy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from streamveil.linear.queries import Queries
from streamveil.linear.structured import Marginals, Ranges
from streamveil.types import Array, Float64

SMALLEST, LARGEST = 1e-100, 1e100  # totals in between need no rescaling
MOST_STEP = 100.0  # of weights in one correction: their exponential stays finite


@dataclass
class Weights:
    """A public distribution over the points of a domain, moved by measured answers.

    >>> both = Marginals((2, 2), ((0,), (1,)))
    >>> weights = Weights.uniform(both)
    >>> weights.move(0, 0.9, 4.0)
    >>> weights.distribution.round(3).tolist()
    [0.416, 0.416, 0.084, 0.084]
    """

    queries: Queries
    table: Float64[Array, " N"]
    total: float
    views: dict[int, Array | None] = field(default_factory=dict)  # of queries that came before

    @classmethod
    def uniform(cls, queries: Queries) -> Weights:
        """The uniform distribution."""
        return cls(queries, np.full(queries.domain, 1 / queries.domain), 1.0)

    @classmethod
    def of(cls, queries: Queries, distribution: Float64[Array, " N"]) -> Weights:
        """A copy of a distribution."""
        return cls(queries, distribution.copy(), float(distribution.sum()))

    @property
    def distribution(self) -> Float64[Array, " N"]:
        """The distribution, with sum one."""
        return np.asarray(self.table / self.table.sum())

    def answers(self) -> Float64[Array, " k"]:
        """The answers of all queries on the distribution."""
        return self.queries.answers(self.table) / self.total

    def move(self, query: int, value: float, step: float) -> None:
        """One step towards a measured answer: y_x <- y_x exp(step (value - f(y)) f_x) / Z."""
        view = self._view(query)
        if view is None:
            direction = self.queries.weights(query)
            self._multiply(direction, step * (value - float(direction @ self.table) / self.total))
        else:
            inside = float(view.sum())
            self._scale(view, inside, step * (value - inside / self.total))

    def move_by(self, query: int, power: float) -> None:
        """y_x <- y_x exp(power f_x) / Z."""
        view = self._view(query)
        if view is None:
            self._multiply(self.queries.weights(query), power)
        else:
            self._scale(view, float(view.sum()), power)

    def _view(self, query: int) -> Array | None:
        if query not in self.views:
            self.views[query] = counted(self.queries, self.table, query)
        return self.views[query]

    def _scale(self, view: Array, inside: float, power: float) -> None:
        factor = math.exp(power)
        view *= factor
        self.total += (factor - 1) * inside
        if not SMALLEST < self.total < LARGEST:
            self.rescale()

    def _multiply(self, direction: Array, power: float) -> None:
        self.table *= np.exp(power * direction)
        self.rescale()

    def rescale(self) -> None:
        """Makes the total one again and removes its rounding errors."""
        self.table /= self.table.sum()
        self.total = 1.0


def counted(queries: Queries, table: Array, query: int) -> Array | None:
    """The points that a query counts, as a view of the table; None if they are no box."""
    if isinstance(queries, Marginals):
        found = dict(zip(*queries.cell(query), strict=True))
        slices = [
            slice(found[a], found[a] + 1) if a in found else slice(None)
            for a in range(len(queries.shape))
        ]
        return np.asarray(table.reshape(queries.shape)[tuple(slices)])
    if isinstance(queries, Ranges):
        pairs = zip(queries.low[query], queries.high[query], strict=True)
        box = tuple(slice(int(low), int(high)) for low, high in pairs)
        return np.asarray(table.reshape(queries.shape)[box])
    return None
