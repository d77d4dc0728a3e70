"""On Spark releases are post-processed as they are in one process."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import streamveil as sv


@pytest.mark.spark
def test_post_processing_is_the_same(session, tmp_path):
    (tmp_path / "in").mkdir()
    rows = pa.table({"u": np.arange(3_000), "c": np.array(["a", "b", "c"])[np.arange(3_000) % 3]})
    pq.write_table(rows, tmp_path / "in" / "a.parquet")
    text = (
        "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 100, delta = 1e-9,"
        " privacy_unit_column = u, max_rows_contributed = 1) UPPER(c) AS k, COUNT(*) / 10 AS tens"
        f" FROM '{tmp_path}/in/*.parquet' GROUP BY c HAVING COUNT(*) > 10 ORDER BY c DESC LIMIT 2"
    )
    for name, where in (("one", {}), ("many", {"engine": sv.spark(session)})):
        [release] = sv.sql(text).run(state=str(tmp_path / name), **where)
        table = release.table
        assert table.column_names == ["k", "tens", "tens_sd", "tens_low", "tens_high", "trigger"]
        assert table["k"].to_pylist() == ["C", "B"]
        assert abs(table["tens"].to_numpy() - 100).max() < 1  # noise of about 0.03
