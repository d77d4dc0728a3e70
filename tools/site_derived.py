"""Numbers of the pages that follow from the code alone: nothing is measured for them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from math import exp, hypot, sqrt
from typing import Any

from streamveil.core.accounting import Budget, Neighbours
from streamveil.dynamic.signed_counter import root_sensitivity
from streamveil.linear import Direct, Marginals, Residuals
from streamveil.sketches import LazySketch

EVENT = Neighbours(relation="event-change")


def of_strategies() -> Iterator[tuple[str, str]]:
    """What a record moves, in noise units: all cells of the 3-way marginals of 9 bits, and time."""
    cells = Marginals.ways((2,) * 9, 3)
    yield "residuals", f"{Residuals(cells).unit('zcdp'):.1f}"
    yield "cells", f"{Direct(cells).unit('zcdp'):.1f}"
    yield "points", f"{sqrt(2 ** (9 - 3)):.0f}"
    yield "pair", f"{root_sensitivity(1_023, paired=True):.2f}"
    one = root_sensitivity(1_023, paired=False)
    yield "two events", f"{hypot(one, one):.2f}"


def sketch(epsilon: str, delta: str, rounds: int, **chosen: Any) -> LazySketch:
    """A Count-Min of 2^20 arrivals."""
    with warnings.catch_warnings(action="ignore"):  # the delta of a comparison, too large for use
        return LazySketch(
            kind="count-min", width=800, horizon=2**20, round=2**20 // rounds, protects=EVENT,
            budget=Budget(epsilon=epsilon, delta=delta), **chosen,
        )  # fmt: skip


def of_cells() -> Iterator[tuple[str, str]]:
    """The noise of sketches: what the textbook's costs, and what the rounding of buffers costs."""
    exact, textbook = (
        sketch("0.3", "1e-3", 256, calibration=how).noise.sigma for how in ("analytic", "textbook")
    )
    yield "textbook", f"{textbook / exact:.2f}"
    asked = {"little": ("0.01", 256), "more": ("0.01", 4_096), "much": ("0.1", 65_536)}
    for told, (epsilon, rounds) in asked.items():
        noise = sketch(epsilon, "1e-6", rounds).noise
        rounding = noise.l2 / (sqrt(noise.change) * noise.counter.column_norm) - 1
        yield told, f"{100 * rounding:.1f}"


def of_bets() -> Iterator[tuple[str, str]]:
    """What an even bet about one person becomes at most, in percent."""
    yield from ((f"{at}", f"{100 * exp(at) / (1 + exp(at)):.0f}") for at in (1, 2, 4))
