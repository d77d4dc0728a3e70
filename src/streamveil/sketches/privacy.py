"""The sensitivity of a family of sketch tables, and the noise that hides one change."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Literal, get_args

from streamveil.calibrate import gaussian_mu
from streamveil.core.accounting import Budget, Neighbours, take_numbers
from streamveil.core.accounting.guarantee import Gdp, Loss
from streamveil.core.counters.cells import LONGEST, UP, CellCounter
from streamveil.core.noise.bulk.gaussian import SMALLEST_SIGMA, distance
from streamveil.errors import PlanError, require_budget, require_one_of, require_with
from streamveil.sketches.cell_noise import buffer_norm
from streamveil.sketches.hashing import Layout

Calibration = Literal["analytic", "textbook"]
ONE_SIDED = ("event", "add-remove")
TWO_SIDED = ("event-change", "change-one")
BUFFER_BITS = {4: 30, 8: 52}  # bytes of a buffer word: bits that stay exact in double precision
LARGEST_SIGMA = 2.0**24
TAIL = 16.0  # standard deviations of a buffer before it is clamped


def squared_change(layout: Layout, protects: Neighbours) -> int:
    """m: the largest squared change of all cell totals when one item changes, for any hash seed.

    Proof: an item adds 1 to one cell in each row. Present or absent: depth. Replaced: each row
        loses one unit and gains one, 2 depth in different cells; in Count Sketch both may fall
        into one cell with opposite signs, a change of 2 there, 4 depth when that happens in every
        row.

    >>> layout = Layout(kind="count-sketch", depth=3, width=9)
    >>> squared_change(layout, Neighbours(relation="event")), squared_change(
    ...     layout, Neighbours(relation="event-change"))
    (3, 12)
    """
    if protects.relation in ONE_SIDED:
        return layout.depth
    if protects.relation in TWO_SIDED:
        return layout.depth * (4 if layout.signed else 2)
    known = ", ".join((*ONE_SIDED, *TWO_SIDED))
    raise PlanError(f"a sketch protects one of {known}; not '{protects.relation}'")


@dataclass(frozen=True, kw_only=True)
class NoisePlan:
    """The noise of one or several tables under one budget.

    Algorithm: every cell's noise is a Gaussian of one scale `sigma`, correlated by the counter.
    Protects: `protects.relation` with at most `protects.bound` = C items of one unit, of weight at
        most `max_weight` = W each. 'event' and 'add-remove': the items are there or not; with the
        arrival clock they are blanked and keep their place in time. 'event-change' and
        'change-one': replaced. Closing the gap of a deleted arrival is not covered: it shifts all
        later pushes; use ticks where the number of items is private.
    Guarantee: mu-GDP for everything ever shown, mu = l2 / sigma; see `loss`.
    Proof: push times are fixed in advance, so every item is counted in one push of every cell it
        touches, and what is shown is a function of C c + z over all cells, c the increments of a
        cell and z Gaussian. One item moves c in one push of each touched cell, by at most W times
        the integer `parts` of its table; over all cells and tables by at most W sqrt(m) times the
        column norm s(C), plus what the rounding of buffers adds (`CellCounter.rounding_norm`) in
        each touched cell. C items move at most C times that,
        by the triangle inequality. Later items may depend on what was shown: given the past, each
        next value is a Gaussian whose centre moves by a part of that fixed amount (adaptive
        Gaussian composition, Smith & Thakurta 2022, arXiv:2206.07716). Rounding about the centre
        to integers is post-processing.
    Numerics: integers from the sampler, whose `distance` of every draw in a touched cell is
        charged.

    >>> layout = Layout(kind="count-min", depth=3, width=500)
    >>> plan = NoisePlan(layouts=(layout,), counter=CellCounter("tree", 128), max_weight=1,
    ...     protects=Neighbours(relation="event-change"), budget=Budget(epsilon=0.3, delta=1e-3))
    >>> plan.change, round(plan.l2, 3), round(plan.sigma, 1)
    (6, 6.928, 49.0)
    """

    layouts: tuple[Layout, ...]
    counter: CellCounter
    protects: Neighbours
    budget: Budget
    max_weight: int = 1
    calibration: Calibration = "analytic"
    word_bytes: int = 4
    parts: tuple[int, ...] = ()  # what an item of weight one adds, for each layout; empty: one

    def __post_init__(self) -> None:
        take_numbers(self)
        require_budget(self.budget)
        require_with("protects", self.protects, "bound", "such as Neighbours('user', bound=5)")
        require_one_of("calibration", self.calibration, get_args(Calibration))
        if self.parts and (len(self.parts) != len(self.layouts) or min(self.parts) < 1):
            raise PlanError("parts must be a whole number of at least 1 for each layout")
        if not isinstance(self.max_weight, int) or not 1 <= self.max_weight < 2**31:
            raise PlanError(
                f"max_weight must be an integer from 1 to 2^31 - 1, not {self.max_weight}"
            )
        if self.items < 1 or self.items.denominator != 1:
            raise PlanError(
                f"bound must be a whole number of items of one unit, not {self.protects.bound}"
            )

    @property
    def change(self) -> int:
        """M over all tables."""
        parts = self.parts or (1,) * len(self.layouts)
        return sum(
            part * part * squared_change(layout, self.protects)
            for part, layout in zip(parts, self.layouts, strict=True)
        )

    @property
    def touched(self) -> int:
        """Cells that one item touches, over all tables."""
        moved = 2 if self.protects.relation in TWO_SIDED else 1  # in each row, at most
        return moved * sum(layout.depth for layout in self.layouts)

    @property
    def items(self) -> Fraction:
        """C: most items of one unit."""
        return Fraction(self.protects.bound)

    @cached_property
    def mu(self) -> float:
        """The Gaussian part of the budget, after the sampler's distance is paid.

        The distance grows with sigma, which grows as mu falls: what is set aside is raised until
        it pays for the sigma that follows from it.
        """
        if self.calibration == "textbook":
            return self._paid(textbook_mu(self.budget))
        epsilon, delta = self.budget.epsilon, self.budget.delta
        if epsilon is None or delta is None:
            raise PlanError(
                "a sketch needs a budget of epsilon and delta: its noise is exact up to a distance"
                " that delta pays for"
            )
        whole = gaussian_mu(self.budget)
        each = 1 + Fraction(math.exp(min(float(epsilon), 600)) * UP)  # 600: refused below
        paid = self._distance(1.25 * self._exact / whole)
        while True:
            spent = each * paid
            if spent >= delta / 2:
                raise PlanError(
                    f"delta = {float(delta):g} is too small: the sampler alone needs"
                    f" {float(2 * spent):.3g}.\n"
                    "  to fix  use a larger delta, a smaller epsilon, fewer pushes or items"
                )
            mu = gaussian_mu(Budget(epsilon=epsilon, delta=delta - spent))
            needed = self._distance(self._sigma_at(mu))
            if needed <= paid:
                return mu
            paid = needed * Fraction(5, 4)

    def _paid(self, mu: float) -> float:
        """A given mu; refused where the budget does not pay for the sampler too."""
        if not self._loss_at(mu).fits(self.budget):
            raise PlanError(
                "textbook noise leaves too little of this delta for the sampler.\n"
                "  to fix  use a larger delta, or leave calibration at 'analytic'"
            )
        return mu

    @property
    def _exact(self) -> float:
        """How far one unit moves the encoder, without the rounding of buffers."""
        reach = float(self.items) * self.max_weight * math.sqrt(self.change)
        return reach * self.counter.column_norm

    def _distance(self, sigma: float) -> Fraction:
        """Distance of all draws in the cells one unit touches."""
        return self._draws * distance(max(sigma * self._largest_factor, 1.0))

    @property
    def _largest_factor(self) -> float:
        return float(self.counter.epoch_factors[-1])

    @property
    def _draws(self) -> Fraction:
        return self.touched * self.items * (self.counter.pushes or LONGEST)

    def _bits_at(self, mu: float) -> int:
        """Binary places kept in a buffer: as many as fit above TAIL standard deviations."""
        if self.counter.is_tree:
            return 0
        size = 1.25 * self._exact / mu * buffer_norm(self.counter) * TAIL
        bits = BUFFER_BITS[self.word_bytes] - math.ceil(math.log2(max(size, 1.0)))
        if bits < 0:
            raise PlanError(f"the noise needed is too large for {8 * self.word_bytes}-bit buffers")
        return min(bits, 22 if self.word_bytes == 4 else 40)

    def _l2_at(self, mu: float) -> float:
        exact = self.max_weight * math.sqrt(self.change) * self.counter.column_norm
        rounding = math.sqrt(self.touched) * self.counter.rounding_norm(2.0 ** -self._bits_at(mu))
        return float(self.items) * (exact + rounding) * UP

    def _sigma_at(self, mu: float) -> float:
        value = max(self._l2_at(mu) / mu * UP, SMALLEST_SIGMA)
        if value * self._largest_factor > LARGEST_SIGMA:
            raise PlanError(f"the noise needed, sigma = {value:.3g}, is beyond this sampler")
        return value

    @cached_property
    def bits(self) -> int:
        """Binary places kept in a buffer."""
        return self._bits_at(self.mu)

    @cached_property
    def l2(self) -> float:
        """How far one unit moves the encoder, rounded up."""
        return self._l2_at(self.mu)

    @cached_property
    def sigma(self) -> float:
        """The scale of every draw (times `epoch_factors` for an unbounded tree), rounded up."""
        return self._sigma_at(self.mu)

    @cached_property
    def loss(self) -> Loss:
        """The loss of everything ever shown, about one unit."""
        return self._loss_at(self.mu)

    def _loss_at(self, mu: float) -> Loss:
        sigma = self._sigma_at(mu)
        gaussian = Gdp.squared((Fraction(self._l2_at(mu)) / Fraction(sigma)) ** 2)
        return gaussian + Loss(distance=self._distance(sigma))


def textbook_mu(budget: Budget) -> float:
    """1/kappa for kappa = sqrt(2 ln(1.25/delta))/epsilon, which is proved only for epsilon < 1.

    >>> round(1 / textbook_mu(Budget(epsilon=0.3, delta=1e-3)), 3)
    12.588
    """
    if budget.epsilon is None or budget.delta is None or budget.epsilon >= 1:
        raise PlanError(
            "textbook noise is proved for epsilon below 1 with a delta only.\n"
            "  to fix  leave calibration at 'analytic'"
        )
    return float(budget.epsilon) / math.sqrt(2 * math.log(1.25 / float(budget.delta)))
