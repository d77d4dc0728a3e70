"""What was asked of the data before the first release, and what it cost."""

from __future__ import annotations

from dataclasses import dataclass

from streamveil.core.accounting.guarantee import Loss


@dataclass(frozen=True)
class Look:
    """A survey of the rows that chose the settings of everything after it.

    Proof: the survey loses `loss` (`runtime.survey`, `plan.look.divided`), and the rest of the
        operator keeps what is left of the budget whatever the survey said; see `GroupBy`.
    """

    loss: Loss
    said: tuple[str, ...] = ()  # its numbers, each with an interval
