"""Running totals of a quarter, told every week, by OpenDP: 13 queries, one zCDP budget."""

import opendp.prelude as dp
import polars as pl
from asking import run_weekly

dp.enable_features("contrib")


def ask(path, epsilon, delta, groups, rows, weeks):
    """The lines between the marks are what a user writes."""
    # begin
    space = dp.atom_domain(T=float, nan=False), dp.absolute_distance(T=float)

    def lost(rho):
        noise = dp.m.make_gaussian(*space, scale=(1 / (2 * rho)) ** 0.5)
        return dp.c.make_zCDP_to_approxDP(noise).map(1.0).epsilon(delta / 2)

    rho = dp.binary_search(lambda rho: lost(rho) <= epsilon, bounds=(1e-6, 10.0))
    context = dp.Context.compositor(
        data=pl.scan_parquet(path),
        privacy_unit=dp.unit_of(identifier=pl.col("unit"), contributions=1),
        privacy_loss=dp.loss_of(rho=rho, delta=delta / 2),
        split_evenly_over=len(weeks) - 1,
    )
    tables = []
    for week in weeks[1:]:
        query = (
            context.query()
            .filter(pl.col("day") < week)
            .truncate_per_group(rows, by=["key"])
            .truncate_num_groups(groups, by=["key"], keep="first")
            .group_by("key")
            .agg(n=dp.len())
        )
        tables.append(query.release().collect())
    # end
    return [dict(zip(t["key"].to_list(), t["n"].to_list(), strict=True)) for t in tables]


run_weekly(ask)
