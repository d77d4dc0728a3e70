"""SIGTERM and Ctrl-C end a run in order, in time and in words; the next run goes on."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamveil import cli
from streamveil.runtime.archive import ARCHIVE
from streamveil.runtime.published import of_state
from streamveil.runtime.verify import verify

ROWS = 6_000
QUERY = """
CREATE STREAM visits WITH (source = 'files', path = '{folder}/visits.parquet', event_time = 'ts');
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 2, delta = 1e-6, privacy_unit_column = person,
    max_rows_contributed = 1, public_groups = ['north', 'south'], steps = 300)
  ward, COUNT(*) AS n FROM visits GROUP BY ward EMIT EVERY 20 ROWS
"""
LIVE = """
CREATE STREAM visits WITH (source = 'files', path = '{folder}/visits.parquet', event_time = 'ts');
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 2, delta = 1e-6, privacy_unit_column = person,
    max_rows_contributed = 1, public_groups = ['north', 'south'], clock = 'wall',
    start = '2026-01-01', steps = 1000000)
  ward, COUNT(*) AS n FROM visits GROUP BY ward EMIT EVERY INTERVAL 1 HOUR
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pq.write_table(
        pa.table({
            "ts": pa.array(range(ROWS), pa.timestamp("us", "UTC")),
            "person": range(ROWS), "ward": ["north", "south"] * (ROWS // 2),
        }),
        tmp_path / "visits.parquet",
    )  # fmt: skip
    (tmp_path / "q.sql").write_text(QUERY.format(folder=tmp_path))
    (tmp_path / "live.sql").write_text(LIVE.format(folder=tmp_path))
    return tmp_path


RUN = """
import sys, time
from streamveil import cli
from streamveil.commands import stopping
from streamveil.runtime.job import Job

{before}
sys.argv = ["streamveil", "run", "{query}", "--state", "s", "--quiet"]
cli.main()
"""
PATIENT = "stopping.SECONDS = 100"  # on a machine that has other things to do
WAITING = f"""{PATIENT}
fold, folded = Job._compute, []

def waits(job, *given):
    folded.append(given)
    while len(folded) == 200:  # until a signal ends it, wherever it finds the job
        time.sleep(0.01)
    return fold(job, *given)

Job._compute = waits
"""
DEAF = """
stopping.SECONDS = 0.5
Job.close = lambda job: time.sleep(60)  # a disk that does not answer
"""
AWAY = """
import ctypes
stopping.SECONDS = 0.5
lock, mutex = ctypes.CDLL(None).pthread_mutex_lock, ctypes.create_string_buffer(64)
Job.close = lambda job: [lock(mutex), lock(mutex)]  # a call that hears no signal
Job._compute = Job.close
"""


def start(folder: Path, before: str = "", query: str = "q.sql") -> subprocess.Popen[str]:
    """The command, in a process that runs `before` first."""
    where = {**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[1])}
    return subprocess.Popen(
        [sys.executable, "-c", RUN.format(before=before, query=query)],
        cwd=folder, env=where, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def wait_for(path: Path, size: int = 1) -> None:
    """Waits for a file that grows while a job runs."""
    end = time.monotonic() + 100
    while not path.exists() or path.stat().st_size < size:
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_run_after_a_commit_and_says_what_is_committed(
    folder: Path, number: signal.Signals
) -> None:
    job = start(folder, WAITING)
    wait_for(folder / "s" / ARCHIVE, 10_000)
    job.send_signal(number)
    told = job.communicate(timeout=100)[1]
    assert job.returncode == 128 + number
    assert f"stopped by {number.name}: " in told
    done = int(told.split("releases of this run")[0].split()[-1].replace(",", ""))
    assert len(of_state(folder / "s").moments) == done, "no release is published but not told"
    assert all(one.is_whole for one in verify(folder / "s"))
    again = start(folder)
    [told] = again.communicate(timeout=100)[1].splitlines()
    assert "over the contribution bound" in told
    assert again.returncode == 0
    assert len(of_state(folder / "s").moments) == ROWS // 20


def test_a_run_that_waits_for_the_clock_ends_too(folder: Path) -> None:
    job = start(folder, PATIENT, "live.sql")
    wait_for(folder / "s" / "log-000000000000")
    time.sleep(1)
    job.send_signal(signal.SIGTERM)
    told = job.communicate(timeout=100)[1]
    assert job.returncode == 128 + signal.SIGTERM
    assert "stopped by SIGTERM: " in told


def test_a_demo_that_is_stopped_does_not_say_that_nothing_was_begun(folder: Path) -> None:
    demo = subprocess.Popen(
        [sys.executable, "-m", "streamveil", "demo"], cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[1])},
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    wait_for(folder / "demo-out" / "flights.veil" / "log-000000000000")
    demo.send_signal(signal.SIGTERM)
    assert demo.communicate(timeout=100)[1] == "stopped by SIGTERM. Run again.\n"
    assert demo.returncode == 128 + signal.SIGTERM


@pytest.mark.parametrize(("before", "size"), [(WAITING + DEAF, 10_000), (AWAY, 1)])
def test_what_does_not_end_in_time_is_given_up_in_words(
    folder: Path, before: str, size: int
) -> None:
    job = start(folder, before)
    wait_for(folder / "s" / ARCHIVE, size)
    time.sleep(1)
    job.send_signal(signal.SIGTERM)
    assert "not all could be finished in time" in job.communicate(timeout=50)[1]
    assert job.returncode == 128 + signal.SIGTERM


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        pa.ArrowMemoryError("malloc of size 64 failed"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        ImportError("x.so: failed to map segment from shared object"),
        RuntimeError("can't start new thread"),
        OSError("Could not find/load shared object file 'libllvmlite.so'"),  # as Numba says it
    ],
)
def test_too_little_memory_is_said_in_words(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr("streamveil.commands.run.read_script", fails)
    monkeypatch.setattr(cli.signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["streamveil", "run", "q.sql", "--state", "s"])
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == 1
    told = capsys.readouterr().err
    assert told.startswith("not enough memory for this process")
    assert "bug" not in told
