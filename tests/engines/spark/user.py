"""What a user types, `streamveil run --engine spark`, in processes that are killed with -9."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pyarrow.parquet as pq

from streamveil.accounts.ledger import Ledger
from streamveil.runtime.spark_state import SecretFrom
from tests.engines.spark.streams import published

WAIT = 300  # seconds until something that must happen has happened


def life(folder, *more, environment=None):
    """The command of a user, in a process group of its own."""
    command = [sys.executable, "-m", "streamveil", "run", str(folder / "q.sql"), "--quiet",
               "--state", str(folder / "state"), "--engine", "spark", "--master", "local[2]",
               "--shards", "2", *more]  # fmt: skip
    return subprocess.Popen(
        command, cwd=folder, start_new_session=True, stdout=subprocess.DEVNULL,
        stderr=(folder / "stderr").open("ab"), env={**os.environ, **(environment or {})},
    )  # fmt: skip


def end(process):
    """Kills a whole process group with -9."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def killed_and_resumed(folder, counts, *more, environment=None):
    """Lives that are killed after so many releases are public, and one that runs to the end."""
    for count in counts:
        process = life(folder, *more, environment=environment)
        try:
            limit = time.monotonic() + WAIT
            while len(published(folder / "out")) < count:
                assert process.poll() is None, (folder / "stderr").read_text()[-3000:]
                assert time.monotonic() < limit
                time.sleep(0.02)
        finally:
            end(process)
    last = life(folder, *more, environment=environment)
    try:
        assert last.wait(timeout=WAIT) == 0, (folder / "stderr").read_text()[-3000:]
    finally:
        end(last)


def noise_of(folder):
    """The noise of a state, from its secret and epoch; not secure: a job would renew the epoch."""
    epoch = json.loads((folder / "state" / "spark.json").read_text())["epoch"]
    return replace(SecretFrom(f"file:{folder}/state/secret", epoch)(), secure=False)


def tables_in(out):
    """What was published, in the order of names."""
    return [pq.read_table(out / name) for name in sorted(published(out))]


def charges(folder):
    """How often the job was paid for."""
    with Ledger.load(folder / "state" / "ledger") as ledger:
        return len(ledger.entries())
