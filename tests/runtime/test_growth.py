"""Many tiny micro-batches: files and memory stay at what the live state explains."""

from __future__ import annotations

import gc
import threading
from pathlib import Path

import pytest

from streamveil.runtime.job import Job
from streamveil.runtime.store import CheckpointPolicy
from tests.runtime.toy import SEEDED, Stream, work

pytestmark = pytest.mark.filterwarnings("ignore:insecure noise")
POLICY = CheckpointPolicy(log_bytes=100_000)
MOST_FILES, MOST_BYTES = 9, 1_000_000  # the state itself is 64 bytes


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def drive(folder: Path, batches: int) -> None:
    stream = Stream(batches=batches, rows=5, per_step=10)
    early, threads = 0, threading.active_count()
    with Job(folder, work(stream), SEEDED, policy=POLICY) as job:
        for taken, _ in enumerate(job):
            if taken == 100:
                gc.collect()
                early = resident_bytes()
            if taken % 50 == 0:
                files = list(folder.iterdir())
                assert len(files) <= MOST_FILES
                assert sum(path.stat().st_size for path in files if path.exists()) < MOST_BYTES
        assert job.place.step == batches // 10
        gc.collect()
        assert resident_bytes() - early < 40_000_000
    assert threading.active_count() <= threads


def test_three_thousand_micro_batches(tmp_path: Path) -> None:
    drive(tmp_path / "s", 3_000)


@pytest.mark.slow
def test_a_hundred_thousand_micro_batches(tmp_path: Path) -> None:
    drive(tmp_path / "s", 100_000)
