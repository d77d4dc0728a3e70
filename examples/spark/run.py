"""Flights in Parquet files, counted on Spark, into a Delta table: run.py --help."""

import shutil
from contextlib import chdir
from pathlib import Path

import click
import matplotlib.pyplot as plt
import pandas as pd
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

import streamveil as sv
from streamveil.demo import departures

QUERY = Path(__file__).with_name("spark.sql").resolve()


@click.command(context_settings={"show_default": True})
@click.option("--out", type=Path, default="out/spark")
@click.option("--months", default=12)
@click.option("--workers", default=2)
def main(out: Path, months: int, workers: int) -> None:
    """Writes a file for each month, runs spark.sql on Spark, draws what the table holds."""
    shutil.rmtree(out, ignore_errors=True)
    (out / "flights").mkdir(parents=True)
    flights = departures()
    month = pc.month(flights["scheduled"])
    for number in range(1, months + 1):
        rows = flights.filter(pc.equal(month, number))
        pq.write_table(rows, out / "flights" / f"{number:02}.parquet")
    end = pd.Timestamp("2013-01-01") + pd.DateOffset(months=months)
    with chdir(out):
        query = sv.sql(QUERY.read_text().format(end=end.date()))
        engine = sv.spark(master=f"local[{workers}]", shards=4)
        for release in query.run(state="flights.veil", engine=engine):
            print(release.place, release.to_arrow().num_rows, "destinations")
        draw(DeltaTable("months").to_pyarrow_table().to_pandas(), flights, Path("spark.png"))
    print(f"look at {out / 'spark.png'}")


def draw(private: pd.DataFrame, flights, path: Path) -> None:
    """Flights to the largest destinations, month by month, beside the true ones."""
    largest = private.groupby("destination").n.sum().nlargest(4).index
    true = flights.to_pandas().assign(month=lambda rows: rows.scheduled.dt.month)
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for name in largest:
        rows = private[private.destination == name].sort_values("window_start")
        month = rows.window_start.dt.month
        axes.fill_between(month, rows.n_low, rows.n_high, alpha=0.25, lw=0)
        axes.plot(month, rows.n, label=name)
        count = true[true.destination == name].groupby("month").size()
        axes.plot(month, count[month], "k--", lw=0.8)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set(xlabel="month of 2013", ylabel="flights", ylim=(0, None))
    axes.set_title("Counted on Spark, read from a Delta table (true: dashed)")
    axes.legend()
    figure.savefig(path, dpi=80)


if __name__ == "__main__":
    main()
