"""How precise keys of different weights are, after any course of weights and steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streamveil.core.counters.kernels import advance_spread
from streamveil.core.counters.protocol import Counter
from streamveil.core.counters.weights import blt_of
from streamveil.core.portable import portable
from streamveil.types import Array, Float64, Int64


@dataclass(repr=False)
class Spread:
    """The variance of the noise of shown keys: public, exact for any late start.

    In two parts, because all lanes of a query share the counter's shape but not its sigma. Rows of
    both: the covariance of the buffers (upper triangle), their covariance with the total, and the
    variance of the total.
    """

    rows: Float64[Array, "cells columns"]  # of noise of sigma 1: a key's, or as below if no weights
    rounding: Float64[Array, "cells cohorts"]  # of all keys that start together

    @classmethod
    def empty(cls, counter: Counter) -> Spread:
        """No keys."""
        blt = blt_of(counter)
        d = 0 if blt is None else blt.buffers
        nothing = np.zeros((d * (d + 1) // 2 + d + 1, 0))
        return cls(nothing, nothing)

    @classmethod
    def after(cls, counter: Counter, triggers: tuple[int, ...], share: float | None) -> Spread:
        """Of one cohort in one column whose only steps so far were these, at such a share."""
        found = cls.empty(counter)
        found.grow(1)
        for trigger in triggers:
            found.step(counter, trigger, None if share is None else np.array([share]))
        return found

    def grow(self, columns: int, start: Spread | None = None) -> None:
        """A further cohort of so many columns; with noise as in `start`, or none so far."""
        fresh = np.zeros((len(self.rows), 1))
        rows, rounding = (fresh, fresh) if start is None else (start.rows, start.rounding)
        self.rows = np.hstack([self.rows, np.repeat(rows, columns, axis=1)])
        self.rounding = np.hstack([self.rounding, rounding])

    def step(
        self, counter: Counter, trigger: int, share: Float64[Array, " columns"] | None
    ) -> None:
        """One more trigger. `share` None: all are 1. Counters of any sigma give the same."""
        blt = blt_of(counter)
        if blt is None or not self.rows.shape[1]:
            return
        scale, noise = blt.schedule.scales(trigger)
        share = np.ones(self.rows.shape[1]) if share is None else share
        rounded = np.full(self.rounding.shape[1], 1 / (12 * scale**2))
        for rows, fresh in ((self.rows, (noise / share) ** 2), (self.rounding, rounded)):
            advance_spread(rows, blt.schedule.keep, blt.schedule.drain, scale, fresh)

    def variances(
        self, counter: Counter, trigger: int, sizes: Int64[Array, " cohorts"]
    ) -> Float64[Array, " keys"]:
        """Of one lane's counter at the last step, for cohorts of these sizes.

        For counters other than BLTs: of a key counted from the first trigger, never smaller.
        """
        if blt_of(counter) is None:
            sd = counter.std(np.array([trigger]))[0]
            return np.full(sizes.sum(), float(portable(sd)) ** 2)
        noise, rounding = self.rows[-1], np.repeat(self.rounding[-1], sizes)
        noise = noise if len(noise) == len(rounding) else np.repeat(noise, sizes)
        return np.asarray(noise * float(counter.sigma) ** 2 + rounding)
