"""Answering 'is it above the threshold?' without paying for 'no'.

Queries are counts of sensitivity 1 (one neighbour moves each by at most 1). In count units this is
true at every size of a growing table, and public thresholds may change with every question. So the
same mechanism serves static and growing data; a schedule of shares over epochs (`epoch_share`)
keeps the noise in proportion to the size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal

import numpy as np

from streamveil.core.accounting import Neighbours, take_numbers
from streamveil.core.accounting.guarantee import Guarantee, Pure
from streamveil.core.measure import with_laplace
from streamveil.core.noise import Place
from streamveil.core.noisy import Noisy, values
from streamveil.errors import PlanError, require_one_of, require_positive
from streamveil.linear.budget_shares import Share
from streamveil.types import Array, Exact, Int64

Assumption = Literal["general", "monotone", "cumulative"]


@dataclass
class AboveState:
    """One run: its noisy threshold offset, and how many questions were asked."""

    offset: int  # secret
    asked: int = 0
    halted: bool = False

    def __repr__(self) -> str:
        return f"AboveState(asked={self.asked}, halted={self.halted})"


@dataclass(frozen=True, kw_only=True)
class AboveThreshold:
    """Reports the first of a stream of questions whose count reaches its threshold.

    Algorithm: the sparse vector technique (Dwork & Roth 2014, section 3.6) with discrete Laplace
        noise of scale 1/epsilon1 on the threshold and `width`/epsilon2 on every question.
    Protects: neighbours that move every question by at most `protects.bound`; 'general': in any
        direction; 'monotone': all in the same direction; 'cumulative': the questions are counts
        since the last halt, so that one event adds 1 to all questions after it and to none before.
    Guarantee: epsilon1 + epsilon2; cumulative: max(epsilon1, epsilon2). All times the bound.
    Proof: moving the threshold noise by 1 and the noise of the halting question by 2 (monotone: 1)
        turns every run of one stream into one of the other. Cumulative, D' with one more event at
        s: runs that halt before s are equally likely. Otherwise, towards D', moving the threshold
        up by 1 makes each 'no' before s likelier, each later 'no' and the halt exactly as likely:
        e^epsilon1. Towards D, each 'no' is likelier and the halt costs one move of its own noise:
        e^epsilon2. So one of the two is paid, never both.
    Error: see `slack`.
    Numerics: exact integers and discrete noise.

    >>> AboveThreshold.cumulative(Fraction(1, 2)).epsilon
    Fraction(1, 2)
    """

    epsilon1: Exact
    epsilon2: Exact
    assumption: Assumption = "general"
    protects: Neighbours = field(default=Neighbours("event", relation="event"))
    unit: int = 1  # quanta of one record; counts are in quanta

    def __post_init__(self) -> None:
        take_numbers(self)
        require_positive(epsilon1=self.epsilon1, epsilon2=self.epsilon2, unit=self.unit)
        require_one_of("assumption", self.assumption, ("general", "monotone", "cumulative"))

    @classmethod
    def cumulative(cls, epsilon: Exact) -> AboveThreshold:
        """Counts since the last halt: both noises at the full epsilon."""
        return cls(epsilon1=epsilon, epsilon2=epsilon, assumption="cumulative")

    @property
    def width(self) -> int:
        """How far the noise of the halting question must be able to move."""
        return 2 if self.assumption == "general" else 1

    @property
    def epsilon(self) -> Fraction:
        """The cost of one run."""
        first, second = Fraction(self.epsilon1), Fraction(self.epsilon2)
        one = max(first, second) if self.assumption == "cumulative" else first + second
        return one * Fraction(self.protects.bound)

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of one run, whatever the number of questions."""
        return Guarantee(self.protects, Pure(self.epsilon))

    def slack(self, beta: float, asked: int = 1) -> float:
        """The most by which the answers to `asked` questions differ from exact comparisons."""
        first = np.log(2 / beta) / float(self.epsilon1)
        return float(first + self.width * np.log(2 * asked / beta) / float(self.epsilon2))

    def init(self, place: Place) -> AboveState:
        """Starts a run: draws the threshold noise."""
        scale = self.unit / Fraction(self.epsilon1)
        return AboveState(int(values(with_laplace(0, scale, place.draws(b"threshold")))[0]))

    def ask(self, state: AboveState, count: int, threshold: int, place: Place) -> bool:
        """Whether the count is above; a run that said yes is over. `threshold` is public."""
        return self.ask_many(state, np.array([count]), np.array([threshold]), place) == 0

    def ask_many(
        self,
        state: AboveState,
        counts: Int64[Array, " n"],
        thresholds: Int64[Array, " n"],
        place: Place,
    ) -> int:
        """The index of the first count above its threshold, or n; later ones are not asked."""
        if state.halted:
            raise PlanError("this run has halted: start a new one and pay for it")
        scale = Fraction(self.width * self.unit) / Fraction(self.epsilon2)
        noisy = with_laplace(counts, scale, place.draws(b"questions", state.asked))
        above = np.flatnonzero(values(noisy) >= thresholds + state.offset)
        state.halted = len(above) > 0
        first = int(above[0]) if state.halted else len(counts)
        state.asked += min(first + 1, len(counts))
        return first


@dataclass(frozen=True, init=False)
class SparseAnswer:
    """The answer to a question: EASY (below), HARD (above; a value only if paid), or EXHAUSTED."""

    kind: Literal["EASY", "HARD", "EXHAUSTED"]
    value: float | None

    def __init__(
        self, kind: Literal["EASY", "HARD", "EXHAUSTED"], value: Noisy[float] | None = None
    ) -> None:
        object.__setattr__(self, "kind", kind)
        object.__setattr__(self, "value", None if value is None else values(value))


def first_in_records(quanta: Int64[Array, " n"], shift: int) -> float:
    """The first of some whole numbers of 1 / 2^shift."""
    return math.ldexp(float(quanta[0]), -shift)


def pure_cost(share: Share, epsilon: Exact) -> Share:
    """The cost of an epsilon-DP mechanism in the currency of a share."""
    amount = Fraction(epsilon)
    return Share(share.kind, amount if share.kind == "pure" else amount * amount / 2)


def epoch_share(first: Share, epoch: int, power: Exact) -> Share:
    """The share of one run when a growing table has doubled `epoch` times.

    Noise may grow with the table, so runs become cheaper: epsilon falls by 2^(1 - power) an epoch
    (zCDP: rho by its square). All runs of one epoch use constant scales; at an epoch boundary the
    run is thrown away and a new one is paid. Scaling only the noise of questions while an old
    threshold noise lives on would lose privacy with the age of the run.
    """
    exponent = (1 - float(power)) * (1 if first.kind == "pure" else 2)
    return first.scale(2.0 ** (-epoch * exponent))
