"""How many rows in each group, by streamveil. Reads FILE EPSILON DELTA GROUPS ROWS RUNS."""

from asking import run

import streamveil as sv


def ask(path, epsilon, delta, groups, rows):
    """The lines between the marks are what a user writes."""
    # begin
    query = (
        sv.files(path)
        .protect(unit="unit")
        .group_by("key")
        .agg(n=sv.count())
        .bound(max_rows=groups * rows, max_rows_per_group=rows)
        .release(budget=sv.Budget(epsilon=epsilon, delta=delta))
    )
    found = query.answer().to_arrow()
    # end
    return dict(zip(found["key"].to_pylist(), found["n"].to_pylist(), strict=True))


run(ask)
