"""The table that opens keys with the fewest units, from public numbers only.

The search compares many tables. For each it only needs to know whether the table fits the budget,
which floats decide well enough unless it is a close call. The final table is certified by the bound
that the mechanism states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cache, cached_property, lru_cache, partial
from itertools import islice, product
from math import ceil, exp, inf, log
from typing import Any, TypeAlias

import numpy as np

from streamveil.calibrate import gaussian_mu
from streamveil.compiled import njit
from streamveil.core.accounting import Budget, Number, convert, exact_between, float_below
from streamveil.core.accounting.coin_table import (
    COIN,
    DRAWS,
    REACH,
    Coins,
    curve_with,
    curve_without,
    doubt,
    reach_of,
    worst_near,
    worst_openings,
)
from streamveil.core.accounting.convert import CurvePoints, LossLaw
from streamveil.core.accounting.guarantee import Loss
from streamveil.core.accounting.sequel import Sequel
from streamveil.core.selection.coins import FINE, SelectionTable
from streamveil.errors import PlanError, require_positive
from streamveil.kept import kept
from streamveil.plan.options import MU_SHARE
from streamveil.types import Array, Float64, Int64

Shape: TypeAlias = tuple[Fraction, Fraction]  # slope and bend of a table
ROUGH = 16  # lattice steps per slope for comparing shapes; `FINE` of them for the one chosen
AROUND = tuple(  # where descents start, in parts of the usual slope and bend
    (Fraction(slope), Fraction(bend))
    for slope, bend in (("1", "1"), ("4/5", "6/5"), ("6/5", "2/3"))
)
STEPS = (Fraction(6, 5), Fraction(10, 9), Fraction(20, 19), Fraction(40, 39))  # of a descent
MANY_TESTS = 500  # comparing a table takes time that grows with its tests: fewer steps beyond
FLAT = Fraction(1, 2)  # of the usual slope: flatter tables need no finer lattice, only more time
FEW_GAPS = Fraction(7, 10)  # beyond this slope one descent alone may end far from the best table
FLATTER = tuple(Fraction(2, 3) ** times for times in range(8))  # slopes tried until one fits
MOST_EPSILON = 500  # beyond, its exponential has no float64; tables end long before
LONGEST = 1 << 14  # most gaps of a table that is compared: seconds to certify
MOST_WORK = 1 << 23  # most gaps times tests of such a table, likewise
STEEPEST = 6  # the largest fall of ln(pi) per gap
CLOSE = 1e-6  # relative distance from the limit below which floats do not decide


@dataclass(frozen=True)
class SelectionDesign:
    """A table, the mu of the Gaussian releases with it, and the certified delta of both."""

    selection: SelectionTable
    mu: Fraction  # all Gaussian releases together
    epsilon: Fraction
    delta: float  # certified, at most the budget's
    half: float  # units by the last trigger, arriving evenly, with which half of all keys open
    places: int  # lattice steps of the shift with which delta was certified

    @property
    def loss(self) -> Loss:
        """Selection and releases together."""
        return self.selection.loss(self.epsilon, self.mu, self.places)


class NoTableError(ValueError):
    """No table fits the budget together with the releases; another kind of selection may."""


def design_selection(
    horizon: int,
    budget: Budget,
    keys_per_unit: int,
    mu_share: Number = Fraction(2, 3),
    sequel: Sequel | None = None,
) -> SelectionDesign:
    """The table that opens keys with the fewest units, from public numbers only.

    Algorithm: the releases get `mu_share` of the mu that the budget would allow them alone. For
        each table shape tried (a fixed descent over slope and bend), the largest shift_epsilon
        inside the budget; the shape with the least `half` wins. The winner's shift is found again
        and certified on the fine lattice. The falls of the best table and its shift are about
        proportional to epsilon: the descent starts there, and its lattice grows with neither the
        table's length nor 1 / epsilon. For four keys and 100 tests it takes 0.2 s of CPU at an
        epsilon of 6, 0.5 at 0.3 and 1 at 0.1, once per setting. 16 keys take seconds; with a single
        test, where the best tables are flat, up to half a minute. With a horizon of many thousands
        a job can test every few triggers only: the horizon here is the number of tests. After a
        look the shift is lowered until the `sequel` admits the table.
    """
    if budget.epsilon is None or budget.delta is None:
        raise PlanError("discovering keys by a table needs a budget in epsilon and delta")
    require_positive(horizon=horizon, keys_per_unit=keys_per_unit)
    share = exact_between(MU_SHARE.name, mu_share, 0, 1)
    return _design(horizon, budget, keys_per_unit, _part_of_mu(budget, share), sequel)


def _part_of_mu(budget: Budget, share: Fraction) -> Fraction:
    """A share of the mu that the budget would allow alone, rounded down to a few digits."""
    part, grain = share * Fraction(gaussian_mu(budget)), 1000
    while part * grain < 100:
        grain *= 10
    return Fraction(int(part * grain), grain)


@kept()
def _best(
    horizon: int, budget: Budget, keys_per_unit: int, mu: Fraction
) -> tuple[Fraction, Fraction, int] | None:
    """The shape of the table that opens keys with the fewest units, and its steps of shift.

    Neither is certified. None: no table fits.
    """
    setting = Setting(horizon, budget, keys_per_unit, mu)
    rough = cache(partial(_rough_half, setting))
    found = _descents(setting, rough, STEPS if horizon <= MANY_TESTS else STEPS[:1])
    if not found:
        return None
    shape = min(found, key=rough)
    return *shape, Lattice(setting, shape, setting.step(shape, FINE)).places


@lru_cache(maxsize=64)
def _design(
    horizon: int, budget: Budget, keys_per_unit: int, mu: Fraction, sequel: Sequel | None
) -> SelectionDesign:
    setting, design = Setting(horizon, budget, keys_per_unit, mu), None
    best = _best(horizon, budget, keys_per_unit, mu)
    if best is not None:
        slope, bend, places = best
        step = setting.step((slope, bend), FINE)
        design = Lattice(setting, (slope, bend), step).certified(places, sequel)
    if design is None:
        raise NoTableError(
            f"no table fits {budget} beside releases with mu = {float(mu):g} for {keys_per_unit}"
            " keys per unit, or only one too long to compute.\n"
            "  to fix  take a smaller mu_share, fewer keys per unit or a larger budget"
        )
    return design


@lru_cache(maxsize=64)
@kept()
def about_half(horizon: int, budget: Budget, keys_per_unit: int) -> float | None:
    """The approximate `half` of the design with 2/3 of mu, uncertified; None: no table fits."""
    setting = Setting(horizon, budget, keys_per_unit, _part_of_mu(budget, Fraction(2, 3)))
    rough = cache(partial(_rough_half, setting))
    return min(map(rough, _descents(setting, rough, STEPS[:1])), default=None)


def _descents(
    setting: Setting, cost: Callable[[Shape], float], steps: tuple[Fraction, ...]
) -> list[Shape]:
    """The shapes at which descents end."""
    starts = _starts(cost, setting) if setting.epsilon <= MOST_EPSILON else ()
    return [_descend(cost, setting.short, start, steps) for start in starts]


def _starts(cost: Callable[[Shape], float], setting: Setting) -> Iterator[Shape]:
    """Shapes that fit, near those of the best tables; several for tables of few gaps.

    `half` jumps with the number of gaps: with few gaps it has many local minima.
    """
    slope, bend = setting.usual
    for across, down in AROUND if slope > FEW_GAPS else AROUND[:1]:
        shapes = (setting.short((slope * across * part, bend * down * part)) for part in FLATTER)
        yield from islice((shape for shape in shapes if cost(shape) < inf), 1)


def _descend(
    cost: Callable[[Shape], float],
    short: Callable[[Shape], Shape],
    start: Shape,
    steps: tuple[Fraction, ...],
) -> Shape:
    """Descent on (slope, bend), along both and both diagonals, by factors that approach 1."""
    best, lowest = start, cost(start)
    for factor in steps:
        ratios = (factor, Fraction(1), 1 / factor)
        moved = True
        while moved:
            moved = False
            for across, down in product(ratios, ratios):
                near = short((best[0] * across, best[1] * down))
                value = cost(near)
                if value < lowest:
                    best, lowest, moved = near, value, True
    return best


@dataclass(frozen=True)
class Setting:
    """What a table is for."""

    horizon: int
    budget: Budget
    keys_per_unit: int
    mu: Fraction

    @property
    def epsilon(self) -> Fraction:
        """The budget's epsilon."""
        return self.budget.epsilon or Fraction(0)

    @cached_property
    def limit(self) -> float:
        """The budget's delta, as a float not above it."""
        return float_below(self.budget.delta or Fraction(0))

    @property
    def furthest(self) -> int:
        """Losses further than this count as infinite."""
        return int(float_below(self.epsilon)) + REACH

    @property
    def usual(self) -> Shape:
        """The approximate shape of the best table, by the scaling law that such tables follow."""
        return self.epsilon / self.keys_per_unit * Fraction(7, 25), self.epsilon / 40

    @cached_property
    def grain(self) -> int:
        """Falls are multiples of 1 / grain, which is at most a hundredth of the usual falls."""
        grain = 5000
        while grain * min(self.usual) < 100:
            grain *= 10
        return grain

    def short(self, shape: Shape) -> Shape:
        """Numbers of a few digits, for records that people read."""
        slope, bend = (Fraction(ceil(fall * self.grain), self.grain) for fall in shape)
        return slope, bend

    def step(self, shape: Shape, parts: int) -> Fraction:
        """The lattice step of losses: a part of the slope, or of `FLAT` times the usual slope."""
        return max(shape[0], FLAT * self.usual[0]) / parts

    def family(self, shape: Shape) -> TableShape:
        """The table of a shape that ends where an opening costs a small part of delta."""
        floor = (self.budget.delta or 0) / Fraction(20 * self.keys_per_unit)
        return TableShape(self.horizon, *shape, Fraction(1), floor)


