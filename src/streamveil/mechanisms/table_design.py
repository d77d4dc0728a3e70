"""The table that opens keys with the fewest units, from public numbers only.

The search compares many tables. It asks of each only whether it fits the budget, which floats
answer as well unless it is a close call; what the search ends with is certified by the bound that
the mechanism states.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, cached_property, lru_cache
from math import ceil, exp, inf
from typing import TypeAlias

import numpy as np

from streamveil.errors import require_positive
from streamveil.mechanisms.above_threshold import (
    Coins,
    TableShape,
    curve_with,
    curve_without,
    worst_openings,
)
from streamveil.mechanisms.pld import law_near
from streamveil.mechanisms.selection import FINE, REACH, TableSelection
from streamveil.privacy import convert
from streamveil.privacy.budget import Budget, Number, exact_between
from streamveil.privacy.calibrate import gaussian_mu
from streamveil.privacy.guarantee import Approx, Loss
from streamveil.types import Array, Float64

Shape: TypeAlias = tuple[Fraction, Fraction]  # slope and bend of a table
ROUGH = 16  # lattice steps per slope for comparing shapes; `FINE` of them for the one chosen
FLATTER = tuple(Fraction(2, 3) ** times for times in range(8))  # slopes tried until one fits
MOST_CELLS = 1 << 26  # gaps times losses of a table that is compared: half a GiB, seconds
CLOSE = 1e-6  # relative distance from the limit below which floats do not decide


@dataclass(frozen=True)
class SelectionDesign:
    """A table, what the Gaussian releases beside it may use, and the certified delta of both."""

    selection: TableSelection
    mu: Fraction  # all Gaussian releases together
    epsilon: Fraction
    delta: float  # certified, at most the budget's
    half: float  # units by the last trigger, arriving evenly, with which half of all keys open
    places: int  # lattice steps of the shift with which delta was certified

    @property
    def loss(self) -> Loss:
        """Selection and releases together."""
        return Approx(self.epsilon, self.delta)


class NoTableError(ValueError):
    """No table fits the budget beside the releases; another kind of selection may."""


def design_selection(
    horizon: int, budget: Budget, keys_per_unit: int, mu_share: Number = Fraction(2, 3)
) -> SelectionDesign:
    """The table that opens keys with the fewest units, from public numbers only.

    Algorithm: the releases get `mu_share` of the mu that the budget would allow them alone. For
        each table shape tried (a fixed descent over slope and bend), the largest shift_epsilon
        inside the budget; the shape with the least `half` wins. The winner's shift is found again
        and certified on the fine lattice. Takes a fifth of a second, once per setting, at an
        epsilon of 6 for one key. Tables for a small epsilon are long: for four keys and 100 tests
        seconds at 1, 20 at 0.3, minutes at 0.1. Horizons of many thousands can test every few
        triggers only: the horizon here is the number of tests.
    """
    if budget.epsilon is None or budget.delta is None:
        raise ValueError("discovering keys by a table needs a budget in epsilon and delta")
    require_positive(horizon=horizon, keys_per_unit=keys_per_unit)
    share = exact_between("mu_share", mu_share, 0, 1)
    mu = Fraction(int(share * Fraction(gaussian_mu(budget)) * 1000), 1000)
    return _design(horizon, budget, keys_per_unit, mu)


@lru_cache(maxsize=64)
def _design(horizon: int, budget: Budget, keys_per_unit: int, mu: Fraction) -> SelectionDesign:
    setting = Setting(horizon, budget, keys_per_unit, mu)
    rough = cache(lambda shape: Lattice(setting, shape, shape[0] / ROUGH).half)
    steep = setting.epsilon / keys_per_unit * Fraction(2, 5)
    starts = (_short((steep * part, steep * part / 5)) for part in FLATTER)
    shape = next((start for start in starts if rough(start) < inf), None)
    design = None
    if shape is not None:
        shape = _descend(rough, shape)
        design = Lattice(setting, shape, shape[0] / FINE).certified()
    if design is None:
        raise NoTableError(
            f"no table fits {budget} beside releases with mu = {float(mu):g} for {keys_per_unit}"
            " keys per unit, or only one too long to compute.\n"
            "  to fix  take a smaller mu_share, fewer keys per unit or a larger budget"
        )
    return design


def _descend(cost: Callable[[Shape], float], start: Shape) -> Shape:
    """Coordinate descent on (slope, bend) by factors that approach 1."""
    best, lowest = start, cost(start)
    for factor in (Fraction(6, 5), Fraction(10, 9), Fraction(20, 19)):
        moved = True
        while moved:
            moved = False
            for ratio in (factor, 1 / factor):
                for near in ((best[0] * ratio, best[1]), (best[0], best[1] * ratio)):
                    value = cost(_short(near))
                    if value < lowest:
                        best, lowest, moved = _short(near), value, True
    return best


def _short(shape: Shape) -> Shape:
    """Numbers of a few digits, for records that people read."""
    return (Fraction(ceil(shape[0] * 5000), 5000), Fraction(ceil(shape[1] * 5000), 5000))


@dataclass(frozen=True)
class Setting:
    """What a table is for."""

    horizon: int
    budget: Budget
    keys_per_unit: int
    mu: Fraction

    @property
    def epsilon(self) -> Fraction:
        """Of the budget."""
        return self.budget.epsilon or Fraction(0)

    @cached_property
    def limit(self) -> float:
        """Of delta."""
        return convert.exact_below(self.budget.delta or Fraction(0))


class Lattice:
    """Tables of one shape, whose shifts are multiples of one step."""

    def __init__(self, setting: Setting, shape: Shape, step: Fraction) -> None:
        self.setting, self.shape, self.step = setting, shape, step
        floor = (setting.budget.delta or 0) / Fraction(20 * setting.keys_per_unit)
        self.coins: Coins = TableShape(setting.horizon, *shape, Fraction(1), floor).coins()
        self._at = convert.exact_below(setting.epsilon)
        self._rest: Float64[Array, " n"] = np.zeros(0)

    def table(self, places: int) -> TableSelection:
        """The table with that many steps of shift."""
        return TableSelection(
            horizon=self.setting.horizon,
            keys_per_unit=self.setting.keys_per_unit,
            shift_epsilon=places * self.step,
            coins=self.coins,
        )

    @cached_property
    def places(self) -> int:
        """Steps of the largest shift inside the budget; 0: none.

        Coarse lattices have bounds that do not quite rise with the shift: where the search looks is
        part of what it finds, and a state resumes with the design that it was begun with.
        """
        low, high = 0, int(self.shape[0] / self.step) // 4 + 1
        while self.fits(high):
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.fits(middle) else (low, middle)
        return low

    @property
    def half(self) -> float:
        """Units for half of all keys, see `SelectionDesign`; inf when no shift fits.

        Tables for a small epsilon are flat and long: inf as well where one takes too much memory.
        """
        losses = (int(self._at) + REACH) / self.step
        if len(self.coins.coins) * losses > MOST_CELLS or not self.places:
            return inf
        return _units_for_half(self.table(self.places))

    def certified(self) -> SelectionDesign | None:
        """The table found, with its delta; None when no shift fits."""
        setting = self.setting
        for places in range(self.places, 0, -1):
            table = self.table(places)
            delta = table.delta_at(setting.epsilon, setting.mu, places)
            if delta <= setting.limit:
                half = _units_for_half(table)
                return SelectionDesign(table, setting.mu, setting.epsilon, delta, half, places)
        return None

    def fits(self, places: int) -> bool:
        """Whether a shift fits the budget."""
        setting = self.setting
        about = self._about(places)
        if abs(about - setting.limit) > CLOSE * setting.limit:
            return about < setting.limit
        found = self.table(places).delta_at(setting.epsilon, setting.mu, places)
        return found <= setting.limit

    def _about(self, places: int) -> float:
        """About the delta of a shift."""
        step, keys, most = float(self.step), self.setting.keys_per_unit, 0.0
        worst = worst_openings(self.coins, self.setting.horizon, step, int(self._at) + REACH)
        for curve in (curve_without, curve_with):
            law = law_near(curve(worst, step, places), step).self_compose(keys)
            rest = self._beside(law.first, len(law.masses))
            most = max(most, float(rest @ law.masses) + law.infinite)
        return most + float(self.table(places).distance) * (1 + exp(self._at))

    def _beside(self, first: int, count: int) -> Float64[Array, " n"]:
        """The curve of the releases where so many losses, from a first one on, leave epsilon."""
        far = max(-first, first + count)
        if len(self._rest) < 2 * far:
            losses = np.arange(-far, far) * float(self.step)
            self._rest = convert.gaussian_delta(self._at - losses, float(self.setting.mu))
        start = len(self._rest) // 2 + first
        return self._rest[start : start + count]


def _units_for_half(selection: TableSelection) -> float:
    """See `SelectionDesign.half`; interpolated between integers."""
    steps = np.arange(1, selection.horizon + 1)

    def chance(units: int) -> float:
        return selection.opening_chance(units * steps // selection.horizon)

    low, high = 1, 2
    while chance(high) < 0.5:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if chance(middle) >= 0.5 else (middle, high)
    below, above = chance(low), chance(high)
    return low + (0.5 - below) / (above - below)
