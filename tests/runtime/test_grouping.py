"""Releases of a replay that are published together: one commit, one file, the same numbers."""

from __future__ import annotations

import itertools
import threading
import time
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import streamveil as sv
from streamveil.batch import Batch, Release
from streamveil.connectors.sinks import FilesSink
from streamveil.core.noise import SeededNoise
from streamveil.dataflow.rows import RowProgram, prepare_batch
from streamveil.errors import StoreError
from streamveil.plan import Clock
from streamveil.release_metadata import packed, read_parquet, unpacked
from streamveil.results.releases import of_folder
from streamveil.runtime import job as runtime_job
from streamveil.runtime import wal
from streamveil.runtime.grouping import MOST_ROWS, Together, in_blocks, together
from streamveil.runtime.published import of_state
from streamveil.runtime.run import run
from streamveil.runtime.wal import joined, parted
from streamveil.sql.sql import parse_script
from tests.released import made

pytestmark = pytest.mark.filterwarnings("ignore:insecure noise")
HOUR = 3_600_000_000
QUERY = """CREATE STREAM visits WITH (source = 'files', path = '{folder}/rows.parquet',
  event_time = 'at');
CREATE SINK out WITH (sink = 'files', path = '{folder}/out');
INSERT INTO out SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 4, delta = 1e-6,
    privacy_unit_column = user, privacy_unit_period = INTERVAL 1 DAY,
    max_rows_contributed = 2, max_rows_per_group = 1,
    start = TIMESTAMP '2026-01-01', end = TIMESTAMP '2026-01-0{last}')
  window_start, page, COUNT(*) AS n, SUM(ms, contribution_bounds_per_row => (0, 9)) AS ms
  FROM TUMBLE(TABLE visits, DESCRIPTOR(at), size => INTERVAL 1 DAY)
  GROUP BY window_start, page EMIT EVERY INTERVAL 30 MINUTE;"""


def plan_in(folder, last=5, seed=1):
    rng = np.random.default_rng(seed)
    at = np.sort(rng.integers(0, 4 * 24 * HOUR, 4_000)) + 1_767_225_600_000_000
    rows = pa.table({
        "at": pa.array(at, pa.timestamp("us", tz="UTC")),
        "user": rng.integers(0, 900, 4_000), "ms": rng.random(4_000) * 9,
        "page": pa.array([f"page {p}" for p in rng.geometric(0.3, 4_000)]),
    })  # fmt: skip
    pq.write_table(rows, folder / "rows.parquet")
    return parse_script(QUERY.format(folder=folder.as_posix(), last=last), {}).query.plan


def released(plan, folder, name):
    with run(plan, state=folder / name, noise=SeededNoise(3), insecure=True) as job:
        return list(job)


def same(first: pa.Table, second: pa.Table) -> bool:
    return first.equals(second) and first.schema.equals(second.schema, check_metadata=True)


def test_a_replay_of_many_steps_is_packed_and_reads_back_release_by_release(tmp_path, monkeypatch):
    plan = plan_in(tmp_path)
    found = released(plan, tmp_path, "grouped")
    names = sorted(path.name for path in (tmp_path / "out").rglob("*.parquet"))
    assert len(found) == 4 * 48
    assert "trigger=000001-000003.parquet" in names
    assert len(names) == 4 * 16
    back = of_folder(tmp_path / "out")
    assert len(back.moments) == len(found)
    for one in found:
        assert same(back.table((one.window, one.trigger)), one.table)  # type: ignore[arg-type]
    rows = pq.read_table(tmp_path / "out" / "out")
    assert rows.num_rows == sum(one.table.num_rows for one in found) > 300
    (tmp_path / "out").rename(tmp_path / "first")
    monkeypatch.setattr("streamveil.runtime.run.together", lambda *_: None)
    alone = released(plan, tmp_path, "alone")
    assert len([*(tmp_path / "out").rglob("*.parquet")]) == len(alone) == len(found)
    assert all(same(a.table, b.table) for a, b in zip(found, alone, strict=True))
    moments = [(one.window, one.trigger, one.step) for one in found]
    assert moments == [(one.window, one.trigger, one.step) for one in alone]


def test_where_files_end_does_not_depend_on_rows(tmp_path):
    names = []
    for seed, few in ((1, False), (2, True)):
        home = tmp_path / str(seed)
        home.mkdir()
        plan = plan_in(home, seed=seed)
        if few:
            path = home / "rows.parquet"
            pq.write_table(pq.read_table(path).slice(0, 3), path)
        released(plan, home, "s")
        names.append(sorted(str(p.relative_to(home)) for p in (home / "out").rglob("*.parquet")))
    assert names[0] == names[1]


