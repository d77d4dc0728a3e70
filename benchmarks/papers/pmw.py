"""Private multiplicative weights on a table that stays (Hardt & Rothblum 2010), for comparison.

`streamveil.dynamic.Pmwg` is the same on a table that may grow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from streamveil.core.accounting import Neighbours
from streamveil.core.accounting.guarantee import Loss
from streamveil.core.measure import with_laplace
from streamveil.core.noise import Place
from streamveil.core.noisy import post_process, restored
from streamveil.dynamic.pmwg import SPLIT, correction, fractions, moved
from streamveil.errors import require_positive
from streamveil.linear.budget_shares import Meter, Share, ceil_root
from streamveil.linear.protocol import ConcaveBound, QueryAnswers, sized
from streamveil.linear.queries import (
    Queries,
    check_histogram,
    counted,
    require_room,
    whole_quanta,
)
from streamveil.linear.sparse_vector import (
    AboveState,
    AboveThreshold,
    SparseAnswer,
    first_in_records,
    pure_cost,
)
from streamveil.linear.weights import Weights
from streamveil.types import Array, Exact, Float64, Int64

BLOCK = 4096  # questions compared at a time
REPLAY = 4.0  # step towards what was measured before; see `Mwem.replays`
MOST_HALTS = 100  # a correction costs one pass over the domain


@dataclass
class SparseState:
    """Runs started so far and what is left to pay for more."""

    meter: Meter
    run: AboveState | None
    started: int = 0


@dataclass(frozen=True, kw_only=True)
class Sparse:
    """Finds up to `halts` questions above their thresholds; numeric ones are measured as well.

    Algorithm: Sparse and Numeric Sparse (Dwork & Roth 2014, sections 3.6): after each halt a new
        run. `split` divides the share of one run among threshold, questions and measurement; a
        measurement share of zero reports 'above' only.
    Protects: neighbours that move every question by at most 1.
    Guarantee: the share, whatever is asked: a run is paid before it starts, its measurement before
        it is drawn, and when the next cannot be paid the answer is EXHAUSTED.
    Proof: runs are chosen adaptively and each is pure-DP; `Meter` adds them up.
    """

    share: Share
    halts: int
    split: tuple[Exact, Exact, Exact] = (Fraction(3, 10), Fraction(1, 2), Fraction(1, 5))
    unit: int = 1  # see `AboveThreshold`

    def __post_init__(self) -> None:
        require_positive(halts=self.halts)

    @property
    def loss(self) -> Loss:
        """The whole share."""
        return self.share.loss

    @property
    def run_epsilon(self) -> Fraction:
        """The epsilon of one run with its measurement."""
        return self.share.scale(Fraction(1, self.halts)).epsilon

    def parts(self) -> tuple[Fraction, Fraction, Fraction]:
        """Epsilons of threshold, questions and measurement; together they cost one run."""
        first, second, third = (Fraction(part) for part in self.split)
        whole = first + second + third
        if self.share.kind != "pure":  # a run costs the square of the first two, plus the third's
            whole = ceil_root((first + second) ** 2 + third**2)
        one = self.run_epsilon / whole
        return one * first, one * second, one * third

    @property
    def above(self) -> AboveThreshold:
        """The mechanism of one run."""
        first, second, _ = self.parts()
        return AboveThreshold(epsilon1=first, epsilon2=second, unit=self.unit)

    def init(self, place: Place) -> SparseState:
        """Starts the first run."""
        state = SparseState(Meter(self.share), None)
        self._start(state, place)
        return state

    def _start(self, state: SparseState, place: Place) -> None:
        cost = pure_cost(self.share, self.above.epsilon)
        state.run = None
        if state.meter.fits(cost):
            state.meter.charge(cost)
            state.run = self.above.init(place.inside(b"run", state.started))
            state.started += 1

    def ask(
        self,
        state: SparseState,
        count: int,
        threshold: int,
        place: Place,
        measured: int | None = None,
    ) -> SparseAnswer:
        """One question about `count`; a halt reports `measured` (default: the same count)."""
        one = np.array([count]), np.array([threshold])
        value = np.array([count if measured is None else measured])
        return self.ask_many(state, one[0], one[1], value, place)[1]

    def ask_many(
        self,
        state: SparseState,
        counts: Int64[Array, " n"],
        thresholds: Int64[Array, " n"],
        measured: Int64[Array, " n"],
        place: Place,
    ) -> tuple[int, SparseAnswer]:
        """Asks until one is above: (how many were below before, what the next one got)."""
        if state.run is None:
            return 0, SparseAnswer("EXHAUSTED")
        here = place.inside(b"run", state.started - 1)
        first = self.above.ask_many(state.run, counts, thresholds, here)
        if first == len(counts):
            return first, SparseAnswer("EASY")
        answer = self._measure(state, int(measured[first]), here)
        self._start(state, place)
        return first, answer

    def _measure(self, state: SparseState, count: int, place: Place) -> SparseAnswer:
        epsilon = self.parts()[2]
        if not epsilon:
            return SparseAnswer("HARD")
        cost = pure_cost(self.share, epsilon)
        if not state.meter.fits(cost):
            return SparseAnswer("EXHAUSTED")
        state.meter.charge(cost)
        noisy = with_laplace(count, self.unit / epsilon, place.draws(b"value"))
        return SparseAnswer("HARD", post_process(first_in_records, noisy, 0))


@dataclass(repr=False)  # secret: holds the exact histogram
class PmwState:
    """The exact histogram, the public synthetic one, and the sparse vector's runs."""

    histogram: Int64[Array, " N"]
    weights: Float64[Array, " N"]  # public, sums to 1
    sparse: SparseState


