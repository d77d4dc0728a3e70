"""Every way to cut a query into stages, as tasks without a JVM: equal to the embedded engine.

Tasks read and write real shards; what they send is shuffled, because a real shuffle has no order.
"""

from __future__ import annotations

import importlib.util
import warnings
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from streamveil.cli import app
from streamveil.core.noise import SeededNoise
from streamveil.errors import PlanError, StoreError
from streamveil.plan import Clock
from streamveil.runtime.ask import ask
from streamveil.runtime.run import run
from streamveil.runtime.secret import Randomness
from tests.engines.spark.asked import ASKED
from tests.engines.spark.streams import CASES, HOUR

if importlib.util.find_spec("pyspark") is None:
    pytest.skip("the extra 'spark' is not installed", allow_module_level=True)

from streamveil.engines.spark import source_offsets, stages, tasks
from streamveil.engines.spark.source import feed_of
from streamveil.runtime import spark as jobs
from streamveil.runtime.spark_state import SparkLayout

pytestmark = pytest.mark.filterwarnings("ignore:insecure noise")
SEED = 5


def embedded(plan, folder):
    """Releases and the operator-only counts of the embedded engine."""
    told = []
    with run(jobs.as_on_spark(plan), state=folder, noise=SeededNoise(SEED), insecure=True,
             progress=told.append) as job:  # fmt: skip
        return list(job), told[-1]


def in_tasks(plan, folder, shards, rng, monkeypatch):
    """The same from the tasks of all stages, and the reports of all steps."""
    keys = Randomness(noise=SeededNoise(SEED), insecure=True)
    layout = SparkLayout(shards=shards)
    with jobs.SparkJob(plan, state=folder, session=None, layout=layout, keys=keys) as job:
        setup = replace(job.setup, tasks=max(1, shards - 1))
        feed = feed_of(job._options())
        before, made, reports = {"step": 0, **feed.nothing()}, [], []
        for step in range(1, 1000):
            seen = {"step": step, **feed.seen(before, 0.0)}
            if not feed.has(seen, step):
                break
            runs = [texts for texts in feed.splits(before, seen, step) if texts]
            batches = [pa.record_batch({"split": pa.array(texts)}) for texts in runs]
            found, report = one_step(job.spread, setup, step, batches, rng, monkeypatch)
            made += found if job.spread.alone else stages.merged(found, len(plan.keys))
            reports.append(report)
            before = seen
        assert (
            job.spread.shards(shards).items()
            <= {stage: shards_of(setup, stage, step - 1) for stage in ("unit", "key")}.items()
        )
    return made, reports


def shards_of(setup, stage, version):
    return sum(tag is not None for tag in setup.state.tags(stage, version, 20))


def one_step(spread, setup, step, batches, rng, monkeypatch):
    """All tasks of all stages, each with what the others sent it in any order."""
    first, *rest = spread.stages
    sent = [batch for batch in batches for batch in first(setup, step)(iter([batch]))]
    for stage, count in zip(rest, spread.tasks(setup.tasks), strict=True):
        came, sent = pa.Table.from_batches(sent, tasks.MOVING), []
        came = came.take(pa.array(rng.permutation(came.num_rows)))
        for number in range(count):
            mine = came.filter(pa.compute.equal(came.column("task"), number))
            context = SimpleNamespace(partitionId=lambda number=number: number)
            monkeypatch.setattr("pyspark.TaskContext.get", lambda context=context: context)
            sent += stage(setup, step)(iter(mine.to_batches()))
    return tasks.unpacked(pa.Table.from_batches(sent, tasks.RELEASED), step)


def assert_equal(found, wanted):
    assert [(r.window, r.trigger, r.step) for r in found] == [
        (r.window, r.trigger, r.step) for r in wanted
    ]
    for one, other in zip(found, wanted, strict=True):
        assert one.table.equals(other.table, check_metadata=True), (one.window, one.trigger)


def compared(case, folder, monkeypatch):
    monkeypatch.setattr(source_offsets, "PIECE", 200)
    monkeypatch.setattr(tasks, "ROWS", 60)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return compared_plan(case, case.plan(case.write(folder / "data")), folder, monkeypatch)


def compared_plan(case, plan, folder, monkeypatch):
    """Releases and counts of both engines are the same; those of rows that do not count."""
    wanted, told = embedded(plan, folder / "embedded")
    rng = np.random.default_rng(case.seed)
    found, reports = in_tasks(plan, folder / "spark", case.shards, rng, monkeypatch)
    assert wanted
    assert_equal(found, wanted)
    assert sum(report["rows"] for report in reports) == told.rows
    reject_counts = tasks.reported(reports)["reject_counts"]
    assert reject_counts.items() >= told.rejected.items()
    assert told.counters.items() >= {(k, n) for k, n in reject_counts.items() if k in told.counters}
    assert reject_counts.keys() <= told.counters.keys() | told.rejected.keys()
    return reject_counts


@pytest.mark.parametrize("case", [*ASKED, *CASES[:3]], ids=lambda case: case.name)
def test_tasks_release_what_the_embedded_engine_does(case, tmp_path, monkeypatch):
    compared(case, tmp_path, monkeypatch)


MANY = [
    replace(case, name=f"{case.name}_{seed}", seed=seed, shards=1 + seed % 5, rows=rows)
    for seed in range(100, 104)
    for case in (*ASKED, *CASES)
    for rows in (100 + 97 * (seed % 9),)
]


