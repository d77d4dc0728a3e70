"""Guarantees as values: what a mechanism may leak, composed exactly and converted tightly."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta
from decimal import ROUND_CEILING, Context
from fractions import Fraction
from functools import partial
from math import exp, inf, log, sqrt
from typing import TYPE_CHECKING, Any

from streamveil.core.accounting import (
    Budget,
    Neighbours,
    Number,
    convert,
    exact,
    float_above,
    float_below,
)
from streamveil.errors import PlanError, require_budget, require_one_of, require_with, whole

if TYPE_CHECKING:
    from streamveil.core.accounting.coin_table import Tables

ZERO = Fraction(0)
REACHED = ("chance", "distance")  # per unit: the units of a group add theirs up
NUMBERS = ("gaussian", "zcdp", "delta", *REACHED)
SPANS = {"day": 1, "week": 7, "month": 31, "year": 366}  # days, the longest of each
FOUR_UP = Context(prec=4, rounding=ROUND_CEILING)
UP = 1 + 1e-15  # float(Fraction) is correctly rounded; this puts it on the cautious side


@dataclass(frozen=True)
class Loss:
    """The privacy loss of everything that was composed, by kind. Exact and hashable.

    Algorithm: each field is a budget of one kind that simply adds up. `gaussian` is the sum of mu^2
        of Gaussian mechanisms (mu-GDP, Dong, Roth & Su 2019, arXiv:1905.02383), `zcdp` the sum of
        rho of all other zCDP mechanisms, `pure` a multiset of epsilons. `delta` is added to the
        delta of every epsilon (thresholds, the delta of an (epsilon, delta) mechanism). `chance`
        is the probability of events (two units share a fingerprint) outside of which all else
        holds, for inputs that differ in any number of units: it adds to delta, once for each unit
        of a group. `distance` is the total-variation distance between all draws that one unit
        reaches and ideal ones, paid on both streams: it adds (1 + e^epsilon) distance. `tables` are
        coin tables, and what a look may have chosen, each with its own certified loss laws.
    Proof: an (epsilon, delta) mechanism leaks everything with probability delta and is epsilon-DP
        otherwise (Kairouz, Oh & Viswanath 2015, arXiv:1311.0776), so it is one pure loss and delta.
        Together with other kinds, delta is mass that the dominating pair moves from its least
        losses to infinity: the deltas of several mechanisms add up.
        Gaussian, zCDP and pure parts may be chosen adaptively, inside totals fixed in advance, and
        run concurrently (Smith & Thakurta 2022, arXiv:2206.07716; Vadhan & Zhang 2023,
        arXiv:2207.08335). The distance is removed on either stream by replacing one mechanism after
        another with its ideal, each at its own distance.
    Numerics: sums are fractions; conversions round up (see `convert`).

    >>> loss = Gdp(0.5) + Gdp(0.5)
    >>> loss.gaussian, round(loss.epsilon(1e-9), 4)
    (Fraction(1, 2), 4.2259)
    """

    gaussian: Fraction = ZERO
    zcdp: Fraction = ZERO
    pure: tuple[tuple[Fraction, int], ...] = ()  # (epsilon, how often), ascending
    delta: Fraction = ZERO
    distance: Fraction = ZERO
    group_size: int = 1  # units the inputs differ in; above 1 only with slack
    chance: Fraction = ZERO
    tables: Tables = ()  # (certificate, how often)

    def __post_init__(self) -> None:
        for name in NUMBERS:
            value = exact(name, getattr(self, name))
            if value < 0:
                raise PlanError(f"{name} must not be negative, not {value}")
            object.__setattr__(self, name, value)
        merged: dict[Fraction, int] = {}
        for one, times in self.pure:
            epsilon, times = exact("epsilon", one), whole("times", times)
            if epsilon < 0 or times < 0:
                raise PlanError("a pure loss is (epsilon >= 0, times >= 0)")
            if epsilon and times:
                merged[epsilon] = merged.get(epsilon, 0) + times
        object.__setattr__(self, "pure", tuple(sorted(merged.items())))
        object.__setattr__(self, "group_size", whole("group_size", self.group_size, 1))
        often: dict[Any, int] = {}
        for table, times in self.tables:
            often[table] = often.get(table, 0) + whole("times", times)
        kept = ((table, times) for table, times in often.items() if times)
        object.__setattr__(self, "tables", tuple(sorted(kept, key=repr)))

    def compose(self, *others: Loss) -> Loss:
        """The loss of all parts together, even if later ones were chosen after earlier releases."""
        for one in others:
            require_with("what is added", one, "group_size", "a loss such as Gdp(1)")
        return Loss._sum([(loss, 1) for loss in (self, *others)])

    __add__ = compose

    def times(self, n: int) -> Loss:
        """The loss of `n` mechanisms with this loss each."""
        return Loss._sum([(self, whole("n", n, 0))])

    @staticmethod
    def _sum(often: list[tuple[Loss, int]]) -> Loss:
        if any(loss.group_size > 1 for loss, _ in often):
            raise PlanError("compose losses first, then ask for a group")
        numbers: dict[str, Any] = {
            name: sum((getattr(loss, name) * n for loss, n in often), ZERO) for name in NUMBERS
        }
        pure = tuple((epsilon, times * n) for loss, n in often for epsilon, times in loss.pure)
        tables = tuple((table, times * n) for loss, n in often for table, times in loss.tables)
        return Loss(pure=pure, tables=tables, **numbers)

    def group(self, size: int) -> Loss:
        """For inputs that differ in `size` units instead of one.

        Proof: mu, epsilon and (for rho) its square root grow by the factor `size` (Dong et al.
            2019; Bun & Steinke 2016, arXiv:1605.02065). With a delta, every such rule depends on
            epsilon; so the group size is kept and `delta_at` walks from one input to the other:
            delta_size(eps) = delta_1(eps/size) (1 + e^(eps/size) + ...). The events of `chance` are
            taken away first, once for each unit of the group: outside of them all steps of the walk
            hold. A distance is removed at both ends of the walk, so that all steps between are of
            ideal mechanisms. It covers the draws that one unit reaches; a group reaches `size`
            times as many.
        """
        size = whole("size", size, 1)
        reached: dict[str, Any] = {name: getattr(self, name) * size for name in REACHED}
        if self.has_slack:
            return replace(self, group_size=self.group_size * size, **reached)
        return Loss(
            self.gaussian * size**2,
            self.zcdp * size**2,
            tuple((epsilon * size, times) for epsilon, times in self.pure),
            **reached,
        )

    @property
    def has_slack(self) -> bool:
        """Whether a group of units must be walked through one by one; see `group`."""
        return bool(self.delta or self.tables)

    @property
    def needs_delta(self) -> bool:
        """Whether epsilon, rho or mu cannot bound the loss without a delta."""
        return bool(self.has_slack or self.distance or self.chance)

    def stated(self) -> Loss:
        """The same with the tables and the Gaussian parts stated as one (epsilon, delta).

        The epsilon is the sum of those at which the tables are stated.
        """
        if not self.tables:
            return self
        joint = Loss(gaussian=self.gaussian, tables=self.tables)
        epsilon = sum((table.epsilon * times for table, times in self.tables), ZERO)
        delta = Fraction(joint.delta_at(float_below(epsilon)))
        rest = replace(self, gaussian=ZERO, tables=())
        return replace(rest, pure=(*self.pure, (epsilon, 1)), delta=self.delta + delta)

    @property
    def pure_total(self) -> Fraction:
        """The sum of all pure epsilons."""
        return sum((epsilon * times for epsilon, times in self.pure), ZERO)

    def rho(self) -> float:
        """The zCDP of all parts but the slack, rounded up; tables as they are stated."""
        if self.tables:
            return self.stated().rho()
        pure = (times * Fraction(convert.pure_zcdp(float(one) * UP)) for one, times in self.pure)
        return float(self.gaussian / 2 + self.zcdp + sum(pure)) * UP * self.group_size**2

    def mu(self) -> float:
        """The GDP parameter when all parts are Gaussian (slack aside), rounded up; else inf."""
        if self.zcdp or self.pure or self.tables:
            return inf
        return sqrt(float(self.gaussian)) * UP * self.group_size

    def delta_at(self, epsilon: float) -> float:
        """A delta with which (epsilon, delta) holds, rounded up.

        Algorithm: the analytic Gaussian formula when only Gaussian parts are present; the exact
            product with randomised responses for pure parts; for zCDP parts the conversion of
            Canonne, Kamath & Steinke; for tables the product with their laws; for mixtures the best
            of the sound combinations.
        """
        if not epsilon >= 0:  # refuses NaN, too
            raise PlanError(f"epsilon must not be negative, not {epsilon}")
        if self.chance or self.distance:
            rest = replace(self, chance=ZERO, distance=ZERO).delta_at(epsilon)
            apart = max(float_above(self.distance), convert.TINY) if self.distance else 0.0
            far = apart * (1 + exp(min(epsilon, 700.0)) * UP)  # at least 1 beyond
            return min(1.0, (rest + far + float_above(self.chance)) * UP)
        size = self.group_size
        if size > 1:
            base = replace(self, group_size=1).delta_at(epsilon / size)
            growth = convert.log_geometric_sum(epsilon / size, size)
            return min(1.0, base * exp(growth)) if growth < 700 else float(base > 0)
        slack, core = float_above(self.delta), self._core_delta(epsilon)
        return min(1.0, (slack + core) * UP if core else slack)

    def _core_delta(self, epsilon: float) -> float:
        if self.tables:
            return self._delta_of_tables(epsilon)
        mu = sqrt(float(self.gaussian)) * UP
        gaussian = partial(convert.gaussian_delta, mu=mu)
        if not self.zcdp:
            rest: convert.Curve = gaussian if self.gaussian else convert.nothing_delta
            if not self.gaussian and epsilon >= self.pure_total:
                return 0.0
            return convert.mixture_delta(epsilon, self.pure, rest)
        both = float(self.gaussian / 2 + self.zcdp) * UP
        zcdp = partial(convert.zcdp_delta, rho=both)
        found = [convert.mixture_delta(epsilon, self.pure, zcdp)]
        if self.gaussian:
            alone = partial(convert.zcdp_delta, rho=float(self.zcdp) * UP)
            left = epsilon - float(self.pure_total) * UP
            if left > 0:
                found.append(convert.split_delta(left, gaussian, alone))
        return min(found)

    def _delta_of_tables(self, epsilon: float) -> float:
        """The delta of tables with Gaussian and zCDP parts; pure losses count in full."""
        from streamveil.core.accounting.coin_table import (
            tables_delta,  # compiles: only where there are any
        )

        rest = partial(convert.gaussian_delta, mu=sqrt(float(self.gaussian)) * UP)
        if self.zcdp:
            rho = float(self.gaussian / 2 + self.zcdp) * UP
            rest = partial(convert.zcdp_delta, rho=rho)
        return tables_delta(self.tables, epsilon - float(self.pure_total) * UP, rest)

    def epsilon(self, delta: Number) -> float:
        """The least epsilon with which (epsilon, delta) holds, rounded up; inf if there is none."""
        share = exact("delta", delta)
        if not 0 <= share < 1:
            raise PlanError(f"delta must be at least 0 and below 1, not {delta}")
        if self.group_size > 1 or self.distance:
            return self._epsilon_by_search(float_below(share))
        plain = inf
        if not (self.gaussian or self.zcdp or self.tables) and self.delta + self.chance <= share:
            plain = float_above(self.pure_total)
        if not share:
            return plain
        return min(plain, convert.smallest_epsilon(float_below(share), self.delta_at))

    def _epsilon_by_search(self, delta: float) -> float:
        """The first epsilon that fits: `delta_at` may grow again with epsilon.

        Some delta stays at any epsilon, and grows with it in a group. The search ends where that
        part alone is too much.
        """
        lasting = Loss(delta=self.delta, tables=self.tables)
        trial, least = 1e-3, lasting.delta_at(1e6)
        most = log(delta / least) if delta and least else inf
        while self.delta_at(trial) > delta:
            trial *= 1.05
            growth = convert.log_geometric_sum(trial / self.group_size, self.group_size)
            if trial > 1e4 or growth > most:
                return inf
        low, high = trial / 1.05, trial
        while high - low > 1e-9 * high:
            middle = (low + high) / 2
            low, high = (low, middle) if self.delta_at(middle) <= delta else (middle, high)
        return high

    def admits(self, rest: Loss) -> bool:
        """Whether this covers, part by part, a mechanism that is Gaussian but for a delta."""
        plain = rest == Loss(gaussian=rest.gaussian, delta=rest.delta)
        return plain and rest.gaussian <= self.gaussian and rest.delta <= self.delta

    def fits(self, budget: Budget) -> bool:
        """Whether this loss is inside the budget."""
        require_budget(budget)
        if budget.epsilon is not None:
            return self._fits_epsilon(budget.epsilon, budget.delta or ZERO)
        slack = self.delta + self.chance
        if self.distance or self.tables or slack > (budget.delta or ZERO) or self.group_size > 1:
            return False
        if budget.mu is not None:
            return not (self.zcdp or self.pure) and self.gaussian <= budget.mu**2
        assert budget.rho is not None  # noqa: S101  (a budget has exactly one of the three)
        rho = Fraction(self.rho()) if self.pure else self.gaussian / 2 + self.zcdp
        return rho <= budget.rho

    def _fits_epsilon(self, epsilon: Fraction, delta: Fraction) -> bool:
        tight = self.gaussian or self.zcdp or self.distance or self.tables or self.group_size > 1
        if not tight and self.pure_total <= epsilon and self.delta + self.chance <= delta:
            return True  # plain composition, in exact arithmetic
        return bool(delta) and Fraction(self.delta_at(float_below(epsilon))) <= delta

    def to_dict(self) -> dict[str, Any]:
        """Exact numbers as text, for durable records."""
        saved: dict[str, Any] = {
            name: str(getattr(self, name)) for name in NUMBERS if getattr(self, name)
        }
        if self.pure:
            saved["pure"] = [[str(epsilon), times] for epsilon, times in self.pure]
        if self.tables:
            saved["tables"] = [[table.to_dict(), times] for table, times in self.tables]
        if self.group_size != 1:
            saved["group_size"] = self.group_size
        return saved

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Loss:
        """The inverse of `to_dict`."""
        numbers = {name: Fraction(saved[name]) for name in NUMBERS if name in saved}
        pure = tuple((Fraction(epsilon), int(times)) for epsilon, times in saved.get("pure", ()))
        tables: Tables = ()
        if "tables" in saved:
            from streamveil.core.accounting.coin_table import table_from  # compiles, as above

            tables = tuple((table_from(one), times) for one, times in saved["tables"])
        return cls(pure=pure, group_size=saved.get("group_size", 1), tables=tables, **numbers)

    def __str__(self) -> str:
        parts = []
        if self.gaussian:
            parts.append(f"mu={sqrt(self.gaussian):.6g} GDP")
        if self.zcdp:
            parts.append(f"rho={float(self.zcdp):.6g} zCDP")
        parts += [
            f"epsilon={float(epsilon):.6g}" + (f" x{times}" if times > 1 else "")
            for epsilon, times in self.pure
        ]
        parts += [f"{table}" + (f" x{times}" if times > 1 else "") for table, times in self.tables]
        if slack := self.delta + self.chance:
            parts.append(f"delta={float(slack):.6g}")
        if self.distance:
            parts.append(f"distance={float(self.distance):.6g}")
        return " + ".join(parts) or "nothing"


NOTHING = Loss()


def Pure(epsilon: Number) -> Loss:  # noqa: N802  (reads as a kind of loss)
    """A pure epsilon-DP mechanism."""
    return Loss(pure=((exact("epsilon", epsilon), 1),))


def Zcdp(rho: Number) -> Loss:  # noqa: N802
    """A rho-zCDP mechanism that is not Gaussian."""
    return Loss(zcdp=exact("rho", rho))


class _Gaussian:
    def __call__(self, mu: Number) -> Loss:
        """A mu-GDP mechanism: a Gaussian whose centre moves by mu standard deviations."""
        return self.squared(exact("mu", mu) * abs(exact("mu", mu)))  # refused below 0

    def squared(self, mu_squared: Number) -> Loss:
        """A Gaussian mechanism given by mu^2 = (L2 sensitivity / sigma)^2."""
        return Loss(gaussian=exact("mu_squared", mu_squared))


Gdp = _Gaussian()


@dataclass(frozen=True)
class Guarantee:
    """Who is protected, against what, by how much, for how long.

    Protects: `protects.phrase`, against everybody who sees every release (central model).
    Guarantee: `loss`, computed by the mechanism that made it.

    >>> day = Guarantee(Neighbours("user", period=timedelta(days=1)), Gdp(0.5), separate=True)
    >>> round(day.epsilon(1e-9), 2), round(day.over(7).epsilon(1e-9), 2)
    (2.91, 8.43)
    """

    protects: Neighbours
    loss: Loss
    horizon: int | None = None  # triggers covered; None: however long it runs
    separate: bool = False  # every period of a unit enters mechanisms of its own: disjoint windows
    periods: int = field(default=1, kw_only=True)  # of `protects.period`, all of one unit
    given_past: bool = field(default=False, kw_only=True)  # see `ledger.Charge`

    def epsilon(self, delta: Number) -> float:
        """See `Loss.epsilon`."""
        return self.loss.epsilon(delta)

    def delta_at(self, epsilon: Number) -> float:
        """See `Loss.delta_at`."""
        return self.loss.delta_at(float_below(exact("epsilon", epsilon)))

    def over(self, periods: int | timedelta) -> Guarantee:
        """The guarantee of a unit present in that many of its periods, or in all of a time span.

        Proof: streams that differ in one unit's rows of n periods are n steps of neighbours apart.
            When every period enters mechanisms of its own, those n mechanisms compose; when one
            mechanism reads several periods, group privacy for n holds.
        """
        period = self.protects.period
        if period is None:
            raise PlanError("the guarantee already covers the whole stream of a unit")
        if isinstance(periods, timedelta):
            periods = most_periods(periods, self.protects)
        periods = whole("periods", periods, 1)
        loss = self.loss.times(periods) if self.separate else self.loss.group(periods)
        return replace(self, loss=loss, periods=self.periods * periods)

    def lifetime(self, span: str = "user-year") -> Guarantee:
        """The guarantee of a unit present in all periods of a day, week, month or year."""
        return self.over(days_of(span))

    def quoted(self, delta: Number) -> tuple[float, Fraction]:
        """The epsilon and delta to show: `delta` for each period, at most 1/2 in all.

        Everything that prints the loss of a unit over a longer time uses this.
        """
        most = min(exact("delta", delta) * self.periods, Fraction(1, 2))
        return self.epsilon(most), most

    def sentence(self, delta: Number) -> str:
        """The promise in words: who, against what, how much, how long."""
        epsilon = self.epsilon(delta)
        if epsilon == inf:
            at = float(exact("delta", delta))
            return f"No finite epsilon holds for {self._change} at delta = {at:g}."
        lost = rounded_up(float_above(exact("delta", delta)))
        plus = f" plus {lost}" if exact("delta", delta) else ""
        return (
            f"{self._change[0].upper()}{self._change[1:]} changes the probability of anything that"
            f" all releases together may show by at most a factor e^{rounded_up(epsilon)}{plus}"
            f" (epsilon = {rounded_up(epsilon)}, delta = {lost}),"
            f" whatever else the reader knows, {self._duration}.{self._presence}"
        )

    @property
    def _change(self) -> str:
        if self.periods == 1:
            return self.protects.phrase
        scope = f"{self.periods} {self.protects.several}"
        return f"{self.protects.verb} all rows of one {self.protects.unit} in {scope}"

    @property
    def _duration(self) -> str:
        if self.horizon is None:
            return "for as long as it runs"
        return f"over {self.horizon:,} trigger{'s' if self.horizon > 1 else ''}"

    @property
    def _presence(self) -> str:
        period = self.protects.period
        if period is None:
            return ""
        unit, several = self.protects.unit, self.protects.several
        if self.periods == 1:
            return f" A {unit} present in several {several} loses this for each of them."
        return (
            f" Assumed: the {unit} is present in at most {self.periods} {several};"
            " in more of them it loses more."
        )

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able record."""
        return {
            "protects": self.protects.to_dict(),
            "loss": self.loss.to_dict(),
            "horizon": self.horizon,
            "separate": self.separate,
            "given_past": self.given_past,
            "periods": self.periods,
        }


