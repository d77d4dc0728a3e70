"""Charts of releases: one panel for each of the largest groups, its interval shaded.

Every panel has a scale of its own, so that a small group is seen beside a large one.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from streamveil.display import literal, shown_in_cells, wrapped
from streamveil.errors import requires_extra
from streamveil.results.charts import Chart, Line
from streamveil.types import Array

COLOUR, SOFT, HIDDEN = "#1b6ca8", "#5b6570", "#f0f0f0"
TICKS = 4  # labels of an axis, at most
WIDE = 3  # panels side by side
ROOM, LETTERS = 6.8, 15  # inches for notes, and characters of theirs in an inch
FEW = 30  # points that are drawn as dots


def styled() -> AbstractContextManager[None]:
    """Settings of matplotlib for the duration of a drawing."""
    with requires_extra("a picture of releases", "plots"):
        from matplotlib import rc_context
    context: AbstractContextManager[None] = rc_context(
        {"svg.fonttype": "none", "svg.hashsalt": "streamveil", "font.size": 9}
    )
    return context


def figure_of(chart: Chart, notes: Sequence[str] = ()) -> Any:
    """The matplotlib figure."""
    with styled():
        from matplotlib.figure import Figure

        count = max(len(chart.lines), 1)
        columns = min(WIDE, count)
        rows = -(-count // columns)
        width = max(3.4 * columns, ROOM if notes else 0)
        figure = Figure(figsize=(width, 1.9 * rows + 0.3), layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False, sharex=True).ravel()
        places = positions(chart)
        for axes, line in zip(panels, chart.lines, strict=False):
            draw(axes, places, line, chart.breaks, "no number" if chart.unknown else "not shown")
            for place in chart.breaks:
                between = (places[place] + places[place - 1]) / 2
                axes.axvline(between, color="#d9d9d9", lw=0.6, ls=":")
            arrange(axes, chart, places)
        for axes in panels[len(chart.lines) :]:
            axes.set_axis_off()
        if notes:
            text = ".\n".join(wrapped(notes, int(width * LETTERS)))
            figure.supxlabel(literal(text), fontsize=8, color=SOFT)
    return shown_in_cells(figure)


def positions(chart: Chart) -> Array:
    """A place on the axis for each release: its time, or its turn with room between windows."""
    if chart.times:
        from matplotlib.dates import date2num

        return np.asarray(date2num(chart.times))  # type: ignore[no-untyped-call]
    return chart.turns


def arrange(axes: Any, chart: Chart, places: Array) -> None:
    """Labels and lines of one panel."""
    if chart.times:
        from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

        locator = AutoDateLocator(minticks=2, maxticks=TICKS + 2)  # type: ignore[no-untyped-call]
        axes.xaxis.set_major_locator(locator)
        labels = ConciseDateFormatter(locator)  # type: ignore[no-untyped-call]
        axes.xaxis.set_major_formatter(labels)
    else:
        some = np.unique(np.linspace(0, len(places) - 1, TICKS).round().astype(int))
        texts = [literal(chart.ticks[i]) for i in some]
        axes.set_xticks(places[some], texts, rotation=20, ha="right")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#ececec", lw=0.6)
    axes.margins(x=0.03)
    axes.tick_params(colors=SOFT, labelsize=8)


def draw(axes: Any, places: Array, line: Line, breaks: Sequence[int], instead: str) -> None:
    """One group: broken where a window ends, grey and with a word where there is no value."""
    axes.set_title(literal(line.label), fontsize=9, loc="left")
    for run in runs(np.isnan(line.value), breaks):
        if np.isnan(line.value[run[0]]):
            around = [places[max(run[0] - 1, 0)], places[min(run[-1] + 1, len(places) - 1)]]
            axes.axvspan((around[0] + places[run[0]]) / 2, (around[1] + places[run[-1]]) / 2,
                         color=HIDDEN, lw=0)  # fmt: skip
            if len(run) > len(places) / 4:
                axes.text(places[run].mean(), 0.5, instead, color=SOFT, fontsize=7,
                          ha="center", transform=axes.get_xaxis_transform())  # fmt: skip
            continue
        shade = {"color": COLOUR, "alpha": 0.2}
        if len(run) == 1:
            axes.vlines(places[run], line.low[run], line.high[run], lw=3, **shade)
        else:
            axes.fill_between(places[run], line.low[run], line.high[run], lw=0, **shade)
        axes.plot(places[run], line.value[run], color=COLOUR, lw=1.3, ms=2.5,
                  marker="o" if len(run) < FEW else None)  # fmt: skip


def runs(hidden: Array, breaks: Sequence[int]) -> list[Array]:
    """Releases that follow each other in one window and are all shown, or all hidden.

    >>> runs(np.array([True, False, False, False]), [3])
    [array([0]), array([1, 2]), array([3])]
    """
    cuts = {*breaks, *(np.flatnonzero(hidden[1:] != hidden[:-1]) + 1).tolist()}
    return [run for run in np.split(np.arange(len(hidden)), sorted(cuts)) if len(run)]
