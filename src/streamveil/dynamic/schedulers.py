"""Schedules that say when to rerun a private algorithm on a growing database, and at what cost.

A schedule is an endless public list of runs: run i happens when the database reaches `size(i)`
records, with a share of the budget. Sizes are public (`event-change`: neighbours replace one record
and keep every arrival time), so the schedule says nothing. Between runs the last answer stands.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Generic, NoReturn, Protocol, TypeVar, runtime_checkable

from streamveil.core.accounting import Budget, Neighbours, exact_between, take_numbers
from streamveil.core.accounting.guarantee import Guarantee, Loss
from streamveil.core.noise import Place, require_place
from streamveil.dynamic.insertion_only import InsertionOnly
from streamveil.dynamic.protocol import Bag, OfStatic, require_same
from streamveil.dynamic.trees import Accumulator, accumulator, released
from streamveil.errors import (
    BudgetError,
    HorizonError,
    PlanError,
    UncopiedNoiseError,
    at_least,
    require_between,
    require_budget,
    require_one_of,
    require_positive,
    require_with,
    whole,
)
from streamveil.linear.additive import Additive
from streamveil.linear.budget_shares import Meter, Share, require_share
from streamveil.linear.protocol import (
    ErrorBound,
    QueryAnswers,
    StaticMechanism,
    combine,
    require_static,
)
from streamveil.types import Array, Int64

Data = TypeVar("Data")
ROUNDING = 1 - 1e-12  # far more than the rounding errors of all weights together
MOST_DOUBLED, MOST_RECORDS = 62, 2**62
LEAST_GAMMA = 1e-4  # below: too many runs to add up their shares, and each gets next to nothing
PUBLIC_SIZES = Neighbours(unit="record", relation="event-change")


@dataclass(frozen=True)
class ScheduledRun:
    """One run of the black box."""

    index: int  # from 0
    start: int  # it sees records start..size-1
    size: int  # of the database when it runs
    share: Share
    beta: float  # its failure probability


@runtime_checkable
class RunSchedule(Protocol):
    """An endless list of runs whose costs stay inside one budget."""

    budget: Budget
    disjoint: ClassVar[bool]  # whether runs see disjoint records, so that their costs do not add

    def run(self, index: int) -> ScheduledRun:
        """The run of this index; sizes never decrease, and of equal ones only the last is run.

        Args:
            index: of the run, from 0.

        Raises:
            PlanError: there is no such run.
        """


class Budgeted:
    """A schedule that spends one budget, for ever."""

    budget: Budget

    @cached_property
    def whole(self) -> Share:
        """The budget in the currency of the runs."""
        return Share.of(self.budget)


def require_schedule(plan: Any, least: int = 1) -> None:
    """Refuses a start, a budget or a chance to fail with which no schedule can be made."""
    at_least(least, start=plan.start)
    require_budget(plan.budget)
    exact_between("beta", plan.beta, 0, 1)


@dataclass(frozen=True, kw_only=True)
class BBScheduler(Budgeted):
    """Runs on the whole database each time it has grown by a factor 1 + gamma.

    Algorithm: 'paper': BBScheduler of Cummings, Krehbiel, Lai & Tantipongpipat (2018,
        arXiv:1803.06416), shares falling like gamma^2 (i+1)/(1+gamma)^(i+2) for pure budgets and
        like gamma^(3/2) (i+1)/(1+gamma)^(i+3/2) under zCDP. 'plus': failure probabilities
        beta_i ~ 1/(i+1)^2 instead of geometric ones and shares in proportion to
        ln(1/beta_i) (1+gamma)^-i, which improves the exponent of the error from p/(2p+1) to p/(p+1)
        (pure) and from p/(1.5p+1) to 2p/(2+p) (zCDP).
    Protects: streams that differ in one record; sizes and arrival times are public.
    Guarantee: the budget, for ever.
    Proof: all runs may see the differing record, so costs add. Paper, pure:
        sum_i (i+1) x^i = 1/(1-x)^2 with x = 1/(1+gamma) makes the shares add to exactly 1. Paper,
        zCDP: sum_i (i+1)^2 x^(2i) = (1+x^2)/(1-x^2)^3, and the shares are divided by the sum. Plus:
        shares are divided by an upper bound of their infinite sum (see `_plus_total`). The meter of
        the runner refuses a run that would pass the budget whatever the arithmetic says.
    Error: a (p, g) black box (normalised error g (ln(1/beta)/(eps n))^p) has error at most
        gamma/(1+gamma) + g (Z/(eps n))^p at all times, Z in `error`; the first term is staleness.

    Raises:
        PlanError: a setting is out of its range.

    >>> plan = BBScheduler(start=1000, gamma=0.5, budget=Budget(epsilon=1), mode="paper")
    >>> [plan.run(i).size for i in range(4)]
    [1000, 1500, 2250, 3375]
    >>> sum(float(plan.run(i).share.amount) for i in range(80)) > 0.999999
    True
    """

    disjoint: ClassVar[bool] = False
    start: int  # size of the database at the first run, >= 1
    budget: Budget
    gamma: float = 0.2  # growth between two runs as a fraction, in [0.0001, 1]
    beta: float = 0.05  # chance that any run misses its error, in (0, 1)
    mode: str = "plus"  # or 'paper'

    def __post_init__(self) -> None:
        take_numbers(self)
        require_schedule(self)
        require_between(LEAST_GAMMA, 1, gamma=self.gamma)
        require_one_of("mode", self.mode, ("plus", "paper"))

    @classmethod
    def tuned(
        cls, *, start: int, budget: Budget, power: float, factor: float, beta: float = 0.05,
        mode: str = "plus",
    ) -> BBScheduler:  # fmt: skip
        """The gamma that balances staleness and noise for a (power, factor) black box.

        Algorithm: bisection on the error bound's minimum, which is unimodal in gamma.

        Args:
            start: records at the first run, at least 1.
            budget: of all runs.
            power: the error of the black box falls with this power of the size, above 0.
            factor: of that error, above 0.
            beta: chance that it fails, above 0 and below 1.
            mode: 'plus' or 'paper'.

        Raises:
            PlanError: an argument is beyond its range.
        """
        require_positive(power=power, factor=factor)

        def error(gamma: float) -> float:
            plan = cls(start=start, budget=budget, gamma=gamma, beta=beta, mode=mode)
            return plan.error(power, factor)

        low, high = LEAST_GAMMA, 1.0
        for _ in range(60):  # golden-section search
            a, b = high - 0.618 * (high - low), low + 0.618 * (high - low)
            low, high = (low, b) if error(a) < error(b) else (a, high)
        return cls(start=start, budget=budget, gamma=(low + high) / 2, beta=beta, mode=mode)

    def run(self, index: int) -> ScheduledRun:
        """See `RunSchedule`."""
        at_least(0, index=index)
        share = self.whole.scale(self._weight(index) * ROUNDING)
        return ScheduledRun(index, 0, self._size(index), share, math.exp(-self._log_beta(index)))

    def error(self, power: float, factor: float) -> float:
        """Bound on the normalised error at all times, for a (power, factor) black box.

        `factor` refers to the currency of the budget: epsilon, or the square root of rho.

        Raises:
            PlanError: an argument is no finite number above 0.
        """
        require_positive(power=power, factor=factor)
        worst, whole = 0.0, float(self.whole.amount)
        for i in range(400):
            amount = whole * self._weight(i)
            unit = amount if self.whole.kind == "pure" else math.sqrt(amount)
            if unit < 1e-150:
                break
            noise = self._log_beta(i) / (unit * self._size(i))
            worst = max(worst, factor * noise**power)
        return self.gamma / (1 + self.gamma) + worst

    def _size(self, index: int) -> int:
        try:
            return math.ceil((1 + self.gamma) ** index * self.start)
        except OverflowError:
            raise PlanError(f"there is no run {index}: no table has so many records") from None

    def _log_beta(self, index: int) -> float:
        """ln(1/beta_i)."""
        if self.mode == "paper":
            return (index + 1) * math.log((1 + self.beta) / self.beta)
        return math.log(math.pi**2 * (index + 1) ** 2 / (6 * self.beta))

    def _weight(self, index: int) -> float:
        x = 1 / (1 + self.gamma)
        if self.mode == "paper":
            if self.whole.kind == "pure":
                return float((1 - x) ** 2 * (index + 1) * x**index)
            total = (1 + x * x) / (1 - x * x) ** 3
            return float((index + 1) ** 2 * x ** (2 * index) / total)
        power = 1 if self.whole.kind == "pure" else 2
        weight = (self._log_beta(index) * x**index) ** power
        return float(weight / self._plus_total)

    @cached_property
    def _plus_total(self) -> float:
        """An upper bound of the infinite sum of the 'plus' weights.

        The first terms are added; the tail is at most the next term times a geometric series
        whose ratio is that of two successive terms, which only falls (ln of a polynomial grows
        ever more slowly).
        """
        x = 1 / (1 + self.gamma)
        power = 1 if self.whole.kind == "pure" else 2
        total, i, after = 0.0, 0, self._log_beta(0) ** power
        while True:
            term, after = after, (self._log_beta(i + 1) * x ** (i + 1)) ** power
            total += term
            ratio = after / term
            if i > 20 and ratio < 1 and after / (1 - ratio) < 1e-12 * total:
                return (total + after / (1 - ratio)) * (1 + 1e-9)
            i += 1


@dataclass(frozen=True, kw_only=True)
class BBImprover(Budgeted):
    """Runs at every size t >= start, with errors that fall as the database grows.

    Algorithm: BBImprover of Cummings et al. (2018), constants our own: weights
        w_t = 1/(Z t ln^2(t+1)); rho_t = rho w_t (zCDP) or eps_t = eps w_t (pure budgets).
    Protects: streams that differ in one record; sizes and arrival times are public.
    Guarantee: the budget, for ever.
    Proof: sum_{t>=n} 1/(t ln^2(t+1)) <= 1/(n ln^2(n+1)) + integral from n of dx/(x ln^2 x)
        = 1/(n ln^2(n+1)) + 1/ln n, which is Z.
    Error: that of the black box at share rho w_t on t records; it beats a fixed schedule only
        when t is of the order of start squared. For i.i.d. data prefer `DisjointDoubling`.

    Raises:
        PlanError: a setting is out of its range.

    >>> plan = BBImprover(start=100, budget=Budget(epsilon=1))
    >>> plan.run(0).size, plan.run(1).size, sum(plan.run(i).share.amount for i in range(50)) < 1
    (100, 101, True)
    """

    disjoint: ClassVar[bool] = False
    start: int  # >= 2
    budget: Budget
    beta: float = 0.05  # chance that a stated error bound fails, in (0, 1)

    def __post_init__(self) -> None:
        take_numbers(self)
        require_schedule(self, 2)

    def run(self, index: int) -> ScheduledRun:
        """See `RunSchedule`."""
        at_least(0, index=index)
        n, t = self.start, self.start + index
        z = (1 / (n * math.log(n + 1) ** 2) + 1 / math.log(n)) * (1 + 1e-9)
        weight = 1 / (z * t * math.log(t + 1) ** 2)
        beta = 6 * self.beta / (math.pi**2 * (index + 1) ** 2)
        return ScheduledRun(index, 0, t, self.whole.scale(weight), beta)


@dataclass(frozen=True, kw_only=True)
class DisjointDoubling(Budgeted):
    """Runs on the last complete doubling batch alone, each time with the whole budget.

    Protects: streams that differ in one record; sizes and arrival times are public.
    Guarantee: the budget, for ever.
    Proof: batches [0, n), [n, 2n), [2n, 4n), ... are disjoint, so along every transcript only the
        run on the batch of the differing record has another law; the batch is decided by the
        record's public position. A run draws nothing before its batch is complete, so it loses its
        share and no more, whatever was released before, and whoever chose the record because of it:
        parallel composition holds for every kind of privacy (`accounts.ledger`).
    Error: population error of a static run on at least a quarter of all records (half on average).
        For i.i.d. data this dominates the other schedules; it says nothing about old records.

    Raises:
        PlanError: a setting is out of its range.

    >>> plan = DisjointDoubling(start=100, budget=Budget(epsilon=1))
    >>> [(plan.run(i).start, plan.run(i).size) for i in range(4)]
    [(0, 100), (100, 200), (200, 400), (400, 800)]
    """

    disjoint: ClassVar[bool] = True
    start: int  # size of the first batch, in records, >= 1
    budget: Budget
    beta: float = 0.05  # chance that a stated error bound fails, in (0, 1)

    def __post_init__(self) -> None:
        take_numbers(self)
        require_schedule(self)

    def run(self, index: int) -> ScheduledRun:
        """See `RunSchedule`."""
        require_between(0, MOST_DOUBLED, index=whole("index", index))
        start = 0 if index == 0 else self.start * 2 ** (index - 1)
        beta = 6 * self.beta / (math.pi**2 * (index + 1) ** 2)
        return ScheduledRun(index, start, self.start * 2**index, self.whole, beta)


@dataclass
class Reruns(Generic[Data]):
    """Runs a black box by a schedule while records arrive, and charges each run to `meter`.

    Runs on disjoint records are not charged one by one: their costs do not add. Each may spend the
    whole budget, and none reads a record of an earlier one, whatever the schedule says.

    `black_box(data, share, place)` returns the answer of one private run on `data` that costs
    `share`; `slice_of(start, stop)` gives the records of those positions. When several runs fall
    due at once, only the last is made: the others' shares stay unspent. If the black box raises,
    the records have arrived and the run is over: do not add them again. To go on after a stop, save
    `size` and `next_index` with each answer, before it is shown.

    Raises:
        BudgetError: a run would pass the schedule's budget, or read again what another has read.
        PlanError: an argument is of another kind.
        PlanError: fewer than 0 or more than 2**62 records arrive at once.
        UncopiedNoiseError: it is copied: both would make the same runs, for the budget of one.

    >>> from streamveil.core.noise import SeededNoise
    >>> plan = DisjointDoubling(start=100, budget=Budget(epsilon=1))
    >>> runs = Reruns(plan, lambda data, share, place: len(data), lambda a, b: range(a, b),
    ...     Place(SeededNoise(1), "doc"))
    >>> runs.arrive(150), runs.arrive(10), runs.answer
    (True, False, 100)
    """

    schedule: RunSchedule
    black_box: Callable[[Data, Share, Place], Any]
    slice_of: Callable[[int, int], Data]
    place: Place  # where noise is drawn
    size: int = 0  # records that have arrived, >= 0
    next_index: int = 0  # of the schedule: the next run, >= 0
    answer: Any = None  # of the latest run; None before the first
    answered_at: int = 0  # size of the database then, >= 0
    meter: Meter = field(init=False)

    def __post_init__(self) -> None:
        schedule = "a schedule such as DisjointDoubling(start=100, budget=Budget(epsilon=1))"
        for has in ("budget", "disjoint", "run"):
            require_with("schedule", self.schedule, has, schedule)
        require_with("black_box", self.black_box, "__call__", "a function of data, share and place")
        require_with("slice_of", self.slice_of, "__call__", "a function of two positions")
        require_place(self.place)
        at_least(0, size=self.size, next_index=self.next_index, answered_at=self.answered_at)
        self.meter = Meter(Share.of(self.schedule.budget))
        for index in range(0 if self.disjoint else self.next_index):  # made before a restart
            self.meter.charge(self.schedule.run(index).share)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise UncopiedNoiseError

    @property
    def disjoint(self) -> bool:
        """Whether runs see disjoint records, so that costs do not add."""
        return self.schedule.disjoint

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee for everything ever answered."""
        return Guarantee(PUBLIC_SIZES, self.meter.limit.loss, None)

    def arrive(self, records: int = 1) -> bool:
        """Adds `records` to the size and runs what is due. Returns whether there is a new answer.

        Args:
            records: how many, at least 0.

        Raises:
            PlanError: they are too many.
        """
        records = whole("records", records)
        require_between(0, MOST_RECORDS, records=records)
        with self.place.drawn.turn():
            self.size += records
            last = self._last_due()
            if last < self.next_index:
                return False
            due = self.schedule.run(last)
            self._charge(due)
            self.next_index = last + 1
            stop = due.size if self.disjoint else self.size
            answer = self.black_box(
                self.slice_of(due.start, stop), due.share, self.place.inside(due.index)
            )
            if self.next_index == due.index + 1:  # else the black box itself made a newer run
                self.answer, self.answered_at = answer, stop
            return True

    def _charge(self, due: ScheduledRun) -> None:
        """Pays for a run. Raises BudgetError."""
        meter = replace(self.meter) if self.disjoint else self.meter  # disjoint runs do not add up
        meter.charge(due.share)
        if not self.disjoint or not self.next_index:
            return
        read = self.schedule.run(self.next_index - 1).size
        if due.start < read:
            raise BudgetError(
                f"run {due.index} of the schedule begins at record {due.start}, and an earlier one"
                f" has read {read}: they are not disjoint.\n"
                "  to fix  let runs begin where the one before ends, or say disjoint = False"
            )

    def _last_due(self) -> int:
        """The last run that is due, by search: sizes never decrease; strides double, then halve."""
        last, stride = self.next_index - 1, 1
        while self._is_due(last + stride):
            last, stride = last + stride, 2 * stride
        while stride > 1:
            stride //= 2
            last += stride * self._is_due(last + stride)
        return last

    def _is_due(self, index: int) -> bool:
        """Whether there is a run of this index, and the database is large enough for it."""
        try:
            return self.schedule.run(index).size <= self.size
        except PlanError:
            return False


