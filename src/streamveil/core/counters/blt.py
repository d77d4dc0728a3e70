"""The default continual counter when the horizon is known."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import ClassVar

import numpy as np

from streamveil.core.accounting.guarantee import Loss
from streamveil.core.counters import correlated_noise
from streamveil.core.counters.kernels import Coefficients, StepRun, blt_run, blt_step
from streamveil.core.counters.protocol import (
    CounterState,
    Estimates,
    Ids,
    Increments,
    Stepping,
    checked_times,
    next_step,
    zeros,
)
from streamveil.core.counters.rational import Blt, best_blt
from streamveil.core.counters.schedule import (
    WEIGHTINGS,
    BltSchedule,
    Weighting,
    buffers_for,
    check_horizon,
    prepare,
    unit_variances,
)
from streamveil.core.noise.keyed import Draws
from streamveil.errors import require_one_of, require_positive
from streamveil.types import Array, Exact, Float64, Int64


@dataclass(frozen=True, kw_only=True)
class BltCounter(Stepping):
    """Running totals with d buffers per key and near-optimal error.

    Algorithm: buffered linear Toeplitz factorization (Dvijotham, McMahan, Pillutla, Steinke &
        Thakurta 2024, arXiv:2404.16706; McMahan, Xu & Zhang 2024, arXiv:2408.08868), run in
        feedback form about real centres, with columns scaled to equal norm (the idea of arXiv:
        2509.14334) and, if asked, noise scaled over time. Parameters are optimised here.
    Protects: streams of a key that differ by d_t, through sum |d_t|; see `Counter`.
    Guarantee: mu-GDP, mu = (moved * sensitivity + slack) / sigma; also for increments that depend
        on earlier releases.
    Proof: see `feedback`; the columns have equal norms by `BltSchedule.scales`. A key that starts
        late uses the lower right part of the encoder, whose columns are no longer.
    Error: unbiased; within 5 % (maximum over time) of what any factorization must have.
    Memory: 8 (d + 1) bytes per key.
    Numerics: integers plus a float64 offset of the size of the noise; the slack for its rounding
        is derived in `feedback` and part of `loss`. Noise is rounded to integers about the offset.

    Raises:
        ValueError: a setting is out of its range, or increments are not one whole number per key.
        HorizonError: a step after the last of `horizon`.
        StoreError: `resume` is given arrays that are no state of such a counter.

    >>> counter = BltCounter(horizon=1000, sigma=10)
    >>> counter.buffers, round(counter.sensitivity, 4), counter.slack(1) < 1e-7
    (3, 1.8046, True)
    """

    keyed: ClassVar[bool] = False
    horizon: int  # steps the guarantee covers, >= 1
    sigma: Exact | float  # scale of one noise draw, quanta, > 0
    d: int | None = None  # buffers, 1 to 8; None: chosen by horizon
    weighting: Weighting = "columns"  # which columns carry more noise
    factors: Blt | None = None  # None: the best for this horizon and d

    def __post_init__(self) -> None:
        check_horizon(self.horizon)
        require_positive(sigma=self.sigma)
        require_one_of("weighting", self.weighting, WEIGHTINGS)
        if self.factors is not None and self.d not in (None, self.factors.d):
            raise ValueError(f"d is {self.d} but the factors have {self.factors.d} buffers")

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
        """What depends on the factorization and the horizon alone."""
        return prepare(self.blt, self.horizon, self.weighting)

    @cached_property
    def noise_scale(self) -> float:
        """Sigma, rounded up."""
        return correlated_noise.up(self.sigma)

    @property
    def needs_horizon(self) -> bool:
        """Parameters and column scales are made for one horizon."""
        return True

    @property
    def sensitivity(self) -> float:
        """The largest column norm of the scaled encoder, rounded up."""
        return self.schedule.norm

    def slack(self, moved: Exact | float) -> float:
        """How much float64 offsets can add to the L2 move of one key, in quanta; see `feedback`."""
        eta = self.schedule.recursion.deviation(self.sigma, moved)
        return float(2 * eta * np.sqrt(self.horizon))

    def loss(self, moved: Exact | float = 1, keys: int | None = None) -> Loss:
        """See `Counter.loss`."""
        return correlated_noise.gaussian_loss(
            self.sigma, self.sensitivity, moved, self.slack(moved), keys
        )

    def std(self, t: Int64[Array, " times"]) -> Float64[Array, " times"]:
        """See `Counter.std`; rounding adds variance 1/12 per step before decoding."""
        times = checked_times(t, self.horizon)
        if self.weighting == "none":
            gaussian = rounding = self.blt.variance(times)
        else:
            gaussian, rounding = _variances_of(self.blt, self.horizon, self.weighting)[:, times - 1]
        return np.asarray(np.sqrt(gaussian * float(self.sigma) ** 2 + rounding / 12))

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
        scales, noise = plan.steps(state.t + 1, t)
        run = StepRun(
            plan.keep, plan.drain, scales, correlated_noise.up(self.sigma) * (noise * scales)
        )
        total, real = blt_run((state.whole[0], state.real), run, draws, ids)
        return CounterState(t, total[None, :], real)

    def _advance(
        self, state: CounterState, increments: Increments, draws: Draws, ids: Ids | None
    ) -> tuple[Estimates, CounterState]:
        """See `Steppable`."""
        t, plan = next_step(self.horizon, state), self.schedule
        scale, noise = plan.scales(t)
        spread = self.noise_scale * (noise * scale)
        step = Coefficients(plan.keep, plan.drain, scale, spread)
        came = increments[None]
        totals, real = blt_step(state.whole, state.real, came, step, draws, ids)
        return totals[0], CounterState(t, totals, real)


@lru_cache(maxsize=32)
def _variances_of(blt: Blt, horizon: int, weighting: Weighting) -> Float64[Array, "2 horizon"]:
    return unit_variances(prepare(blt, horizon, weighting))
