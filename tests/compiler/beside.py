"""Queries over one row of each unit in public groups, for lanes that share noise."""

import streamveil as sv
from streamveil.audit.pipeline import unbroken
from streamveil.batch import Batch
from streamveil.compiler.group_by import compile_plan
from streamveil.results import answer_sums
from streamveil.results.post import post_processed
from streamveil.sql.post import read_step

GROUPS, UNITS, SIZE = 3_000, 36_000, 12


def query_of(table, columns, options="epsilon = 4, delta = 1e-6", where=""):
    text = (
        f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ({options}, privacy_unit_column = u,"
        f" max_rows_contributed = 1, public_groups = {[*range(GROUPS)]}) g, {columns}"
        f" FROM t {where} GROUP BY g"
    )
    return sv.sql(text, {"t": table})


def release_of(table, columns, noise):
    """The one release of a query."""
    operator = compile_plan(query_of(table, columns).plan)
    [last] = unbroken(operator, [Batch(table, 1, True, "{}")], noise)
    return last


def held(release, plan, text, true):
    """Of every other group, so that no two share noise: how many intervals hold the truth."""
    [*steps] = read_step(f"g, {text} AS d", "ORDER BY g", plan)
    found = post_processed(release, tuple(steps)).table
    low, high = (found[f"d_{end}"].to_numpy()[1::2] for end in ("low", "high"))
    true = true[1::2]
    return int(((low <= true) & (true <= high)).sum()), len(true)


def plant_noise_apart(monkeypatch):
    """Noise that two lanes share is taken for noise of their own."""
    found = answer_sums.Answered.covariance

    def apart(self, one, two):
        ends = found(self, one, two)
        return ends if one == two else tuple(0 * end for end in ends)

    monkeypatch.setattr(answer_sums.Answered, "covariance", apart)
