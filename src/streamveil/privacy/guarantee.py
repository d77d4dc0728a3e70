"""Guarantees as values: what a mechanism may leak, composed exactly and converted tightly."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta
from fractions import Fraction
from functools import partial
from math import exp, floor, inf, log10, sqrt
from typing import Any

from streamveil.privacy import convert
from streamveil.privacy.budget import Budget, Number, exact
from streamveil.privacy.neighbours import Neighbours, duration

ZERO = Fraction(0)
UP = 1 + 1e-15  # float(Fraction) is correctly rounded; this puts it on the cautious side


@dataclass(frozen=True)
class Loss:
    """The privacy loss of everything that was composed, by kind. Exact and hashable.

    Algorithm: each field is a budget of one kind that simply adds up. `gaussian` is the sum of mu^2
        of Gaussian mechanisms (mu-GDP, Dong, Roth & Su 2019, arXiv:1905.02383), `zcdp` the sum of
        rho of all other zCDP mechanisms, `pure` a multiset of epsilons, `delta` is added to the
        delta of every epsilon (thresholds, the delta of an (epsilon, delta) mechanism), `distance`
        is a total-variation distance of what runs from the ideal, paid on both streams: it adds
        (1 + e^epsilon) distance.
    Proof: an (epsilon, delta) mechanism leaks everything with probability delta and is epsilon-DP
        otherwise (Kairouz, Oh & Viswanath 2015, arXiv:1311.0776), so it is one pure loss and delta.
        Gaussian, zCDP and pure parts may be chosen adaptively, inside totals fixed in advance, and
        run concurrently (Smith & Thakurta 2022, arXiv:2206.07716; Vadhan & Zhang 2023,
        arXiv:2207.08335). A distance is
        removed on either stream by replacing one mechanism after the other, at its distance each.
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
    group_size: int = 1  # units the inputs differ in; above 1 only with delta or distance

    def __post_init__(self) -> None:
        for name in ("gaussian", "zcdp", "delta", "distance"):
            value = exact(name, getattr(self, name))
            if value < 0:
                raise ValueError(f"{name} must not be negative, not {value}")
            object.__setattr__(self, name, value)
        merged: dict[Fraction, int] = {}
        for epsilon, times in self.pure:
            if epsilon < 0 or times < 0:
                raise ValueError("a pure loss is (epsilon >= 0, times >= 0)")
            if epsilon and times:
                merged[Fraction(epsilon)] = merged.get(Fraction(epsilon), 0) + times
        object.__setattr__(self, "pure", tuple(sorted(merged.items())))

    def compose(self, *others: Loss) -> Loss:
        """Everything together, whoever chose what after seeing which release."""
        losses = (self, *others)
        if any(loss.group_size > 1 for loss in losses):
            raise ValueError("compose losses first, then ask for a group")
        return Loss(
            sum((loss.gaussian for loss in losses), ZERO),
            sum((loss.zcdp for loss in losses), ZERO),
            tuple(term for loss in losses for term in loss.pure),
            sum((loss.delta for loss in losses), ZERO),
            sum((loss.distance for loss in losses), ZERO),
        )

    __add__ = compose

    def times(self, n: int) -> Loss:
        """As many mechanisms of this loss."""
        if self.group_size > 1 or n < 0:
            raise ValueError("compose losses first, then ask for a group")
        return Loss(
            self.gaussian * n,
            self.zcdp * n,
            tuple((epsilon, times * n) for epsilon, times in self.pure),
            self.delta * n,
            self.distance * n,
        )

    def group(self, size: int) -> Loss:
        """For inputs that differ in `size` units instead of one.

        Proof: mu, epsilon and (for rho) its square root grow by the factor `size` (Dong et al.
            2019; Bun & Steinke 2016, arXiv:1605.02065). With a delta there is no such rule that
            does not name an epsilon; then the group size is kept and `delta_at` walks from one
            input to the other: delta_size(eps) = delta_1(eps/size) (1 + e^(eps/size) + ...).
        """
        if size < 1:
            raise ValueError(f"a group has at least one unit, not {size}")
        if self.has_slack:
            return replace(self, group_size=self.group_size * size)
        return Loss(
            self.gaussian * size**2,
            self.zcdp * size**2,
            tuple((epsilon * size, times) for epsilon, times in self.pure),
        )

    @property
    def has_slack(self) -> bool:
        """Whether anything is lost that no epsilon alone can bound."""
        return bool(self.delta or self.distance)

    @property
    def pure_total(self) -> Fraction:
        """The sum of all pure epsilons."""
        return sum((epsilon * times for epsilon, times in self.pure), ZERO)

    @property
    def is_nothing(self) -> bool:
        """Whether nothing is lost."""
        return self == NOTHING

    def rho(self) -> float:
        """The zCDP of all parts but the slack, rounded up."""
        pure = sum(times * convert.pure_zcdp(float(epsilon) * UP) for epsilon, times in self.pure)
        return (float(self.gaussian / 2 + self.zcdp) + pure) * UP * self.group_size**2

    def mu(self) -> float:
        """The GDP parameter when all parts are Gaussian (slack aside), rounded up; else inf."""
        if self.zcdp or self.pure:
            return inf
        return sqrt(float(self.gaussian)) * UP * self.group_size

    def delta_at(self, epsilon: float) -> float:
        """A delta with which (epsilon, delta) holds, rounded up.

        Algorithm: the analytic Gaussian formula when only Gaussian parts are present; the exact
            product with randomised responses for pure parts; for zCDP parts the conversion of
            Canonne, Kamath & Steinke; for mixtures the best of the sound combinations.
        """
        if epsilon < 0:
            raise ValueError(f"epsilon must not be negative, not {epsilon}")
        size = self.group_size
        if size > 1:
            base = replace(self, group_size=1).delta_at(epsilon / size)
            growth = convert.log_geometric_sum(epsilon / size, size)
            return min(1.0, base * exp(growth)) if growth < 700 else float(base > 0)
        slack, core = convert.exact_above(self.delta), self._core_delta(epsilon)
        if self.distance:
            slack += convert.exact_above(self.distance) * (1 + exp(min(epsilon, 700.0)) * UP)
        return min(1.0, (slack + core) * UP if core or self.distance else slack)

    def _core_delta(self, epsilon: float) -> float:
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

    def epsilon(self, delta: Number) -> float:
        """The least epsilon with which (epsilon, delta) holds, rounded up; inf if there is none."""
        share = exact("delta", delta)
        if not 0 <= share < 1:
            raise ValueError(f"delta must be at least 0 and below 1, not {delta}")
        if self.group_size > 1 or self.distance:
            return self._epsilon_by_search(convert.exact_below(share))
        plain = inf
        if not (self.gaussian or self.zcdp) and self.delta <= share:
            plain = convert.exact_above(self.pure_total)
        if not share:
            return plain
        return min(plain, convert.smallest_epsilon(convert.exact_below(share), self.delta_at))

    def _epsilon_by_search(self, delta: float) -> float:
        """As `delta_at` may grow again with epsilon, looks for the first epsilon that fits."""
        trial = 1e-3
        while self.delta_at(trial) > delta:
            trial *= 1.05
            if trial > 1e4:
                return inf
        low, high = trial / 1.05, trial
        while high - low > 1e-9 * high:
            middle = (low + high) / 2
            low, high = (low, middle) if self.delta_at(middle) <= delta else (middle, high)
        return high

    def fits(self, budget: Budget) -> bool:
        """Whether this loss is inside the budget."""
        if budget.epsilon is not None:
            return self._fits_epsilon(budget.epsilon, budget.delta or ZERO)
        size = self.group_size**2
        if self.distance or self.delta > (budget.delta or ZERO) or (size > 1 and self.has_slack):
            return False
        if budget.mu is not None:
            return not (self.zcdp or self.pure) and self.gaussian <= budget.mu**2
        assert budget.rho is not None  # noqa: S101  (a budget has exactly one of the three)
        if not self.pure:
            return self.gaussian / 2 + self.zcdp <= budget.rho
        return Fraction(self.rho()) <= budget.rho

    def _fits_epsilon(self, epsilon: Fraction, delta: Fraction) -> bool:
        if self.gaussian or self.zcdp or self.distance or self.group_size > 1:
            return bool(delta) and Fraction(self.delta_at(convert.exact_below(epsilon))) <= delta
        if self.pure_total <= epsilon and self.delta <= delta:
            return True  # plain composition, in exact arithmetic
        return bool(delta) and Fraction(self.delta_at(convert.exact_below(epsilon))) <= delta

    def to_dict(self) -> dict[str, Any]:
        """Exact numbers as text, for durable records."""
        saved: dict[str, Any] = {
            name: str(getattr(self, name))
            for name in ("gaussian", "zcdp", "delta", "distance")
            if getattr(self, name)
        }
        if self.pure:
            saved["pure"] = [[str(epsilon), times] for epsilon, times in self.pure]
        if self.group_size != 1:
            saved["group_size"] = self.group_size
        return saved

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Loss:
        """The inverse of `to_dict`."""
        numbers = {
            name: Fraction(saved[name])
            for name in ("gaussian", "zcdp", "delta", "distance")
            if name in saved
        }
        pure = tuple((Fraction(epsilon), int(times)) for epsilon, times in saved.get("pure", ()))
        return cls(pure=pure, group_size=saved.get("group_size", 1), **numbers)

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
        if self.delta:
            parts.append(f"delta={float(self.delta):.6g}")
        if self.distance:
            parts.append(f"distance={float(self.distance):.6g}")
        return " + ".join(parts) or "nothing"


