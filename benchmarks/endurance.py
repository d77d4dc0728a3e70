"""Do counts stay exact over thousands of files and many kills?

`files`: eight writers put JSON lines into one folder, under random names (UUIDs), each by writing
and renaming; a job follows the folder in a process that is killed (SIGKILL) again and again; files
are deleted once they were read, a tenth of all at once. At the end the last release must count
every row, once.

`stream`: rows go into a topic of Kafka all the time; a job of another process counts them and
upserts its releases into a table of PostgreSQL, and is killed again and again. The table must equal
that of a job with the same noise that was never killed. Needs STREAMVEIL_KAFKA_JARS.

    python benchmarks/endurance.py files [--files 10000] [--kills 60]
    python benchmarks/endurance.py stream [--minutes 6] [--kills 24]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from saved import save

sys.path.insert(0, str(Path(__file__).parents[1]))

RESULTS = Path(__file__).parent / "results" / "endurance.json"
KEYS = 16
PER_FILE = 20
Released = Callable[[], float]  # how many releases there are, or anything that grows with them
LIVES = """
import json, os, sys, traceback
import streamveil as sv
import streamveil.compiler, streamveil.runtime.run, streamveil.connectors.kafka
import streamveil.connectors.files, streamveil.connectors.databases, pyarrow.json, psycopg
from streamveil.core.noise import SeededNoise
from streamveil.runtime.run import run
given = json.loads(sys.argv[1])
def live():
    asked = (
        sv.source(given["kind"], "rows", **given["source"]).protect("u")
        .group_by("k", keys=sv.public(list(range(given["keys"])))).agg(n=sv.count())
        .bound(max_rows=1).to(given["sink"]["kind"], **given["sink"]["options"])
        .release(budget=sv.Budget(epsilon=900000, delta=1e-9), every=sv.rows(given["every"]),
                 steps=given["steps"], name="rows")
    )
    for release in asked.run(state=given["state"], noise=SeededNoise(1), insecure=True):
        pass
