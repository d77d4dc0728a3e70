"""How many rows in each group, by Tumult Analytics. Reads FILE EPSILON DELTA GROUPS ROWS RUNS."""

import os
import sys

from asking import run
from pyspark.sql import SparkSession
from tmlt.analytics import (
    AddRowsWithID,
    ApproxDPBudget,
    MaxGroupsPerID,
    MaxRowsPerGroupPerID,
    QueryBuilder,
    Session,
)  # fmt: skip

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # its workers need the package too
spark = SparkSession.builder.master("local[2]").getOrCreate()


def ask(path, epsilon, delta, groups, rows):
    """The lines between the marks are what a user writes."""
    # begin
    session = Session.from_dataframe(
        privacy_budget=ApproxDPBudget(epsilon, delta),
        source_id="rows",
        dataframe=spark.read.parquet(path),
        protected_change=AddRowsWithID(id_column="unit"),
    )
    bounded = (
        QueryBuilder("rows")
        .enforce(MaxGroupsPerID("key", groups))
        .enforce(MaxRowsPerGroupPerID("key", rows))
    )
    keys = session.evaluate(
        bounded.get_groups(["key"]), privacy_budget=ApproxDPBudget(epsilon / 2, delta)
    )
    from tmlt.analytics import KeySet

    query = bounded.groupby(KeySet.from_dataframe(keys)).count(name="n")
    found = session.evaluate(query, privacy_budget=ApproxDPBudget(epsilon / 2, 0)).collect()
    # end
    return {row["key"]: row["n"] for row in found}


run(ask)
