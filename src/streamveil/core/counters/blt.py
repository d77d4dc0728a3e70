"""The default continual counter when the horizon is known: a BLT, its schedule and sensitivity.

`BltSchedule` holds what depends on its parameters and horizon, but not on sigma or the data. The
encoder that runs is defined by float64 numbers: `keep` (decays of the buffers) and `drain` (their
weights). Its exact sensitivity is computed from these very numbers with 60 digits, so it
needs no argument about how well the parameters were optimised or rounded.

Notation. Rates are kept as complements, p = 1 - theta, because theta is close to 1. With
interlaced rates p_1 < q_1 < p_2 < q_2 < ... < q_d < 1 the encoder and decoder are

    C(x) = prod (1 - (1-q_i) x) / prod (1 - (1-p_i) x) = 1 + sum_i omega_i x / (1 - (1-p_i) x)
    B(x) = C(x)^-1 / (1-x)                             = sum_(i=0..d) beta_i / (1 - (1-q_i) x)

with q_0 = 0; and C(x)^-1 = 1 - sum_i drain_i x / (1 - (1-q_i) x). All omega, beta and drain are
positive, so the deviations from which thresholds follow are sums without cancellation.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import ClassVar, Literal

import mpmath
import numpy as np

from streamveil.compiled import njit
from streamveil.core import counters
from streamveil.core.accounting import float_above, portable, take_numbers
from streamveil.core.accounting.guarantee import Loss
from streamveil.core.counters import (
    FOREVER,
    ROUNDING,
    UP,
    CounterState,
    Estimates,
    Ids,
    Increments,
    Mix,
    Recursion,
    Stepping,
    checked_times,
    next_step,
    zeros,
)
from streamveil.core.counters.kernels import Coefficients, StepRun, blt_run, blt_step
from streamveil.core.noise import Draws
from streamveil.errors import PlanError, require_between, require_one_of, require_positive
from streamveil.kept import kept
from streamveil.minimum import least
from streamveil.types import Array, Exact, Float64, Int64

Weighting = Literal["none", "columns"]
WEIGHTINGS: tuple[Weighting, ...] = ("none", "columns")
RATE_BITS = 20  # of a rate: the error grows by the square of 2^-20
LARGEST_D = 8
DIGITS = 60
MARGIN = 1 + 1e-12  # column scales are this much larger than computed: see `BltSchedule.scale`
SPAN = 256  # steps whose scales are computed together
MOST_KNOWN = 2**26  # steps with scales whose variances fit into memory
APART = "  to fix  weighting='none', for 3% more error, or counters.choose(...)"


@dataclass(frozen=True)
class Blt:
    """Rates of a BLT factorization of running sums (hashable); see the module.

    Raises:
        PlanError: rates are not interlaced: 0 < p_1 < q_1 < ... < q_d < 1.

    >>> one = Blt(p=(0.1,), q=(0.4,))
    >>> one.d, np.convolve(one.encoder(3), one.decoder(3))[:3].round(9).tolist()
    (1, [1.0, 1.0, 1.0])
    """

    p: tuple[float, ...]  # 1 - theta: decays of the encoder C, ascending
    q: tuple[float, ...]  # 1 - theta_hat: decays of its inverse, ascending

    def __post_init__(self) -> None:
        rates = [rate for pair in zip(self.p, self.q, strict=True) for rate in pair]
        if not rates or sorted(set(rates)) != rates or not 0 < rates[0] <= rates[-1] < 1:
            raise PlanError("rates must be interlaced: 0 < p_1 < q_1 < p_2 < ... < q_d < 1")

    @property
    def d(self) -> int:
        """The number of buffers."""
        return len(self.p)

    def omega(self) -> Float64[Array, " d"]:
        """Output scales of the encoder C."""
        return output_scales(np.array(self.p), np.array(self.q))

    def drain(self) -> Float64[Array, " d"]:
        """Output scales of C^-1 = 1 - sum drain_i x / (1 - (1-q_i) x); all positive."""
        p, q = np.array(self.p), np.array(self.q)
        return -output_scales(q, p)

    def beta(self) -> Float64[Array, " d+1"]:
        """Weights of the decoder B; beta_0 belongs to the rate 0."""
        return decoder_weights(np.array(self.p), np.array(self.q))

    def encoder(self, n: int) -> Float64[Array, " n"]:
        """The first n coefficients of C."""
        c = np.ones(n)
        if n > 1:
            powers = np.exp(np.arange(n - 1)[:, None] * np.log1p(-np.array(self.p)))
            c[1:] = powers @ self.omega()
        return c

    def decoder(self, n: int) -> Float64[Array, " n"]:
        """The first n coefficients of B."""
        rates = with_zero(np.array(self.q))
        powers: Array = np.exp(np.arange(n)[:, None] * np.log1p(-rates))
        return powers @ self.beta()

    def squared_norm(self, n: Array | float) -> Array:
        """S_n: the sum of squares of the first n coefficients of C; n may be inf."""
        p, omega = np.array(self.p), self.omega()
        weights = np.multiply.outer(omega, omega)
        sums = geometric(*pairs(p), np.asarray(n, float)[..., None, None] - 1)
        return np.asarray(1 + (weights * sums).sum(axis=(-2, -1)))

    def variance(self, t: Array | float) -> Array:
        """Variance of the estimate after t steps for unit noise and no schedule.

        Numerics: a sum of positive terms. It is that of the rates; what runs are `keep` and `drain`
            as floats, whose decoder has the same coefficients but for 1e-10 of each (measured, up
            to 2^40 steps). Thresholds that follow from it are raised by more (`gaussian.SAFETY`).
        """
        rates, beta = with_zero(np.array(self.q)), self.beta()
        weights = np.multiply.outer(beta, beta)
        sums = geometric(*pairs(rates), np.asarray(t, float)[..., None, None])
        return np.asarray((weights * sums).sum(axis=(-2, -1)))


def output_scales(p: Array, q: Array) -> Array:
    """omega_i = prod_j (q_j - p_i) / prod_(j != i) (p_j - p_i), of one or more sets of rates."""
    top = np.prod(q[..., None, :] - p[..., :, None], axis=-1)
    return np.asarray(top / _others(p))


def decoder_weights(p: Array, q: Array) -> Array:
    """beta_i = prod_j (p_j - q_i) / prod_(j != i) (q_j - q_i), with q_0 = 0 in front."""
    rates = with_zero(q)
    top = np.prod(p[..., None, :] - rates[..., :, None], axis=-1)
    return np.asarray(top / _others(rates))


def with_zero(q: Array) -> Array:
    """The rates of the decoder: q_0 = 0 before the others."""
    return np.concatenate([np.zeros_like(q[..., :1]), q], axis=-1)


def geometric(p: Array, q: Array, n: Array | float) -> Array:
    """Sum of ((1-p)(1-q))^k over k < n, without cancellation.

    Imaginary parts are those of a complex step: so small that they follow the derivative.
    """
    rate = p + q - p * q
    safe = np.where(rate == 0, 0.5, rate)
    spent = -np.expm1(n * np.log1p(-safe.real))
    if np.iscomplexobj(rate):
        spent = spent + 1j * safe.imag * n * (1 - spent) / (1 - safe.real)
    return np.where(rate == 0, n, spent / safe)


def _others(rates: Array) -> Array:
    gaps = rates[..., None, :] - rates[..., :, None] + np.eye(rates.shape[-1])
    return np.asarray(np.prod(gaps, axis=-1))


def pairs(rates: Array) -> tuple[Array, Array]:
    """Rates along rows and along columns: every pair of them, when combined."""
    return rates[..., :, None], rates[..., None, :]


def quadratic(weights: Array, sums: Array) -> Array:
    """Weights times sums times weights."""
    return np.asarray(np.einsum("...i,...ij,...j->...", weights, sums, weights))


def rates_of(x: Array) -> tuple[Array, Array]:
    """The rates p and q of a point of the search."""
    rates = np.exp(-np.cumsum(np.exp(x), axis=-1))[..., ::-1]
    return rates[..., 0::2], rates[..., 1::2]


def geometric_start(slowest: float, d: int) -> Array:
    """Rates evenly spaced in logarithm from `slowest` to 0.8, as a point of the search."""
    logs = np.linspace(np.log(slowest), np.log(0.8), 2 * d)
    return np.log(np.diff(np.concatenate([logs, [0.0]]))[::-1])


def check_buffers(d: int) -> None:
    """Raises unless the number of buffers is supported."""
    if not 1 <= d <= LARGEST_D:
        raise PlanError(f"d must be between 1 and {LARGEST_D}, not {d}")


def rounded_blt(x: Array) -> Blt:
    """The BLT at a point of a search, with rates that are the same on every processor."""
    below = 1 - 2.0**-RATE_BITS
    p, q = (np.minimum(portable(rates, RATE_BITS), below) for rates in rates_of(x))
    return Blt(tuple(map(float, p)), tuple(map(float, q)))


@lru_cache(maxsize=256)
@kept(Blt)
def best_blt(horizon: int, d: int) -> Blt:
    """The BLT with d buffers of least maximal error over `horizon` steps.

    Algorithm: BFGS over the logarithms of the gaps between the log-rates, so that every point is
        interlaced; the gradient is a complex-step derivative, exact to rounding.
    Error: sqrt(S_T Var(T)); Var grows with t, so its maximum is at the horizon T.

    Raises:
        PlanError: a horizon below 1, or d not between 1 and the most buffers there are.

    >>> best = best_blt(1000, 4)
    >>> round(float(np.sqrt(best.squared_norm(1000) * best.variance(1000))), 4)
    3.2654
    """
    check_buffers(d)
    if horizon < 1:
        raise PlanError(f"horizon must be at least 1, not {horizon}")
    reach = max(horizon, 4)  # shorter horizons have too few coefficients to tell rates apart

    def objective(x: Array) -> Array:
        p, q = rates_of(x)
        omega, beta = output_scales(p, q), decoder_weights(p, q)
        square = 1 + quadratic(omega, geometric(*pairs(p), reach - 1.0))
        error = quadratic(beta, geometric(*pairs(with_zero(q)), float(reach)))
        return np.asarray(np.log(square * error) / 2)

    return rounded_blt(least(objective, geometric_start(0.8 / reach, d)))


@dataclass(frozen=True, eq=False)
class BltSchedule:
    """A BLT prepared for a horizon: float64 recursion coefficients, exact norms, public scales."""

    horizon: int
    weighting: Weighting
    keep: Float64[Array, " d"]  # theta_hat
    drain: Float64[Array, " d"]
    p: tuple[float, ...]  # 1 - theta of the encoder that runs
    omega: tuple[float, ...]
    norm: float  # of every column with a schedule, of the largest without; rounded up
    amplification: float  # sum of the first `horizon` coefficients of C, rounded up

    @property
    def recursion(self) -> Recursion:
        """The recursion that decides how rounding errors spread."""
        return Recursion(
            amplification=self.amplification,
            norm=self.norm,
            terms=len(self.keep),
            rest=1 - self.keep,
            drain=self.drain,
            smallest_column=self.scale(self.horizon),
        )

    def scale(self, t: int) -> float:
        """D_t, by which the noise of step t is scaled before it is correlated.

        Proof: the squared norm of column t of C is S_(T-t+1); a scale not below sqrt(S_(T-t+1)/S_T)
        makes every column of C D^-1 at most sqrt(S_T). S_n is a sum of positive terms, each made of
        about 6 log2(n) roundings that never grow (x -> 1-(1-x)^2 has relative slope at most 1),
        those of p and omega among them, so its relative error stays below 10^-13 and MARGIN covers
        it. Only +, -, *, / and sqrt are used: the scales have the same bits on every machine.
        """
        return float(_column_scales(self, (t - 1) // SPAN)[(t - 1) % SPAN])

    def scales(self, first: int, last: int) -> Float64[Array, " steps"]:
        """The scales D_t of the steps first..last."""
        start, end = (first - 1) // SPAN, (last - 1) // SPAN
        found = np.concatenate([_column_scales(self, at) for at in range(start, end + 1)])
        return found[first - 1 - start * SPAN : last - start * SPAN]


@lru_cache(maxsize=256)
def _column_scales(schedule: BltSchedule, span: int) -> Float64[Array, " steps"]:
    """D_t of the steps span * SPAN + 1 and on, as many as are computed together."""
    if schedule.weighting == "none":
        return np.ones(SPAN)
    most = schedule.horizon - span * SPAN
    left = np.arange(most, max(most - SPAN, 0), -1)
    whole = squared_norms(schedule, np.array([schedule.horizon]))
    return np.asarray(np.sqrt(squared_norms(schedule, left) / whole) * MARGIN)


@lru_cache(maxsize=64)
def prepare(blt: Blt, horizon: int, weighting: Weighting) -> BltSchedule:
    """The schedule of a BLT over a horizon."""
    keep, drain = 1 - np.array(blt.q), blt.drain()
    if not (np.all(drain > 0) and np.all(keep > 0)):
        raise PlanError("the inverse of the encoder must have positive scales and decays")
    exact = _exact_encoder(keep, drain)
    p, omega = tuple(float(x) for x in exact[0]), tuple(float(x) for x in exact[1])
    norm = float(_exact_norm(*exact, horizon)) * UP
    total = float(_exact_sum(*exact, horizon)) * UP
    return BltSchedule(horizon, weighting, keep, drain, p, omega, norm, total)


def squared_norms(schedule: BltSchedule, n: Int64[Array, " some"]) -> Float64[Array, " some"]:
    """S_n in a fixed order of basic operations, for scales; see `BltSchedule.scale`."""
    rates, omega = np.array(schedule.p), np.array(schedule.omega)
    both = base = (rates[:, None] + rates - rates[:, None] * rates).reshape(-1, 1)
    powers, left = np.zeros((len(both), len(n))), n - 1
    while left.any():  # 1 - (1 - both)^(n - 1) by squaring, without cancellation
        powers = np.where(left & 1, powers + base - powers * base, powers)
        base, left = 2 * base - base * base, left >> 1
    return sum(np.outer(omega, omega).reshape(-1, 1) * (powers / both), np.ones(len(n)))


def unit_variances(schedule: BltSchedule) -> Float64[Array, "2 horizon"]:
    """Per step: variance for sigma = 1 without rounding, and of rounding errors of variance 1."""
    steps = np.arange(schedule.horizon, 0, -1)
    left = _norms_for_variances(np.array(schedule.p), np.array(schedule.omega), steps)
    variances: Array = _variances(schedule.keep, schedule.drain, np.sqrt(left / left[0]))
    return variances


def _norms_for_variances(p: Array, omega: Array, n: Array) -> Array:
    """`squared_norms` of all steps at once: no scale follows from them."""
    total = np.ones(len(n))
    for i in range(len(p)):
        for j in range(len(p)):
            total += omega[i] * omega[j] * geometric(p[i], p[j], n - 1.0)
    return total


def _exact_encoder(keep: Array, drain: Array) -> tuple[list[mpmath.mpf], list[mpmath.mpf]]:
    """Rates 1 - theta and scales omega of the inverse of 1 - sum drain_i x / (1 - keep_i x).

    In s = 1/x that is 1 - sum drain_i / (s - keep_i). Its zeros are the thetas, those of the monic
    polynomial prod (s - keep_i) - sum_i drain_i prod_(j != i) (s - keep_j).
    """
    mp = mpmath.MPContext()
    mp.dps = DIGITS
    gaps = [1 - mp.mpf(float(value)) for value in keep]  # in r = 1 - s, zeros are the rates
    scales = [mp.mpf(float(value)) for value in drain]
    rates = [_rate_between(mp, gaps, scales, i) for i in range(len(gaps))]
    omega = [
        mp.fprod(gap - rate for gap in gaps)
        / mp.fprod(other - rate for j, other in enumerate(rates) if j != i)
        for i, rate in enumerate(rates)
    ]
    return rates, omega


def _rate_between(
    mp: mpmath.MPContext, gaps: list[mpmath.mpf], scales: list[mpmath.mpf], i: int
) -> mpmath.mpf:
    """The zero of 1 - sum scales_j / (gaps_j - r) between gaps_(i-1) (or 0) and gaps_i.

    The function falls from its value at the left end to minus infinity: Newton's method, and
    bisection where it would leave the interval that holds the zero.
    """
    low, high = (gaps[i - 1] if i else mp.mpf(0)), gaps[i]
    at, near = (low + high) / 2, mp.mpf(10) ** (8 - DIGITS)
    for _ in range(8 * DIGITS):
        parts = [scale / (gap - at) for scale, gap in zip(scales, gaps, strict=True)]
        value = 1 - sum(parts)
        low, high = (at, high) if value > 0 else (low, at)
        slope = sum(part / (gap - at) for part, gap in zip(parts, gaps, strict=True))
        following = at + value / slope
        if abs(following - at) <= near * at:
            return following
        at = following if low < following < high else (low + high) / 2
    raise ArithmeticError("a rate of the encoder was not found")


def _exact_norm(p: list[mpmath.mpf], omega: list[mpmath.mpf], n: int) -> mpmath.mpf:
    """sqrt(S_n): positive terms, added with 53 bits by a context that nobody else can set."""
    total = mpmath.MPContext().mpf(1)
    for a, wa in zip(p, omega, strict=True):
        for b, wb in zip(p, omega, strict=True):
            both = a + b - a * b
            total += wa * wb * (1 - (1 - both) ** (n - 1)) / both
    return total**0.5


def _exact_sum(p: list[mpmath.mpf], omega: list[mpmath.mpf], n: int) -> mpmath.mpf:
    """The sum of the first n coefficients of C."""
    return 1 + sum(w * (1 - (1 - a) ** (n - 1)) / a for a, w in zip(p, omega, strict=True))


@njit(cache=True)  # type: ignore[misc]  # numba is untyped
def _variances(keep: Array, drain: Array, columns: Array) -> Array:
    """Variance of the total's noise N_t when z has variance 1 (row 0), 1/D^2 (row 1)."""
    d, n = len(keep), len(columns)
    out = np.empty((2, n))
    for row in range(2):
        cov, cross, spent, total = np.zeros((d, d)), np.zeros(d), np.zeros(d), 0.0
        for t in range(n):
            scale, drained, shared = columns[t], 0.0, 0.0
            fresh = 1.0 if row == 0 else 1 / scale**2
            for i in range(d):  # loops, not products of matrices: those differ between processors
                spent[i] = 0.0
                for j in range(d):
                    spent[i] += cov[i, j] * drain[j]
                drained += drain[i] * spent[i]
                shared += cross[i] * drain[i]
            total += scale**2 * (fresh + drained) - 2 * scale * shared
            out[row, t] = total
            for i in range(d):
                cross[i] = keep[i] * (cross[i] - scale * spent[i]) + scale * fresh
                for j in range(d):
                    cov[i, j] = cov[i, j] * (keep[i] * keep[j]) + fresh
    return out


