"""What a job refuses, as tasks without a JVM: other rows in the same step, parts of two states.

Noise is a function of the step, so the same noise on other rows would reveal how they differ.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import warnings
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import streamveil as sv
from streamveil.connectors.files import FilesSource
from streamveil.core.noise import SeededNoise
from streamveil.errors import PlanError, SourceError, StoreError, StreamveilError
from streamveil.runtime.run import run
from streamveil.runtime.secret import Randomness
from tests.engines.spark.asked import ASKED
from tests.engines.spark.streams import CASES, HOUR

if importlib.util.find_spec("pyspark") is None:
    pytest.skip("the extra 'spark' is not installed", allow_module_level=True)

from streamveil.engines.spark import source_offsets, stages, tasks
from streamveil.engines.spark.source import feed_of
from streamveil.engines.spark.splits import digest, footers
from streamveil.engines.spark.versioned_state import Chain
from streamveil.runtime import spark as jobs
from streamveil.runtime.spark_state import CHECKPOINT, PublishedStep, SparkLayout
from tests.engines.spark.test_stage_plan import assert_equal, one_step

pytestmark = pytest.mark.filterwarnings("ignore:insecure noise")
KEYS = Randomness(noise=SeededNoise(5), insecure=True)


@dataclass(frozen=True)
class Altered:
    """A reading whose rows are others than they were."""

    reading: source_offsets.Reading
    change: object

    def rows(self, split, step):
        read = self.reading.rows(split, step)
        return read._replace(table=self.change(read.table))


def fewer(table):
    return table.slice(table.num_rows // 2)


def other_keys(table):
    """Other words for the same units, at the same times."""
    place = table.column_names.index("key")
    return table.set_column(place, table.field(place), table["key"].take(rolled(table)))


def rolled(table):
    return pa.array(np.roll(np.arange(table.num_rows), 7))


class Steps:
    """The driver's part of a job, without Spark."""

    def __init__(self, job, monkeypatch):
        self.job, self.monkeypatch = job, monkeypatch
        self.feed = feed_of(job._options())

    def run(self, step, seed, setup=None):
        """All tasks of a step: its releases and report; None when there is no such step."""
        seen = {"step": step, **self.feed.seen(self.feed.nothing(), 0.0)}
        if not self.feed.has(seen, step):
            return None
        before = self.feed.nothing() if step == 1 else seen
        runs = [texts for texts in self.feed.splits(before, seen, step) if texts]
        batches = [pa.record_batch({"split": pa.array(texts)}) for texts in runs]
        rng = np.random.default_rng(seed)
        setup = setup or self.job.setup
        found, report = one_step(self.job.spread, setup, step, batches, rng, self.monkeypatch)
        made = found if self.job.spread.alone else stages.merged(found, len(self.job.plan.keys))
        return made, report

    def logged(self, step):
        """What Spark does before a step."""
        offsets = self.job.home.path / CHECKPOINT / "offsets"
        offsets.mkdir(parents=True, exist_ok=True)
        (offsets / str(step - 1)).write_text(json.dumps({"step": step}))

    def commit(self, step, seed=0):
        """A whole step."""
        self.logged(step)
        _, report = self.run(step, seed)
        self.job.home.commit(PublishedStep(step=step, tags=report["tags"]))
        self.job.shards.tidy(step - 1)


def opened(case, folder, state="state", storage=None):
    if not (folder / "data").exists():
        case.write(folder / "data")
    return jobs.SparkJob(
        case.plan(folder / "data"), state=folder / state, session=None, keys=KEYS,
        layout=SparkLayout(shards=case.shards, storage=storage),
    )  # fmt: skip


KINDS = [*ASKED, *CASES]


