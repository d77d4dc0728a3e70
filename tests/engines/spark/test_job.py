"""Jobs on Spark: equal to the embedded engine, exactly once, and no secret where it must not be."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import sqlite3
import time
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import streamveil as sv
from streamveil.accounts.ledger import Ledger
from streamveil.core.noise import SeededNoise
from streamveil.errors import PlanError, SourceError, StoreError, StreamveilError
from streamveil.plan import SinkSpec
from streamveil.runtime.on_spark import spark
from streamveil.runtime.run import run
from streamveil.runtime.secret import Randomness
from tests.engines.spark import lives
from tests.engines.spark.streams import CASES, published

if importlib.util.find_spec("pyspark") is None:
    pytest.skip("the extra 'spark' is not installed", allow_module_level=True)

from py4j.protocol import Py4JError

from streamveil.runtime import spark as driver
from streamveil.runtime import spark_state as states
from streamveil.runtime.spark import SparkJob, as_on_spark
from streamveil.runtime.spark_state import SparkLayout

LANDING = pytest.mark.slow(landing=True)
pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore:insecure noise")]
SEEDED = Randomness(noise=SeededNoise(lives.SEED), insecure=True)


def embedded(case, folder):
    """What the embedded engine publishes for the case's data in `folder`."""
    out = folder / "wanted"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        noise = SeededNoise(lives.SEED)
        plan = as_on_spark(case.plan(folder / "data", out))
        list(run(plan, state=folder / "embedded", noise=noise, insecure=True))
    return published(out)


def job(case, folder, session, keys=SEEDED):
    plan = case.plan(folder / "data", folder / "out")
    layout = SparkLayout(shards=case.shards)
    return SparkJob(plan, state=folder / "state", session=session, layout=layout, keys=keys)


def charges(folder):
    with Ledger.load(folder / "state" / "ledger") as ledger:
        return len(ledger.entries())


def test_a_job_that_ended_gives_nothing_again_and_charges_once(session, tmp_path):
    case = CASES[4]
    case.write(tmp_path / "data")
    with job(case, tmp_path, session) as running:
        made = list(running)
    assert published(tmp_path / "out") == embedded(case, tmp_path)
    assert len(made) == len(published(tmp_path / "out")) > 0
    with job(case, tmp_path, session) as again:
        assert list(again) == []  # all is committed
    assert charges(tmp_path) == 1


def test_a_job_reads_the_steps_that_spark_logs_whatever_format_a_session_asks_for(
    session, tmp_path
):
    case, name = CASES[10], "spark.sql.streaming.offsetLog.formatVersion"
    case.write(tmp_path / "data")
    settings = session.sparkContext._jsc.sc().conf()
    settings.set(name, "2")
    try:
        with job(case, tmp_path, session) as running:
            assert [release.step for release in running] == [1]
    finally:
        settings.remove(name)


def test_a_step_that_was_published_but_not_marked_is_published_again_equally(
    session, tmp_path, monkeypatch
):
    case = CASES[0]
    case.write(tmp_path / "data")
    commit, calls = states.Home.commit, []

    def fail_once(home, mark):
        if mark.step == 2 and not calls:
            calls.append(published(tmp_path / "out"))
            raise StoreError("power failure")
        commit(home, mark)

    monkeypatch.setattr(states.Home, "commit", fail_once)
    with job(case, tmp_path, session) as first, pytest.raises(StoreError, match="power failure"):
        list(first)
    with job(case, tmp_path, session) as second:
        assert second.committed == 1
        steps = {release.step for release in second}
    assert steps == {2, 3}
    after = published(tmp_path / "out")
    assert calls
    assert calls[0].items() <= after.items()
    assert after == embedded(case, tmp_path)
    assert charges(tmp_path) == 1