def buffers_for(horizon: int) -> int:
    """The default number of buffers: its error is within half a percent of that with more."""
    limits = (50, 1_000, 10_000, 200_000)
    return 2 + sum(horizon > limit for limit in limits)


@dataclass(frozen=True, kw_only=True)
class BltCounter(Stepping):
    """Running totals with d buffers per key and near-optimal error.

    Algorithm: buffered linear Toeplitz factorization (Dvijotham, McMahan, Pillutla, Steinke &
        Thakurta 2024, arXiv:2404.16706; McMahan, Xu & Zhang 2024, arXiv:2408.08868), run in
        feedback form about real centres, with columns scaled to equal norm (the idea of arXiv:
        2509.14334). Parameters are optimised here.
    Protects: streams of a key that differ by d_t, through sum |d_t|; see `Counter`.
    Guarantee: mu-GDP, mu = (moved * sensitivity + slack) / sigma; also for increments that depend
        on earlier releases.
    Proof: see `core.counters`; the columns have equal norms by `BltSchedule.scale`. A key that
        starts late uses the lower right part of the encoder, whose columns are no longer.
    Error: unbiased; within 5 % (maximum over time) of what any factorization must have.
    Memory: 8 (d + 1) bytes per key.
    Numerics: integers plus a float64 offset of the size of the noise; the slack for its rounding
        is derived in `core.counters` and part of `loss`. Noise is rounded to integers about the
        offset.

    Raises:
        PlanError: a setting is out of its range, or increments are not one whole number per key.
        PlanError: the noise has more than 2**50 quanta, which 64 bits may not hold.
        HorizonError: a step after the last of `horizon`.
        StoreError: `resume` is given arrays that are no state of such a counter.

    >>> counter = BltCounter(horizon=1000, sigma=10)
    >>> counter.buffers, round(counter.sensitivity, 4), counter.slack(1) < 1e-7
    (3, 1.8046, True)
    """

    keyed: ClassVar[bool] = False
    needs_horizon: ClassVar[bool] = True  # parameters and column scales are made for one horizon
    horizon: int  # steps the guarantee covers, 1 to 2**40
    sigma: Exact | float  # scale of one noise draw, quanta, > 0
    d: int | None = None  # buffers, 1 to 8; None: chosen by horizon
    weighting: Weighting = "columns"  # whether columns are scaled to equal norm
    factors: Blt | None = None  # None: the best for this horizon and d

    def __post_init__(self) -> None:
        take_numbers(self)
        require_between(1, FOREVER, horizon=self.horizon)
        require_positive(d=1 if self.d is None else self.d)
        counters.check_noise(self.sigma)
        require_one_of("weighting", self.weighting, WEIGHTINGS)
        if self.factors is not None and self.d not in (None, self.factors.d):
            raise PlanError(f"d is {self.d} but the factors have {self.factors.d} buffers")

    @property
    def buffers(self) -> int:
        """The number of real numbers kept per key."""
        return self.blt.d

    @cached_property
    def blt(self) -> Blt:
        """The factorization."""
        return self.factors or best_blt(self.horizon, self.d or buffers_for(self.horizon))

    @cached_property
    def schedule(self) -> BltSchedule:
        """The numbers that depend only on the factorization and the horizon."""
        return prepare(self.blt, self.horizon, self.weighting)

    @cached_property
    def noise_scale(self) -> float:
        """Sigma, rounded up."""
        return float_above(self.sigma)

    @property
    def sensitivity(self) -> float:
        """The largest column norm of the scaled encoder, rounded up."""
        return self.schedule.norm

    def slack(self, moved: Exact | float) -> float:
        """How much float64 offsets add to the L2 move of one key, in quanta; see `core.counters`.

        Args:
            moved: how far one unit moves the stream of a key, in quanta.
        """
        eta = self.schedule.recursion.deviation(self.sigma, moved)
        return float(2 * eta * np.sqrt(self.horizon))

    def loss(self, moved: Exact | float = 1, keys: int | None = None) -> Loss:
        """See `Counter.loss`."""
        return counters.gaussian_loss(self.sigma, self.sensitivity, moved, self.slack(moved), keys)

    def std(self, t: Int64[Array, " times"]) -> Float64[Array, " times"]:
        """See `Counter.std`; rounding adds variance 1/12 per step before decoding."""
        times = checked_times(t, self.horizon)
        if self.weighting == "none":
            gaussian = rounding = self.blt.variance(times)
        elif self.horizon > MOST_KNOWN:
            raise PlanError(f"std of {self.horizon:,} scaled steps takes too much memory.\n{APART}")
        else:
            gaussian, rounding = _variances_of(self.blt, self.horizon, self.weighting)[:, times - 1]
        return np.asarray(np.sqrt(gaussian * float(self.sigma) ** 2 + rounding / 12))

    def mix(self, t: int) -> Mix:
        """See `Counter.mix`: one draw a step, and a rounding that the column scale D_j enlarges."""
        scales = scales_up_to(self, min(1 << (t - 1).bit_length(), self.horizon))[:t]
        steps, parts = np.arange(1, t + 1), decoded(self, scales)
        scaled = np.full(t, float(self.sigma) ** 2)
        return Mix((np.zeros_like(steps), steps), steps, parts, scaled, ROUNDING / scales**2)

    @property
    def state_bytes(self) -> int:
        """See `Counter`."""
        return 8 * (self.buffers + 1)

    def init(self, keys: int, t: int = 0) -> CounterState:
        """See `Counter.init`."""
        return zeros(t, keys, whole=1, real=self.buffers)

    def _skipped(
        self, state: CounterState, steps: int, draws: Draws, ids: Ids | None
    ) -> CounterState:
        """See `Counter`. Every step is taken, in one compiled pass."""
        if draws.silent or not state.keys:
            return CounterState(state.t + steps, state.whole, state.real)
        plan, t = self.schedule, state.t + steps
        scales = plan.scales(state.t + 1, t)
        run = StepRun(plan.keep, plan.drain, scales, self.noise_scale * scales)
        total, real = blt_run((state.whole[0], state.real), run, draws, ids)
        return CounterState(t, total[None, :], real)

    def _advance(
        self, state: CounterState, increments: Increments, draws: Draws, ids: Ids | None
    ) -> tuple[Estimates, CounterState]:
        """See `Counter`."""
        t, plan = next_step(self.horizon, state), self.schedule
        scale = plan.scale(t)
        step = Coefficients(plan.keep, plan.drain, scale, self.noise_scale * scale)
        came = increments[None]
        totals, real = blt_step(state.whole, state.real, came, step, draws, ids)
        return totals[0], CounterState(t, totals, real)


@lru_cache(maxsize=32)
def _variances_of(blt: Blt, horizon: int, weighting: Weighting) -> Float64[Array, "2 horizon"]:
    return unit_variances(prepare(blt, horizon, weighting))


@lru_cache(maxsize=64)
def scales_up_to(counter: BltCounter, steps: int) -> Float64[Array, " steps"]:
    """D_t of the first steps."""
    return counter.schedule.scales(1, steps)


def decoded(counter: BltCounter, scales: Float64[Array, " steps"]) -> Float64[Array, " steps"]:
    """B = A D C^-1: B_tj = D_j - sum_i drain_i sum_(u = j+1..t) D_u keep_i^(u-1-j).

    Steps are those that the counter took: it may have skipped some.
    """
    from scipy.signal import lfilter  # slow to load, and rarely needed

    plan, parts = counter.schedule, scales.copy()
    for keep, drain in zip(plan.keep, plan.drain, strict=True):
        later = lfilter([1.0], [1.0, -keep], scales[::-1])[::-1]
        parts[:-1] -= drain * later[1:]
    return parts