@pytest.mark.parametrize("case", KINDS, ids=lambda case: case.name)
def test_a_step_may_run_again_but_over_its_own_rows_only(case, tmp_path, monkeypatch):
    monkeypatch.setattr(source_offsets, "PIECE", 200)
    refused = 0
    with opened(case, tmp_path) as job:
        steps = Steps(job, monkeypatch)
        for step in range(1, 6):
            first = steps.run(step, seed=step)
            if first is None:
                break
            more = replace(job.setup, tasks=1 + job.setup.tasks % 2)
            again = steps.run(step, seed=100 + step, setup=more)
            assert_equal(again[0], first[0])
            assert again[1]["tags"] == first[1]["tags"]
            other = replace(job.setup, reading=Altered(job.setup.reading, fewer))
            if first[1]["rows"]:
                with pytest.raises(StoreError, match="over other rows"):
                    steps.run(step, seed=step, setup=other)
                refused += 1
    assert refused


@pytest.mark.parametrize("case", [*ASKED[:5], CASES[0]], ids=lambda case: case.name)
def test_other_words_of_the_same_units_are_refused_too(case, tmp_path, monkeypatch):
    with opened(case, tmp_path) as job:
        steps = Steps(job, monkeypatch)
        other = replace(job.setup, reading=Altered(job.setup.reading, other_keys))
        for step in (1, 2):
            steps.run(step, seed=step)
            with pytest.raises(StoreError, match="over other rows"):
                steps.run(step, seed=step, setup=other)


def test_shards_other_than_those_that_were_published_are_refused(tmp_path, monkeypatch):
    case = CASES[0]
    with opened(case, tmp_path) as job:
        steps = Steps(job, monkeypatch)
        steps.commit(1)
        shutil.copytree(tmp_path / "state", tmp_path / "twin")
        steps.commit(2)
    opened(case, tmp_path).close()
    with opened(case, tmp_path, "twin") as job:  # the same epoch, and other rows
        job.setup = replace(job.setup, reading=Altered(job.setup.reading, fewer))
        Steps(job, monkeypatch).commit(2)
    name = "shards/unit/00000/00000002.delta"
    shutil.copy(tmp_path / "twin" / name, tmp_path / "state" / name)
    with pytest.raises(StoreError, match="not those that were published"):
        opened(case, tmp_path)


def test_two_drivers_on_copies_of_a_state_do_not_both_run_a_step(tmp_path, monkeypatch):
    case, storage = CASES[0], f"file://{tmp_path}/bucket"
    opened(case, tmp_path, storage=storage).close()
    shutil.copytree(tmp_path / "state", tmp_path / "copy")
    with opened(case, tmp_path, "copy", storage) as late, opened(case, tmp_path, "state", storage) \
            as job:  # fmt: skip
        Steps(job, monkeypatch).commit(1)
        late.setup = replace(late.setup, reading=Altered(late.setup.reading, fewer))
        with pytest.raises(StoreError, match="over other rows"):
            Steps(late, monkeypatch).run(1, seed=0)
        Steps(late, monkeypatch).logged(1)
        Steps(job, monkeypatch).commit(2)
    with pytest.raises(StoreError, match="ahead of this state"):
        opened(case, tmp_path, "copy", storage)
    opened(case, tmp_path, "state", storage).close()


def test_a_storage_belongs_to_one_state(tmp_path):
    case, storage = CASES[0], f"file://{tmp_path}/bucket"
    opened(case, tmp_path, "one", storage).close()  # nothing was run yet
    with pytest.raises(StoreError, match="another state"):
        opened(case, tmp_path, "two", storage)
    assert not (tmp_path / "two" / "spark.json").exists()
    opened(case, tmp_path, "one", storage).close()
    (tmp_path / "bucket" / "owner").write_text("00")
    with pytest.raises(StoreError, match="another state"):
        opened(case, tmp_path, "one", storage)
    (tmp_path / "bucket" / "owner").unlink()
    with pytest.raises(StoreError, match="lost its storage"):
        opened(case, tmp_path, "one", storage)


