"""Private sketches under continual observation: lazy (a few columns at a time) and punctual."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

from streamveil.core.accounting import Budget, Neighbours, take_numbers
from streamveil.core.counters.cells import CellCounter
from streamveil.errors import NoiseWarning, PlanError, require_one_of, warn
from streamveil.sketches.hashing import Kind, Layout
from streamveil.sketches.keys import Keys, Words, key_words
from streamveil.sketches.levels import Levels, LevelWords
from streamveil.sketches.privacy import Calibration
from streamveil.sketches.published import PublishedSketch
from streamveil.sketches.schedule import ClockName, PushSchedule
from streamveil.sketches.table import SketchTable
from streamveil.types import Array

ROUNDS = 256  # default number of rounds in a horizon: with it noise and lag are both small
BLOCK = 1024


@dataclass(frozen=True, kw_only=True)
class LazySketch(Levels):
    """Frequencies of any key at any time, in bounded memory, under one budget for the whole stream.

    Algorithm: LazySketch (Holland 2025, arXiv:2507.03361v4): keys are counted in a linear sketch
        and a rolling block of columns is pushed into continual counters, whose totals are public.
        Ours differs in the counter inside a cell (buffered Toeplitz by default), in rounds whose
        length is chosen apart from the width, in one draw per push, and in the calibration. The
        paper's form is counter='tree', round=width, block=1, calibration='textbook'.
    Protects: `protects.relation` and at most `protects.bound` items per unit; see `NoisePlan`. The
        caller enforces the bound. With the arrival clock it gives items beyond the bound weight 0,
        so that no other item's place in time moves.
    Guarantee: `guarantee`, computed from sigma; covers everything ever published.
    Proof: `NoisePlan`.
    Error: `PublishedSketch.error_bound`; noise `PublishedSketch.sd`, lag at most a round.
    Memory: `nbytes`: per cell 10 bytes with BLT-1 on the arrival clock (rounds below 2^15, stream
        below 2^30), 6 with tree-prf.
    Numerics: integers throughout; noise is exact up to `distance`, which is charged to delta.

    Raises:
        PlanError: a setting is out of its range.
        HorizonError: keys after the last of `horizon`, or more pushes than a sketch without one can
            hold.
        StoreError: `resume` is given arrays of another configuration.

    >>> import numpy as np
    >>> from streamveil.core.noise import SeededNoise
    >>> sketch = LazySketch(kind="count-min", width=500, horizon=2**16,
    ...     protects=Neighbours(relation="event-change"), budget=Budget(epsilon=1, delta=1e-6))
    >>> live = sketch.open(SeededNoise(1))
    >>> live.update(np.repeat([3, 4], [40_000, 20_000]))
    >>> [abs(round(x / 1000)) for x in live.published().estimate([3, 4, 5])]
    [40, 20, 0]
    """

    kind: Kind
    width: int  # columns of the table, 1 to 2**30
    horizon: int | None  # arrivals or ticks covered, >= 1; None: unknown
    protects: Neighbours
    budget: Budget
    depth: int = 3  # rows of the table, >= 1
    clock: ClockName = "arrivals"
    round: int | None = None  # arrivals or ticks between two pushes of a column, >= 1
    block: int | None = None  # columns pushed together, >= 1
    counter: Literal["blt-1", "blt-2", "tree", "tree-prf"] = "blt-1"
    flushes: int = 0  # further pushes of everything, at public times, >= 0
    max_weight: int = 1  # of one item, >= 1
    seed: int = 0  # public, any whole number
    calibration: Calibration = "analytic"

    most_levels = 1
    opened_as = "sketch"

    def __post_init__(self) -> None:
        take_numbers(self)
        _ = self.layouts
        _ = self.noise.loss, self.tables  # every setting is checked now
        warn_about_delta(self.budget, self.schedule)

    @cached_property
    def layout(self) -> Layout:
        """Shape and hash functions."""
        return Layout(kind=self.kind, depth=self.depth, width=self.width, seed=self.seed)

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """See `Levels`: there is one table."""
        return (self.layout,)

    @cached_property
    def schedule(self) -> PushSchedule:
        """Push times."""
        return make_schedule(self, self.width, self.block)

    def schedule_of(self, width: int) -> PushSchedule:
        """See `Levels`."""
        return self.schedule

    @property
    def cell(self) -> CellCounter:
        """The counter of every cell."""
        return self.noise.counter

    @property
    def table(self) -> SketchTable:
        """The cells."""
        return self.tables[0]

    @property
    def sigma(self) -> float:
        """Scale of the noise of one push."""
        return self.noise.sigma

    def address(self, number: int) -> tuple[int, ...]:
        """See `Levels`: the one table has no number."""
        return ()

    def items(self, keys: Keys) -> Words:
        """Keys as they are counted.

        Args:
            keys: integers or texts.

        Raises:
            PlanError: this sketch cannot count a key.
        """
        return key_words(keys)

    def counted(self, items: Words, weights: Array) -> Iterator[LevelWords]:
        """See `Levels`."""
        yield LevelWords(0, items, weights)

    def shown(self, levels: tuple[PublishedSketch, ...]) -> PublishedSketch:
        """The published table; `levels`: this one table."""
        return levels[0]


def make_schedule(config: Any, width: int, block: int | None) -> PushSchedule:
    """The schedule of a table of a sketch; defaults: ROUNDS rounds per horizon, a tick each."""
    length = config.round
    if length is None:
        require_one_of("clock", config.clock, get_args(ClockName))
        if config.clock == "ticks":
            length = 1
        elif config.horizon is None:
            raise PlanError("an unknown horizon on the arrival clock needs a round length")
        else:
            length = max(1, config.horizon // ROUNDS)
    return PushSchedule(
        width=width, clock=config.clock, round=length,
        block=min(width, BLOCK) if block is None else block,
        horizon=config.horizon, flushes=config.flushes,
    )  # fmt: skip


def warn_about_delta(budget: Budget, schedule: PushSchedule) -> None:
    """A delta of 1/T or more allows publishing whole records."""
    horizon = schedule.horizon if schedule.clock == "arrivals" else None
    if horizon is not None and budget.delta is not None and budget.delta * horizon >= 1:
        warn(
            f"delta = {float(budget.delta):g} is at least 1 / {horizon}: a mechanism that"
            " publishes a record outright would satisfy it; use a much smaller delta",
            NoiseWarning,
        )