@pytest.mark.parametrize("mode", [pytest.param("append", marks=LANDING), "upsert"])
def test_a_database_has_each_release_once_where_a_step_is_repeated(
    mode, session, tmp_path, monkeypatch
):
    case, path = CASES[0], tmp_path / "answers.db"
    case.write(tmp_path / "data")
    sink = SinkSpec(
        name="answers", kind="sqlite", options={"path": str(path), "table": "answers", "mode": mode}
    )
    plan = replace(case.plan(tmp_path / "data"), sinks=(sink,))
    options = {"state": tmp_path / "state", "session": session, "keys": SEEDED}
    commit, calls = states.Home.commit, []

    def fail_once(home, mark):
        if mark.step == 2 and not calls:
            calls.append(mark)
            raise StoreError("power failure")
        commit(home, mark)

    monkeypatch.setattr(states.Home, "commit", fail_once)
    with SparkJob(plan, **options) as first, pytest.raises(StoreError, match="power failure"):
        list(first)
    with SparkJob(plan, **options) as second:
        list(second)
    alike = as_on_spark(case.plan(tmp_path / "data"))
    noise = SeededNoise(lives.SEED)
    releases = run(alike, state=tmp_path / "embedded", noise=noise, insecure=True)
    wanted = [
        (release.window if mode == "upsert" else nth, release.table.num_rows)
        for nth, release in enumerate(releases)
    ]
    with contextlib.closing(sqlite3.connect(path)) as found:
        rows = found.execute("SELECT COUNT(*) FROM answers").fetchone()
        marks = found.execute("SELECT COUNT(*) FROM streamveil_releases").fetchone()
    assert marks == (len(wanted),)
    assert rows == (sum(dict(wanted).values()),)


@pytest.mark.parametrize("failures", [pytest.param(1, marks=LANDING), driver.ATTEMPTS])
def test_a_worker_that_starts_too_late_costs_another_attempt(
    session, tmp_path, monkeypatch, failures
):
    case = CASES[0]
    case.write(tmp_path / "data")
    compute, late = driver.SparkJob._compute, []

    def starved(job, frame, step):
        if step == 2 and len(late) < failures:
            late.append(step)
            raise RuntimeError(f"org.apache.spark.SparkException: {driver.LATE}.")
        return compute(job, frame, step)

    monkeypatch.setattr(driver.SparkJob, "_compute", starved)
    monkeypatch.setattr(driver, "REST", 0.0)
    with job(case, tmp_path, session) as running:
        if failures == driver.ATTEMPTS:
            with pytest.raises(driver.LateWorkerError, match="too busy"):
                list(running)
            assert running.committed == 1
        else:
            assert len(list(running)) == len(embedded(case, tmp_path))  # none twice
    if failures == driver.ATTEMPTS:
        with job(case, tmp_path, session) as again:
            assert {release.step for release in again} == {2, 3}
    assert len(late) == failures
    assert published(tmp_path / "out") == embedded(case, tmp_path)
    assert charges(tmp_path) == 1


def test_a_job_that_lost_its_lock_publishes_nothing_more(session, tmp_path, monkeypatch):
    """See `tests/runtime/test_job.py`: a second job with its noise may have begun."""
    case, before = CASES[0], []
    case.write(tmp_path / "data")
    compute = driver.SparkJob._compute

    def losing(job, frame, step):
        made = compute(job, frame, step)
        if step == 2:
            (job.home.path / "lock").unlink()
            before.append(published(tmp_path / "out"))
        return made

    monkeypatch.setattr(driver.SparkJob, "_compute", losing)
    with job(case, tmp_path, session) as running:
        with pytest.raises(StoreError, match="the file 'lock' in it was removed"):
            list(running)
        assert running.committed == 1
    assert before == [published(tmp_path / "out")]
    monkeypatch.undo()
    with job(case, tmp_path, session) as again:
        assert {release.step for release in again} == {2, 3}
    assert published(tmp_path / "out") == embedded(case, tmp_path)