def test_places_are_the_same_wherever_a_start_or_a_task_stands(tmp_path, monkeypatch):
    """Tasks run in folders of their executors: a relative name would be another place there."""
    (tmp_path / "key").write_text("ab" * 32)
    (tmp_path / "key").chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    plan, started = CASES[0].plan(CASES[0].write(tmp_path / "data")), {"session": None}
    started["state"] = tmp_path / "state"
    for folder, secret, storage in (
        (tmp_path, "file:key", "bucket"),
        (tmp_path / "data", "file:~/key", "~/bucket"),
        (tmp_path / "data", f"file:{tmp_path}/key", f"{tmp_path}/bucket"),
    ):
        monkeypatch.chdir(folder)
        keys, layout = Randomness(secret=secret), SparkLayout(storage=storage)
        with jobs.SparkJob(plan, **started, keys=keys, layout=layout) as job:
            assert job.shards.root == f"{tmp_path}/bucket"
            assert job.setup.keys.place == f"file:{tmp_path}/key"
    with pytest.raises(StoreError, match="in another storage"):
        jobs.SparkJob(plan, **started, keys=keys, layout=SparkLayout(storage="bucket"))


def test_a_file_of_other_content_is_another_file_and_a_copy_is_not(tmp_path):
    path = tmp_path / "a.parquet"
    table = pa.table({"x": np.arange(1000)})
    pq.write_table(table, path)
    source = FilesSource(str(tmp_path))
    before = digest(footers(source, None))
    shutil.copy(path, tmp_path / "b")
    path.unlink()
    shutil.copy(tmp_path / "b", path)  # another date
    (tmp_path / "b").unlink()
    assert digest(footers(source, None)) == before
    pq.write_table(pa.table({"x": np.arange(1000) + 1}), path)
    assert digest(footers(source, None)) != before


def test_a_task_reads_no_file_that_changed_since_it_was_planned(tmp_path, monkeypatch):
    case = CASES[0]
    with opened(case, tmp_path) as job:
        feed = feed_of(job._options())
        seen = feed.seen(feed.nothing(), 0.0)
        text = next(texts for texts in feed.splits(feed.nothing(), seen, 1) if texts)[0]
        job.setup.reading.rows(text, 1)
        path = tmp_path / "data" / "a.parquet"
        pq.write_table(other_keys(pq.read_table(path)), path, row_group_size=90)
        with pytest.raises(SourceError, match="changed"):
            job.setup.reading.rows(text, 1)


def test_rows_of_late_files_that_belong_to_no_step_are_counted(tmp_path):
    case = CASES[0]
    with opened(case, tmp_path) as job:
        feed = feed_of(job._options())
        before = feed.seen(feed.nothing(), 0.0)
        table = pq.read_table(tmp_path / "data" / "a.parquet").slice(0, 20)
        late = pa.array(np.full(20, 90 * HOUR)).cast(table["seen"].type)
        table = table.set_column(table.column_names.index("seen"), "seen", late)
        pq.write_table(table, tmp_path / "data" / "z.parquet")
        after = feed.seen(before, 0.0)
        counted = []
        for step, (start, end) in enumerate([(before, after), (after, after)], 2):
            found = [text for texts in feed.splits(start, end, step) for text in texts]
            reads = [job.setup.reading.rows(text, step) for text in found]
            counted.append(sum(r.rejected.get("arrival outside the schedule", 0) for r in reads))
        assert counted == [20, 0]


@pytest.mark.parametrize("case", [ASKED[5], CASES[0]], ids=lambda case: case.name)
def test_steps_are_repeated_without_loading_the_secret_again(case, tmp_path, monkeypatch):
    played, repeating, repeated = Chain._played, [], []

    def watched(chain, state, stamp, version):
        repeated.append(version - stamp.version)
        repeating.append(chain)
        made = played(chain, state, stamp, version)
        repeating.clear()
        return made

    monkeypatch.setattr(Chain, "_played", watched)
    with opened(case, tmp_path) as job:
        steps = Steps(job, monkeypatch)

        def secret(keys=job.setup.keys):
            assert not repeating
            return keys()

        for step in (1, 2, 3):
            steps.run(step, seed=0, setup=replace(job.setup, keys=secret))
    assert max(repeated) == 2


