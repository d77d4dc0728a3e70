"""Running totals of a quarter, told every week, by streamveil."""

from asking import run_weekly

import streamveil as sv


def ask(path, epsilon, delta, groups, rows, weeks):
    """The lines between the marks are what a user writes."""
    # begin
    query = (
        sv.files(path, event_time="at")
        .protect(unit="unit")
        .group_by("key")
        .agg(n=sv.count())
        .bound(max_rows=groups * rows, max_rows_per_group=rows)
        .release(
            every="1 week", start=weeks[0], end=weeks[-1],
            budget=sv.Budget(epsilon=epsilon, delta=delta),
        )
    )  # fmt: skip
    tables = [release.to_arrow() for release in query.run(state="quarter.veil")]
    # end
    return [dict(zip(t["key"].to_pylist(), t["n"].to_pylist(), strict=True)) for t in tables]


run_weekly(ask)
