"""Private multiplicative weights for a table that only grows: adaptive questions at any time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from streamveil.core.accounting import Neighbours, exact_between, take_numbers
from streamveil.core.accounting.guarantee import Guarantee, Loss
from streamveil.core.measure import with_laplace
from streamveil.core.noise import Place
from streamveil.core.noisy import post_process, restored, values
from streamveil.errors import PlanError, at_least, require_between, require_positive
from streamveil.linear.budget_shares import Meter, Share, require_share
from streamveil.linear.queries import (
    LARGEST,
    counted,
    points_of,
    require_room,
    whole_numbers,
    whole_quanta,
)
from streamveil.linear.sparse_vector import (
    AboveState,
    AboveThreshold,
    SparseAnswer,
    epoch_share,
    first_in_records,
    pure_cost,
)
from streamveil.linear.weights import MOST_STEP
from streamveil.types import Array, Float64, Int64

SPLIT = (Fraction(3, 10), Fraction(1, 2), Fraction(1, 5))  # threshold, questions, measurement
EPOCHS = 40  # doublings checked by `theorem`
POWER = 0.5  # see `Pmwg.power`
BETA = 0.05  # chance that a bound which is proved fails


@dataclass(repr=False)  # secret: holds the exact histogram
class PmwgState:
    """The exact histogram, the public synthetic one, and the open sparse-vector run."""

    histogram: Int64[Array, " N"]
    weights: Float64[Array, " N"]  # public, sums to 1
    size: int  # public
    meter: Meter
    epoch: int = 0
    run: AboveState | None = None
    started: int = 0
    hard: int = 0  # public: questions that were measured


@dataclass(frozen=True, kw_only=True)
class Pmwg:
    """Answers from a synthetic histogram that is corrected where a question shows it wrong.

    Algorithm: PMWG of Cummings, Krehbiel, Lai & Tantipongpipat (2018, arXiv:1803.06416). Its
        appendix with the pseudo-code is not public; this is a reconstruction with constants of its
        own. On an arrival the weights mix with the uniform distribution: y <- ((t-1) y + u) / t.
        Costs of a run fall by 2^-(1-power) each time the table doubles.
    Protects: streams that differ in one record replaced; sizes and arrival times are public.
    Guarantee: the share, whatever is asked and for ever.
    Proof: questions are in counts, so one record moves each by at most 1 at every size, and a run
        of the sparse vector with its measurement is pure-DP. `Meter` refuses the run or measurement
        that would pass the share: the accuracy argument below is never relied on.
    Error: mixing keeps t RE(x_t || y_t) from growing by more than ln N an arrival (joint convexity;
        RE of a point against uniform is ln N), and a correction at size t with gap g (fraction)
        lowers it by at least 2 g^2 t. So at most Lambda (1 + ln(t/n)) corrections happen by size t,
        Lambda = ln N / (2 g^2); the plan pays for 2 Lambda of them in the first epoch, Lambda in
        each later one. `theorem` solves for the least alpha at which noise bounds and plan agree.
    Memory: two histograms.

    Raises:
        PlanError: a setting is out of its range, points are not in the domain, or a question is
            not one weight in [0, 1] for each point.

    >>> from streamveil.core.noise import Place, SilentNoise
    >>> share = Share("pure", 1)
    >>> pmwg = Pmwg.practical(share, start=100_000, domain=4)
    >>> place = Place(SilentNoise(), "doc")
    >>> state = pmwg.init(np.array([100_000, 0, 0, 0]), place)
    >>> pmwg.ask(state, np.array([1.0, 0, 0, 0]), place).kind
    'HARD'
    """

    share: Share
    start: int  # n, the size at the first question, >= 1
    domain: int  # points that a record may be, >= 1
    first: Share  # whose epsilon one run with its measurement may cost in the first epoch
    threshold: float  # as a fraction of the size, > 0
    step: float | None  # 0 to 100; None: twice the measured gap
    power: float = 0.5  # in [0, 0.99]; 0: as many questions in each epoch; near 1: ever more
    alpha: float = math.inf  # proved error as a fraction of the size, > 0
    shift: int = 0  # weights of questions are multiples of 2**-shift, >= 0
    least: float = 0.0  # >= 0: the threshold in records is never below this, in the first epoch

    def __post_init__(self) -> None:
        take_numbers(self)
        require_positive(start=self.start, domain=self.domain, threshold=self.threshold)
        require_between(0, 0.99, power=self.power)
        require_between(0, LARGEST, least=self.least)
        require_between(0, MOST_STEP, step=0.0 if self.step is None else self.step)
        require_positive(share=float(self.share.epsilon))  # refuses one for Gaussian noise alone
        require_room(self.start, self.shift)

    @classmethod
    def practical(
        cls, share: Share, *, start: int, domain: int, halts: int = 50,
        threshold: float | None = None, shift: int = 0,
    ) -> Pmwg:  # fmt: skip
        """A planned number of corrections per doubling; accuracy is measured, not proved.

        The default threshold clears the noise of comparisons in the first epoch by a factor of 2.5.

        Args:
            share: part of a budget (`Share`) that it may spend, above 0.
            start: records at the first question, at least 1.
            domain: points, at least 1.
            halts: corrections in each doubling, at least 1.
            threshold: share of the records that an answer may err, above 0.
            shift: binary places of weights, at least 0.

        Raises:
            PlanError: an argument is beyond its range.
        """
        at_least(1, start=start, halts=halts)
        require_share(share)
        first = first_share(share, halts, halts, POWER)
        clear = 2.5 * 2 / (float(SPLIT[1] * first.epsilon) * start)
        return cls(
            share=share, start=start, domain=domain, first=first, power=POWER, shift=shift,
            threshold=clear if threshold is None else threshold, step=None,
        )  # fmt: skip

    @classmethod
    def theorem(
        cls, share: Share, *, start: int, domain: int, asked: int, shift: int = 0,
    ) -> Pmwg:  # fmt: skip
        """The least alpha that is proved for `asked` questions in each doubling of the size.

        Args:
            share: part of a budget (`Share`) that it may spend, above 0.
            start: records at the first question, at least 1.
            domain: points, at least 1.
            asked: questions in each doubling, at least 1.
            shift: binary places of weights, at least 0.

        Raises:
            PlanError: an argument is beyond its range.
        """
        at_least(1, asked=asked)
        require_share(share)

        def make(alpha: float) -> Pmwg:
            gap = alpha * fractions(share)[0]
            corrections = math.log(max(domain, 2)) / (2 * gap * gap)
            return cls(
                share=share, start=start, domain=domain, power=POWER, shift=shift, alpha=alpha,
                first=first_share(share, 2 * corrections + 1, corrections + 1, POWER),
                threshold=alpha * fractions(share)[1], step=4 * min(gap, 1.0),
            )  # fmt: skip

        low, high = 1e-6, 1e6
        while high / low > 1 + 1e-6:
            middle = math.sqrt(low * high)
            low, high = (low, middle) if make(middle).holds(asked, BETA) else (middle, high)
        return make(high)

    @property
    def loss(self) -> Loss:
        """The whole share."""
        return self.share.loss

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee for everything ever answered."""
        return Guarantee(Neighbours("record", relation="event-change"), self.loss, None)

    def epsilon(self, epoch: int) -> float:
        """Epsilon of one run with its measurement; `epoch`: doublings so far, from 0.

        Raises:
            PlanError: the epoch is below 0.
        """
        at_least(0, epoch=epoch)
        return float(epoch_share(self.first, epoch, Fraction(self.power)).epsilon)

    def instances(self, epoch: int) -> float:
        """The most runs that the whole share could pay for at an epoch's price."""
        run = float(SPLIT[0] + SPLIT[1]) * self.epsilon(epoch)
        whole = float(self.share.amount)
        return max(1.0, whole / (run if self.share.kind == "pure" else run * run / 2))

    def questions(self, epoch: int, beta: float = BETA) -> float:
        """The number of questions in an epoch that the proof covers; 0 if its conditions fail.

        Args:
            epoch: doublings so far, from 0.
            beta: chance that it fails, above 0 and below 1.

        Raises:
            PlanError: an argument is beyond its range.
        """
        at_least(0, epoch=epoch)
        exact_between("beta", beta, 0, 1)
        beta_e = 6 * beta / (math.pi**2 * (epoch + 1) ** 2)
        few = math.log(3 * self.instances(epoch) / beta_e)
        unit = self.epsilon(epoch) * self.start * 2**epoch
        if few / (float(SPLIT[2]) * unit) > self.alpha * fractions(self.share)[0]:
            return 0.0
        room = self.alpha * fractions(self.share)[2] * unit - few / float(SPLIT[0])
        return beta_e / 3 * math.exp(min(float(SPLIT[1]) * room / 2, 700.0))

    def holds(self, asked: int, beta: float) -> bool:
        """Whether the proof covers `asked` questions in each of the first epochs.

        Args:
            asked: questions, at least 0.
            beta: chance that it fails, above 0 and below 1.
        """
        return all(self.questions(epoch, beta) >= asked for epoch in range(EPOCHS))

    def init(self, histogram: Int64[Array, " N"], place: Place) -> PmwgState:
        """Starts from the uniform distribution and opens the first run.

        Args:
            histogram: records at each point of the domain, whole numbers of at least 0.
            place: where its noise is drawn, the same at every step and of no other run.

        Raises:
            PlanError: the histogram is of another domain or size, or a count is none.
        """
        histogram = whole_numbers("counts of the first histogram", histogram)
        if histogram.shape != (self.domain,) or sum(histogram.tolist()) != self.start:
            raise PlanError(f"the first histogram needs {self.domain} counts summing to `start`")
        if np.any(histogram < 0):
            raise PlanError("counts of the first histogram must be at least 0")
        uniform = np.full(self.domain, 1 / self.domain)
        state = PmwgState(histogram.copy(), uniform, self.start, Meter(self.share))
        self.open_run(state, place)
        return state

    def arrive(self, state: PmwgState, points: Int64[Array, " k"], place: Place) -> None:
        """Adds records, by the number of their point; opens a cheaper run when the size doubles.

        Args:
            state: what `init` returned.
            points: point of each record, from 0.
            place: where its noise is drawn, the same at every step and of no other run.

        Raises:
            PlanError: there is no such point, or the table is full.
        """
        points = points_of("points", points, self.domain)
        size = state.size + len(points)
        require_room(size, self.shift)
        histogram = state.histogram + np.bincount(points, minlength=self.domain)
        weights = state.weights * (state.size / size)
        weights += len(points) / (size * self.domain)
        self.enter_epoch(state, size, place)  # a call that is cut off here has added no record
        state.histogram, state.weights, state.size = histogram, weights, size

    def ask(self, state: PmwgState, query: Float64[Array, " N"], place: Place) -> SparseAnswer:
        """Answers one question, given by weights in [0, 1], in records.

        When EXHAUSTED, it returns the synthetic answer, without a promise on its error. A question
        that is cut off ends its run; the next one pays for another.

        Args:
            state: what `init` returned.
            query: its weight at each point of the domain.
            place: where its noise is drawn, the same at every step and of no other run.

        Raises:
            PlanError: weights are not of the domain.
        """
        quanta = whole_quanta(query, self.shift, self.domain)
        query = np.asarray(query, np.float64)
        guess = state.size * float(query @ state.weights)
        if state.run is None:
            self.open_run(state, place)
        if state.run is None:
            return SparseAnswer("EXHAUSTED", restored(guess))
        exact = counted(quanta, state.histogram)
        gap = abs(exact - round(math.ldexp(guess, self.shift)))
        limit = math.ceil(math.ldexp(self.limit(state), self.shift))
        here = place.inside(b"run", state.started - 1)
        run, state.run = state.run, None  # so a question that is cut off ends its run
        if not self.above(state.epoch).ask(run, gap, limit, here):
            state.run = run
            return SparseAnswer("EASY", restored(guess))
        return self._measure(state, exact, guess, query, place)

    def limit(self, state: PmwgState) -> float:
        """The threshold of comparisons now, in records: a public number.

        Args:
            state: what `init` returned.
        """
        least = self.least * 2 ** (state.epoch * (1 - self.power))  # as the noise of comparisons
        return max(self.threshold * state.size, least)

    def above(self, epoch: int) -> AboveThreshold:
        """The mechanism of one run in an epoch.

        Args:
            epoch: doublings so far, from 0.

        Raises:
            PlanError: an argument is beyond its range.
        """
        at_least(0, epoch=epoch)
        whole = epoch_share(self.first, epoch, Fraction(self.power)).epsilon
        threshold, questions, _ = SPLIT
        return AboveThreshold(
            epsilon1=threshold * whole, epsilon2=questions * whole, unit=1 << self.shift
        )

    def enter_epoch(self, state: PmwgState, size: int, place: Place) -> None:
        """Opens a run for the epoch of a size, if it begins, or was cut off as it began.

        Args:
            state: what `init` returned.
            size: records from now on.
            place: where its noise is drawn, the same at every step and of no other run.
        """
        epoch = state.epoch
        while size >= 2 ** (epoch + 1) * self.start:
            epoch += 1
        if epoch > state.epoch or state.run is None:
            state.run = None  # first: a run is asked with the noise of its own epoch alone
            state.epoch = epoch
            self.open_run(state, place)

    def open_run(self, state: PmwgState, place: Place) -> None:
        """Opens the next run, if it can be paid for.

        Args:
            state: what `init` returned.
            place: where its noise is drawn, the same at every step and of no other run.

        Raises:
            PlanError: an argument is beyond its range.
        """
        above = self.above(state.epoch)
        cost = pure_cost(self.share, above.epsilon)
        state.run = None
        if state.meter.fits(cost):
            state.meter.charge(cost)
            state.started += 1
            state.run = above.init(place.inside(b"run", state.started - 1))

    def _measure(
        self, state: PmwgState, exact: int, guess: float, query: Float64[Array, " N"], place: Place
    ) -> SparseAnswer:
        epsilon = epoch_share(self.first, state.epoch, Fraction(self.power)).epsilon * SPLIT[2]
        cost = pure_cost(self.share, epsilon)
        if not state.meter.fits(cost):
            return SparseAnswer("EXHAUSTED", restored(guess))
        state.meter.charge(cost)
        draws = place.inside(b"run", state.started - 1).draws(b"value")
        noisy = with_laplace(exact, (1 << self.shift) / epsilon, draws)
        found = post_process(first_in_records, noisy, self.shift)
        value = values(found)
        power = correction(value, guess, max(state.size, 1), self.step)
        state.weights = moved(state.weights, query, power)
        state.hard += 1
        self.open_run(state, place)
        return SparseAnswer("HARD", found)


