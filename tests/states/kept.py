"""Small states of every format that was ever released, and how they go on.

`python -m tests.states.kept` writes those of the present format into `format-N/`, N being the
format of `state.json`, and one of Spark into `spark-N/`, N being the format of its shards. An
archive is kept for good: it holds a query, its rows, a state that stopped in the middle with a
checkpoint and records after it, and what an unbroken run released.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from streamveil.accounts.ledger import Ledger
from streamveil.batch import Release
from streamveil.core.accounting import Budget, Neighbours
from streamveil.core.accounting.guarantee import Pure, Zcdp
from streamveil.engines.spark import shards
from streamveil.plan import Plan
from streamveil.runtime import formats, store
from streamveil.runtime.ask import ask
from streamveil.runtime.job import Job
from streamveil.runtime.published import of_state
from streamveil.runtime.run import Pace, run, work_of
from streamveil.runtime.secret import Randomness
from streamveil.sql.sql import parse_script

HERE = Path(__file__).parent
SECRET = "5e" * 32  # of made-up rows
STOP, STEPS, EACH = 5, 9, 200  # releases before it stops; steps; rows of one
OFTEN = store.CheckpointPolicy(log_bytes=1, log_per_state=0.0)
RARELY = store.CheckpointPolicy(log_bytes=1 << 40, effort_seconds=1e9)
GIVEN = "epsilon = 4, delta = 1e-6, privacy_unit_column = person, max_rows_contributed = 4"
VISITS = "CREATE STREAM visits WITH (source = 'files', path = 'rows.parquet', event_time = 'ts');\n"
QUERIES = {
    "group-by": VISITS + f"""SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ({GIVEN}, steps = {STEPS})
      page, COUNT(*) AS n, SUM(spent, contribution_bounds_per_row => (0, 20)) AS spent
      FROM visits GROUP BY page EMIT EVERY {EACH} ROWS""",
    "windows": VISITS + f"""SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ({GIVEN},
        privacy_unit_period = INTERVAL 1 DAY, public_groups = ['page 0', 'page 1'],
        start = '2026-01-01', end = '2026-01-04')
      window_start, page, COUNT(*) AS n, COUNT(DISTINCT spent) AS different
      FROM TUMBLE(TABLE visits, DESCRIPTOR(ts), size => INTERVAL 1 DAY)
      GROUP BY window_start, page EMIT EVERY INTERVAL 8 HOUR""",
    "sketch": VISITS + f"""SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ({GIVEN}, steps = {STEPS})
      HEAVY_HITTERS(spent, k => 2, memory => 200000, bits => 5) AS n
      FROM visits EMIT EVERY {EACH} ROWS""",
    "changing-table": f"""CREATE TABLE people (city CHECK (city IN ('Lima', 'Oslo', 'Rome')),
        age CHECK (age BETWEEN 0 AND 9))
      WITH (source = 'files', path = 'rows.parquet', changelog = 'insert-delete', operation = op,
            id = id, lives = 9);
      SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 20, delta = 1e-6, steps = {STEPS},
        expected_size = 2000, accept_error = TRUE, ask_share = 0.5) COUNT(*) AS n
      FROM people GROUP BY city EMIT EVERY {EACH} ROWS""",
}  # fmt: skip
QUESTION = "COUNT(*) WHERE age < 2"  # asked before: the state knows its answer


def visits() -> pa.Table:
    """Rows of a stream."""
    rng = np.random.default_rng(3)
    size = STEPS * EACH
    return pa.table({
        "ts": pa.array(1_767_225_600_000_000 + np.arange(size) * (3 * 86_400_000_000 // size),
                       pa.timestamp("us", "UTC")),
        "person": rng.integers(0, 900, size),
        "page": [f"page {n}" for n in np.minimum(rng.geometric(0.5, size) - 1, 3)],
        "spent": rng.integers(0, 25, size),
    })  # fmt: skip


def changes() -> pa.Table:
    """Rows that insert and delete."""
    rng, size = np.random.default_rng(4), STEPS * EACH
    alive = rng.random(size) < 0.8
    ids = np.where(alive, np.arange(size), np.maximum(np.arange(size) - 7, 0))
    return pa.table({
        "op": np.where(alive, "+", "-"), "id": ids,
        "city": rng.choice(["Lima", "Oslo", "Rome"], size), "age": rng.integers(0, 10, size),
    })  # fmt: skip


@contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Works in a folder."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def plan_of(folder: Path) -> Plan:
    """The query of a folder."""
    return parse_script((folder / "q.sql").read_text(), {}).query.plan


def digest(release: Release) -> str:
    """Of all of a release; real numbers that are computed count with nine digits."""
    table = release.table
    said = [f"{field.name} {field.type}" for field in table.schema]
    rows = [[f"{cell:.9g}" if isinstance(cell, float) else str(cell) for cell in row.values()]
            for row in table.to_pylist()]  # fmt: skip
    return hashlib.sha256(json.dumps([said, rows]).encode()).hexdigest()


def released(state: Path) -> dict[str, str]:
    """A digest of every release that a state holds."""
    found = of_state(state)
    return {
        f"{at.window}/{at.trigger}": digest(Release(found.noisy(at), at.window, at.trigger, 0))
        for at in found.moments
    }


def begin(folder: Path) -> None:
    """Runs a job until it has a checkpoint, and until there are records after it; stops it."""
    for policy, more in ((OFTEN, 3), (RARELY, STOP - 3)):
        work = work_of(plan_of(folder), pace=Pace(max_rows=70))
        with Job(folder / "s", work, Randomness(SECRET), policy=policy) as job:
            for _ in range(more):
                next(job)


def finish(folder: Path, state: str = "s") -> dict[str, Any]:
    """Goes on to the end; everything that was said, and where it stands in the ledger."""
    with inside(folder):
        plan, said = plan_of(folder), {}
        if "ask_share" in (folder / "q.sql").read_text():
            said["answer"] = str(ask(plan, QUESTION, state=state, secret=SECRET))
        with run(plan, state=state, secret=SECRET, pace=Pace(max_rows=70)) as job:
            for _ in job:
                pass
        said["releases"] = released(folder / state)
        with Ledger.load(folder / state / "ledger") as ledger:
            said["ledger"] = [str(ledger.spent()), len(ledger.entries())]
    return said


def make_job(name: str, folder: Path) -> None:
    """A state of a job."""
    rows = changes() if name == "changing-table" else visits()
    pq.write_table(rows, folder / "rows.parquet")
    (folder / "q.sql").write_text(QUERIES[name])
    with inside(folder):
        begin(folder)
        if name == "changing-table":  # what it said is in the state
            ask(plan_of(folder), QUESTION, state="s", secret=SECRET)
    shutil.copytree(folder / "s", folder / "copy")
    (folder / "expected.json").write_text(json.dumps(finish(folder, "copy"), indent=1))
    shutil.rmtree(folder / "copy")


def on_spark(folder: Path, session: Any, state: str, most: int) -> dict[str, Any]:
    """Some releases of a job on Spark, and what its ledger says."""
    from streamveil.runtime.on_spark import spark

    secret = folder / "secret"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    engine = spark(session, shards=2)
    with (
        inside(folder),
        engine.start(plan_of(folder), state=state, secret=f"file:{secret}") as job,
    ):
        made = iter(job)
        found = {
            f"{one.window}/{one.trigger}": digest(one)
            for _, one in zip(range(most), made, strict=False)
        }
        made.close()
    with inside(folder), Ledger.load(Path(state) / "ledger") as ledger:
        return {"releases": found, "ledger": [str(ledger.spent()), len(ledger.entries())]}


def make_spark(_: str, folder: Path) -> None:
    """A state of a job on Spark."""
    from streamveil.engines.spark.session import session

    pq.write_table(visits(), folder / "rows.parquet", row_group_size=EACH)
    (folder / "q.sql").write_text(QUERIES["group-by"])
    spark = session("local[2]")
    on_spark(folder, spark, "s", STOP)
    shutil.copytree(folder / "s", folder / "copy")
    expected = on_spark(folder, spark, "copy", STEPS)
    (folder / "expected.json").write_text(json.dumps(expected, indent=1))
    shutil.rmtree(folder / "copy")
    spark.stop()


def ledger_facts(folder: Path) -> dict[str, Any]:
    """What a ledger says."""
    with Ledger.load(folder / "clicks.ledger") as ledger:
        return {"head": ledger.verify(), "left": str(ledger.left()), "spent": str(ledger.spent()),
                "year": str(ledger.convert("user-year").loss)}  # fmt: skip


def make_ledger(_: str, folder: Path) -> None:
    """A ledger that several jobs share."""
    from datetime import timedelta

    unit = Neighbours("person", period=timedelta(days=1))
    with Ledger.open(folder / "clicks.ledger", Budget(rho=2), unit) as ledger:
        ledger.charge("a", Zcdp("0.25"), key="k", about={"query": "kept"})
        ledger.charge("b", Pure("0.5"), range=(3, 9))
    (folder / "expected.json").write_text(json.dumps(ledger_facts(folder), indent=1))


MAKERS: dict[str, Callable[[str, Path], None]] = {
    **dict.fromkeys(QUERIES, make_job), "ledger": make_ledger
}  # fmt: skip


def pack(folder: Path, into: Path) -> None:
    """One file of a folder, the same for the same content."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.name != "lock":
                entry = tarfile.TarInfo(path.relative_to(folder).as_posix())
                entry.size, entry.mode = path.stat().st_size, 0o600
                tar.addfile(entry, io.BytesIO(path.read_bytes()))
    into.parent.mkdir(exist_ok=True)
    into.write_bytes(gzip.compress(plain.getvalue(), mtime=0))


def unpack(archive: Path, folder: Path) -> None:
    """The inverse of `pack`."""
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")


def main() -> None:
    """Writes states of the present format: those that are named, or all."""
    for name in sys.argv[1:] or (*MAKERS, "spark"):
        with tempfile.TemporaryDirectory() as folder:
            if name == "spark":  # whose files have a format of their own
                make_spark(name, Path(folder))
                pack(Path(folder), HERE / f"spark-{shards.FORMAT}" / "group-by.tar.gz")
                continue
            MAKERS[name](name, Path(folder))
            pack(Path(folder), HERE / f"format-{formats.VERSION}" / f"{name}.tar.gz")


if __name__ == "__main__":
    main()
