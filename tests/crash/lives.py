"""Lives of a job, each a process forked from a server that has imported everything already.

`python -m tests.crash.lives` is the server: a line of JSON on its input starts a life; it answers
with the process number at once and with the exit status when the life is over.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
import warnings
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from streamveil import accounts, disk, engines
from streamveil.accounts.ledger import Ledger
from streamveil.batch import Moment
from streamveil.disk import LARGE_BYTES
from streamveil.runtime import account, frame, live_joins
from streamveil.runtime import job as job_module
from streamveil.runtime.archive import ARCHIVE, committed, contents
from streamveil.runtime.job import Job
from streamveil.runtime.published import of_state
from streamveil.runtime.store import LEDGER, CheckpointPolicy, read_header
from streamveil.runtime.tables import settled, to_bytes
from tests.crash import streams
from tests.crash.faults import Fault, install
from tests.crash.power import Power, record
from tests.released import made
from tests.runtime import toy

EVERY_FEW_BATCHES = CheckpointPolicy(log_bytes=1500, log_per_state=0)
GRADUALLY = CheckpointPolicy(log_bytes=12_000, log_per_state=0)
EVERY_FEW_BLOCKS = CheckpointPolicy(log_bytes=10_000, log_per_state=0)
LARGE = engines.LARGE
ROOT = Path(__file__).parents[2]
SURVIVED, FAULTED, UNTOUCHED = 0, 70, 71  # exit statuses


def live(folder: Path, name: str, fault: Fault | None) -> int:
    """One life: runs the job to its end, or to the fault. Returns the exit status."""
    warnings.simplefilter("ignore")
    count = install(fault)
    policy, held = EVERY_FEW_BATCHES, job_module.HELD_BYTES
    try:
        work = streams.work(name, folder)
        if name in streams.GROUPED:
            job_module.HELD_BYTES = 500  # so that the log has parts of groups
        if name == "large toy":
            policy = EVERY_FEW_BLOCKS
            large_from(1)
        if name == "joined":
            live_joins.LEAST_BYTES = 4_000  # so that a file of kept rows is followed by a next one
        if name == "divided visits":
            policy, engines.LARGE = GRADUALLY, 1
        with Job(folder / "state", work, toy.SEEDED, policy=policy) as job:
            for _ in job:
                pass
        for number, points in enumerate(streams.questions(name)):
            with Job(folder / "state", work, toy.SEEDED, policy=policy) as job:
                asked = job.ask(points)  # what is left to pay with may differ when asked again
            text = f"{asked.kind} {asked.value} {asked.reach} {asked.step}"
            note(folder / "out" / f"answer-{number}", text)
    except Exception:
        if fault is None:
            raise
        return FAULTED
    finally:
        large_from(LARGE_BYTES)
        engines.LARGE, job_module.HELD_BYTES = LARGE, held
    return SURVIVED if fault is None or count() >= fault.at else UNTOUCHED


def large_from(size: int) -> None:
    """From how many bytes on writes go past the page cache, in whole blocks."""
    disk.LARGE_BYTES = frame.LARGE_BYTES = size


def note(path: Path, answer: str) -> None:
    """Publishes an answer all at once."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(answer)
    partial.replace(path)


class Server:
    """Starts lives, one at a time; what they make for all of them goes with it."""

    def __init__(self) -> None:
        self.made = tempfile.TemporaryDirectory(prefix="streamveil-lives-")
        self.process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "TMPDIR": self.made.name},
        )

    def start(
        self, folder: Path, name: str, fault: Fault | None = None, power: Power | None = None
    ) -> int:
        """Starts a life of a job; returns its process number."""
        request = {"folder": str(folder), "job": name, "fault": asdict(fault) if fault else None,
                   "power": asdict(power) if power else None}  # fmt: skip
        assert self.process.stdin is not None
        print(json.dumps(request), file=self.process.stdin, flush=True)
        return self._answer()

    def finish(self) -> int:
        """Waits for the life; its exit status, negative for a signal."""
        return self._answer()

    def run(
        self, folder: Path, name: str, fault: Fault | None = None, power: Power | None = None
    ) -> int:
        """A whole life."""
        self.start(folder, name, fault, power)
        return self.finish()

    def _answer(self) -> int:
        assert self.process.stdout is not None
        return int(self.process.stdout.readline())

    def close(self) -> None:
        with self.made, self.process:  # closes both pipes and waits
            pass


@cache
def rehearse(name: str) -> None:
    """Runs a job once in the server: what is imported, compiled or made lazily is inherited.

    No life collects it: that would copy all of its pages.
    """
    with tempfile.TemporaryDirectory() as folder:
        assert live(Path(folder), name, None) == SURVIVED
    gc.collect()
    gc.freeze()


def serve() -> None:
    """The server's loop. Half of a life was finding out anew what never changes in this process."""
    accounts.caps_for = cache(accounts.caps_for)
    account.versions = cache(account.versions)
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        fault = Fault(**request["fault"]) if request["fault"] else None
        rehearse(request["job"])
        child = os.fork()
        if child == 0:
            status = 1
            try:
                if request["power"]:
                    record(Path(request["folder"]), Power(**request["power"]))
                status = live(Path(request["folder"]), request["job"], fault)
            finally:
                os._exit(status)
        answer(child)
        answer(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def answer(number: int) -> None:
    """One line to the client."""
    sys.stdout.write(f"{number}\n")
    sys.stdout.flush()


def published(folder: Path) -> dict[str, bytes]:
    """Every complete published release."""
    out = folder / "out"
    files = [path for path in out.rglob("*") if path.is_file() and path.suffix != ".partial"]
    files = [path for path in files if not path.name.startswith("metadata=")]
    return {str(path.relative_to(out)): path.read_bytes() for path in files}


def rejected_rows(folder: Path) -> dict[str, bytes]:
    """Every file of rejected rows."""
    return {path.name: path.read_bytes() for path in (folder / "aside").glob("batch-*.parquet")}


def archived(folder: Path) -> dict[Moment, bytes]:
    """Every release that can be read again, as committed; every one must read back whole."""
    state = folder / "state"
    releases = of_state(state)
    held = contents(state / ARCHIVE, str(read_header(state).epoch))  # type: ignore[union-attr]  # there is one
    assert sorted(one.place for one in held.entries) == releases.moments
    found = {one.place: committed(state / ARCHIVE, one) for one in held.entries}
    for place, (known, table) in found.items():
        assert settled(made(table, *place, known.step))[1] == known
    return {place: bytes(to_bytes(table)) for place, (_, table) in found.items()}


def spent(folder: Path) -> list[Any]:
    """What the ledger says, without the run's own epoch."""
    with Ledger.load(folder / "state" / LEDGER) as ledger:
        return [(charge.name, charge.loss) for charge in ledger.entries()]


if __name__ == "__main__":
    serve()