def correction(value: float, guess: float, size: float, step: float | None) -> float:
    """The step of the weights for a measured gap: `step`, or twice the gap as a fraction."""
    gap = min(1.0, max(-1.0, (value - guess) / size))
    return math.copysign(2 * abs(gap) if step is None else step, gap)


def moved(
    weights: Float64[Array, " N"], query: Float64[Array, " N"], power: float
) -> Float64[Array, " N"]:
    """A distribution after the correction for one query."""
    found = weights * np.exp(power * query)
    return np.asarray(found / found.sum())


def fractions(share: Share) -> tuple[float, float, float]:
    """(gap, threshold, noise) as fractions of alpha."""
    return (2 / 3, 5 / 6, 1 / 6) if share.kind == "pure" else (1 / 2, 3 / 4, 1 / 4)


def first_share(share: Share, halts: float, later: float, power: float) -> Share:
    """The price of one correction in the first epoch.

    Pays for `halts` corrections in the first epoch and `later` in each that follows, whose prices
    fall by 2^-(1-power) in epsilon: a geometric series. In zCDP a correction costs at most the
    square of its whole epsilon over two, so prices are rho and fall by the square.

    >>> round(float(first_share(Share("pure", 1), 10, 10, 0.0).amount), 6)
    0.05
    """
    ratio = 2.0 ** (-(1 - power) * (1 if share.kind == "pure" else 2))
    first = share.scale(1 / (halts + later * ratio / (1 - ratio)) * (1 - 1e-12))
    if not first.amount:
        raise PlanError("the share is too small for a correction: give more, or plan fewer of them")
    return first
