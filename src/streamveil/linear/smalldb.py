"""The best small table that explains all answers: an illustration for tiny domains."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from streamveil.core.noise.keyed import Place
from streamveil.core.noisy import restored, values
from streamveil.errors import require_positive
from streamveil.linear.budget_shares import Share, on_lattice
from streamveil.linear.protocol import PowerBound, QueryAnswers, sized
from streamveil.linear.queries import Queries, check_histogram
from streamveil.types import Array, Exact, Float64, Int64

CANDIDATES = 10**6


@dataclass(frozen=True, kw_only=True)
class SmallDb:
    """Chooses among all tables of `records` records by the exponential mechanism.

    Algorithm: SmallDB (Blum, Ligett & Roth 2008, arXiv:1109.2229); score: minus the largest error
        of the candidate, scaled up to the number of records, over all queries.
    Protects: one record present or absent; replaced, when `size_hat` is public.
    Guarantee: the share: one choice of sensitivity 1 (and the size, when it must be bought).
    Error: some table of m records is within sqrt(ln(2k) / 2m) of the data; the choice is within
        (2 / epsilon) (ln candidates + ln(1 / beta)) of the best.
    Memory: candidates times N; more than a million candidates are refused.

    Raises:
        ValueError: there are too many candidate tables.
        ValueError: the histogram is not of whole records, one count for each point of the domain.

    >>> from streamveil.linear import Marginals
    >>> SmallDb(queries=Marginals.ways((2, 2), 1), records=4).candidates
    35
    """

    queries: Queries  # the class that is answered
    records: int = 8  # of a candidate table, >= 1
    size_share: Exact = Fraction(1, 20)  # of the share, for the number of records, in (0, 1)

    def __post_init__(self) -> None:
        require_positive(records=self.records)
        if self.candidates > CANDIDATES:
            raise ValueError(
                f"{self.candidates} tables of {self.records} records over {self.queries.domain} "
                f"points; at most {CANDIDATES}: SmallDB is for tiny domains, use Mwem"
            )

    @property
    def candidates(self) -> int:
        """The number of tables."""
        return math.comb(self.queries.domain + self.records - 1, self.records)

    @property
    def adaptive(self) -> bool:
        """See `StaticMechanism`."""
        return True

    @property
    def error(self) -> PowerBound:
        """See `StaticMechanism`."""
        return PowerBound(self._bound, self._useful_size)

    def _bound(self, share: Share, size: float, beta: float) -> float:
        fit = size * math.sqrt(math.log(2 * self.queries.size) / (2 * self.records))
        choice = math.log(self.candidates) + math.log(1 / beta)
        return fit + 2 / float(share.choice_epsilon) * choice

    def _useful_size(self, share: Share) -> float:
        return 8 * math.log(self.candidates) / float(share.choice_epsilon)

    def _tables(self) -> Float64[Array, "candidates N"]:
        rows = itertools.combinations_with_replacement(range(self.queries.domain), self.records)
        points = np.fromiter(
            itertools.chain.from_iterable(rows), np.int64, self.candidates * self.records
        ).reshape(-1, self.records)
        out = np.zeros((len(points), self.queries.domain))
        np.add.at(out, (np.arange(len(points))[:, None], points), 1.0)
        return out

    def release(
        self,
        histogram: Int64[Array, " N"],
        share: Share,
        place: Place,
        size_hat: float | None = None,
    ) -> QueryAnswers:
        """See `StaticMechanism`."""
        check_histogram(self.queries, histogram)
        size, left = sized(histogram, share, self.size_share, place, size_hat)
        size = max(size, 0.0)
        tables = self._tables() * (size / self.records)
        weights = np.stack([self.queries.weights(i) for i in range(self.queries.size)])
        exact = np.ldexp(self.queries.exact(histogram).astype(np.float64), -self.queries.shift)
        scores = -np.abs(on_lattice(tables @ weights.T) - exact).max(axis=1)
        table = tables[values(left.choose(place.draws(b"choice"), scores, 1.0))]
        return QueryAnswers(restored(self.queries.answers(table)), restored(table))
