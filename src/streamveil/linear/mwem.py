"""Multiplicative weights with the exponential mechanism: one synthetic histogram for all."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from streamveil.core.accounting import Neighbours, exact_between, take_numbers
from streamveil.core.noise import Place
from streamveil.core.noisy import restored, values
from streamveil.errors import PlanError, at_least, require_between, require_one_of, require_positive
from streamveil.linear.budget_shares import Meter, Share, on_lattice
from streamveil.linear.protocol import ConcaveBound, QueryAnswers, size_tail, sized
from streamveil.linear.queries import Queries, check_histogram, require_queries
from streamveil.linear.weights import MOST_STEP, Weights
from streamveil.types import Array, Float64, Int64

STEP = 4.0  # of the proof
QUIET = 1 / 64  # most noise of a measurement with which replays help, as a fraction of all records
Measured = list[tuple[int, float]]  # (query, its measured answer as a fraction of all records)


@dataclass(frozen=True, kw_only=True)
class Mwem:
    """Fits a synthetic histogram to the worst answers, one after another.

    Algorithm: MWEM (Hardt, Ligett & McSherry 2012, arXiv:1012.4763) with step 4 in place of 1/2:
        with u the gap of the chosen query and v the error of its measurement, both as fractions,
        a step of 4 (u + v) lowers the relative entropy to the data by at least
        4 (u + v) u - (4 (u + v))^2 / 8 = 2 (u^2 - v^2), eight times as much (Hoeffding's lemma).
        `rounds` None chooses their number from the noisy size (preset 'practical'); the preset
        'theorem' takes the number that minimises the proved bound and averages the iterates, which
        is what the bound is about. `replays` repeats all measured steps in every round, without
        further privacy cost. None: once where the noise of a measurement is small (`QUIET`), which
        made errors 1.4 to 3 times smaller; where it is large replays do harm.
    Protects: tables that differ in one record present or absent; with a public `size_hat` also one
        record replaced, because every query moves by at most 1 either way.
    Guarantee: the share. Pure: T choices and T measurements of epsilon / 2T each. zCDP: rho / T a
        round, half for the choice (bounded range: rho = epsilon^2 / 8), half for the measurement.
        Without `size_hat`, a part `size_share` buys the number of records first.
    Error: `error`; proved for the preset 'theorem', measured for 'practical'.
    Memory: one histogram of floats and one answer per query.
    Numerics: measurements are exact counts plus integer noise; scores are exact differences of
        exact answers and public guesses (`on_lattice`).

    Raises:
        PlanError: a setting is out of its range, or not one of the proof with 'theorem'.
        PlanError: a share buys Gaussian noise only.
        PlanError: the histogram is not of whole records, one count for each point of the domain.

    >>> from streamveil.linear import Marginals
    >>> mwem = Mwem(queries=Marginals.ways((2,) * 6, 2), rounds=5)
    >>> mwem.adaptive, mwem.rounds_for(Share("pure", 1), size_hat=1000)
    (True, 5)
    """

    queries: Queries  # the class that is answered
    rounds: int | None = None  # corrections, >= 1; None: from the noisy size
    most_rounds: int = 40  # most corrections, whatever the share, >= 1
    step: float = STEP  # of the multiplicative update, > 0, at most 100
    replays: int | None = None  # repeats of all measured steps in a round, >= 0; None: by the noise
    size_share: Fraction = Fraction(1, 20)  # of the share, for the number of records, in (0, 1)
    preset: str = "practical"  # 'theorem': settings of the proof; 'practical': of measurements

    def __post_init__(self) -> None:
        take_numbers(self)
        require_queries(self.queries)
        require_positive(rounds=1 if self.rounds is None else self.rounds)
        require_positive(most_rounds=self.most_rounds, step=self.step)
        require_between(0, MOST_STEP, step=self.step)
        exact_between("size_share", self.size_share, 0, 1)
        at_least(0, replays=0 if self.replays is None else self.replays)
        require_one_of("preset", self.preset, ("practical", "theorem"))
        if self.preset == "theorem" and (self.step != STEP or self.replays):
            raise PlanError(
                f"the preset 'theorem' is proved for step={STEP:g} without replays, not for"
                f" step={self.step:g}, replays={self.replays}.\n  to fix  leave both out, or"
                " preset='practical'"
            )

    @property
    def adaptive(self) -> bool:
        """See `StaticMechanism`."""
        return True

    def covers(self, protects: Neighbours) -> bool:
        """See `StaticMechanism`. No query moves by more than 1 either way."""
        return True

    @property
    def error(self) -> ConcaveBound:
        """See `StaticMechanism`."""
        return ConcaveBound(self.bound, self.useful_size)

    def bound(self, share: Share, size: float, beta: float) -> float:
        """The proved bound for the best possible number of rounds.

        Proof: a tenth of beta is for the number of records, as if it were bought. That number is
            then off by at most e, so gaps, choices and measurements are off by as much, and
            `size + e` falls. It is not proved that a release makes the best number of rounds: it
            chooses one for a beta of 0.05 and the size that it bought. With that number the bound
            was up to 1.3 times as large.

        Args:
            share: part of a budget (`Share`) that it may spend, above 0.
            size: records, at least 0.
            beta: chance that it fails, above 0 and below 1.

        Raises:
            PlanError: beta is beyond its range.
        """
        exact_between("beta", beta, 0, 1)
        part, left = share.scale(self.size_share), share.scale(1 - Fraction(self.size_share))
        off = size_tail(part, float(beta) / 10)
        tried = self.bounds(self._numbers, left, size + off, 0.9 * float(beta))
        return float(tried.min()) + 4 * off

    @property
    def _numbers(self) -> Float64[Array, " n"]:
        """The possible numbers of rounds."""
        if self.rounds is not None:
            return np.array([float(self.rounds)])
        return np.asarray(np.minimum(ROUNDS, self.most_rounds))

    def bounds(
        self, rounds: Float64[Array, " n"], share: Share, size: float, beta: float
    ) -> Float64[Array, " n"]:
        """Error bounds of the average iterate after T rounds, for a public size, except for beta.

        Proof: the potential falls by 2 (u^2 - v^2) a round and starts at ln N, so the average gap
            is at most sqrt(ln N / 2T) plus the errors of choices and measurements.

        Args:
            rounds: numbers of rounds, at least 1.
            share: part of a budget (`Share`) that it may spend, above 0.
            size: records, at least 0.
            beta: chance that it fails, above 0 and below 1.

        Raises:
            PlanError: beta is beyond its range.
        """
        exact_between("beta", beta, 0, 1)
        many = math.log(self.queries.size)
        fall = size * np.sqrt(math.log(max(self.queries.domain, 2)) / (2 * rounds))
        tail = np.log(2 * rounds / beta)
        amount = float(share.amount)
        if share.kind == "pure":
            return np.asarray(fall + (4 * (many + tail) + 2 * tail) * rounds / amount)
        choice = many + tail + np.sqrt(2 * np.log(4 * rounds / beta))
        return np.asarray(fall + np.sqrt(rounds / amount) * choice)

    def useful_size(self, share: Share) -> float:
        """The number of records from which two rounds are worth their noise.

        Args:
            share: part of a budget (`Share`) that it may spend, above 0.
        """
        amount = float(share.amount)
        return 200 / amount if share.kind == "pure" else math.sqrt(2 / amount) / 0.05

    def rounds_for(self, share: Share, size_hat: float) -> int:
        """The number of rounds that share the budget, from public numbers only.

        Args:
            share: part of a budget (`Share`) that it may spend, above 0.
            size_hat: a public size or a noisy one, at least 0.
        """
        if self.rounds is not None:
            return self.rounds
        if self.preset == "theorem":
            best = int(np.argmin(self.bounds(self._numbers, share, size_hat, 0.05)))
            return int(self._numbers[best])
        amount = float(share.amount)
        worth = 0.01 * amount * size_hat if share.kind == "pure" else amount * (size_hat / 20) ** 2
        return int(min(self.most_rounds, worth))

    def replays_for(self, part: Share, size_hat: float) -> int:
        """How often all earlier measurements are repeated in each round, from public numbers.

        Args:
            part: share of one round.
            size_hat: a public size or a noisy one, at least 0.
        """
        if self.replays is not None:
            return self.replays
        noise = part.scale(Fraction(1, 2)).deviation(1, 1)
        return int(self.preset == "practical" and noise <= QUIET * size_hat)

    def release(
        self,
        histogram: Int64[Array, " N"],
        share: Share,
        place: Place,
        size_hat: float | None = None,
    ) -> QueryAnswers:
        """See `StaticMechanism`."""
        histogram = check_histogram(self.queries, histogram)
        share.require_choices()
        size, left = sized(histogram, share, self.size_share, place, size_hat)
        size = max(size, 1.0)
        rounds = self.rounds_for(left, size)
        if rounds == 0:
            return self._uniform(histogram, left if size_hat is None else None, place, size)
        part = left.scale(Fraction(1, rounds))
        synthetic = self._fit(histogram, Meter(left), part, place, size)
        return QueryAnswers(restored(self.queries.answers(synthetic)), restored(synthetic))

    def _uniform(
        self, histogram: Int64[Array, " N"], left: Share | None, place: Place, size: float
    ) -> QueryAnswers:
        """Answers for too few records for a round: their number, spread evenly over the domain.

        If the number was bought, it is bought again, more exactly, with the rest of the share.
        """
        if left is not None:
            noisy = left.noisy(int(histogram.sum()), place.draws(b"better size"), 1, 1)
            size = max(float(values(noisy)), 0.0)
        synthetic = np.full(self.queries.domain, size / self.queries.domain)
        return QueryAnswers(restored(self.queries.answers(synthetic)), restored(synthetic))

    def _fit(
        self,
        histogram: Int64[Array, " N"],
        meter: Meter,
        part: Share,
        place: Place,
        size_hat: float,
    ) -> Float64[Array, " N"]:
        exact = np.ldexp(self.queries.exact(histogram).astype(np.float64), -self.queries.shift)
        weights = Weights.uniform(self.queries)
        average = np.zeros(self.queries.domain)
        measured: Measured = []
        replays = self.replays_for(part, size_hat)
        rounds, unit = 0, 1 << self.queries.shift
        while meter.fits(part):
            meter.charge(part)
            measured.append(
                measure_worst(exact, weights.answers(), size_hat, part, place.inside(rounds), unit)
            )
            for query, value in measured[-1:] + measured * replays:
                weights.move(query, value, self.step)
            weights.rescale()
            if self.preset == "theorem":
                average += weights.table
            rounds += 1
        return size_hat * (average / rounds if self.preset == "theorem" else weights.table)


ROUNDS = np.unique(np.rint(np.geomspace(1, 1e6, 400)))


def measure_worst(
    exact: Float64[Array, " k"],
    guesses: Float64[Array, " k"],
    size_hat: float,
    part: Share,
    place: Place,
    unit: int,
) -> tuple[int, float]:
    """Chooses the query with the largest gap and measures it, each for half of `part`.

    `exact` are true answers in records and leave this function only with noise; `guesses` are
    fractions, `unit` is the number of quanta of a record.
    """
    half = part.scale(Fraction(1, 2))
    gaps = np.abs(exact - on_lattice(size_hat * guesses))
    worst = values(half.choose(place.draws(b"choice"), gaps, 1.0))
    quanta = round(float(exact[worst]) * unit)  # answers are whole numbers of quanta
    value = values(half.noisy(quanta, place.draws(b"measure"), unit, unit * unit)) / unit
    return worst, float(np.clip(value / size_hat, 0.0, 1.0))