# ---- fixed queries over batches of public sizes


@dataclass(frozen=True)
class PublicSizes(OfStatic):
    """A static mechanism that knows the number of its records.

    Protects: tables that differ in one record replaced: their size is the same, hence public.
    Guarantee: that of the mechanism, which no longer pays for the size.
    """

    static: StaticMechanism

    @property
    def error(self) -> ErrorBound:
        """See `StaticMechanism`."""
        return self.static.error

    @property
    def adaptive(self) -> bool:
        """See `StaticMechanism`."""
        return self.static.adaptive

    def covers(self, protects: Neighbours) -> bool:
        """See `StaticMechanism`. A record that is added or removed changes the size."""
        return protects.verb == "replacing" and self.static.covers(protects)

    def release(
        self,
        histogram: Int64[Array, " N"],
        share: Share,
        place: Place,
        size_hat: float | None = None,
    ) -> QueryAnswers:
        """See `StaticMechanism`; `size_hat` is not needed and not read."""
        return self.static.release(histogram, share, place, float(histogram.sum()))


@dataclass(repr=False)  # secret: `rest` holds raw counts
class FoundedState:
    """The answers about the first batch, and the accumulator of the others."""

    rest: Any
    first: QueryAnswers | None = None


@dataclass(frozen=True)
class Founded:
    """One release of the first batch alone, and an accumulator over all later batches.

    Protects: streams whose batches differ in one record.
    Guarantee: the share, which `rest` must cost as well.
    Proof: a record lies in the first batch or in a later one, never in both: the releases about
        the first batch and those of `rest` read disjoint data.
    Error: that of `rest` plus one release with the whole share: the table one starts with is
        often as large as all that follows, and a plain tree would give it one level's part.
    """

    static: StaticMechanism
    share: Share
    rest: Accumulator

    def __post_init__(self) -> None:
        require_same(self.static, self.rest)
        if self.rest.loss != self.share.loss:
            raise PlanError("the accumulator must cost the same share as the first release")

    @property
    def loss(self) -> Loss:
        """See `Accumulator`."""
        return self.share.loss

    def init(self) -> FoundedState:
        """See `Accumulator`."""
        return FoundedState(self.rest.init())

    def step(self, state: FoundedState, bag: Bag, place: Place) -> None:
        """See `Accumulator`."""
        if state.first is None:
            state.first = released(self.static, bag, self.share, place.inside(b"first"))
        else:
            try:
                self.rest.step(state.rest, bag, place.inside(b"rest"))
            except HorizonError as over:
                raise HorizonError(over.horizon + 1) from None  # 1: the first batch

    def answers(self, state: FoundedState) -> QueryAnswers:
        """See `Accumulator`."""
        first = [] if state.first is None else [(1.0, state.first)]
        rest = (1.0, self.rest.answers(state.rest))
        return combine([*first, rest], self.static.queries.size)

    def parts(self, state: FoundedState) -> list[Share]:
        """See `Accumulator`."""
        first = [] if state.first is None else [self.share]
        return first + self.rest.parts(state.rest)