@dataclass(frozen=True, kw_only=True)
class Pmw:
    """Answers questions from a synthetic histogram and corrects it where it is visibly wrong.

    Algorithm: private multiplicative weights (Hardt & Rothblum 2010) with the sparse vector
        technique. A question whose true answer is within the threshold of the synthetic one gets
        the synthetic answer and costs nothing more; any other is measured and moves the weights.
    Protects: tables of public size that differ in one record replaced; tables that differ in one
        record present or absent when `size` is an estimate paid for elsewhere.
    Guarantee: the share, whatever is asked: the filter of `Sparse`. Never the accuracy argument.
    Error: a corrected question with gap g (fraction of all records) lowers the relative entropy by
        at least 2 g^2 when the step is 4 g, so there are at most ln N / (2 g^2) of them. With gap
        2/3, noise 1/6 (pure) or 1/2, 1/4 (zCDP) of the target alpha: 1.125 ln N / alpha^2 or
        2 ln N / alpha^2; `theorem` solves for the least alpha that the share then pays for.
    Memory: two histograms.

    >>> from streamveil.core.noise import SilentNoise
    >>> pmw = Pmw.practical(Share("pure", 1), size=1000, domain=4, halts=3)
    >>> place = Place(SilentNoise(), "doc")
    >>> state = pmw.init(np.array([1000, 0, 0, 0]), place)
    >>> pmw.ask(state, np.array([1.0, 0, 0, 0]), place).value
    1000.0
    """

    share: Share
    size: float  # public number of records, or an estimate that is paid for, > 0
    halts: int  # corrections that are paid for, >= 1
    threshold: float  # in records, > 0
    step: float | None  # > 0; None: twice the measured gap, as a fraction of all records
    alpha: float  # > 0: proved error as a fraction of all records; above 1: none is proved
    shift: int = 0  # weights are multiples of 2**-shift, >= 0

    def __post_init__(self) -> None:
        require_positive(size=self.size, halts=self.halts, threshold=self.threshold)
        require_room(self.size, self.shift)

    @classmethod
    def practical(
        cls, share: Share, size: float, domain: int, halts: int | None = None, shift: int = 0
    ) -> Pmw:
        """Number of corrections and threshold in balance; accuracy is measured, not proved.

        A threshold must clear the noise of comparisons, and must not be so low that corrections run
        out: a quarter of the gap at which that many are proved to suffice has worked.
        """
        if halts is None:
            tried = np.unique(np.rint(np.geomspace(4, MOST_HALTS, 60)))
            halts = int(min(tried, key=lambda h: practical_threshold(share, size, domain, int(h))))
        threshold = practical_threshold(share, size, domain, halts)
        return cls(
            share=share,
            size=size,
            halts=halts,
            threshold=threshold,
            step=None,
            alpha=math.inf,
            shift=shift,
        )

    @classmethod
    def theorem(
        cls, share: Share, size: float, domain: int, asked: int, beta: float = 0.05, shift: int = 0
    ) -> Pmw:
        """The least alpha that is proved for `asked` questions over `domain` points."""
        gap, threshold, _ = fractions(share)
        alpha = least_alpha(share, size, domain, asked, beta)
        return cls(
            share=share,
            size=size,
            halts=corrections(share, domain, alpha) + 1,
            threshold=threshold * alpha * size,
            step=4 * gap * alpha,
            alpha=alpha,
            shift=shift,
        )

    @property
    def sparse(self) -> Sparse:
        """The mechanism that compares and measures, in quanta."""
        return Sparse(share=self.share, halts=self.halts, split=SPLIT, unit=1 << self.shift)

    def init(self, histogram: Int64[Array, " N"], place: Place) -> PmwState:
        """Starts from the uniform distribution."""
        uniform = np.full(len(histogram), 1 / len(histogram))
        return PmwState(histogram, uniform, self.sparse.init(place))

    def ask(self, state: PmwState, query: Float64[Array, " N"], place: Place) -> SparseAnswer:
        """One question, by its weights: multiples of 2**-shift in [0, 1]. EASY costs nothing."""
        exact = counted(whole_quanta(query, self.shift, len(state.weights)), state.histogram)
        guess = self.size * float(query @ state.weights)
        gap = abs(exact - round(math.ldexp(guess, self.shift)))
        answer = self.sparse.ask(state.sparse, gap, self._threshold, place, exact)
        return self._settle(state, answer, guess, query)

    @property
    def _threshold(self) -> int:
        return math.ceil(math.ldexp(self.threshold, self.shift))

    def _settle(
        self, state: PmwState, answer: SparseAnswer, guess: float, query: Float64[Array, " N"]
    ) -> SparseAnswer:
        if answer.kind != "HARD" or answer.value is None:
            return SparseAnswer(answer.kind, restored(guess))
        value = math.ldexp(answer.value, -self.shift)
        power = correction(value, guess, self.size, self.step)
        state.weights = moved(state.weights, query, power)
        return SparseAnswer("HARD", restored(value))

    def ask_all(self, state: PmwState, queries: Queries, place: Place) -> QueryAnswers:
        """All questions of a class in order, comparing many at a time.

        Settings for practice also move the weights towards what was measured before, after every
        correction: post-processing, which leaves more of the later questions EASY.
        """
        if queries.shift != self.shift:
            raise ValueError(
                f"the weights of these queries are multiples of 2**-{queries.shift}, and noise is"
                f" made for 2**-{self.shift}.\n  to fix  shift={queries.shift}"
            )
        exact = queries.exact(state.histogram)
        values = np.empty(queries.size)
        at = 0
        fitted = Weights.of(queries, state.weights)
        measured: list[tuple[int, float]] = []
        guesses = self.size * fitted.answers()
        while at < queries.size:
            to = min(at + BLOCK, queries.size)
            near = np.rint(np.ldexp(guesses[at:to], queries.shift)).astype(np.int64)
            limits = np.full(to - at, self._threshold)
            easy, answer = self.sparse.ask_many(
                state.sparse, np.abs(exact[at:to] - near), limits, exact[at:to], place
            )
            if answer.kind == "EXHAUSTED":
                easy = to - at
            values[at : at + easy] = guesses[at : at + easy]
            at += easy
            if answer.kind == "HARD" and answer.value is not None:
                values[at] = math.ldexp(answer.value, -self.shift)
                fitted.move_by(at, correction(values[at], guesses[at], self.size, self.step))
                measured.append((at, min(1.0, max(0.0, values[at] / self.size))))
                for query, share in measured if self.step is None else ():
                    fitted.move(query, share, REPLAY)
                fitted.rescale()
                guesses = self.size * fitted.answers()
                at += 1
        state.weights = fitted.distribution
        return QueryAnswers(restored(values), restored(self.size * state.weights))


