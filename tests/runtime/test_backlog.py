"""A live job that begins late, or that was down: rows that wait for it count where they belong."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import streamveil as sv
from streamveil.core.noise import SilentNoise
from streamveil.runtime.run import Pace

pytestmark = pytest.mark.filterwarnings("ignore:insecure noise")
TODAY = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
HOUR, START = timedelta(hours=1), TODAY - timedelta(days=3)
COUNTED = {"n": sv.count()}, {"n": sv.heavy_hitters("page", k=1, text_length=2)}


def live(folder: Path, aggregate: dict[str, Any]) -> Any:
    rows = sv.files(str(folder / "*.parquet"), event_time="ts", follow=True)
    windows = rows.protect("user", per="1 day").window(sv.tumble("1 day"))
    return windows.agg(**aggregate).bound(max_rows=4).release(
        every="6 hours", start=START, end=TODAY, clock="wall",
        budget=sv.Budget(epsilon=8, delta="1e-6"),
    )  # fmt: skip


def arrive(folder: Path, name: str, times: list[datetime]) -> None:
    table = pa.table({
        "ts": pa.array(times, pa.timestamp("us", "UTC")), "user": range(len(times)),
        "page": ["a"] * len(times),
    })  # fmt: skip
    pq.write_table(table, folder / f"{name}.parquet")


@pytest.mark.parametrize("aggregate", COUNTED, ids=["group-by", "sketch"])
def test_what_waits_for_a_job_that_begins_late_counts_in_its_windows(
    tmp_path: Path, aggregate: dict[str, Any]
) -> None:
    days = [1_000, 2_000, 3_000]
    for day, rows in enumerate(days):
        arrive(tmp_path, f"{day}", [START + day * 24 * HOUR + HOUR] * rows)
    query = live(tmp_path, aggregate)
    state = str(tmp_path / "n.veil")
    releases = list(
        query.run(state=state, noise=SilentNoise(), insecure=True, pace=Pace(once=True))
    )
    last = {release.window: release.table for release in releases}
    assert len(releases) == 12, "every step that is due closes"
    assert [table["n"][0].as_py() for _, table in sorted(last.items())] == days
