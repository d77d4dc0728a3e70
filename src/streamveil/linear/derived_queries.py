"""Answers that are sums of other answers, and the strategy with the least error."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from streamveil.linear.budget_shares import Kind
from streamveil.linear.queries import Queries
from streamveil.linear.strategies import Direct, Points, Residuals, Strategy
from streamveil.linear.structured import Marginals
from streamveil.linear.sums import Sums
from streamveil.types import Array, Float64, Int64

ENTRIES = 1 << 24  # of the matrix from measured rows to answers


@dataclass(frozen=True, eq=False)
class Through:
    """Measure the interactions of the marginals whose cells the queries add up.

    The scales are those that are best for the marginals; the error is the exact one of the sums.

    >>> old = np.array([0, 0, 1, 0, 0, 1], bool)
    >>> through = Through(Sums.of((2, 3), [((0,), old)]))
    >>> through.recover(through.measure(np.array([1, 2, 3, 4, 5, 6])).astype(float)).round(9)
    array([3., 6.])
    """

    queries: Sums  # the class that is answered
    single: bool = False  # whether the noise of one answer is a single draw

    @cached_property
    def base(self) -> Residuals:
        """What is measured."""
        return Residuals(self.queries.cells)

    @property
    def rows(self) -> int:
        """See `Strategy`."""
        return self.base.rows

    def measure(self, histogram: Int64[Array, " N"]) -> Int64[Array, " rows"]:
        """See `Strategy`."""
        return self.base.measure(histogram)

    def recover(self, measured: Float64[Array, " rows"]) -> Float64[Array, " k"]:
        """See `Strategy`."""
        return np.asarray(self.queries.matrix @ self.base.recover(measured))

    def scales(self, kind: Kind) -> Float64[Array, " rows"]:
        """See `Strategy`."""
        return self.base.scales(kind)

    def unit(self, kind: Kind) -> float:
        """See `Strategy`."""
        return float(self.units(kind).max())

    def units(self, kind: Kind) -> Float64[Array, " k"]:
        """See `Strategy`."""
        return np.asarray(np.sqrt((self._recovery**2) @ self.scales(kind) ** 2))

    @cached_property
    def _recovery(self) -> Array:
        columns = (self.recover(unit) for unit in np.eye(self.rows))
        return np.stack(list(columns), axis=1)


def best_strategy(queries: Queries, kind: Kind) -> Strategy:
    """The strategy with the least error of the worst answer: direct, points, or residuals.

    Args:
        queries: the class that is answered.
        kind: the currency of the budget: 'pure', 'zcdp' or 'gdp'.

    >>> type(best_strategy(Marginals.ways((2, 2, 2), 2), "zcdp")).__name__
    'Residuals'
    """
    known: list[Strategy] = [Direct(queries)]
    if queries.domain <= 1 << 20:
        known.append(Points(queries))
    if isinstance(queries, Marginals):
        known.append(Residuals(queries))
    if isinstance(queries, Sums):
        through = Through(queries)
        if through.rows * max(queries.size, through.rows) <= ENTRIES:
            known.append(through)
    return min(known, key=lambda strategy: strategy.unit(kind))