def test_a_table_does_not_tell_that_nothing_was_rejected(tmp_path, monkeypatch):
    case = ASKED[5]
    with opened(case, tmp_path) as job:
        _, report = Steps(job, monkeypatch).run(1, seed=0)
    assert report["reject_counts"]
    assert not [name for name in report["counters"] if name.startswith("rejected")]


def test_a_worker_keeps_the_operators_of_few_jobs(monkeypatch):
    monkeypatch.setattr(tasks, "OPENED", {})
    packed = [tasks.Packed(str(n), bytes(tasks.dumps(str(n)))) for n in range(3 * tasks.JOBS)]
    for one in packed:
        assert one.open() == one.fingerprint
    assert list(tasks.OPENED) == [one.fingerprint for one in packed[-tasks.JOBS :]]


def asked(folder, **changes):
    """A count of rows by `k` from files of `u` and `k`; `changes` are those of the query."""
    said = {"columns": None, "unit": "u", "key": "k"} | changes
    rows = sv.files(str(folder / "*.parquet"), columns=said["columns"]).protect(unit=said["unit"])
    grouped = rows.group_by(said["key"]).agg(n=sv.count()).bound(max_rows=1)
    return grouped.release(budget=sv.Budget(epsilon=1, delta=1e-6))


@pytest.mark.parametrize(
    ("change", "options", "said"),
    [
        ({"key": "nobody"}, {}, "unknown column 'nobody'"),
        ({"columns": {"nobody": "STRING"}, "key": "nobody"}, {}, "'nobody' is not in '0.parquet'"),
        ({}, {"secret": "5e" * 32}, "a secret is named by its place"),
        ({}, {"ledger": "none.ledger"}, "there is no ledger"),
    ],
)
def test_what_cannot_run_is_refused_before_java_starts(
    change, options, said, tmp_path, monkeypatch
):
    def started(*_):
        raise AssertionError("Java was started")

    monkeypatch.setattr("streamveil.engines.spark.session.session", started)
    pq.write_table(pa.table({"u": [1, 2], "k": ["a", "b"]}), tmp_path / "0.parquet")
    home = tmp_path / "state"
    with pytest.raises(StreamveilError, match=said):
        asked(tmp_path, **change).run(state=home, engine=sv.spark(), **options)
    assert not home.exists()
    with pytest.raises(AssertionError, match="Java was started"):
        asked(tmp_path).run(state=home, engine=sv.spark())
    assert not home.exists(), "nothing is made where Java does not start"


def warned(begin):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        begin().close()
    return [str(one.message) for one in found]


def test_a_new_job_is_warned_as_on_the_embedded_engine(tmp_path):
    rows = pa.table({"u": [1], "k": ["a"], "t": pa.array([0], pa.timestamp("us", "UTC"))})
    pq.write_table(rows.slice(1), tmp_path / "0.parquet")
    source = sv.files(str(tmp_path / "*.parquet"), event_time="t").protect(unit="u")
    counted = source.group_by("k", keys=sv.public(["a"])).agg(n=sv.count()).bound(max_rows=1)
    budget, time = sv.Budget(rho=1e-9, delta=1e-9), {"start": "2026-01-01", "end": "2999-01-01"}
    plan = counted.release(every="50000 days", budget=budget, **time).plan
    plan = replace(plan, options={"look_share": 0})
    found = warned(lambda: jobs.SparkJob(plan, state=tmp_path / "spark", session=None))
    assert found == warned(lambda: run(plan, state=tmp_path / "embedded"))
    assert [text.partition(":")[0] for text in found] == [
        "no file holds a row", "the end of this replay is yet to come",
    ]  # fmt: skip


def test_a_master_that_spark_does_not_know_is_refused():
    for known in ("local", "local[2]", "local[*]", "yarn", "spark://h:7077", "k8s://https://h"):
        assert sv.spark(master=known).master == known
    for unknown in ("loca", "", "local[2", "http://h"):
        with pytest.raises(PlanError, match="knows no master"):
            sv.spark(master=unknown)
