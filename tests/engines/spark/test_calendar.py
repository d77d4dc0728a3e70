"""On Spark a calendar divides time as it does in one process: the same windows, rows and steps."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import streamveil as sv

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.mark.spark
def test_months_of_a_zone_are_the_same_windows(session, tmp_path):
    start = (datetime(2026, 2, 1, tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)
    at = start + np.arange(0, 4_000) * 25 * 60 * 1_000_000  # 69 days, every 25 minutes
    rows = pa.table({"u": np.arange(4_000), "ts": pa.array(at, pa.timestamp("us", "UTC"))})
    (tmp_path / "in").mkdir()
    pq.write_table(rows, tmp_path / "in" / "a.parquet", row_group_size=500)
    query = (
        sv.files(str(tmp_path / "in"), event_time="ts").protect("u", per="1 month")
        .window(sv.tumble("1 month", tz="Europe/Berlin")).agg(n=sv.count()).bound(max_rows=1)
        .release(every="1 month", start="2026-02-01", end="2026-05-01",
                 budget=sv.Budget(epsilon=100, delta=1e-9))
    )  # fmt: skip
    runs = [
        [release.to_arrow().to_pylist()[0] for release in query.run(state=tmp_path / name, **where)]
        for name, where in (("one", {}), ("many", {"engine": sv.spark(session)}))
    ]
    places = [[(row["window_start"], row["window_end"], row["trigger"]) for row in run]
              for run in runs]  # fmt: skip
    assert places[0] == places[1]
    assert [begin.hour for begin, _, _ in places[0]] == [23, 23, 22]  # midnight in Berlin, in UTC
    for one, many in zip(*runs, strict=True):
        begin, end = ((row - EPOCH) // timedelta(microseconds=1)
                      for row in (one["window_start"], one["window_end"]))  # fmt: skip
        true = int(((at >= begin) & (at < end)).sum())
        assert abs(one["n"] - true) < 10  # noise of about 0.3
        assert abs(many["n"] - true) < 10
