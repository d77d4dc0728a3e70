"""The table selection of `mechanisms.selection` as a selection of the group-by."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from streamveil.mechanisms.selection import FINE, TableSelection
from streamveil.mechanisms.waiting import NEVER
from streamveil.operators.selection import Address
from streamveil.types import Array, Bool, Int64, UInt64


@dataclass(frozen=True, kw_only=True)
class TableOpening:
    """Opens a key by coins on its number of distinct units (design V).

    Algorithm, Proof: `TableSelection`. What it asks of the operator: a unit counts at most once per
        key (`Passed.first`) and for at most `keys_per_unit` keys that are not shown, places never
        being given back (`Bounds.slots`); a key once shown stays shown.
        With an offset m the coins see max(S - m, 0): to others it is as if the unit had come when
        the key's other units reached m, and from then on it adds exactly 1.
    Guarantee: (`epsilon`, delta) together with Gaussian releases; see `delta`.
    Memory: 24 bytes per key.
    """

    table: TableSelection
    epsilon: Fraction  # at which the guarantee of the whole job is stated
    offset: int = 0  # units that do not count: keys need that many more
    half: float = 0.0  # units with which half of all keys are shown, for forecasts

    def delta(self, mu: Fraction) -> Fraction:
        """A certified delta at `epsilon` of the selection and mu-GDP releases together.

        Every lattice gives a sound bound; the finer one is needed where the design left no room.
        """
        found = (self.table.delta_at(self.epsilon, mu, places) for places in (FINE, 3 * FINE))
        return Fraction(min(found))

    def threshold(self, trigger: int) -> float:
        """Units with which a key opens surely at any trigger when its shift is 0."""
        return float(self.table.threshold + self.offset)

    def init(self, trigger: int) -> dict[str, Array]:
        """See `Selection.init`."""
        none = np.zeros(0, np.int64)
        return {"units": none, "shift": none, "opens": none}

    def step(
        self,
        state: dict[str, Array],
        units: Int64[Array, " keys"],
        names: UInt64[Array, "keys 2"],
        trigger: int,
        at: Address,
    ) -> tuple[dict[str, Array], Bool[Array, " keys"]]:
        """See `Selection.step`. A key whose units did not change keeps its opening time."""
        known = len(state["units"])
        draws = at.noise.at("group-by/shift", at.job, at.window)
        shift = np.concatenate([state["shift"], self.table.shift(draws, names[known:])])
        new = np.zeros(len(names) - known, np.int64)
        total = np.concatenate([state["units"], new]) + units
        opens = np.concatenate([state["opens"], new + NEVER])
        touched = np.flatnonzero((units > 0) & (opens >= trigger))
        if len(touched):
            waits = at.noise.at("group-by/wait", at.job, at.window)
            opens[touched] = self.table.next_opening(
                waits,
                names[touched],
                np.maximum(total[touched] - self.offset, 0),
                shift[touched],
                trigger,
            )
        return {"units": total, "shift": shift, "opens": opens}, opens <= trigger