def test_a_step_that_is_tried_again_gives_no_release_twice(session, tmp_path, monkeypatch):
    case, late = CASES[2], []
    case.write(tmp_path / "data")

    def publish(frame, release):
        if release.window > min(windows.setdefault(release.step, {release.window})) and not late:
            late.append(release.window)
            raise Py4JError(driver.LATE)

    windows = {}
    monkeypatch.setattr(driver, "REST", 0.0)
    with job(case, tmp_path, session) as running:
        running.publish = publish
        made = [(release.window, release.trigger) for release in running]
    assert late
    assert sorted(made) == sorted(set(made))
    assert published(tmp_path / "out") == embedded(case, tmp_path)


def test_a_shared_ledger_is_charged_once_and_not_for_what_cannot_run(tmp_path):
    case, path = CASES[0], tmp_path / "shared"
    case.write(tmp_path / "data")
    plan = case.plan(tmp_path / "data", None)
    protects = driver.operator_of(plan).guarantee.protects
    Ledger.open(path, plan.budget, protects).close()

    def start(plan, name):
        with Ledger.load(path) as shared:
            known = len(shared.entries())
        SparkJob(plan, state=tmp_path / name, session=None, keys=SEEDED, ledger=path).close()
        with Ledger.load(path) as shared:
            return len(shared.entries()) - known

    with pytest.raises(PlanError, match="unknown column"):
        start(replace(plan, where="nobody > 1"), "other")
    assert not (tmp_path / "other").exists()
    assert [start(plan, "state"), start(plan, "state")] == [1, 0]
    SparkJob(plan, state=tmp_path / "alone", session=None, keys=SEEDED).close()
    with pytest.raises(StoreError, match="'shared' does not hold this job's charge"):
        start(plan, "alone")


@pytest.mark.parametrize(
    ("name", "reason"),
    [("letter.txt", "not empty and holds no state"), ("state.json", "runs in one process")],
)
def test_a_foreign_directory_is_left_alone(name, reason, tmp_path):
    CASES[0].write(tmp_path / "data")
    home = tmp_path / "state"
    home.mkdir()
    (home / name).write_text("dear")
    with pytest.raises(StoreError, match=reason):
        job(CASES[0], tmp_path, session=None)
    assert [path.name for path in home.iterdir()] == [name]


def test_a_file_is_no_state(tmp_path):
    CASES[0].write(tmp_path / "data")
    (tmp_path / "state").write_text("dear")
    with pytest.raises(StoreError, match="is a file"):
        job(CASES[0], tmp_path, session=None)


LARGE = [5, 2**63 - 1, 2**63, 2**64 - 1]


def grouped(folder, out, public=None):
    """Counts by integers that SQL has not, of people who are such integers."""
    keys = {} if public is None else {"keys": sv.public(public)}
    rows = sv.files(str(folder / "*.parquet"), name="rows").protect(unit="u").group_by("k", **keys)
    asked = rows.agg(n=sv.count()).bound(max_rows=1).to("files", path=str(out))
    budget = sv.Budget(epsilon=20, delta=1e-6)
    return asked.release(every=sv.rows(1000), steps=2, budget=budget, name="q").plan


@pytest.mark.parametrize("public", [None, LARGE])
def test_unsigned_keys_are_shown_and_handed_over_as_they_are(public, session, tmp_path):
    units = pa.array([2**64 - 1 - i for i in range(2000)], pa.uint64())
    table = pa.table({"u": units, "k": pa.array(LARGE * 500, pa.uint64())})
    (tmp_path / "data").mkdir()
    pq.write_table(table, tmp_path / "data" / "0.parquet")
    handed = []
    plans = [grouped(tmp_path / "data", tmp_path / out, public) for out in ("out", "wanted")]
    start = {"state": tmp_path / "spark", "noise": SEEDED.noise, "insecure": True}
    engine = spark(session, shards=2, publish=lambda frame, _: handed.append(frame.collect()))
    with engine.start(plans[0], **start) as made:
        shown = [release.table["k"].to_pylist() for release in made]
    assert shown[-1] == LARGE
    assert [int(row["k"]) for row in handed[-1]] == LARGE
    plain = as_on_spark(plans[1])
    list(run(plain, state=tmp_path / "embedded", noise=SEEDED.noise, insecure=True))
    assert published(tmp_path / "out") == published(tmp_path / "wanted")


