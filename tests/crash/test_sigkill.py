"""SIGKILL at random moments: every release and the ledger equal those of an unbroken run."""

from __future__ import annotations

import os
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from tests.crash.lives import SURVIVED, Server, published, rejected_rows, spent
from tests.crash.streams import RELEASES

SEED = 20_261_120


def unbroken(
    server: Server, folder: Path, job: str
) -> tuple[dict[str, bytes], list[object], float]:
    """Releases, ledger and seconds of a run that nobody kills."""
    assert server.run(folder.with_name("first"), job) == SURVIVED  # warms the server
    started = time.perf_counter()
    assert server.run(folder, job) == SURVIVED
    seconds = time.perf_counter() - started
    files = published(folder)
    assert len(files) == RELEASES[job]
    return files, spent(folder), seconds


def kill_often(server: Server, folder: Path, job: str, kills: int) -> None:
    expected, charged, seconds = unbroken(server, folder / "unbroken", job)
    rng = np.random.default_rng(SEED)
    broken, done, lives = folder / "broken", 0, 0
    while done < kills:
        life = server.start(broken, job)
        time.sleep(rng.uniform(0, 0.6 * seconds))
        with suppress(ProcessLookupError):
            os.kill(life, signal.SIGKILL)
        status = server.finish()
        done += status == -signal.SIGKILL
        lives += 1
        seen = published(broken)
        assert {name: expected[name] for name in seen} == seen, f"seed {SEED}, life {lives}"
        if status != -signal.SIGKILL:
            assert status == SURVIVED
            assert seen == expected
            assert spent(broken) == charged
            assert rejected_rows(broken) == rejected_rows(folder / "unbroken")
            shutil.rmtree(broken)
    assert server.run(broken, job) == SURVIVED
    assert rejected_rows(broken) == rejected_rows(folder / "unbroken")
    assert published(broken) == expected
    assert spent(broken) == charged


JOBS = [
    "long toy", "visits", "picky visits", "swept visits", "divided visits", "people", "values",
    "joined",
]  # fmt: skip


@pytest.mark.parametrize("job", JOBS)
def test_a_few_kills(server: Server, folder: Path, job: str) -> None:
    kill_often(server, folder, job, 7)


@pytest.mark.slow
@pytest.mark.parametrize("job", [*JOBS, "grouped visits"])
def test_a_thousand_kills(server: Server, folder: Path, job: str) -> None:
    kill_often(server, folder, job, 1000)
