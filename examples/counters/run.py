"""A running total, released every day: the counters of the library, and OpenDP: run.py --help."""

import shutil
from math import sqrt
from pathlib import Path

import click
import matplotlib.pyplot as plt
import numpy as np
import opendp.prelude as dp

import streamveil as sv
from streamveil.demo import departures

EPSILON, DELTA = 1.0, 1e-6
RUNS = 200  # of each way, to see its error
dp.enable_features("contrib")


@click.command(context_settings={"show_default": True})
@click.option("--out", type=Path, default="out/counters")
@click.option("--days", default=365)
def main(out: Path, days: int) -> None:
    """Counts flights day by day in three ways with one budget, and draws their errors."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    day = departures()["scheduled"].to_numpy().astype("datetime64[D]")
    daily = np.bincount((day - day.min()).astype(int))[:days]
    true = daily.cumsum()
    found = {
        "OpenDP, each total by itself": totals(true),
        "OpenDP, a tree at the end": tree(daily),
        "streamveil, day by day": counter(daily),
    }
    error = {name: np.sqrt(np.mean((runs - true) ** 2, axis=0)) for name, runs in found.items()}
    for name, each in error.items():
        print(f"{name:30} {each.mean():8.1f} flights off, {each.max():8.1f} on its worst day")
    draw(error, out / "counters.png")
    print(f"look at {out / 'counters.png'}")


def counter(daily: np.ndarray) -> np.ndarray:
    """Runs of a counter: it sees a day, releases the total, and goes on."""
    budget = sv.Budget(epsilon=EPSILON, delta=DELTA)
    choice = sv.counters.choose(horizon=len(daily), budget=budget)
    print(choice)
    live = choice.counter.stream(keys=RUNS)  # the same flights in each: noise is its own
    return np.array([live.step([int(n)] * RUNS) for n in daily]).T


def totals(true: np.ndarray) -> np.ndarray:
    """Runs of Gaussian noise on the vector of totals: a flight is in all that follow it."""
    space = dp.vector_domain(dp.atom_domain(T=int), size=len(true)), dp.l2_distance(T=float)
    far = sqrt(len(true))

    def spent(scale: float) -> float:
        curve = dp.c.make_zCDP_to_approxDP(dp.m.make_gaussian(*space, scale)).map(far)
        return curve.epsilon(DELTA)

    scale = dp.binary_search(lambda s: spent(s) <= EPSILON, bounds=(0.1, 1e6))
    release = dp.m.make_gaussian(*space, scale)
    return np.array([release([int(n) for n in true]) for _ in range(RUNS)])


def tree(daily: np.ndarray) -> np.ndarray:
    """Runs of OpenDP's tree, made consistent, which needs all days at once; Laplace noise."""
    width = dp.t.choose_branching_factor(size_guess=len(daily))
    space = dp.vector_domain(dp.atom_domain(T=int)), dp.l1_distance(T=int)
    sums = dp.t.make_b_ary_tree(*space, leaf_count=len(daily), branching_factor=width)
    release = dp.binary_search_chain(
        lambda s: sums >> dp.m.then_laplace(s), d_in=1, d_out=EPSILON, bounds=(0.1, 1e6)
    )
    leaves = dp.t.make_consistent_b_ary_tree(branching_factor=width)
    data = [int(n) for n in daily]
    return np.array([np.cumsum(leaves(release(data)))[: len(daily)] for _ in range(RUNS)])


def draw(error: dict[str, np.ndarray], path: Path) -> None:
    """The root of the mean squared error, day by day."""
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for name, each in error.items():
        axes.plot(range(1, len(each) + 1), each, label=name)
    axes.set(yscale="log", xlabel="days so far", ylabel="flights off, of the total so far")
    axes.set_title(f"Running totals of a year, epsilon = {EPSILON:g} for one flight")
    axes.legend()
    figure.savefig(path, dpi=80)


if __name__ == "__main__":
    main()