def practical_threshold(share: Share, size: float, domain: int, halts: int) -> float:
    """In records; see `Pmw.practical`."""
    run = float(share.scale(Fraction(1, halts)).epsilon)
    noise = 2.5 * 2 / (float(SPLIT[1]) * run)
    return max(noise, size / 4 * math.sqrt(math.log(max(domain, 2)) / (2 * halts)))


def corrections(share: Share, domain: int, alpha: float) -> int:
    """The most corrections at that alpha."""
    gap = fractions(share)[0] * alpha
    return math.ceil(math.log(max(domain, 2)) / (2 * gap * gap))


def least_alpha(share: Share, size: float, domain: int, asked: int, beta: float) -> float:
    """The least alpha whose noise bounds the share pays for, by bisection."""

    def pays(alpha: float) -> bool:
        halts = corrections(share, domain, alpha) + 1
        run = size * float(share.scale(Fraction(1, halts)).epsilon)
        few, many = math.log(2 * halts / beta), math.log(2 * asked / beta)
        noise = (few / float(SPLIT[0]) + 2 * many / float(SPLIT[1])) / run
        gap, _, allowed = fractions(share)
        return noise <= allowed * alpha and few / (float(SPLIT[2]) * run) <= gap * alpha

    low, high = 1e-9, 1e6
    while high / low > 1 + 1e-9:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if pays(middle) else (middle, high)
    return high


@dataclass(frozen=True, kw_only=True)
class PmwRelease:
    """Private multiplicative weights over a fixed class of queries, as a static mechanism.

    >>> from streamveil.linear import Marginals
    >>> PmwRelease(queries=Marginals.ways((2, 2), 1), halts=4).adaptive
    True
    """

    queries: Queries  # the class that is answered
    halts: int | None = None  # corrections that are paid for, >= 1; None: by the preset
    size_share: Exact = Fraction(1, 20)  # of the share, for the number of records, in (0, 1)
    preset: str = "practical"  # 'theorem': settings of the proof; 'practical': of measurements

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
        return ConcaveBound(self._bound, self._useful_size)

    def _bound(self, share: Share, size: float, beta: float) -> float:
        return size * least_alpha(share, size, self.queries.domain, self.queries.size, beta)

    def _useful_size(self, share: Share) -> float:
        return 2 * practical_threshold(share, 0.0, self.queries.domain, self.halts or 20)

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
        size = max(size, 1.0)
        if self.preset == "theorem":
            pmw = Pmw.theorem(
                left, size, self.queries.domain, self.queries.size, shift=self.queries.shift
            )
        else:
            pmw = Pmw.practical(left, size, self.queries.domain, self.halts, self.queries.shift)
        return pmw.ask_all(pmw.init(histogram, place), self.queries, place)