def test_public_groups_that_are_one_value_are_refused_before_anything_is_made(tmp_path):
    (tmp_path / "data").mkdir()
    table = pa.table({"u": [1, 2], "k": [1.0, float("nan")]})
    pq.write_table(table, tmp_path / "data" / "0.parquet")
    plan = grouped(tmp_path / "data", tmp_path / "out", [float("nan"), float("nan")])
    with pytest.raises(PlanError, match="same value"):
        SparkJob(plan, state=tmp_path / "state", session=None, keys=SEEDED)
    assert not (tmp_path / "state").exists()


def test_a_job_that_is_closed_leaves_no_replicas(session, tmp_path):
    case = CASES[0]
    case.write(tmp_path / "data")
    context = session.sparkContext

    def here(_):
        import os
        from pathlib import Path

        return [p.name for p in (Path(os.environ["SPARK_LOCAL_DIRS"]) / "streamveil").iterdir()]

    def left(job):
        names = context.parallelize([0], 1).flatMap(here).collect()
        return [name for name in names if name.startswith(job.shards.job)]

    with job(case, tmp_path, session) as running:
        list(running)
        assert left(running)
    assert not left(running)


def test_a_function_publishes_what_the_sink_publishes_and_may_fail(session, tmp_path):
    case, seen, told = CASES[4], {}, []
    case.write(tmp_path / "data")

    def publish(frame, release):
        if release.step == 2 and not told:
            told.append(None)
            raise ConnectionError("the database is away")
        seen.setdefault((release.window, release.trigger), []).append(frame.count())

    plan = case.plan(tmp_path / "data", tmp_path / "out")
    engine = spark(session, shards=3, publish=publish)
    start = {"state": tmp_path / "state", "noise": SEEDED.noise, "insecure": True}
    said = "publish raised ConnectionError: the database is away\n  to fix"
    with engine.start(plan, **start) as first, pytest.raises(StreamveilError, match=said):
        list(first)
    progress = []
    with engine.start(plan, **start, progress=progress.append) as second:
        made = {(r.window, r.trigger): r.table.num_rows for r in second}
    assert {place: counts[-1] for place, counts in seen.items()}.items() >= made.items()
    assert published(tmp_path / "out") == embedded(case, tmp_path)
    assert progress[-1].step == 3
    assert progress[-1].counters["bytes"] > 0


def test_counts_rows_and_rejects_as_the_embedded_engine_does(session, tmp_path):
    case = CASES[5]
    plan = case.plan(case.write(tmp_path / "data"))
    found, wanted = [], []
    with spark(session).start(plan, state=tmp_path / "state", noise=SEEDED.noise, insecure=True,
                              progress=found.append) as running:  # fmt: skip
        list(running)
    plain = as_on_spark(plan)
    with run(plain, state=tmp_path / "embedded", noise=SEEDED.noise, insecure=True,
             progress=wanted.append) as running:  # fmt: skip
        list(running)
    assert wanted[-1].counters.items() >= found[-1].rejected.items()
    assert sum(found[-1].rejected.values()) > 0
    assert found[-1].unusable == wanted[-1].unusable, "sizes of shards are no rows"
    assert found[-1].rows == wanted[-1].rows == case.rows