@pytest.mark.slow
@pytest.mark.parametrize("case", MANY, ids=lambda case: case.name)
def test_a_hundred_streams_are_released_alike(case, tmp_path, monkeypatch):
    compared(case, tmp_path, monkeypatch)


def test_odd_rows_are_counted_by_the_same_reasons(tmp_path, monkeypatch):
    reject_counts = {}
    for case in ASKED[1], ASKED[6], ASKED[8]:
        reject_counts |= compared(case, tmp_path / case.name, monkeypatch)
    assert reject_counts.keys() >= {"null unit", "null key", "over the contribution bound",
                             "rejected_operation", "rejected_id", "rejected_domain"}  # fmt: skip


@pytest.mark.parametrize("statistics", [True, False])
@pytest.mark.parametrize("number", [0, 4])
def test_rows_outside_the_schedule_are_counted_once(number, statistics, tmp_path, monkeypatch):
    case = replace(CASES[number], rows=700)
    monkeypatch.setattr(source_offsets, "PIECE", 200)
    plan = case.plan(case.write(tmp_path / "data"))
    for path in (tmp_path / "data").iterdir():
        table = pq.read_table(path)
        gone = np.arange(table.num_rows) % 41 == 7
        if path.name == "b.parquet":  # whose first row groups have no nulls
            gone &= np.arange(table.num_rows) > 300
        seen = pa.compute.if_else(pa.array(gone), None, table["seen"].combine_chunks())
        table = table.set_column(table.column_names.index("seen"), "seen", seen)
        pq.write_table(table, path, row_group_size=90, write_statistics=statistics)
    for start, end in ((1, 6), (2, 5), (0, 3)):
        clock = Clock(kind="event", every=HOUR, start_us=start * HOUR + 7, end_us=end * HOUR,
                      arrival="seen")  # fmt: skip
        reject_counts = compared_plan(
            case, replace(plan, clock=clock), tmp_path / str(start), monkeypatch
        )
        assert min(reject_counts["null in seen"], reject_counts["arrival outside the schedule"]) > 0


COLUMNS = {"unit": "BIGINT", "key": "BIGINT", "value": "DOUBLE", "ts": "TIMESTAMP"}
UTC = pa.timestamp("us", "UTC")


@pytest.mark.parametrize(
    ("first", "last", "declared"),
    [
        (UTC, UTC, {"columns": COLUMNS | {"seen": "DATE"}}),
        (UTC, pa.timestamp("ms"), {"columns": COLUMNS | {"seen": "BIGINT"}}),
        (pa.date32(), UTC, {}),  # all are read as the first file says
    ],
)
def test_no_rows_are_skipped_by_times_that_are_read_otherwise(
    first, last, declared, tmp_path, monkeypatch
):
    case = CASES[0]
    plan = case.plan(case.write(tmp_path / "data"))
    for path, kind in zip(sorted((tmp_path / "data").iterdir()), (first, last), strict=True):
        table = pq.read_table(path)
        seen = table["seen"].cast(kind, safe=False)
        table = table.set_column(table.column_names.index("seen"), "seen", seen)
        pq.write_table(table, path, row_group_size=90)
    source = replace(plan.source, options=plan.source.options | declared)
    compared_plan(case, replace(plan, source=source), tmp_path, monkeypatch)


def test_groups_are_sorted_by_columns_whose_names_end_like_those_of_answers(tmp_path, monkeypatch):
    case = replace(CASES[0], two_keys=True)
    plan = case.plan(case.write(tmp_path / "data"))
    second = replace(plan.keys[1], name="key_sd")
    compared_plan(case, replace(plan, keys=(plan.keys[0], second)), tmp_path, monkeypatch)


def test_a_sketch_sends_cells_and_no_keys(tmp_path, monkeypatch):
    case, sent = ASKED[0], []
    carry = tasks.Piece.to_bytes
    monkeypatch.setattr(tasks.Piece, "to_bytes", lambda piece: sent.append(piece) or carry(piece))
    compared(case, tmp_path, monkeypatch)
    names = {tuple(sorted(p.rows.columns)) for p in sent if p.rows is not None}
    assert names == {("period", "unit", "window", "word"), ("cell", "count", "window")}


def test_a_table_with_a_share_for_questions_is_refused(tmp_path):
    case = replace(ASKED[5], options=ASKED[5].options + ", ask_share = 0.3")
    plan = case.plan(case.write(tmp_path / "data"))
    with pytest.raises(PlanError, match="ask_share"):
        jobs.operator_of(plan)


def test_a_state_of_spark_takes_no_questions(tmp_path):
    case = ASKED[5]
    plan = case.plan(case.write(tmp_path / "data"))
    keys = Randomness(noise=SeededNoise(SEED), insecure=True)
    jobs.SparkJob(plan, state=tmp_path / "state", session=None, keys=keys).close()
    with pytest.raises(StoreError, match="runs on Spark"):
        ask(plan, "COUNT(*) WHERE age > 1", state=tmp_path / "state")
    script = tmp_path / "q.sql"
    script.write_text(case.script(tmp_path / "data", tmp_path / "out") + "ASK s COUNT(*);")
    arguments = ["run", str(script), "--state", str(tmp_path / "other"), "--engine", "spark"]
    found = CliRunner().invoke(app, arguments)
    assert "embedded engine only" in str(found.exception)
    assert not (tmp_path / "other").exists()
