"""Draws the pictures of docs/concepts, the same bytes each time: `make figures`.

Numbers in them are made by the mechanisms that run, under a seed.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle

import streamveil as sv
from streamveil.compiler import operator_of
from streamveil.compiler.plan_forecast import published_chance
from streamveil.core.noise import SeededNoise
from streamveil.sketches import Layout
from streamveil.sketches.keys import key_words

FIGURES = Path(__file__).parents[1] / "docs" / "figures"
BLUE, RED, GREEN, GREY, LIGHT = "#1b6ca8", "#c0392b", "#1e8449", "#5b6570", "#dce6ee"
STYLE = {
    "svg.fonttype": "none", "svg.hashsalt": "streamveil", "font.size": 10, "axes.spines.top": False,
    "axes.spines.right": False, "legend.frameon": False,
    "font.family": ["DejaVu Sans"],
}  # fmt: skip
RHO = Fraction(1, 50)  # of every counter here


def once(times: int) -> Any:
    """A counter for one release, on its share of a budget for so many."""
    return sv.counters.choose(1, sv.Budget(rho=RHO / times)).counter


def deviation(counter: Any, times: int) -> float:
    """The largest standard deviation of its releases."""
    return float(np.max(counter.std(np.arange(1, times + 1))))


def continual_release(figure: Any) -> None:
    """One stream, released 48 times under one budget: fresh noise each time, or a counter."""
    times = np.arange(1, 49)
    arrived = np.random.default_rng(3).poisson(3 + 8 * np.sin(times / 7.6) ** 2)
    stream = sv.counters.choose(48, sv.Budget(rho=RHO)).counter.stream(keys=1, noise=SeededNoise(5))
    shown = [int(stream.step([int(n)])[0]) for n in arrived]
    fresh = [int(once(48).stream(keys=1, noise=SeededNoise(t)).step([0])[0]) for t in times]
    left, right = figure.subplots(1, 2)
    left.plot(times, np.cumsum(arrived), color=GREY, lw=5, alpha=0.3, label="the truth")
    left.plot(times, np.cumsum(arrived) + fresh, ".", color=RED, label="noise for each release")
    left.plot(times, shown, color=BLUE, label="one counter")
    left.set(xlabel="release", ylabel="rows so far", title="48 releases, one budget")
    left.legend(loc="upper left")
    horizons = [4**power for power in range(8)]
    each = [deviation(once(n), 1) for n in horizons]
    budget = sv.Budget(rho=RHO)
    together = [deviation(sv.counters.choose(n, budget).counter, n) for n in horizons]
    right.loglog(horizons, each, "o-", color=RED)
    right.loglog(horizons, together, "o-", color=BLUE)
    right.set(xlabel="number of releases", title="standard deviation of the noise")


def units_and_periods(figure: Any) -> None:
    """The rows of three users over four days, and what is protected together."""
    rng = np.random.default_rng(8)
    for axes, title, width in zip(
        figure.subplots(1, 2, sharey=True),
        ("a user's whole history", "each day of a user"), (4, 1), strict=True,
    ):  # fmt: skip
        for user in range(3):
            for day in range(0, 4, width):
                place = (day + 0.06, user - 0.32)
                box = FancyBboxPatch(
                    place, width - 0.12, 0.64, boxstyle="round,pad=0,rounding_size=0.12",
                    facecolor=LIGHT if (user, day) != (1, 0) else "#f6d9d5", edgecolor="none",
                )  # fmt: skip
                axes.add_patch(box)
        axes.set(
            xlim=(0, 4), ylim=(-0.6, 2.6), title=title, yticks=range(3),
            yticklabels=["Ann", "Bo", "Cem"], xticks=np.arange(4) + 0.5,
            xticklabels=["Mon", "Tue", "Wed", "Thu"],
        )  # fmt: skip
        axes.tick_params(length=0)
        axes.spines[["left", "bottom"]].set_visible(False)
    for user, rows in enumerate((9, 13, 6)):
        at = np.sort(rng.uniform(0.12, 3.88, rows))
        at += 0.2 * (np.mod(at, 1) < 0.1) - 0.2 * (np.mod(at, 1) > 0.9)
        for axes in figure.axes:
            axes.plot(at, np.full(rows, user), "o", color=BLUE, ms=5)


def selection(figure: Any) -> None:
    """The chance that a group is published, by its users; and the groups of one release."""
    clicks = sv.files("clicks.parquet", event_time="ts")
    query = (
        clicks.protect("user_id", per="1 day").window(sv.tumble("1 day")).group_by("url")
        .agg(n=sv.count()).bound(max_rows=1)
        .release(every="1 day", start="2026-01-01", end="2026-01-02",
                 budget=sv.Budget(epsilon=2, delta="1e-7"))
    )  # fmt: skip
    operator = operator_of(query.plan)
    users = np.arange(61)
    chance = np.array([published_chance(operator, int(n), 1) or 0.0 for n in users])
    left, right = figure.subplots(1, 2)
    left.fill_between(users, chance, color=LIGHT)
    left.plot(users, chance, color=BLUE)
    left.set(xlabel="users in the group", ylim=(0, 1.03), title="chance that it is published")
    counts = {"/home": 57, "/search": 33, "/cart": 21, "/help": 15, "/jobs": 13, "/a-wish": 1}
    published = np.random.default_rng(2).random(len(counts)) < chance[[*counts.values()]]
    for place, (count, seen) in enumerate(zip(counts.values(), published, strict=True)):
        right.barh(place, count, color=BLUE if seen else "none", edgecolor=BLUE if seen else GREY,
                   linestyle="-" if seen else "--")  # fmt: skip
        right.text(count + 1, place, "published" if seen else "hidden", va="center", color=GREY)
    right.set(yticks=range(len(counts)), yticklabels=counts, xlabel="users", xlim=(0, 76))
    right.set_title("one release")
    right.invert_yaxis()


def counters(figure: Any) -> None:
    """A tree: every block of steps is summed and noised once; step 7 is made of three blocks."""
    axes = figure.subplots()
    for level in range(4):
        for block in range(8 >> level):
            width = 1 << level
            first, last = block * width + 1, (block + 1) * width
            mine = (level, block) in {(2, 0), (1, 2), (0, 6)}
            axes.add_patch(Rectangle(
                (first - 0.96, level + 0.1), width - 0.08, 0.8, lw=2,
                facecolor=BLUE if mine else LIGHT, edgecolor=RED if first <= 3 <= last else "none",
            ))  # fmt: skip
            name = f"{first} to {last}" if level else f"step {first}"
            axes.text((first + last - 1) / 2, level + 0.5, name, ha="center", va="center",
                      color="white" if mine else GREY)  # fmt: skip
    total = "total at step 7 =\n(1 to 4) + (5 to 6) + step 7"
    axes.text(8.2, 3.0, total, color=BLUE, va="center")
    axes.text(8.2, 1.5, "a row at step 3 is\nin four blocks", color=RED, va="center")
    axes.set(xlim=(0, 10.9), ylim=(0, 4.1))
    axes.axis("off")


def counted(keys: list[str], width: int) -> np.ndarray[Any, Any]:
    """How often the cells of a Count-Min sketch of three rows are hit."""
    places = Layout(kind="count-min", depth=3, width=width, seed=4).places(key_words(keys))
    table = np.zeros((3, width), int)
    np.add.at(table, (np.arange(3)[:, None], places), 1)
    return table


def sketches(figure: Any) -> None:
    """Three rows of twelve cells; a key is in one cell of each row, with whatever else is there."""
    axes, width = figure.subplots(), 12
    fruit = {"pear": 50, "plum": 31, "fig": 12, "kiwi": 9, "lime": 7, "date": 4, "sloe": 2}
    table = counted([name for name, often in fruit.items() for _ in range(often)], width)
    mine = counted(["plum"], width)
    for row, column in np.ndindex(3, width):
        count, hit = int(table[row, column]), mine[row, column] > 0
        axes.add_patch(Rectangle((column + 0.04, -row + 0.08), 0.92, 0.84,
                                 facecolor=BLUE if hit else LIGHT, edgecolor="none"))  # fmt: skip
        axes.text(column + 0.5, -row + 0.5, f"{count}", ha="center", va="center",
                  color="white" if hit else GREY)  # fmt: skip
        if hit:
            axes.plot([-0.9, -0.05], [-0.5, -row + 0.5], color=RED, lw=1)
    least = int(table[mine > 0].min())
    axes.text(-1, -0.5, "plum", ha="right", va="center", color=RED)
    axes.text(width + 0.3, -0.5, f"estimate of plum:\nthe least, {least}", va="center", color=BLUE)
    axes.set(xlim=(-2.2, width + 3.6), ylim=(-2.2, 1.2))
    axes.axis("off")


def changing_data(figure: Any) -> None:
    """Records that come and go, and the size of the table: the truth and what is published."""
    rng, steps = np.random.default_rng(4), 120
    left, right = figure.subplots(1, 2)
    for place in range(14):
        begin = rng.uniform(0, 8)
        end = min(begin + rng.exponential(4), 10.0)
        left.plot([begin, end], [place, place], color=BLUE, lw=3, alpha=0.7, solid_capstyle="butt")
        left.plot(begin, place, "|", color=GREEN, ms=9, mew=2)
        if end < 10:
            left.plot(end, place, "|", color=RED, ms=9, mew=2)
    left.axvline(6, color=GREY, ls="--")
    left.set(xlabel="time", yticks=[], xticks=[], title="records: inserted, deleted")
    left.spines["left"].set_visible(False)
    work = sv.dynamic.Workload(
        queries=sv.linear.Marginals.ways((2,), 1), size=1500, steps=steps, updates=6000
    )
    mechanism = sv.dynamic.choose(work, sv.Budget(rho=RHO)).best.mechanism
    table = sv.dynamic.LiveTable.open(mechanism, SeededNoise(1), "shop")
    alive: list[int] = []
    truth, answers, born = [], [], 0
    for step in range(steps):
        for _ in range(rng.poisson(40 if step < 60 else 15)):
            table.insert(born % 2, rid=born)
            alive.append(born)
            born += 1
        for _ in range(min(len(alive), rng.poisson(12 if step < 60 else 28))):
            table.delete(alive.pop(int(rng.integers(len(alive)))))
        table.tick()
        truth.append(sum(1 for one in alive if one % 2 == 0))
        answers.append(float(table.answers().values[-2]))
    right.plot(truth, color=GREY, lw=5, alpha=0.3, label="the truth")
    right.plot(answers, color=BLUE, label="published")
    right.set(xlabel="release", title="records of one kind", ylim=(0, None))
    right.legend()


PICTURES = (continual_release, units_and_periods, selection, counters, sketches, changing_data)


def draw(picture: Callable[[Any], None], folder: Path) -> Path:
    """One picture, into a folder."""
    path = folder / f"concept-{picture.__name__.replace('_', '-')}.svg"
    with rc_context(STYLE):
        figure = Figure(figsize=(8.4, 3.0), layout="constrained")
        picture(figure)
        figure.savefig(path, metadata={"Date": None})
    return path


if __name__ == "__main__":
    for one in PICTURES:
        draw(one, FIGURES)
