"""A second way for a hidden key to be published, or the only one: its noisy total is large."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import inf
from typing import Any, ClassVar

import numpy as np

from streamveil.core.accounting import exact_between, portable
from streamveil.core.accounting.guarantee import Loss
from streamveil.core.counters import CounterState
from streamveil.core.counters.blt import BltCounter
from streamveil.core.counters.kernels import advance_spread
from streamveil.core.noise import Address, Place
from streamveil.core.release import WeightRule, count_weighted, lanes_start
from streamveil.core.selection import Held, Names, PerKey, Stepped
from streamveil.core.selection.gaussian import SAFETY, reaches
from streamveil.core.sensitivity import Bounds, Lane
from streamveil.types import Array, Float64, Int64

MOST_ROWS = 4096  # of one unit in a hidden key: beyond, no noisy total tells one unit from many
LAST = 0.5  # of beta, for the last trigger
AT_ONCE = 1 << 16  # keys that are tested together


@dataclass(frozen=True, kw_only=True)
class TotalTesting:
    """Noisy totals also show groups: what bounds, lanes and triggers do not imply."""

    place: int  # of the lane
    tests: int  # triggers at which totals are tested, at most
    beta: Fraction  # that a test shows what only one unit lets pass, at most


@dataclass(frozen=True, kw_only=True)
class TotalTest:
    """Shows hidden keys whose noisy total passes a threshold at one of a few public triggers.

    A unit whose slots are taken is counted in no further hidden key, so rows of junk keys can keep
    the selection from publishing any other key. Totals have no slots: each row pays for them
    anyway. Where a query answers once, no selection is needed beside them (`TotalsAlone`).

    Algorithm: at the trigger t_j noise is added to the exact total of a hidden key, as if the key
        were published; the key is published if the sum exceeds `threshold(j)`. A total below
        `floor` is not tested. Every lane of a hidden key draws noise at t_1, t_2 ... and at no
        other trigger. From the trigger that publishes the key on, its lanes draw at each: what was
        tested is what is released. Noise has an address, so none is kept for a hidden key.
    Protects: all rows of one unit.
    Guarantee: `loss`, a delta of `beta`, beside the selection and the Gaussian loss of the lanes.
    Proof: Let G run the counters of every key of the universe at t_1 .. t_J, and from the trigger
        that shows it at each; with the coins of the selection, where there are any. D has one unit
        u more than D'. Let X be the pairs (key, j) of hidden keys whose total at t_j is below
        `floor` without u and is not with it: totals of the tested lane never fall, and only grow by
        u. B(D) is what runs, with X not tested as well. (i) B(D) and what runs on D', A(D'), are
        the same function of G and the coins on D and on D', so they are as close as the joint bound
        of the selection and the Gaussian releases says: a row of a hidden key is charged at the
        weight of hidden keys, and a counter that takes some steps only has columns no longer than
        one that takes all (below). (ii) On the event F that no pair in X passes, A(D) = B(D), and F
        is an event of what G and the coins show, so P[A(D) in E] <= P[B(D) in E] + P_D(not F) and
        P[A(D') in E] <= e^eps P[A(D) in E] + delta + P_D'(not F): no factor e^eps. (iii) Let u have
        n_k rows in its hidden key k. Pairs in X pass if their noise exceeds threshold(j) less
        (floor - 1 + n_k reach), n_k = 0 on D', and the noise of a pair in X is independent of what
        B shows: it was in X at every earlier test too. With share(j, n) = beta_j g(n) the chance
        that `threshold` leaves to n rows, P(not F) <= sum over j and k of beta_j g(n_k), whatever
        the releases that the rows react to. For g(n) = n / C the n_k sum to at most C =
        `max_rows`; for g(n) = n^2 / Q their squares to at most Q, what the quadratic bound leaves
        at that weight. Either way P(not F) <= sum of beta_j = beta. Groups of a unit that share 16
        bits are charged as one, (a + b)^2 >= a^2 + b^2.
        *Steps left out.* A step at t of a BLT adds z_t D_t less what the last noise says, whatever
        lies between. With steps at e_1 < e_2 ... the encoder has entries c_(i-m) / D_(e_m), so
        column m has squared norm at most S_n / D_(e_m)^2, n <= T - e_m + 1 the steps from e_m on:
        `Schedule.scales` bounds it by S_T as before. Weights only fall (`weighted_loss`).
        *At least k units.* Totals below floor = (k - 1) times what one unit may add, plus one, are
        not tested: a key of fewer than k units is never published here.
    Error: half of all keys of total `threshold` are published. The noise of the tests makes a key's
        first release less precise, by J - 1 small steps at most, and hardly its later ones.
    Memory: none.
    """

    counter: BltCounter  # of the tested lane
    lane: Lane
    place: int  # of the lane
    bounds: Bounds
    rule: WeightRule | None
    tests: int  # at most
    beta: Fraction  # that a test shows what only one unit lets pass, at most
    least_units: int = 1  # k

    def __post_init__(self) -> None:
        if self.tests < 1 or self.least_units < 1:
            raise ValueError(f"at least 1: tests {self.tests}, least_units {self.least_units}")
        exact_between("beta", self.beta, 0, 1)
        if not can_test(self.counter, self.lane, self.bounds, self.rule):
            raise ValueError("this lane's total does not tell one unit from many")

    @property
    def loss(self) -> Loss:
        """Of all tests; see the class."""
        return Loss(delta=self.beta)

    @cached_property
    def triggers(self) -> tuple[int, ...]:
        """t_1 < t_2 ..; the last is that of the window."""
        return grid_of_tests(self.counter.horizon, self.tests)

    @property
    def entry(self) -> int:
        """The weight of hidden keys, in quanta."""
        return self.bounds.scale if self.rule is None else self.rule.entry

    @property
    def share(self) -> float | None:
        """The weight of hidden keys as a part of full weight; None where there are no weights."""
        return None if self.rule is None else self.rule.entry / self.rule.scale

    @property
    def most(self) -> int:
        """How often one unit may count in a hidden key."""
        return 1 if self.lane.kind == "units" else self.bounds.most_in_group(self.entry)

    @property
    def floor(self) -> int:
        """The least total that is tested, in quanta."""
        return (self.least_units - 1) * self.most * int(self.lane.reach) + 1

    def before(self, trigger: int) -> tuple[int, ...]:
        """The triggers of all tests before `trigger`: those of a key published there."""
        return tuple(t for t in self.triggers if t < trigger)

    def threshold(self, trigger: int) -> int:
        """The total, in quanta, that a noisy total must exceed at a trigger of a test."""
        return self._thresholds[self.triggers.index(trigger)]

    def deviation(self, trigger: int) -> float:
        """The standard deviation of the noisy total that is tested at a trigger, in quanta."""
        plan, d = self.counter.schedule, self.counter.buffers
        noise, rounding = np.zeros((2, d * (d + 1) // 2 + d + 1, 1))
        for step in (*self.before(trigger), trigger):
            scale = plan.scale(step)
            drawn = np.array([(1 / (self.share or 1.0)) ** 2])
            for moments, fresh in ((noise, drawn), (rounding, np.array([1 / (12 * scale**2)]))):
                advance_spread(moments, plan.keep, plan.drain, scale, fresh)
        return float(np.sqrt(noise[-1] * float(self.counter.sigma) ** 2 + rounding[-1])[0])

    @cached_property
    def _thresholds(self) -> tuple[int, ...]:
        rows = np.arange(1, self.most + 1)
        parts, early = self._parts(rows), len(self.triggers) - 1
        found = []
        for trigger in self.triggers:
            part = LAST ** (early > 0) if trigger == self.triggers[-1] else (1 - LAST) / early
            chances = float(self.beta) * part * parts
            sigma = float(self.counter.sigma) / (self.share or 1.0)
            steps = len(self.before(trigger)) + 1  # at which a hidden key drew noise
            noise = self.deviation(trigger) * reaches(self.counter, sigma, chances, steps)
            needed = self.floor - 1 + rows * int(self.lane.reach) + noise
            found.append(int(np.ceil(portable(float(needed.max(axis=1).min()) * SAFETY))))
        return tuple(found)

    def _parts(self, rows: Int64[Array, " rows"]) -> Float64[Array, "ways rows"]:
        """g(n) for every rule that limits the rows of one unit in hidden keys, rounded down."""
        limits = []
        if self.bounds.max_rows is not None:
            limits.append(rows / self.bounds.max_rows)
        if self.bounds.quadratic is not None:
            most = Fraction(self.bounds.quadratic * self.bounds.scale**2, self.entry**2)
            limits.append(rows**2 / float(most))
        return np.minimum(np.array(limits), 1.0) * (1 - 1e-12)

    def passing(
        self, totals: PerKey, names: Names, trigger: int, at: Address
    ) -> Int64[Array, " passing"]:
        """Which of some hidden keys a test shows, by their exact totals in quanta."""
        tested = np.flatnonzero(totals >= self.floor)
        found = [np.zeros(0, np.int64)]
        for start in range(0, len(tested), AT_ONCE):
            some = tested[start : start + AT_ONCE]
            span = self.place, self.place + 1
            noise = self.noise(self.counter, span, names[some], (trigger + 1, at))
            found.append(some[totals[some] + noise.whole[0] > self.threshold(trigger)])
        return np.concatenate(found)

    def noise(
        self, counter: BltCounter, span: tuple[int, int], names: Names, when: tuple[int, Address]
    ) -> CounterState:
        """The state of a span of lanes before a trigger: the noise of all tests until then."""
        (trigger, at), (place, last) = when, span
        state = lanes_start(counter, last - place, len(names), trigger - 1)
        share = None if self.share is None else np.full(len(names), self.share)
        nothing = np.zeros((last - place, len(names)), np.int64)
        for step in self.before(trigger):
            draws = Place(at.noise, "group-by/lane", (at.job, place, at.window))
            state = CounterState(step - 1, state.whole, state.real)
            _, state = count_weighted(counter, state, nothing, (draws, names), share)
        return CounterState(trigger - 1, state.whole, state.real)


@dataclass(frozen=True, kw_only=True)
class TotalsAlone:
    """A selection that shows no key by its units: only `TotalTest` shows keys.

    Guarantee: nothing is lost here. The test is charged by itself.
    Proof: no key passes, whatever its units are; what a step returns says nothing of them.
    """

    offset: int = 0  # units that do not count: keys need that many more
    once: ClassVar[bool] = True
    restarts: ClassVar[bool] = False
    slots, loss = None, Loss()  # a unit's rows count in every group that it enters

    def over(self, *_: Any, **__: Any) -> TotalsAlone:
        """See `core.mechanism.Discovery`."""
        return self

    def threshold(self, trigger: int) -> float:
        """No number of units shows a key."""
        return inf

    def init(self, trigger: int) -> Held:
        """See `Selection.init`."""
        return {}

    def step(self, state: Held, units: PerKey, *_: Any, **__: Any) -> Stepped:
        """See `Selection.step`."""
        units[:] = 0
        return state, np.zeros(0, np.int64)


def can_test(counter: object, lane: Lane, bounds: Bounds, rule: WeightRule | None) -> bool:
    """Whether totals of a lane can show keys: they never fall, and one unit adds little."""
    rising = lane.kind in ("rows", "valid", "units", "sum") and min(lane.ends) >= 0
    few = bounds.most_in_group(None if rule is None else rule.entry) <= MOST_ROWS
    return isinstance(counter, BltCounter) and rising and few


def grid_of_tests(horizon: int, tests: int) -> tuple[int, ...]:
    """At most `tests` triggers, each twice as late as the one before; the last is the horizon.

    >>> grid_of_tests(100, 4), grid_of_tests(3, 8), grid_of_tests(1, 4)
    ((13, 25, 50, 100), (1, 2, 3), (1,))
    """
    backs = range(min(tests, horizon.bit_length() + 1))  # further back all are at 1
    return tuple(sorted({-(-horizon // 2**back) for back in backs}))
