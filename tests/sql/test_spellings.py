"""One query in SQL and in Python: the same plan, and for the same noise the same releases."""

import pyarrow as pa
import pytest

import streamveil as sv
from streamveil.core.noise import SeededNoise
from streamveil.runtime.run import run

N = 4_000
TABLE = pa.table({
    "ts": pa.array([1_767_225_600_000_000 + i * 21_000_000 for i in range(N)],
                   pa.timestamp("us", "UTC")),
    "user_id": [i * 7919 % 900 for i in range(N)],
    "url": [f"/{i * i % 5}" for i in range(N)],
    "ms": [i % 1_000 for i in range(N)],
})  # fmt: skip
SQL = """
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 4, delta = 1e-6, privacy_unit_column = user_id,
         privacy_unit_period = INTERVAL 1 DAY, max_rows_contributed = 4, start = '2026-01-01',
         end = '2026-01-02')
       window_start, url, COUNT(*) AS n,
       SUM(ms / 1000, contribution_bounds_per_row => (0, 1)) AS s
FROM TUMBLE(TABLE clicks, DESCRIPTOR(ts), size => INTERVAL 1 DAY)
WHERE ms >= 10 GROUP BY window_start, url
EMIT EVERY INTERVAL 8 HOUR
"""
PYTHON = (
    sv.memory(TABLE, name="clicks", event_time="ts").protect("user_id", per="1 day")
    .where("ms >= 10").window(sv.tumble("24 h")).group_by("url")
    .agg(n=sv.count(), s=sv.sum("ms/1000", bounds=(0, 1))).bound(max_rows=4)
    .release(every="8 hours", start="2026-01-01", end="2026-01-02",
             budget=sv.Budget(epsilon=4, delta=1e-6))
)  # fmt: skip


def test_both_spellings_release_the_same_bytes(tmp_path):
    plans = {"sql": sv.sql(SQL, {"clicks": TABLE}).plan, "python": PYTHON.plan}
    assert plans["sql"].fingerprint == plans["python"].fingerprint
    released = {}
    for name, plan in plans.items():
        with pytest.warns(UserWarning, match="insecure"):
            job = run(plan, state=tmp_path / name, noise=SeededNoise(5), insecure=True)
        released[name] = [release.table for release in job]
    assert released["sql"] == released["python"]
    assert len(released["sql"]) == 3
    assert released["sql"][-1].num_rows > 0
