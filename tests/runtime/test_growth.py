"""Many tiny micro-batches: files and memory stay at what the live state explains.

A toy, and the private group-by over a day of stream time: windows and user-hours come and go.
"""

from __future__ import annotations

import gc
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from streamveil.core.accounting import Budget
from streamveil.core.noise import SeededNoise
from streamveil.plan import (
    Aggregate,
    Bounding,
    Clock,
    KeyColumn,
    KeySet,
    Plan,
    SinkSpec,
    SourceSpec,
    Window,
)
from streamveil.runtime.job import Job
from streamveil.runtime.published import ARCHIVE
from streamveil.runtime.run import Pace, run
from streamveil.runtime.store import CheckpointPolicy
from tests.runtime.toy import SEEDED, Stream, work

pytestmark = pytest.mark.filterwarnings("ignore:insecure noise")
POLICY = CheckpointPolicy(log_bytes=100_000)
MOST_FILES, MOST_BYTES = 9, 1_000_000  # the state itself is 64 bytes
MOST_PER_RELEASE = 500  # bytes: eight rows, their schema and a head


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def drive(folder: Path, batches: int) -> None:
    stream = Stream(batches=batches, rows=5, per_step=10)
    early, threads = 0, threading.active_count()
    with Job(folder, work(stream), SEEDED, policy=POLICY) as job:
        for taken, _ in enumerate(job):
            if taken == 50:
                gc.collect()
                early = resident_bytes()
            if taken % 50 == 0:
                files = list(folder.iterdir())
                assert len(files) <= MOST_FILES
                sizes = {path.name: path.stat().st_size for path in files if path.exists()}
                kept = sizes.pop(ARCHIVE, 0)  # what was published, to be read again: no state
                assert kept <= (taken + 30) * MOST_PER_RELEASE
                assert sum(sizes.values()) < MOST_BYTES
        assert job.place.step == batches // 10
        gc.collect()
        assert resident_bytes() - early < 40_000_000
    assert threading.active_count() <= threads


def test_fifteen_hundred_micro_batches(tmp_path: Path) -> None:
    drive(tmp_path / "s", 1_500)


@pytest.mark.slow
def test_a_hundred_thousand_micro_batches(tmp_path: Path) -> None:
    drive(tmp_path / "s", 100_000)


HOUR_US = 3_600_000_000
ROWS_PER_BATCH = 3


def a_day(batches: int, out: Path) -> Plan:
    """So many micro-batches of visits spread over 24 hours, hourly windows, user-hours."""
    rng = np.random.default_rng(8)
    rows = batches * ROWS_PER_BATCH
    table = pa.table({
        "user": rng.integers(0, rows // 6, rows), "page": rng.geometric(0.3, rows),
        "ts": np.sort(rng.integers(0, 24 * HOUR_US, rows)),
    })  # fmt: skip
    return Plan(
        name="day", unit="user", period_us=HOUR_US,
        source=SourceSpec(name="m", kind="memory", options={"table": table}, event_time="ts"),
        keys=(KeyColumn(name="page", expression="page"),), key_set=KeySet(min_units=2),
        aggregates=(Aggregate(name="n", function="count"),),
        window=Window(kind="tumble", size_us=HOUR_US),
        clock=Clock(kind="event", every=HOUR_US // 4, start_us=0, end_us=24 * HOUR_US),
        bounding=Bounding(max_rows=4), budget=Budget(epsilon=20, delta=1e-6),
        sinks=(SinkSpec(name="out", kind="files", options={"path": str(out)}),),
    )  # fmt: skip


def live_a_day(folder: Path, batches: int) -> None:
    """Compares hours late in the day with an early one."""
    resident: dict[int, int] = {}
    units: dict[int, int] = {}
    files: dict[int, int] = {}
    plan, pace = a_day(batches, folder / "out"), Pace(max_rows=ROWS_PER_BATCH)
    with run(plan, state=folder / "s", noise=SeededNoise(7), insecure=True, pace=pace) as job:
        job._store.policy = POLICY
        for release in job:
            hour = (release.step - 1) // 4
            # at the hour's end its units are dropped, maybe before the next micro-batch brings some
            units[hour] = max(units.get(hour, 0), job.counters()["bytes"])
            if release.step % 4 == 0:
                if hour in (2, 23):
                    gc.collect()
                resident[hour] = resident_bytes()
                files[hour] = sum(
                    path.stat().st_size for path in (folder / "s").iterdir() if path.exists()
                )
                assert len(job._state.windows) <= 2
                assert len(job._state.units) <= 2
        assert job.place.batch >= batches
    assert list(resident) == list(range(24))
    assert 0 < max(units.values()) < 3 * units[2]
    assert max(files.values()) < 3 * max(files[1], files[2], 2 * POLICY.log_bytes)
    assert resident[23] - resident[2] < 40_000_000
    assert len(list((folder / "out").rglob("*.parquet"))) == 96


def test_a_day_of_eight_hundred_micro_batches(tmp_path: Path) -> None:
    live_a_day(tmp_path, 800)


@pytest.mark.slow
def test_a_day_of_a_hundred_thousand_micro_batches(tmp_path: Path) -> None:
    live_a_day(tmp_path, 100_000)