def test_shards_may_live_behind_a_uri_and_tasks_may_change(session, tmp_path):
    case = CASES[0]
    plan = case.plan(case.write(tmp_path / "data"), tmp_path / "out")
    start = {"state": tmp_path / "state", "noise": SEEDED.noise, "insecure": True}
    storage = f"file://{tmp_path}/bucket"
    with spark(session, shards=5, storage=storage, tasks=1).start(plan, **start) as running:
        next(iter(running))
    with spark(session, storage=storage, tasks=3).start(plan, **start) as running:
        list(running)
    assert published(tmp_path / "out") == embedded(case, tmp_path)
    assert not list((tmp_path / "state").rglob("*.delta"))
    other = replace(plan, name="other")
    with pytest.raises(StoreError, match="another state"):
        spark(session, storage=storage).start(other, **{**start, "state": tmp_path / "second"})


@pytest.fixture(scope="module")
def finished(session, tmp_path_factory):
    """A job with a real secret that ran to its end."""
    folder = tmp_path_factory.mktemp("finished")
    case = CASES[4]
    case.write(folder / "data")
    with job(case, folder, session, Randomness()) as running:
        list(running)
        setup = running.setup
    return folder, setup


def test_the_secret_is_in_its_file_only(finished):
    from pyspark import cloudpickle

    folder, setup = finished
    text = (folder / "state" / "secret").read_bytes().strip()
    names = states.SecretFrom(f"file:{folder}/state/secret", setup.keys.epoch)()
    forbidden = [text, bytes.fromhex(text.decode()), names.derive("group-by/keys"),
                 names.derive("group-by/units")]  # fmt: skip
    state = folder / "state"
    files = [p for p in state.rglob("*") if p.is_file() and p != state / "secret"]
    assert any("offsets" in p.parts for p in files)
    assert any(p.suffix == ".delta" for p in files)
    contents = [path.read_bytes() for path in files] + [cloudpickle.dumps(setup)]
    assert not [w for content in contents for w in forbidden if w in content]
    assert text in (state / "secret").read_bytes()  # the search can find it


@pytest.mark.parametrize(
    "part",
    ["checkpoint", "shards", "spark.json", "committed", "ledger", "secret", "checkpoint/offsets"],
)
def test_a_state_that_lost_a_part_is_refused(finished, part, tmp_path):
    folder, _ = finished
    shutil.copytree(folder / "state", tmp_path / "state")
    shutil.copytree(folder / "data", tmp_path / "data")
    path = tmp_path / "state" / part
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    # the plan names the data by its path: open the copy under the original's plan
    plan = CASES[4].plan(folder / "data", folder / "out")
    with pytest.raises(StoreError, match=r"lost|missing"):
        SparkJob(
            plan,
            state=tmp_path / "state",
            session=None,
            layout=SparkLayout(shards=1),
            keys=Randomness(),
        )


def test_another_query_secret_or_number_of_shards_is_refused(finished):
    folder, _ = finished
    plan = CASES[4].plan(folder / "data", folder / "out")

    def opened(plan=plan, shards=1, keys=None):
        return SparkJob(plan, state=folder / "state", session=None,
                        layout=SparkLayout(shards=shards), keys=keys or Randomness())  # fmt: skip

    with pytest.raises(StoreError, match="shards may not"):
        opened(shards=2)
    with pytest.raises(StoreError, match="in another storage"):
        SparkJob(plan, state=folder / "state", session=None, keys=Randomness(),
                 layout=SparkLayout(storage=f"file://{folder}/elsewhere"))  # fmt: skip
    with pytest.raises(StoreError, match="another query"):
        opened(plan=replace(plan, name="other"))
    with pytest.raises(StoreError, match="secret is not the one"):
        opened(keys=SEEDED)
    with pytest.raises(PlanError, match="named by its place"):
        opened(keys=Randomness("ab" * 32))
    opened().close()


def test_files_that_changed_are_refused(session, tmp_path):
    case = CASES[5]
    case.write(tmp_path / "data")
    with job(case, tmp_path, session) as running:
        releases = iter(running)
        next(releases)
        releases.close()
    (tmp_path / "data" / "a.parquet").rename(tmp_path / "data" / "c.parquet")
    with job(case, tmp_path, session) as running, pytest.raises(SourceError, match="sorts before"):
        list(running)


