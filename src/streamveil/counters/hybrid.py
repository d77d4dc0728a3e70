"""The classical answer to an unknown horizon: epochs of doubling length."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import sqrt
from typing import ClassVar, Final

import numpy as np

from streamveil.core.accounting.guarantee import Loss
from streamveil.core.counters import correlated_noise
from streamveil.core.counters.blt import BltCounter
from streamveil.core.counters.correlated_noise import gaussian_rows
from streamveil.core.counters.protocol import (
    CounterState,
    Estimates,
    Ids,
    Increments,
    Stepping,
    checked_times,
    column,
    next_step,
    zeros,
)
from streamveil.core.noise.keyed import Draws
from streamveil.errors import require_between, require_positive
from streamveil.types import Array, Exact, Float64, Int64

BUFFERS = 4  # of the counter inside an epoch
EPOCHS: Final = 30
SCHEDULED = 20  # epochs with a column schedule inside; longer ones gain nothing


@dataclass(frozen=True, kw_only=True)
class HybridCounter(Stepping):
    """Running totals as noisy sums of past epochs plus a counter inside the current one.

    Algorithm: the hybrid mechanism of Chan, Shi & Song (2011, doi:10.1145/2043621.2043626): epoch e
        holds steps 2^e to 2^(e+1) - 1; inside runs a `BltCounter` made for 2^e steps in place of
        their binary tree. `AnytimeBltCounter` has 1.5 times less error and less state.
    Protects: streams of a key that differ by d_t, through sum |d_t|; see `Counter`.
    Guarantee: mu-GDP, mu = (moved + slack) / sigma.
    Proof: a step is in one epoch sum, with noise sigma / sqrt(share), and in one inner counter,
        with column norm n and noise sigma n / sqrt(1 - share): the squared moves, in units of the
        noise, are share + (1 - share) = 1. Slacks of all epochs are added.
    Error: variance sigma^2 (e / share + v / (1 - share)), v the inner counter's at sensitivity 1.
    Memory: 56 bytes per key.
    Numerics: as `BltCounter`; epoch sums are exact integers.

    Raises:
        ValueError: a setting is out of its range, or increments are not one whole number per key.
        HorizonError: more than 2**30 steps.
        StoreError: `resume` is given arrays that are no state of such a counter.

    >>> counter = HybridCounter(sigma=100)
    >>> round(float(counter.std(np.array([1]))[0]), 1), counter.needs_horizon
    (134.8, False)
    """

    keyed: ClassVar[bool] = False
    sigma: Exact | float  # noise scale for sensitivity 1, quanta, > 0
    share: float = 0.45  # of the squared sensitivity, for epoch sums, in (0, 1)

    def __post_init__(self) -> None:
        require_positive(sigma=self.sigma)
        require_between(0.01, 0.99, share=self.share)

    @property
    def horizon(self) -> int:
        """2^30 - 1 steps: thirty epochs."""
        return (1 << EPOCHS) - 1

    @property
    def needs_horizon(self) -> bool:
        """Epochs follow each other as long as the stream lasts."""
        return False

    @property
    def sensitivity(self) -> float:
        """See `Counter`."""
        return correlated_noise.UP

    def inner(self, epoch: int) -> BltCounter:
        """The counter inside an epoch."""
        unit = unit_counter(epoch)
        scale = (
            correlated_noise.up(self.sigma)
            * unit.sensitivity
            / sqrt(1 - self.share)
            * correlated_noise.UP
        )
        return BltCounter(
            horizon=unit.horizon, sigma=scale, weighting=unit.weighting, factors=unit.factors
        )

    @property
    def outer_sigma(self) -> float:
        """The noise scale of an epoch's sum."""
        return correlated_noise.up(self.sigma) / sqrt(self.share) * correlated_noise.UP

    def loss(self, moved: Exact | float = 1, keys: int | None = None) -> Loss:
        """See `Counter.loss`."""
        inner = [self.inner(epoch) for epoch in range(EPOCHS)]
        slack = sum(one.slack(moved) / float(one.sigma) for one in inner) * float(self.sigma)
        return correlated_noise.gaussian_loss(self.sigma, self.sensitivity, moved, slack, keys)

    def std(self, t: Int64[Array, " times"]) -> Float64[Array, " times"]:
        """See `Counter.std`."""
        times = checked_times(t, self.horizon)
        epochs = np.array([epoch_of(int(one)) for one in times])
        variance = epochs * (self.outer_sigma**2 + 1 / 12)
        for epoch in np.unique(epochs).tolist():
            here = epochs == epoch
            variance[here] += self.inner(epoch).std(times[here] - 2**epoch + 1) ** 2
        return np.asarray(np.sqrt(variance))

    @property
    def state_bytes(self) -> int:
        """See `Counter`."""
        return 8 * (3 + BUFFERS)

    def init(self, keys: int, t: int = 0) -> CounterState:
        """See `Counter.init`."""
        return zeros(t, keys, whole=3, real=BUFFERS)

    def _advance(
        self, state: CounterState, increments: Increments, draws: Draws, ids: Ids | None
    ) -> tuple[Estimates, CounterState]:
        """See `Steppable`. Rows: released past epochs, exact current epoch, inner total."""
        t = next_step(self.horizon, state)
        epoch, added = epoch_of(t), column(increments, state.keys)
        past, exact = state.whole[0], state.whole[1] + added
        inside = CounterState(t - 2**epoch, state.whole[2:], state.real)
        estimate, inside = self.inner(epoch)._advance(inside, added, draws, ids)
        released = past + np.asarray(estimate, np.int64)
        if epoch_of(t + 1) == epoch:
            whole = np.concatenate([past[None], exact[None], inside.whole])
            return released, CounterState(t, whole, inside.real)
        noise = gaussian_rows(draws.at("epoch"), ids, state.keys, 1, self.outer_sigma)[0]
        whole = np.zeros_like(state.whole)
        whole[0] = past + exact + noise
        return released, CounterState(t, whole, np.zeros_like(state.real))


def epoch_of(t: int) -> int:
    """The epoch that holds step t >= 1."""
    return t.bit_length() - 1


@lru_cache(maxsize=EPOCHS)
def unit_counter(epoch: int) -> BltCounter:
    """The counter inside an epoch, before its noise is scaled."""
    plain = BltCounter(
        horizon=2**epoch, sigma=1, d=BUFFERS, weighting="columns" if epoch <= SCHEDULED else "none"
    )
    return BltCounter(horizon=plain.horizon, sigma=1, weighting=plain.weighting, factors=plain.blt)
