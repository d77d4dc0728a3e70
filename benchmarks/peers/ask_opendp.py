"""How many rows in each group, by OpenDP. Reads FILE EPSILON DELTA GROUPS ROWS RUNS."""

import opendp.prelude as dp
import polars as pl
from asking import run

dp.enable_features("contrib")


def ask(path, epsilon, delta, groups, rows):
    """The lines between the marks are what a user writes."""
    # begin
    context = dp.Context.compositor(
        data=pl.scan_parquet(path),
        privacy_unit=dp.unit_of(identifier=pl.col("unit"), contributions=1),
        privacy_loss=dp.loss_of(epsilon=epsilon, delta=delta),
        split_evenly_over=1,
    )
    query = (
        context.query()
        .truncate_per_group(rows, by=["key"])
        .truncate_per_group(groups * rows)  # as much noise as a bound on groups where rows is 1
        .group_by("key")
        .agg(n=dp.len())
    )
    found = query.release().collect()
    # end
    return dict(zip(found["key"].to_list(), found["n"].to_list(), strict=True))


run(ask)
