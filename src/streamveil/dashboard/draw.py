"""Charts as SVG: lines of the largest groups, their intervals shaded, windows set apart."""

from __future__ import annotations

import re
from contextlib import AbstractContextManager
from io import StringIO
from typing import Any

import numpy as np

from streamveil.dashboard.series import Chart, Line
from streamveil.errors import MissingExtraError, visible
from streamveil.types import Array

COLOURS = ("#1b6ca8", "#d1495b", "#3c896d", "#edae49", "#7d5ba6", "#5c6b73")
TICKS = 8


def svg(chart: Chart) -> str:
    """One chart, to be put into a page as it is: the same chart is the same text."""
    with styled():
        text = StringIO()
        figure_of(chart).savefig(text, format="svg", transparent=True, metadata={"Date": None})
    return re.sub(r"^.*?(?=<svg)", "", text.getvalue(), flags=re.S)


def styled() -> AbstractContextManager[None]:
    """Settings of matplotlib for the time of a drawing."""
    try:
        from matplotlib import rc_context
    except ImportError:
        raise MissingExtraError("the dashboard", "dashboard") from None
    context: AbstractContextManager[None] = rc_context(
        {"svg.fonttype": "none", "svg.hashsalt": "streamveil", "font.size": 9}
    )
    return context


def figure_of(chart: Chart) -> Any:
    """The matplotlib figure."""
    with styled():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(9.6, 3.3))
        figure.subplots_adjust(left=0.11, right=0.8, bottom=0.24, top=0.97)
        axes = figure.subplots()
        places = positions(chart)
        for line, colour in zip(chart.lines, COLOURS, strict=False):
            draw(axes, places, line, colour)
        for place in chart.breaks:
            axes.axvline(places[place] - 1, color="#bbbbbb", lw=0.8, ls=":")
        shown = np.unique(np.linspace(0, len(places) - 1, TICKS).round().astype(int))
        axes.set_xticks(places[shown], [chart.ticks[i] for i in shown], rotation=20, ha="right")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#e6e6e6", lw=0.6)
        axes.margins(x=0.02)
        if chart.lines:
            axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    return figure


def positions(chart: Chart) -> Array:
    """A place on the axis for each release, with room between windows."""
    step = np.ones(len(chart.ticks))
    step[list(chart.breaks)] = 2
    return np.cumsum(step)


def draw(axes: Any, places: Array, line: Line, colour: str) -> None:
    """One group, broken where a window ends."""
    cuts = np.flatnonzero(np.diff(places) > 1) + 1
    label: str | None = visible(line.label).replace("$", r"\$")
    if line.label.startswith("_"):  # which matplotlib leaves out of a legend
        label = f"\N{ZERO WIDTH SPACE}{label}"
    for part in np.split(np.arange(len(places)), cuts):
        shown = part[~np.isnan(line.value[part])]
        if not len(shown):
            continue
        axes.fill_between(places[shown], line.low[shown], line.high[shown],
                          color=colour, alpha=0.16, lw=0)  # fmt: skip
        axes.plot(places[shown], line.value[shown], color=colour, lw=1.5, label=label,
                  marker="o" if len(shown) < 30 else None, ms=3)  # fmt: skip
        label = None