@pytest.mark.parametrize(("most", "size", "is_beside"), [
    (np.inf, 1 << 20, False), (np.inf, 0, True), (0.0, 1 << 20, True),
])  # fmt: skip
def test_a_small_commit_is_waited_for_unless_it_waits_for_others(
    most, size, is_beside, tmp_path, monkeypatch
):
    """Two threads that share the interpreter's lock are slower than one after the other."""
    committing, beside, publish = threading.Event(), [], FilesSink.write_together
    compute = runtime_job.Job._compute

    def published(*args):
        committing.set()
        time.sleep(0.02)
        publish(*args)
        committing.clear()

    def computed(*args):
        beside.append(committing.is_set())
        return compute(*args)

    monkeypatch.setattr(FilesSink, "write_together", published)
    monkeypatch.setattr(runtime_job.Job, "_compute", computed)
    monkeypatch.setattr(runtime_job, "MOST_WAITED", most)
    monkeypatch.setattr(runtime_job, "QUICK_BYTES", size)
    released(plan_in(tmp_path), tmp_path, "s")
    assert any(beside) == is_beside


def test_what_was_published_one_by_one_is_not_published_again(tmp_path, monkeypatch):
    plan = plan_in(tmp_path)
    monkeypatch.setattr("streamveil.runtime.run.together", lambda *_: None)
    with run(plan, state=tmp_path / "s", noise=SeededNoise(3), insecure=True) as job:
        for _ in range(4):
            next(job)
    monkeypatch.undo()
    released(plan, tmp_path, "s")
    back = of_folder(tmp_path / "out")
    assert pq.read_table(tmp_path / "out" / "out").num_rows == sum(
        back.table(moment).num_rows for moment in back.moments
    )


def test_nobody_learns_where_the_log_has_parts_of_a_group(tmp_path, monkeypatch):
    """Parts are as large as their rows; a reader, and the next start, know whole groups alone."""
    monkeypatch.setattr(runtime_job, "HELD_BYTES", 500)
    plan = replace(plan_in(tmp_path), sinks=())

    def stop_within_a_group(seen):
        assert seen.closed_steps % 3 == 0
        if seen.step > 3 and seen.unpublished:
            raise KeyboardInterrupt

    settings = {"state": tmp_path / "s", "noise": SeededNoise(3), "insecure": True}
    with (
        run(plan, **settings, progress=stop_within_a_group) as job,
        pytest.raises(KeyboardInterrupt),
    ):
        list(job)
    with run(plan, **settings) as job:
        assert job.place.step % 3 > 0
        assert job.closed_steps == len(of_state(tmp_path / "s").moments) == job.place.step // 3 * 3
        list(job)
    assert len(of_state(tmp_path / "s").moments) == 4 * 48


def release(trigger: int, n: int) -> Release:
    table = pa.table({"n": [n] * trigger}).replace_schema_metadata({"streamveil.note": f"of {n}"})
    return made(table, 0, trigger, trigger)


def test_another_release_in_a_file_of_several_is_refused(tmp_path):
    several = [release(trigger, trigger) for trigger in (1, 2, 3)]
    FilesSink(str(tmp_path)).write_together("job", several)
    FilesSink(str(tmp_path)).write_together("job", several)  # the same again
    for other in ([release(3, 9)], [release(3, 3), release(4, 4)], [release(2, 2)]):
        with pytest.raises(StoreError, match="another release"):
            FilesSink(str(tmp_path)).write_together("job", other)
    with pytest.raises(StoreError, match="another release"):
        FilesSink(str(tmp_path)).write_together("job", [release(t, t + 1) for t in (1, 2, 3)])
    FilesSink(str(tmp_path)).write("job", release(4, 4))
    with pytest.raises(StoreError, match="another release"):
        FilesSink(str(tmp_path)).write_together("job", [release(4, 4), release(5, 5)])


def test_packing_keeps_columns_rows_and_what_each_says():
    tables = [release(t, 7 * t).table for t in (1, 2, 3, 11)]
    again = unpacked(*packed(tables))
    assert all(same(*pair) for pair in zip(tables, again, strict=True))


def test_a_file_of_several_names_notes_of_columns_once_and_gives_them_back(tmp_path):
    note = "rows of one unit beyond max_rows = 2 are not counted"
    columns = {"at": pa.array([7, 8], pa.timestamp("us", "UTC")), "page": pa.array(["a", None])}
    fields = [pa.field(name, column.type) for name, column in columns.items()]
    schema = pa.schema([*fields, pa.field("n", pa.int64(), False, {"bias": note})])
    table = pa.Table.from_arrays([*columns.values(), pa.array([1, 2])], schema=schema)
    for kinds in (schema, schema.set(1, pa.field("page", pa.large_string()))):
        several = [made(table.cast(kinds), 0, trigger, trigger) for trigger in (1, 2)]
        folder = tmp_path / str(kinds.field("page").type)
        FilesSink(str(folder)).write_together("job", several)
        [file] = folder.rglob("*.parquet")
        assert file.read_bytes().count(note.encode()) == 1
        for back, one in zip(read_parquet(file), several, strict=True):
            assert back.schema.equals(one.table.schema, check_metadata=True)
            assert back.equals(one.table)


