"""Running totals of a quarter, told every week, by Tumult Analytics; groups of the first week."""

import os
import sys

from asking import run_weekly
from pyspark.sql import SparkSession
from tmlt.analytics import (
    AddRowsWithID,
    ApproxDPBudget,
    KeySet,
    MaxGroupsPerID,
    MaxRowsPerGroupPerID,
    QueryBuilder,
    Session,
)  # fmt: skip

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # its workers need the package too
spark = SparkSession.builder.master("local[2]").getOrCreate()


def ask(path, epsilon, delta, groups, rows, weeks):
    """The lines between the marks are what a user writes."""
    # begin
    session = Session.from_dataframe(
        privacy_budget=ApproxDPBudget(epsilon, delta),
        source_id="rows",
        dataframe=spark.read.parquet(path),
        protected_change=AddRowsWithID(id_column="unit"),
    )
    tables, keys = [], None
    for week in weeks[1:]:
        seen = QueryBuilder("rows").filter(f"day < '{week}'").enforce(MaxGroupsPerID("key", groups))
        if keys is None:  # once, so that half of the budget finds them
            once = seen.enforce(MaxRowsPerGroupPerID("key", 1)).get_groups(["key"])
            found = session.evaluate(once, privacy_budget=ApproxDPBudget(epsilon / 2, delta))
            keys = KeySet.from_dataframe(found)
        bounded = seen.enforce(MaxRowsPerGroupPerID("key", rows))
        query = bounded.groupby(keys).count(name="n")
        budget = ApproxDPBudget(epsilon / 2 / (len(weeks) - 1), 0)
        tables.append(session.evaluate(query, privacy_budget=budget).collect())
    # end
    return [{row["key"]: row["n"] for row in table} for table in tables]


run_weekly(ask)