def _rough_half(setting: Setting, shape: Shape) -> float:
    """The approximate `SelectionDesign.half` of the best table of a shape; inf when none fits.

    The shift is interpolated between steps, so that the result does not jump with the shape. Tables
    for a small epsilon are flat and long: a table that is too long gives inf, too.
    """
    longest = min(LONGEST, MOST_WORK // setting.horizon)
    chances = setting.family(shape).near(longest)
    if chances is None:
        return inf
    step = setting.step(shape, ROUGH)
    reach = reach_of(chances, float(step), setting.furthest)
    losses = Losses(setting, step, worst_near(chances, setting.horizon, float(step), reach))
    delta = cache(losses.delta)
    places = _largest(lambda places: delta(places) <= setting.limit, ROUGH // 4)
    if not places:
        return inf
    part = log(setting.limit / delta(places)) / log(delta(places + 1) / delta(places))
    return _half(setting.horizon, chances, float(step) * (places + part))


def _largest(fits: Callable[[int], bool], about: int) -> int:
    """The largest number that fits, searched from a guess; 0: none.

    On coarse lattices bounds do not quite rise with the shift, so the result depends on where the
    search looks, and a state must resume with the design that it was begun with.
    """
    low, high = 0, about
    while fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


class Lattice:
    """Tables of one shape, whose shifts are multiples of one step."""

    def __init__(self, setting: Setting, shape: Shape, step: Fraction) -> None:
        self.setting, self.step = setting, step
        self.coins: Coins = setting.family(shape).coins()
        reach = self.coins.reach(float(step), setting.furthest)
        worst = worst_openings(self.coins, setting.horizon, float(step), reach)
        self.losses = Losses(setting, step, worst)

    def table(self, places: int) -> SelectionTable:
        """The table with that many steps of shift."""
        return SelectionTable(
            horizon=self.setting.horizon,
            keys_per_unit=self.setting.keys_per_unit,
            shift_epsilon=places * self.step,
            coins=self.coins,
        )

    def certified(
        self, most: int | None = None, sequel: Sequel | None = None
    ) -> SelectionDesign | None:
        """The table with the largest shift inside the budget, with its delta; None: none fits.

        No shift beyond `most` steps is tried, by default those that seem to fit.
        """
        setting = self.setting
        for places in range(self.places if most is None else most, 0, -1):
            table = self.table(places)
            delta = table.delta_at(setting.epsilon, setting.mu, places)
            if delta <= setting.limit and self._follows(table, places, sequel):
                half = _half(setting.horizon, self.coins.chances, float(table.shift_epsilon))
                return SelectionDesign(table, setting.mu, setting.epsilon, delta, half, places)
        return None

    def _follows(self, table: SelectionTable, places: int, sequel: Sequel | None) -> bool:
        """Whether a table may follow a look, with the rest of the sequel's delta beside it."""
        if sequel is None:
            return True
        beside = Loss(delta=sequel.delta - (self.setting.budget.delta or 0))
        return sequel.admits(table.loss(self.setting.epsilon, self.setting.mu, places) + beside)

    @cached_property
    def places(self) -> int:
        """Steps of the largest shift inside the budget; 0: none."""
        return _largest(self.fits, FINE // 4)

    def fits(self, places: int) -> bool:
        """Whether a shift fits the budget."""
        setting = self.setting
        about = self.losses.delta(places)
        if abs(about - setting.limit) > CLOSE * setting.limit:
            return about < setting.limit
        found = self.table(places).delta_at(setting.epsilon, setting.mu, places)
        return found <= setting.limit


class Losses:
    """The approximate delta of a table for any shift, in floats."""

    def __init__(self, setting: Setting, step: Fraction, worst: Float64[Array, " nodes"]) -> None:
        self.setting, self.step, self.worst = setting, float(step), worst
        self._at = float_below(setting.epsilon)
        self._rest: Float64[Array, " n"] = np.zeros(0)

    def delta(self, places: int) -> float:
        """The approximate delta of selection and releases together, with so many steps of shift.

        Infinite for a shift that moves losses to where they count as infinite. Without this limit
        the search would not end where a large delta pays for all openings.
        """
        if places * self.step > self.setting.furthest:
            return inf
        most = 0.0
        for curve in (curve_without, curve_with):
            law = law_near(curve(self.worst, self.step, places), self.step)
            law = law.self_compose(self.setting.keys_per_unit)
            rest = self._beside(law.first, len(law.masses))
            most = max(most, float((rest * law.masses).sum()) + law.infinite)
        values = self.setting.horizon + 2 + int(90 / (places * self.step))
        return most + float(doubt(values, DRAWS)) * (1 + exp(self._at))

    def _beside(self, first: int, count: int) -> Float64[Array, " n"]:
        """The curve of the releases at epsilon minus each of `count` losses from `first` on."""
        far = max(-first, first + count)
        if len(self._rest) < 2 * far:
            losses = np.arange(-far, far) * self.step
            self._rest = convert.gaussian_delta(self._at - losses, float(self.setting.mu))
        start = len(self._rest) // 2 + first
        return self._rest[start : start + count]


def _half(horizon: int, chances: Float64[Array, " gaps"], shift_epsilon: float) -> float:
    """See `SelectionDesign.half`; interpolated between integers."""
    steps = np.arange(1, horizon + 1)

    def chance(units: int) -> float:
        return opening_chance(chances, shift_epsilon, units * steps // horizon)

    low, high = 1, 2
    while chance(high) < 0.5:
        low, high = high, 2 * high
    while high - low > max(1, low // 1000):
        middle = (low + high) // 2
        low, high = (low, middle) if chance(middle) >= 0.5 else (middle, high)
    below, above = chance(low), chance(high)
    return low + (high - low) * (0.5 - below) / (above - below)


# ---- families of tables, and approximately what each does: the core certifies the result


@dataclass(frozen=True)
class TableShape:
    """A family of tables: ln(pi) falls by `slope` per gap, and faster where openings are rare.

    With rare = ln(1 / (horizon pi)) > 0 it falls by slope + bend * rare^power, at most by STEEPEST.
    The table ends with the first coin of at most floor / horizon. Every coin is rounded once to
    2^-64; the guarantee is computed from the rounded coins.
    """

    horizon: int  # tests of one key
    slope: Fraction
    bend: Fraction  # how fast the fall grows beyond that point
    power: Fraction
    floor: Fraction  # what an opening at the last gap may cost in delta

    def coins(self) -> Coins:
        """The table. Decimal arithmetic: the same on every machine."""
        with localcontext() as context:
            context.prec = 50
            log_horizon, floor = Decimal(self.horizon).ln(), _decimal(self.floor) / self.horizon
            numbers = (_decimal(number) for number in (self.slope, self.bend, self.power))
            coins = []
            for log_pi in _logs(log_horizon, *numbers):
                chance = log_pi.exp()
                coins.append(int(chance * COIN + Decimal("0.5")))
                if chance <= floor:
                    return Coins(tuple(coins))
        raise AssertionError("chances fall below any floor")

    def near(self, longest: int) -> Float64[Array, " gaps"] | None:
        """About `Coins.chances`; None for a table of more than `longest` gaps."""
        last = log(self.floor) - log(self.horizon)
        numbers = (float(number) for number in (self.slope, self.bend, self.power))
        logs = [0.0]
        for log_pi in islice(_logs(log(self.horizon), *numbers), longest):
            logs.append(log_pi)
            if log_pi <= last:
                return np.append(np.exp(logs), 0.0)
        return None


def _logs(log_horizon: Any, slope: Any, bend: Any, power: Any) -> Iterator[Any]:
    """ln(pi) at gap 1, 2, ..., see `TableShape`; in decimals or in floats."""
    log_pi = -0 * slope
    while True:
        rare = -(log_horizon + log_pi)
        fall = slope + bend * rare**power if rare > 0 else slope
        log_pi -= min(STEEPEST, fall)
        yield log_pi


def _decimal(number: Fraction) -> Decimal:
    return Decimal(number.numerator) / Decimal(number.denominator)


def opening_chance(
    chances: Float64[Array, " gaps"], shift_epsilon: float, units: Int64[Array, " horizon"]
) -> float:
    """The chance that a key with this path of units has opened by its end; for forecasts.

    Given Z, every test adds ln(1 - pi) at its gap. For all Z at once, this is the sum of one slice
    of the logarithms for each number of units, times how often the path has that number.
    """
    threshold = len(chances)
    shifts = np.arange(int(40 / shift_epsilon) + 2)
    often = np.bincount(np.minimum(units, threshold + len(shifts)))
    shifts = shifts[: len(often)]  # with a larger one no gap is inside the table
    gaps = threshold + np.arange(1 - len(often), len(shifts))
    with np.errstate(divide="ignore"):
        closed = np.maximum(np.log1p(-chances), -1e3)[np.clip(gaps, 0, threshold - 1)]
    never = np.zeros(len(shifts))
    for count in np.flatnonzero(often):  # few: a path has one number of units for each test
        first = len(often) - 1 - count
        never += often[count] * closed[first : first + len(shifts)]
    never = np.exp(never)
    law = -np.expm1(-shift_epsilon) * np.exp(-shift_epsilon * shifts)
    return float(law @ (1 - never))


def law_near(points: CurvePoints, step: float) -> LossLaw:
    """Approximately `law_under`, in floats: for searches; `law_under` then certifies the result."""
    order = np.argsort(points.gammas)
    gammas, heights = points.gammas[order], points.heights[order]
    nodes, slopes = hull_near(gammas, heights)
    places = points.places[order][nodes]
    masses = np.zeros(int(places[-1] - places[0]) + 1)
    masses[places - places[0]] = gammas[nodes] * np.diff(slopes)
    return LossLaw(step, int(places[0]), masses, float(heights[nodes[-1]]))


@njit(cache=True)
def hull_near(
    gammas: Float64[Array, " n"], heights: Float64[Array, " n"]
) -> tuple[Int64[Array, " nodes"], Float64[Array, " slopes"]]:
    """The nodes of `hull` and the slopes before and behind them, in floats."""
    nodes = np.empty(len(gammas), np.int64)
    slopes = np.zeros(len(gammas) + 1)
    count = 0
    for place in range(len(gammas)):
        slope = (heights[place] - 1.0) / gammas[place]
        while count:
            before = nodes[count - 1]
            slope = (heights[place] - heights[before]) / (gammas[place] - gammas[before])
            if slopes[count - 1] < slope:
                break
            count -= 1
            slope = (heights[place] - 1.0) / gammas[place]
        nodes[count], slopes[count] = place, slope
        count += 1
    slopes[count] = 0.0
    return nodes[:count], slopes[: count + 1]
