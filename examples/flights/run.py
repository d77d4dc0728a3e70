"""Weekly departures by destination, each plane protected for each day: python run.py --help."""

import shutil
import subprocess
import sys
from pathlib import Path

import click
import matplotlib.pyplot as plt
import pandas as pd
import pyarrow.parquet as pq
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

from streamveil.demo import departures

HERE = Path(__file__).parent


@click.command(context_settings={"show_default": True})
@click.option("--out", type=Path, default="out/flights")
@click.option("--days", default=365)
def main(out: Path, days: int) -> None:
    """Writes the rows, runs flights.sql as the command line would, draws the picture."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    flights = departures()
    flights = flights.sort_by("scheduled").slice(0, flights.num_rows * days // 365)
    pq.write_table(flights, out / "flights.parquet")
    command = ["run", str(HERE / "flights.sql"), "--state", "flights.veil"]
    subprocess.run([sys.executable, "-m", "streamveil", *command], cwd=out, check=True)
    private = pq.read_table(out / "releases").to_pandas()
    draw(flights.to_pandas(), private, out / "flights.png")
    print(f"look at {out / 'flights.png'}")


def draw(flights, private, path: Path) -> None:
    """Private weeks with their intervals, and the true ones: the data are public."""
    monday = flights.scheduled.dt.floor("D") - pd.to_timedelta(flights.scheduled.dt.weekday, "D")
    true = flights.groupby(["destination", monday]).size()
    weeks = private.window_start.sort_values().unique()
    figure, panels = plt.subplots(2, 3, figsize=(9, 4.5), sharex=True, layout="constrained")
    largest = private.groupby("destination").departures.sum().nlargest(20).index
    for axes, name in zip(panels.flat, [*largest.drop("BOS")[:5], "BOS"], strict=True):
        rows = private[private.destination == name].sort_values("window_start")
        axes.fill_between(
            rows.window_start, rows.departures_low, rows.departures_high, alpha=0.25, lw=0
        )
        axes.plot(rows.window_start, rows.departures, label="private, 95 % interval")
        axes.plot(weeks, true[name].reindex(weeks), "k--", lw=0.8, label="true")
        axes.set(title=name, ylim=(0, None))
        axes.xaxis.set_major_locator(AutoDateLocator(maxticks=5))
        axes.xaxis.set_major_formatter(ConciseDateFormatter(axes.xaxis.get_major_locator()))
    panels[0, 0].legend(fontsize=8, loc="lower right")
    figure.suptitle("Departures from New York a week, epsilon = 1 for each plane and day")
    figure.savefig(path, dpi=80)


if __name__ == "__main__":
    main()