NOTHING = Loss()


def Pure(epsilon: Number) -> Loss:  # noqa: N802  (reads as a kind of loss)
    """A pure epsilon-DP mechanism."""
    return Loss(pure=((exact("epsilon", epsilon), 1),))


def Approx(epsilon: Number, delta: Number) -> Loss:  # noqa: N802
    """An (epsilon, delta)-DP mechanism."""
    return Loss(pure=((exact("epsilon", epsilon), 1),), delta=exact("delta", delta))


def Zcdp(rho: Number) -> Loss:  # noqa: N802
    """A rho-zCDP mechanism that is not Gaussian."""
    return Loss(zcdp=exact("rho", rho))


class _Gaussian:
    def __call__(self, mu: Number) -> Loss:
        """A mu-GDP mechanism: a Gaussian whose centre moves by mu standard deviations."""
        return self.squared(exact("mu", mu) ** 2)

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

    def epsilon(self, delta: Number) -> float:
        """See `Loss.epsilon`."""
        return self.loss.epsilon(delta)

    def delta_at(self, epsilon: Number) -> float:
        """See `Loss.delta_at`."""
        return self.loss.delta_at(convert.exact_below(exact("epsilon", epsilon)))

    def over(self, periods: int | timedelta) -> Guarantee:
        """The guarantee of a unit present in that many of its periods, or in each of a time span.

        Proof: streams that differ in one unit's rows of n periods are n steps of neighbours apart.
            When every period enters mechanisms of its own, those n mechanisms compose; when one
            mechanism reads several periods, group privacy for n holds.
        """
        period = self.protects.period
        if period is None:
            raise ValueError("the guarantee already covers the whole stream of a unit")
        if isinstance(periods, timedelta):
            periods = -(-periods // period)
        if periods < 1:
            raise ValueError(f"periods must be at least 1, not {periods}")
        loss = self.loss.times(periods) if self.separate else self.loss.group(periods)
        return replace(self, loss=loss, periods=self.periods * periods)

    def sentence(self, delta: Number) -> str:
        """The promise in words: who, against what, how much, how long."""
        epsilon = self.epsilon(delta)
        if epsilon == inf:
            return f"No finite epsilon holds for {self.protects.phrase} at delta = {delta}."
        plus = f" plus {float(exact('delta', delta)):g}" if exact("delta", delta) else ""
        return (
            f"{self._change[0].upper()}{self._change[1:]} changes the probability of anything that"
            f" all releases together may show by at most a factor e^{_up(epsilon)}{plus}"
            f" (epsilon = {_up(epsilon)}, delta = {float(exact('delta', delta)):g}),"
            f" whatever else the reader knows, {self._duration}.{self._presence}"
        )

    @property
    def _change(self) -> str:
        if self.periods == 1:
            return self.protects.phrase
        scope = f"{self.periods} periods of {duration(self.protects.period)}"
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
        unit, each = self.protects.unit, duration(period)
        if self.periods == 1:
            return f" A {unit} present in several periods of {each} loses this for each of them."
        return (
            f" Assumed: the {unit} is present in at most {self.periods} periods of {each};"
            " in more of them it loses more."
        )

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able record."""
        return {
            "protects": self.protects.to_dict(),
            "loss": self.loss.to_dict(),
            "horizon": self.horizon,
            "separate": self.separate,
            "periods": self.periods,
        }

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Guarantee:
        """The inverse of `to_dict`."""
        return cls(
            Neighbours.from_dict(saved["protects"]),
            Loss.from_dict(saved["loss"]),
            saved["horizon"],
            saved["separate"],
            periods=saved["periods"],
        )


def _up(epsilon: float) -> str:
    """Four significant digits, never below the number."""
    digits = f"{epsilon:.4g}"
    if float(digits) < epsilon:
        digits = f"{epsilon + 10.0 ** (floor(log10(epsilon)) - 3):.4g}"
    return digits