for _ in sys.stdin:
    pid = os.fork()
    if pid == 0:
        try:
            live()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    print(pid, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


class Job:
    """A job whose lives are processes of their own, which can be killed.

    They are forks of one that has loaded the package and no more, so that a life is short.
    """

    def __init__(self, given: dict[str, Any]) -> None:
        self.kills, self.pid = 0, 0
        self.parent = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", LIVES, json.dumps(given)], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def start(self) -> None:
        assert self.parent.stdin is not None
        self.parent.stdin.write("live\n")
        self.parent.stdin.flush()
        self.pid = self._told()

    def _told(self) -> int:
        assert self.parent.stdout is not None
        return int(self.parent.stdout.readline())

    def kill(self) -> None:
        with suppress(ProcessLookupError):  # it may have ended
            os.kill(self.pid, signal.SIGKILL)
        code = self._told()
        if code != -signal.SIGKILL:
            raise SystemExit(f"the job ended by itself after {self.kills} kills: {code}")
        self.kills += 1

    def finish(self) -> None:
        """Lets it end by itself."""
        if (code := self._told()) != 0:
            raise SystemExit(f"the job failed: {code}")


def kill_often(job: Job, kills: int, pause: tuple[float, float], released: Released) -> None:
    """Starts a job and kills it at random moments; the last life is left.

    A life that has released nothing yet is let alone for up to a minute: on a busy machine it may
    take as long as that to begin, and would never get on.
    """
    while job.kills < kills:
        before = released()
        job.start()
        time.sleep(random.uniform(*pause))
        until = time.monotonic() + 60
        while released() == before and random.random() < 0.9 and time.monotonic() < until:
            time.sleep(0.5)
        job.kill()
    job.start()


def files(given: argparse.Namespace, home: Path) -> dict[str, Any]:
    """See the top."""
    folder, out = home / "in", home / "out"
    folder.mkdir()
    rows = given.files * PER_FILE
    job = Job({
        "kind": "files", "keys": KEYS, "every": rows // 100, "steps": 100,
        "state": str(home / "state"),
        "source": {"path": str(folder), "format": "json", "follow": True,
                   "columns": {"u": "INT64", "k": "INT64"}},
        "sink": {"kind": "files", "options": {"path": str(out)}},
    })  # fmt: skip
    deleted = 0

    def released() -> int:
        return sum(1 for _ in out.rglob("*.parquet"))

    def write(writer: int, numbers: range) -> None:
        drawn = random.Random(f"{writer} {numbers}")
        for number in numbers:
            users = range(number * PER_FILE, (number + 1) * PER_FILE)
            name = folder / f"{uuid.UUID(int=drawn.getrandbits(128))}.jsonl"
            text = "".join(f'{{"u": {u}, "k": {u % KEYS}}}\n' for u in users)
            partial = name.with_suffix(".tmp")
            partial.write_text(text)
            partial.rename(name)
            time.sleep(given.pace)

    def fill() -> None:
        """Ten times: files of eight writers at once; when all of them are counted, they go.

        The last file waits for the last kill.
        """
        nonlocal deleted
        each = given.files // 10
        for turn in range(10):
            first, last = turn * each, (turn + 1) * each - (turn == 9)
            writers = [
                threading.Thread(target=write, args=(w, range(first + w, last, 8)))
                for w in range(8)
            ]
            for thread in writers:
                thread.start()
            for thread in writers:
                thread.join()
            while job.kills < given.kills * (turn + 1) // 10:
                time.sleep(0.2)
            write(8, range(last, first + each))
            while released() < 10 * (turn + 1):
                time.sleep(0.2)
            for name in folder.glob("*.jsonl"):
                name.unlink()
                deleted += 1

    filler = threading.Thread(target=fill)
    filler.start()
    kill_often(job, given.kills, (0.5, 3.0), released)
    filler.join()
    job.finish()
    import numpy as np
    import pyarrow.parquet as pq

    last = max(out.rglob("*.parquet"))
    table = pq.read_table(last)
    counts = np.rint(table["n"].to_numpy()).astype(int)
    expected = [len(range(k, rows, KEYS)) for k in table["k"].to_pylist()]
    return {
        "files": given.files, "writers": 8, "rows": rows, "kills": job.kills,
        "deleted": deleted, "releases": len(list(out.rglob("*.parquet"))),
        "exact": counts.tolist() == expected,
    }  # fmt: skip


def stream(given: argparse.Namespace, home: Path) -> dict[str, Any]:
    """See the top."""
    from tests.servers import kafka, postgres

    os.environ["PGPASSWORD"] = postgres.PASSWORD
    broker, server = kafka.Broker(home / "kafka"), postgres.Postgres()
    broker.make("rows", 1)  # else what is in which step depends on when it is read
    seconds, per_second = given.minutes * 60, 200
    rows = int(seconds * per_second)
    plain = {
        "kind": "kafka", "keys": KEYS, "every": rows // 288, "steps": 288,  # five minutes of a day
        "source": {"servers": broker.servers, "topic": "rows",
                   "columns": {"u": "INT64", "k": "INT64"}},
    }  # fmt: skip

    def job_of(table: str) -> Job:
        options = {"url": server.url, "table": table, "mode": "append"}
        sink = {"kind": "postgres", "options": options}
        return Job({**plain, "state": str(home / table), "sink": sink})

    def send() -> None:
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": broker.servers})
        began = time.monotonic()
        for u in range(rows):
            message = json.dumps({"u": u, "k": u % KEYS}).encode()
            producer.produce("rows", message, partition=0)
            producer.poll(0)
            if u % per_second == 0:
                time.sleep(max(0.0, began + u / per_second - time.monotonic()))
        producer.flush(60)

    broken, whole = job_of("broken"), job_of("whole")
    sender = threading.Thread(target=send)
    sender.start()
    pause = (seconds / given.kills * 0.5, seconds / given.kills * 1.2)
    kill_often(broken, given.kills, pause, time.monotonic)
    sender.join()
    broken.finish()
    whole.start()
    whole.finish()
    columns = "streamveil_window, streamveil_trigger, k"
    exact = [
        server.ask(f"SELECT {columns}, round(n) FROM {table} ORDER BY 1, 2, 3")
        for table in ("broken", "whole")
    ]
    last = server.ask("SELECT k, round(n) FROM broken WHERE streamveil_trigger = 288 ORDER BY 1")
    totals = sum(server.ask("SELECT sum(n) FROM broken WHERE streamveil_trigger = 288")[0])
    marks = server.ask("SELECT count(*) FROM streamveil_releases WHERE target = 'broken'")[0][0]
    result = {
        "minutes": given.minutes, "rows": rows, "kills": broken.kills, "releases": marks,
        "rows_of_table": len(exact[0]), "keys_at_the_end": len(last),
        "counted": round(totals),
        "each_release_counts_its_rows": [
            total for (total,) in server.ask(
                "SELECT round(sum(n)) FROM broken GROUP BY streamveil_trigger "
                "ORDER BY streamveil_trigger")
        ] == [rows // 288 * step for step in range(1, 289)],
        "equal_to_an_unbroken_run": exact[0] == exact[1],
    }  # fmt: skip
    server.remove()
    broker.stop()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", default="files", choices=("files", "stream"))
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--kills", type=int)
    parser.add_argument("--pace", type=float, default=0.05, help="seconds between two of a writer")
    parser.add_argument("--minutes", type=float, default=6.0)
    given = parser.parse_args()
    given.kills = given.kills or (60 if given.what == "files" else 24)
    random.seed(2)
    with tempfile.TemporaryDirectory() as home:
        found = {"files": files, "stream": stream}[given.what](given, Path(home))
    print(json.dumps(found, indent=1))
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    save(RESULTS, {**kept, given.what: found})


if __name__ == "__main__":
    main()