def test_groups_are_for_long_replays_only():
    day = Clock(kind="event", every=HOUR, start_us=0, end_us=24 * HOUR)
    assert together(day, True, None) is None
    long = Clock(kind="event", every=HOUR, start_us=0, end_us=1_000 * HOUR)
    assert together(long, True, 7) == Together(14, 1_000)
    assert together(long, False, 7) is None
    assert together(Clock(kind="rows", every=10, steps=10_000), True, None) is None
    groups = Together(14, 1_000)
    assert [groups.ends(step, 0) for step in (13, 14, 1_000)] == [False, True, True]
    assert groups.ends(13, MOST_ROWS)


def test_deltas_are_joined_and_parted():
    deltas = [
        {"n": np.arange(3), "odd": np.zeros((2, 2)), "one": np.array(5)},
        {"n": np.arange(0)},
        {"n": np.arange(2), "odd": np.zeros((0, 3)), "more": np.ones((1, 2))},
    ]
    again = parted(joined(deltas), 3)
    assert [sorted(delta) for delta in again] == [sorted(delta) for delta in deltas]
    for first, second in zip(deltas, again, strict=True):
        assert all(np.array_equal(first[name], second[name]) for name in first)
        assert all(first[name].dtype == second[name].dtype for name in first)


def test_several_records_are_one_frame_that_is_there_whole_or_not_at_all(tmp_path):
    records = [
        wal.Record(wal.JobPosition(batch=n, step=n), {"n": np.arange(n)}, more=n < 4)
        for n in range(1, 5)
    ]
    log = wal.Log(tmp_path, "ep")
    log.start(0)
    log.append(records[0])
    log.append(*records[1:])
    log.close()
    again = [*wal.Log(tmp_path, "ep").replay(0)]
    assert [one.place.batch for one in again] == [1, 2, 3, 4]
    assert [one.more for one in again] == [True, True, True, False]
    assert [one.delta["n"].tolist() for one in again] == [
        one.delta["n"].tolist() for one in records
    ]
    path = next(tmp_path.glob("log-*"))
    path.write_bytes(path.read_bytes()[:-1])
    assert [one.place.batch for one in wal.Log(tmp_path, "ep").replay(0)] == [1]


def test_a_reader_of_a_state_finds_packed_releases(tmp_path):
    found = released(plan_in(tmp_path), tmp_path, "s")
    one = sv.read(tmp_path / "s", window=found[50].window, trigger=found[50].trigger)
    assert same(one.to_arrow(), found[50].to_arrow())


@pytest.mark.parametrize("where", [None, "ms > 3"])
def test_rows_prepared_in_blocks_are_what_they_are_by_themselves(where):
    rng = np.random.default_rng(5)
    rows = pa.table({
        "user": pa.array(rng.integers(0, 9, 60), mask=rng.random(60) < 0.1),
        "page": pa.array([f"page {p}" for p in rng.integers(0, 4, 60)], mask=rng.random(60) < 0.1),
        "ms": rng.choice([1.0, 4.0, np.nan, 5.0], 60),
    })  # fmt: skip

    def column(name):
        return lambda table: table.column(name).combine_chunks()

    program = RowProgram(
        column("user"), None, None if where is None else lambda t: pc.greater(t["ms"], 3.0),
        (column("page"),), (column("ms"),),
    )  # fmt: skip
    ends = [0, 7, 7, 20, 60]
    alone = [Batch(rows.slice(a, b - a), 1, True, "{}") for a, b in itertools.pairwise(ends)]
    for block, batch in zip(
        itertools.chain.from_iterable(in_blocks(iter(alone))), alone, strict=True
    ):
        first = prepare_batch(program, block, bytes(32), bytes(32))
        second = prepare_batch(program, batch, bytes(32), bytes(32))
        assert block.block is not None
        assert first.reject_counts == second.reject_counts
        assert np.array_equal(first.unit, second.unit)
        assert np.array_equal(first.names, second.names)
        assert np.array_equal(first.values[0][0], second.values[0][0])
        assert [key.to_pylist() for key in first.keys] == [key.to_pylist() for key in second.keys]
    assert {reason for one in alone for reason in prepare_batch(program, one, bytes(32), bytes(32))
            .reject_counts} >= {"null unit"}  # fmt: skip


def test_what_was_read_before_a_source_fails_goes_on_first():
    def failing():
        yield Batch(pa.table({"n": [1]}), 1, True, "{}")
        raise OSError("gone")

    found = itertools.chain.from_iterable(in_blocks(failing()))
    assert next(found).rows.num_rows == 1
    with pytest.raises(OSError, match="gone"):
        next(found)
