"""The times of pushes of columns: public, fixed in advance, the same for every input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from streamveil.core.accounting import take_numbers
from streamveil.errors import PlanError, require_one_of

ClockName = Literal["arrivals", "ticks"]


@dataclass(frozen=True, kw_only=True)
class PushSchedule:
    """Pushes each column once a `round`, `block` columns together, spread evenly over the round.

    With the clock 'arrivals', time is the number of items so far, which is therefore public; with
    'ticks' the caller advances it and the number of items stays private. The paper's sketch is
    round = width and block = 1, the punctual one round = 1 and block = width.

    >>> plan = PushSchedule(width=10, clock="arrivals", round=8, block=4, horizon=16)
    >>> plan.blocks, plan.pushes
    (3, 2)
    """

    width: int
    clock: ClockName
    round: int  # arrivals or ticks between two pushes of a column
    block: int  # columns pushed together
    horizon: int | None  # arrivals or ticks in all; None: unknown
    flushes: int = 0  # further pushes of the whole table that the caller may ask for

    def __post_init__(self) -> None:
        take_numbers(self)
        require_one_of("clock", self.clock, get_args(ClockName))
        limits = {"round": (self.round, 2**62), "block": (self.block, self.width)}
        for name, (value, top) in limits.items():
            if not isinstance(value, int) or not 1 <= value <= top:
                raise PlanError(f"{name} must be an integer from 1 to {top}, not {value}")
        if self.horizon is not None and not 1 <= self.horizon < 2**62:
            raise PlanError(f"horizon must be at least 1, not {self.horizon}")
        if self.flushes < 0:
            raise PlanError(f"flushes must not be negative, not {self.flushes}")

    @property
    def blocks(self) -> int:
        """Blocks in the table."""
        return -(-self.width // self.block)

    @property
    def pushes(self) -> int | None:
        """Pushes of one column within the horizon."""
        if self.horizon is None:
            return None
        return -(-self.horizon // self.round) + self.flushes