def growing(
    static: StaticMechanism, share: Share, *, steps: int | None = None, arity: int | None = None
) -> InsertionOnly:
    """The default for fixed queries over a growing table: the table so far, then batches.

    The first step brings the table one starts with, each later one a batch. Neighbours replace one
    record; sizes are public.

    Args:
        static: what answers about one fixed table.
        share: the budget of all steps together.
        steps: later batches at most; None: any number.
        arity: children of a node of the tree; `best_arity` if left out.

    Raises:
        PlanError: `steps` is below 1, `arity` below 2, or an argument is of another kind.

    >>> from streamveil.linear import Marginals, Mwem
    >>> table = growing(Mwem(queries=Marginals.ways((2, 2), 1)), Share("pure", 1), steps=12)
    >>> print(table.guarantee.protects.relation)
    event-change
    """
    require_share(share)
    require_static(static)
    if steps is not None:
        steps = whole("steps", steps, 1)
    if arity is not None:
        at_least(2, arity=arity)
    if isinstance(static, Additive):
        static = replace(static, replaced=True)
    told = PublicSizes(static)
    arity = arity or (4 if steps is None else best_arity(steps))
    inner = Founded(told, share, accumulator(told, share, steps, arity))
    return InsertionOnly(inner=inner, static=told, protects=PUBLIC_SIZES)


def best_arity(steps: int) -> int:
    """The arity of a tree of releases over `steps` batches: few levels against few releases.

    A sum of (arity - 1) L releases with a share of 1/L each has a proved error in proportion to
    ((arity - 1) L^2)^(1/3) when that of one release grows like size^(2/3) / share^(1/3); this is
    minimised over the smallest arity for every number L of levels; fewer levels win ties.

    >>> best_arity(1), best_arity(64), best_arity(10**6)
    (2, 9, 4)
    """
    choices: list[tuple[int, int, int]] = []
    for count in range(1, max(2, steps.bit_length() + 1)):
        arity = max(2, math.floor(steps ** (1 / count)))
        while arity**count <= steps:
            arity += 1
        choices.append(((arity - 1) * count**2, count, arity))
    return min(choices)[2]
