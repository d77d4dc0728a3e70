"""Vectors and real numbers as streams of integers, for every counter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from streamveil.core.accounting.guarantee import Loss
from streamveil.core.counters.protocol import (
    Counter,
    CounterState,
    Ids,
    Stepping,
    column,
    draws_at,
    next_step,
)
from streamveil.core.noise.keyed import Place
from streamveil.errors import require_positive
from streamveil.types import Array, Exact, Float64, Int64

LARGEST_QUANTA = 2**52  # of one row: float64 holds it exactly, and 2^10 of them fit an int64


@dataclass(frozen=True, kw_only=True)
class VectorCounter(Stepping):
    """Running totals of integer vectors: one counter per key and coordinate.

    Protects: `moved` of `loss` is the L2 norm (L1 for Laplace counters), over keys and coordinates,
        of the L1-over-time move of each. One row that moves a vector by L2 norm b has moved = b;
        k rows at any times have at most k b.
    Guarantee: that of the counter inside.
    Proof: coordinates are keys of their own, with noise of their own; the triangle inequality over
        rows.
    Memory: width times that of the counter inside.

    Raises:
        ValueError: `width` is no whole number above 0, or increments have other columns.
        HorizonError: a step after the last of the counter's horizon.

    >>> from streamveil.counters import BltCounter
    >>> from streamveil.core.noise.keyed import Place, SilentNoise
    >>> totals = VectorCounter(counter=BltCounter(horizon=9, sigma=2), width=3)
    >>> noisy, _ = totals.step(totals.init(1), np.array([[1, 0, 7]]), Place(SilentNoise(), "doc"))
    >>> noisy
    array([[1, 0, 7]])
    """

    counter: Counter
    width: int  # coordinates, >= 1

    def __post_init__(self) -> None:
        require_positive(width=self.width)

    def loss(self, moved: Exact | float = 1, keys: int | None = None) -> Loss:
        """See `Counter.loss`."""
        return self.counter.loss(moved, None if keys is None else keys * self.width)

    @property
    def horizon(self) -> int:
        """Steps the guarantee covers."""
        return self.counter.horizon

    def init(self, keys: int, t: int = 0) -> tuple[CounterState, ...]:
        """One state per coordinate."""
        return (self.counter.init(keys, t),) * self.width

    def dump(self, states: tuple[CounterState, ...]) -> dict[str, Array]:
        """See `Stepping.dump`."""
        found = (state.to_arrays().items() for state in states)
        return {f"{i}/{name}": array for i, part in enumerate(found) for name, array in part}

    def load(self, saved: Mapping[str, Array]) -> tuple[CounterState, ...]:
        """See `Stepping.load`."""
        parts: list[dict[str, Array]] = [{} for _ in range(self.width)]
        for name, array in saved.items():
            place, _, part = name.partition("/")
            if part and int(place) < self.width:
                parts[int(place)][part] = array
        return tuple(CounterState.from_arrays(part) for part in parts)

    def step(  # type: ignore[override]  # the state is one per coordinate
        self,
        states: tuple[CounterState, ...],
        increments: Int64[Array, "keys width"],
        place: Place,
        ids: Ids | None = None,
    ) -> tuple[Array, tuple[CounterState, ...]]:
        """See `Counter.step`; every coordinate draws below an address of its own."""
        rows = np.asarray(increments)
        if rows.ndim != 2 or rows.shape[1] != self.width:
            raise ValueError(f"increments must have {self.width} columns, not {rows.shape}")
        t = next_step(self.counter.horizon, states[0])
        columns = [column(row, states[0].keys) for row in rows.T]
        draws = draws_at(self.counter, place, t)
        stepped = [
            self.counter._advance(state, columns[i], draws.at("coordinate", i), ids)
            for i, state in enumerate(states)
        ]
        return np.stack([one[0] for one in stepped], axis=1), tuple(one[1] for one in stepped)


@dataclass(frozen=True, kw_only=True)
class Quanta:
    """Real numbers between two bounds, as whole numbers of a quantum.

    Bad data never raises: values are clamped, and what is not a number counts as nothing.

    Raises:
        ValueError: low is above high, or the bounds hold more than 2**52 quanta.

    >>> cents = Quanta(quantum=Fraction(1, 100), low=0, high=50)
    >>> cents.encode(np.array([1.239, 77.0, float("nan")])), cents.largest
    (array([ 124, 5000,    0]), 5000)
    >>> cents.decode(np.array([124])), cents.rounding
    (array([1.24]), 0.005)
    """

    quantum: Exact  # size of one quantum, > 0
    low: Exact  # smallest value, in units of the data
    high: Exact  # largest value, in units of the data, >= low

    def __post_init__(self) -> None:
        require_positive(quantum=self.quantum)
        if self.low > self.high:
            raise ValueError(f"low must not be above high, not {self.low} > {self.high}")
        if self.largest > LARGEST_QUANTA:
            raise ValueError("the bounds hold more than 2**52 quanta; use a larger quantum")

    @property
    def ends(self) -> tuple[int, int]:
        """The bounds in quanta, rounded inwards."""
        low, high = Fraction(self.low) / self.quantum, Fraction(self.high) / self.quantum
        return -(-low.numerator // low.denominator), high.numerator // high.denominator

    @property
    def largest(self) -> int:
        """How far one row can move a total, in quanta: the factor of `moved`."""
        return max(abs(end) for end in self.ends)

    @property
    def rounding(self) -> float:
        """The largest error of rounding one row, as a value."""
        return float(Fraction(self.quantum) / 2)

    def encode(self, values: Float64[Array, "*shape"]) -> Int64[Array, "*shape"]:
        """Quanta of each value; always within `ends`."""
        whole = np.rint(np.asarray(values, np.float64) / float(self.quantum))
        low, high = self.ends
        clamped = np.clip(np.nan_to_num(whole, nan=0.0), low, high)
        return np.where(np.isnan(whole), 0, clamped).astype(np.int64)

    def decode(self, totals: Array) -> Float64[Array, "*shape"]:
        """Values of totals in quanta."""
        return np.asarray(totals, np.float64) * float(self.quantum)