def wait_for(folder, count, process):
    """Until that many releases are public or the process is over."""
    limit = time.monotonic() + 300
    while process.poll() is None and len(published(folder / "out")) < count:
        assert time.monotonic() < limit
        time.sleep(0.02)


def finish(process):
    try:
        assert process.wait(timeout=400) == 0
    finally:
        end(process)


def end(process):
    """Kills the whole group that `lives.start` made: driver, JVM and workers."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def killed_at(folder, case, moments, seed, group=True):
    """Lives that are killed some time after a number of releases, then one that is not."""
    rng = np.random.default_rng(seed)
    for count in moments:
        process = lives.start(case, folder)
        try:
            wait_for(folder, count, process)
            time.sleep(rng.uniform(0, 1.0))
            if not group:
                process.kill()  # the driver alone: its JVM must not go on
                process.wait()
                time.sleep(1)
        finally:
            end(process)
    finish(lives.start(case, folder))


@pytest.mark.slow(landing=True)
def test_kill_9_of_the_driver_changes_nothing(tmp_path):
    (tmp_path / "out").mkdir()
    CASES[0].write(tmp_path / "data")
    killed_at(tmp_path, 0, [1], seed=1)
    assert published(tmp_path / "out") == embedded(CASES[0], tmp_path)
    assert charges(tmp_path) == 1


@pytest.mark.slow
@pytest.mark.parametrize(("case", "group"), [(2, True), (3, False), (6, True)])
def test_kill_9_at_many_moments_changes_nothing(case, group, tmp_path):
    (tmp_path / "out").mkdir()
    CASES[case].write(tmp_path / "data")
    killed_at(tmp_path, case, [0, 1, 2, 3], seed=case, group=group)
    assert published(tmp_path / "out") == embedded(CASES[case], tmp_path)
    assert charges(tmp_path) == 1


@pytest.mark.slow
def test_kill_9_of_an_executor_changes_nothing(tmp_path):
    (tmp_path / "out").mkdir()
    CASES[0].write(tmp_path / "data")
    process = lives.start(0, tmp_path, "local-cluster[2,1,1024]")
    assert kills(tmp_path, process, [process]) > 1
    assert published(tmp_path / "out") == embedded(CASES[0], tmp_path)
    assert charges(tmp_path) == 1


@pytest.mark.slow
def test_kill_9_of_executors_of_two_workers_changes_nothing(tmp_path):
    (tmp_path / "out").mkdir()
    CASES[2].write(tmp_path / "data")
    port = 20_000 + os.getpid() % 10_000
    workers = lives.cluster(tmp_path, port)
    try:
        process = lives.start(2, tmp_path, f"spark://127.0.0.1:{port}")
        assert kills(tmp_path, process, workers) > 1
    finally:
        for worker in workers:
            end(worker)
    assert published(tmp_path / "out") == embedded(CASES[2], tmp_path)
    assert charges(tmp_path) == 1


def kills(folder, process, groups):
    """Kills an executor before the first release and one after it; returns how many."""
    killed = 0
    try:
        for count in (0, 1):
            wait_for(folder, count, process)
            killed += kill_executor(process, groups, count)
    except BaseException:
        end(process)
        raise
    finish(process)
    return killed


def executors(groups):
    """The executors among the processes of some groups."""
    found, wanted = [], {group.pid for group in groups}
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            group = int((folder / "stat").read_text().rpartition(")")[2].split()[2])
            if group in wanted and b"ExecutorBackend" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return sorted(found)


def kill_executor(process, groups, chosen):
    """Kills one executor, once both are there; how many were killed."""
    limit = time.monotonic() + 200
    while process.poll() is None:
        assert time.monotonic() < limit
        found = executors(groups)
        if len(found) > 1:
            time.sleep(1)  # let it work
            with contextlib.suppress(ProcessLookupError):
                os.kill(found[chosen], signal.SIGKILL)
                return 1
        time.sleep(0.05)
    return 0
