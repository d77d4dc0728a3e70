"""Showing groups privately: what every selection offers, and when a key becomes public."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Protocol, TypeAlias

from streamveil.core.accounting.guarantee import Loss
from streamveil.core.counters import Counter
from streamveil.core.noise import Address
from streamveil.types import Array, Exact, Int64, UInt64

Counted: TypeAlias = Callable[[Exact], Counter]  # a counter of a noise
Held: TypeAlias = dict[str, Array]  # the state of a window
PerKey: TypeAlias = Int64[Array, " keys"]  # an integer of each key: units, a shift, an opening time
Names: TypeAlias = UInt64[Array, "keys 2"]
Stepped: TypeAlias = tuple[Held, Int64[Array, " passing"]]


class Selection(Protocol):
    """Decides at each trigger which keys of a window become public."""

    once: ClassVar[bool]  # a key passes at one trigger only
    restarts: ClassVar[bool]  # a unit counts anew in a key that has passed

    @property
    def loss(self) -> Loss:
        """What all tests of all keys cost, beside the releases."""

    def threshold(self, trigger: int) -> float:
        """Units above which a key passes at a trigger, for forecasts and for the silent test."""

    def init(self, trigger: int) -> Held:
        """The state of a window with no keys, before the given trigger."""

    def step(self, state: Held, units: PerKey, names: Names, trigger: int, at: Address) -> Stepped:
        """Takes the new distinct units of every key seen so far; which rows pass at this trigger.

        Units are cleared where they are taken. Keys beyond the state's are new: they must get the
        law they would have had from the window's first trigger.
        """
