"""What private rows say of their own shape, for a price: the expectations that a forecast needs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from fractions import Fraction

import numpy as np
import pyarrow as pa

from streamveil.errors import PlanError
from streamveil.privacy.budget import Budget
from streamveil.privacy.calibrate import gaussian_sigma, root_up
from streamveil.privacy.guarantee import Guarantee, Loss
from streamveil.privacy.ledger import Ledger
from streamveil.privacy.neighbours import Neighbours
from streamveil.privacy.noise import Noise
from streamveil.privacy.samplers import rounded_gaussian
from streamveil.queries.plan import Plan
from streamveil.queries.tune import Sample, first_counted, ranks, row_pairs, usable_rows
from streamveil.types import Array, Float64, Int64

ROW_EDGES = np.unique(np.round(2.0 ** (np.arange(0, 41) / 2)))  # 1, 2, 3, 4, 6, 8, 11, ... 2^20
REPEAT_EDGES = np.array([0.0, 1e-9, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9])
VALUE_EDGES = 2.0 ** np.arange(-20, 41)
QUIET = 3.0  # deviations below which a bin counts as empty
FEWEST = 30.0  # deviations of all units together below which nothing is said


@dataclass(frozen=True)
class Survey:
    """Three histograms over privacy units, with noise.

    Algorithm: every unit (in every scope) enters one bin of each: its number of rows, the share of
        its rows that repeat a group it had, the size of its first value (where values are summed).
        Bins are fixed, counts get Gaussian noise, small ones count as empty.
    Protects: all rows of one unit within one scope.
    Guarantee: a Gaussian of mu^2 = histograms / sigma^2.
    Proof: a unit more adds 1 to one bin of each histogram and touches nothing else, as bins depend
        on that unit's rows alone: sqrt(histograms) in L2. Means, quantiles and what a forecast
        makes of them are post-processing, and so is what is not said when the noise is too large.
    Numerics: integer counts, exactly rounded noise.
    """

    budget: Budget
    histograms: int
    protects: Neighbours

    @property
    def sigma(self) -> Fraction:
        """The noise of every bin."""
        return gaussian_sigma(self._moved, self.budget)

    @property
    def _moved(self) -> Fraction:
        return root_up(Fraction(self.histograms))

    @property
    def guarantee(self) -> Guarantee:
        """Of all histograms together."""
        return Guarantee(self.protects, Loss(gaussian=self._moved**2 / self.sigma**2))


@dataclass(frozen=True)
class Learned:
    """What the survey says; None where the noise hides it."""

    units: float | None
    rows: float | None  # of one unit, on average
    most: float | None  # rows that 99 of 100 units do not exceed
    repeats: float | None  # share of rows that repeat a group of their unit
    high: float | None  # what 99 of 100 values do not exceed

    @property
    def options(self) -> dict[str, float]:
        """As the options of a query."""
        named = {
            "expected_units": self.units, "expected_rows": self.rows,
            "expected_most_rows": self.most, "expected_repeats": self.repeats,
        }  # fmt: skip
        return {name: value for name, value in named.items() if value is not None}


def survey(
    plan: Plan, table: pa.Table, budget: Budget, noise: Noise, ledger: Ledger | None = None
) -> tuple[Learned, Guarantee]:
    """Charges, counts, draws, and says what rows look like. No row leaves this function."""
    if budget.is_pure:
        raise PlanError("a survey uses Gaussian noise, which needs a delta")
    valued = first_counted(plan).function == "sum"
    period = None if plan.period_us is None else _period(plan.period_us)
    asked = Survey(budget, 2 + valued, Neighbours(unit=plan.unit, period=period))
    if ledger is not None:
        ledger.charge(f"survey for {plan.name}", asked.guarantee)
    sample = usable_rows(plan, table, 1.0)  # without rows it draws as well
    counts = histograms(sample, valued=valued)
    noisy = [
        rounded_gaussian(noise.at("survey", place), counted.astype(np.float64), asked.sigma)
        for place, counted in enumerate(counts)
    ]
    return learn(noisy, float(asked.sigma)), asked.guarantee


def histograms(sample: Sample | None, *, valued: bool) -> list[Int64[Array, " bins"]]:
    """Exact counts of units: by rows, by share of repeats, by size of the first value."""
    edges = [ROW_EDGES, REPEAT_EDGES] + [np.concatenate([[-np.inf], VALUE_EDGES])] * valued
    if sample is None:
        return [np.zeros(len(edge), np.int64) for edge in edges]
    rows = np.bincount(sample.scope)
    again = np.bincount(sample.scope[ranks(row_pairs(sample)) > 0], minlength=len(rows))
    order = np.argsort(sample.scope, kind="stable")
    first = order[np.concatenate([[0], np.cumsum(rows)[:-1]])]
    sizes = [rows, again / rows, np.abs(sample.value[first])]
    return [_binned(size, edge) for size, edge in zip(sizes[: len(edges)], edges, strict=True)]


def _binned(
    sizes: Float64[Array, " units"], edges: Float64[Array, " bins"]
) -> Int64[Array, " bins"]:
    place = np.searchsorted(edges, sizes, side="right") - 1
    return np.bincount(place, minlength=len(edges)).astype(np.int64)


def learn(noisy: list[Int64[Array, " bins"]], sigma: float) -> Learned:
    """Post-processing: small bins are empty; means by the middles of bins."""
    kept = [np.where(counted < QUIET * sigma, 0, counted) for counted in noisy]
    by_rows = kept[0]
    total = float(by_rows.sum())
    if total < FEWEST * sigma:
        return Learned(None, None, None, None, None)
    ends = np.append(ROW_EDGES[1:] - 1, 2 * ROW_EDGES[-1])
    rows = float((by_rows * (ROW_EDGES + ends) / 2).sum()) / total
    most = float(ends[np.searchsorted(np.cumsum(by_rows), 0.99 * total)])
    middles = np.append((REPEAT_EDGES[1:] + REPEAT_EDGES[:-1]) / 2, 0.95)
    repeats = float((kept[1] * middles).sum() / max(kept[1].sum(), 1))
    high = None
    if len(kept) > 2 and kept[2].sum():
        place = int(np.searchsorted(np.cumsum(kept[2]), 0.99 * kept[2].sum()))
        high = float(np.append(VALUE_EDGES, 2 * VALUE_EDGES[-1])[place])
    return Learned(
        float(f"{total:.3g}"), round(max(rows, 1.0), 2), max(most, rows),
        round(min(repeats, 0.95), 2), high,
    )  # fmt: skip


def _period(micros: int) -> timedelta:
    return timedelta(microseconds=micros)
