"""Noise on measured numbers: query sets, noisy histograms, the matrix mechanism."""

from __future__ import annotations

import math
from dataclasses import dataclass

from streamveil.core.accounting import Neighbours
from streamveil.core.measure import rows_with_noise
from streamveil.core.noise import Place
from streamveil.core.noisy import post_process, public
from streamveil.errors import require_flag
from streamveil.linear.budget_shares import Kind, Share, require_share
from streamveil.linear.protocol import NoiseBound, QueryAnswers
from streamveil.linear.queries import Queries, check_histogram, require_queries
from streamveil.linear.strategies import Direct, Points, Strategy
from streamveil.types import Array, Float64, Int64


@dataclass(frozen=True)
class Additive:
    """Every measured row plus noise: unbiased, with an error that does not grow with the data.

    Algorithm: the Laplace mechanism (Dwork et al. 2006) on a pure share, the Gaussian mechanism on
        a zCDP share, on the rows of a `Strategy`; with a strategy other than the queries themselves
        this is the matrix mechanism (Li et al. 2015).
    Protects: tables that differ in one record present or absent; with `replaced`, in one record
        replaced by another, which moves every row by at most twice, the measured vector by at most
        2 in L1 and in L2 (sqrt 2 where no row has weights of both signs).
    Guarantee: the share: epsilon = L1 / scale, rho = L2^2 / (2 sigma^2).
    Error: deviation `strategy.unit` times the noise scale, for the worst answer.
    Numerics: measured rows are integers; noise is the rounding of a continuous law about an
        integer, so it is post-processing of the continuous mechanism.

    Raises:
        PlanError: the histogram is not of whole records, one count for each point of the domain.

    >>> import numpy as np
    >>> from streamveil.linear import Direct, Marginals
    >>> from streamveil.core.noise import SilentNoise
    >>> sums = Additive(Direct(Marginals((2, 2), ((0,),))))
    >>> sums.release(np.array([1, 2, 3, 4]), Share("pure", 1), Place(SilentNoise(), "doc")).values
    array([3., 7.])
    """

    strategy: Strategy
    replaced: bool = False

    @property
    def queries(self) -> Queries:
        """See `StaticMechanism`."""
        return self.strategy.queries

    @property
    def adaptive(self) -> bool:
        """See `StaticMechanism`."""
        return False

    def covers(self, protects: Neighbours) -> bool:
        """See `StaticMechanism`. Noise for a replaced record is enough for one that is added."""
        return self.replaced or protects.verb != "replacing"

    def sensitivity(self, kind: Kind) -> float:
        """How far one change moves the measured vector, in the strategy's own units.

        Args:
            kind: law of the noise: 'pure' (Laplace), 'zcdp' or 'gdp' (Gaussian).
        """
        if not self.replaced:
            return 1.0
        positive = isinstance(self.strategy, Direct | Points)
        return math.sqrt(2) * (1 + 1e-12) if kind != "pure" and positive else 2.0

    @property
    def error(self) -> NoiseBound:
        """See `StaticMechanism`. The larger bound of both kinds, which differ only in the unit."""
        return NoiseBound(
            {kind: self.strategy.unit(kind) * self.sensitivity(kind) for kind in KINDS},
            {
                kind: float(self.strategy.scales(kind).min()) * self.sensitivity(kind)
                for kind in KINDS
            },
            self.queries.size,
            self.strategy.single,
        )

    def scales(self, share: Share) -> Float64[Array, " rows"]:
        """The noise scale of each row, rounded up.

        Args:
            share: part of a budget (`Share`) that it may spend, above 0.
        """
        base = float(share.spread(1, 1)) * self.sensitivity(share.kind) * (1 + 1e-12)
        return base * self.strategy.scales(share.kind)

    def release(
        self,
        histogram: Int64[Array, " N"],
        share: Share,
        place: Place,
        size_hat: float | None = None,
    ) -> QueryAnswers:
        """See `StaticMechanism`."""
        histogram = check_histogram(self.queries, histogram)
        require_share(share)
        exact = self.strategy.measure(histogram)
        laplace = share.kind == "pure"
        measured = rows_with_noise(exact, self.scales(share), place.draws(b"rows"), laplace=laplace)
        found = post_process(type(self.strategy).recover, public(self.strategy), measured)
        return QueryAnswers(found, measured if isinstance(self.strategy, Points) else None)


KINDS: tuple[Kind, ...] = ("pure", "zcdp", "gdp")


def grain(scales: Float64[Array, " rows"], kind: Kind) -> float:
    """The largest factor by which rounding to integers increases the deviation of any row.

    Gaussians are rounded about real centres: with noise far below half an integer, only the
    distance of the centre to the next integer remains.
    """
    least = float(scales.min()) ** 2 * (2 if kind == "pure" else 1)
    coarse = kind != "pure" and least < 1 / 4
    return math.sqrt(1 + (1 / 4 if coarse else 1 / 12) / least)


def noisy_queries(queries: Queries, *, replaced: bool = False) -> Additive:
    """Noise on every answer: Laplace query sets on a pure share, Gaussian ones on a zCDP share.

    Args:
        queries: the class that is answered.
        replaced: neighbours replace a record instead of adding or removing one.

    Raises:
        PlanError: `queries` is no class of queries, or `replaced` is neither True nor False.
        PlanError: a histogram is not one whole number for each point of the domain.

    >>> from streamveil.linear import Marginals
    >>> noisy_queries(Marginals.ways((2, 2), 1)).strategy.queries.size
    4
    """
    require_flag(replaced=replaced)
    require_queries(queries)
    return Additive(Direct(queries), replaced)


def noisy_histogram(queries: Queries, *, replaced: bool = False) -> Additive:
    """Noise on every point of the domain; answers any linear query.

    Args:
        queries: the class that is answered.
        replaced: neighbours replace a record instead of adding or removing one.

    Raises:
        PlanError: `queries` is no class of queries, or `replaced` is neither True nor False.
        PlanError: a histogram is not one whole number for each point of the domain.

    >>> from streamveil.linear import Marginals
    >>> noisy_histogram(Marginals.ways((2, 2), 1)).strategy.queries.domain
    4
    """
    require_flag(replaced=replaced)
    require_queries(queries)
    return Additive(Points(queries), replaced)