def days_of(span: str) -> timedelta:
    """The longest that a span such as 'user-year' or 'year' may be."""
    word = str(span).rsplit("-", 1)[-1]
    require_one_of("span", word, SPANS)
    return timedelta(days=SPANS[word])


def most_periods(span: timedelta, protects: Neighbours) -> int:
    """How many periods a time span can meet; a span of whole periods starts with a period.

    Proof: of m periods met, m - 2 lie within the span, and each of the two at its ends overlaps it;
        so (m - 2) * period < span, whatever the lengths, if none is shorter than `period`. Only
        periods of one length can be made to start where the span does.

    >>> day, month = timedelta(days=1), timedelta(days=28)
    >>> most_periods(timedelta(days=7), Neighbours(period=day))
    7
    >>> most_periods(timedelta(days=7), Neighbours(period=timedelta(days=31)))
    2
    >>> most_periods(timedelta(days=56), Neighbours(period=month, calendar="1 month"))
    3
    """
    period = protects.period
    if period is None:
        raise PlanError("only a privacy unit with a period has periods")
    whole, rest = divmod(span, period)
    return whole + 2 if rest else whole + bool(protects.calendar)


def rounded_up(epsilon: float) -> str:
    """Four significant digits, never below the number.

    >>> rounded_up(83.34101), rounded_up(2.0), rounded_up(inf), rounded_up(1.00005e-9)
    ('83.35', '2', 'inf', '1.001e-09')
    """
    return f"{float(FOUR_UP.create_decimal(repr(float(epsilon)))):.4g}"
