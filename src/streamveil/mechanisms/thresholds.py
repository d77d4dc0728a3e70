"""Thresholds that a key nobody else has passes at no trigger, but with a stated chance."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from scipy.special import ndtri

from streamveil.errors import require_positive
from streamveil.privacy.budget import exact_between
from streamveil.privacy.guarantee import Loss
from streamveil.types import Array, Exact, Float64


@dataclass(frozen=True, kw_only=True)
class GaussianThresholds:
    """A key opens when its noisy estimate first exceeds a threshold.

    Algorithm: one Gaussian counter per key serves selection and release. A key with at least one
        accepted unit is tested at every trigger: estimate > thresholds[t].
    Protects: all rows of one unit, which counts at most `own` per key and touches at most
        `keys_per_unit` keys while they are unopened.
    Guarantee: the counter's Gaussian loss and delta = keys_per_unit * beta.
    Proof: let G run the counter for every key of the universe. D = D' plus one unit; X are the
        pairs (key, trigger) at which the key has rows in D, but none in D'. B(D) is the mechanism
        on D that never opens a pair of X; the mechanism A(D') mutes X anyhow, for want of rows. (i)
        B(D) and A(D') are the same post-processing of G(D) and G(D'), which the Gaussian loss
        bounds. (ii) Let F: no pair of X has an estimate above its threshold. F is an event of G's
        output and A(D) = B(D) on it. So, for the Gaussian's (epsilon, dG), P[A(D) in E] <= P[B(D)
        in E] + P(not F) <= e^epsilon P[A(D') in E] + dG + P(not F), and P[A(D') in E] = P[G(D') in
        E'] <= P[G(D') in E' and F] + P'(not F) <= e^epsilon P[G(D) in E' and F] + dG + P'(not F) <=
        e^epsilon P[A(D) in E] + dG + P'(not F): no factor e^epsilon on P(not F). (iii) A key of X
        has an estimate of at most `own` plus its noise, so one trigger fails with chance at most
        beta w_t, all triggers with beta (weights sum to 1), all keys of X with keys_per_unit *
        beta. Which key the unit touches next may depend on releases, but an untouched key's noise
        has not been seen, so this holds key by key. Drawing a key's noise late is the same law.
    Numerics: thresholds are rounded up (1e-12 relative); `rounding` adds what lattice rounding may
    move an estimate.
    """

    horizon: int  # triggers
    keys_per_unit: int
    beta: Exact  # chance that one untouched key is ever shown
    own: Exact = 1  # the most that one unit adds to the estimate of its own key
    last: Exact = Fraction(1, 2)  # share of beta at the last trigger; the rest evenly

    def __post_init__(self) -> None:
        require_positive(horizon=self.horizon, keys_per_unit=self.keys_per_unit, own=self.own)
        exact_between("beta", self.beta, 0, 1)
        if not 0 <= self.last <= 1:
            raise ValueError(f"last must be from 0 to 1, not {self.last}")

    @property
    def weights(self) -> tuple[Fraction, ...]:
        """The share of beta at every trigger; they sum to 1."""
        if self.horizon == 1:
            return (Fraction(1),)
        each = (1 - Fraction(self.last)) / (self.horizon - 1)
        return (*(each,) * (self.horizon - 1), Fraction(self.last))

    @property
    def loss(self) -> Loss:
        """What selection adds to the counter's Gaussian loss."""
        return Loss(delta=Fraction(self.beta) * self.keys_per_unit)

    def thresholds(
        self, sd: Float64[Array, " horizon"], rounding: float = 0.0
    ) -> Float64[Array, " horizon"]:
        """What an estimate must exceed, for estimates with these noise standard deviations."""
        shares = np.array([float(self.beta * weight) for weight in self.weights])
        with np.errstate(divide="ignore"):
            quantile = -ndtri(shares * (1 - 1e-12)) * (1 + 1e-12)
        least: Array = float(self.own) * (1 + 1e-15) + rounding + np.asarray(sd) * quantile
        return least
