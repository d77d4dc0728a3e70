"""Iceberg tables: every row once, snapshot after snapshot; every release once, whatever dies."""

from __future__ import annotations

import json
import sys
from datetime import date
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import streamveil as sv
from streamveil.connectors import open_sink, open_source
from streamveil.connectors.iceberg import IcebergSink
from streamveil.connectors.rejected_rows import traced
from streamveil.errors import MissingExtraError, SourceError, StoreError
from tests.connectors.test_databases import OTHER, TWICE, Killed, send
from tests.connectors.test_delta_source import read, rows
from tests.connectors.test_kafka import counts
from tests.connectors.test_sinks import ODD
from tests.released import made

pytest.importorskip("pyiceberg")
pytest.importorskip("sqlalchemy")
NAME = "shop.visits"


@pytest.fixture(autouse=True)
def catalog(tmp_path, monkeypatch):
    """A catalogue on disk, in the configuration that the environment holds."""
    from pyiceberg.catalog import load_catalog
    from pyiceberg.utils.config import Config

    (tmp_path / "lake").mkdir()
    settings = {
        "TYPE": "sql", "URI": f"sqlite:///{tmp_path}/lake/catalog.db",
        "WAREHOUSE": f"file://{tmp_path}/lake",
    }  # fmt: skip
    for name, value in settings.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__DEFAULT__{name}", value)
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    found = load_catalog("default")
    found.create_namespace("shop")
    yield found
    found.close()


def add(table, first, last):
    table.append(rows(first, last))


@pytest.fixture
def table(catalog):
    """Three snapshots, of rows 0 to 29."""
    made = catalog.create_table(NAME, rows(0, 4).schema)
    for first in (0, 10, 20):
        add(made, first, first + 10)
    return made


def opened(**options):
    return open_source("iceberg", {"table": NAME, **options})


def ids(found):
    return [row["u"] for row in found]


def test_every_position_goes_on_with_the_same_rows(table):
    first = table.snapshots()[0].snapshot_id
    source = opened(snapshot=first, follow=True)
    found, chunks = read(source, most=3)
    assert found == rows(0, 30).to_pylist()
    done = 0
    for chunk in chunks:
        done += chunk.rows.num_rows
        for most in (2, 1000):
            follows = read(opened(snapshot=first, follow=True), chunk.position, most)[0]
            assert follows == found[done:]


def test_a_place_within_a_file_of_many_row_groups_is_found(catalog):
    made = catalog.create_table(
        NAME, rows(0, 4).schema, properties={"write.parquet.row-group-limit": "7"}
    )
    add(made, 0, 50)
    found, chunks = read(opened(), most=5)
    assert ids(found) == list(range(50))
    for chunk in chunks:
        row = json.loads(chunk.position)["row"] or 50
        assert ids(read(opened(), chunk.position)[0]) == list(range(row, 50))


def test_a_snapshot_is_read_as_it_was_and_what_follows_when_it_comes(table):
    assert len(read(opened(snapshot=table.snapshots()[0].snapshot_id))[0]) == 10
    now, follower = opened(), opened(follow=True)
    position = read(follower)[1][-1].position
    assert sorted(ids(read(now)[0])) == list(range(30))
    assert read(follower, position) == ([], [])
    add(table, 30, 33)
    add(table, 33, 34)
    assert ids(read(follower, position, columns=["u"])[0]) == [30, 31, 32, 33]
    assert read(now, position)[0] == []


def test_a_table_that_is_still_empty_is_followed_from_its_first_row(catalog):
    made = catalog.create_table(NAME, rows(0, 4).schema)
    assert read(opened(follow=True)) == ([], [])
    add(made, 0, 3)
    assert ids(read(opened(follow=True))[0]) == [0, 1, 2]


def test_snapshots_may_expire_once_they_are_read_and_not_before(table):
    source = opened(follow=True)
    begun = read(opened(snapshot=table.snapshots()[0].snapshot_id, follow=True), most=4)[1]
    position = read(source)[1][-1].position
    add(table, 30, 31)
    old = [one.snapshot_id for one in table.snapshots()[:-2]]
    table.maintenance.expire_snapshots().by_ids(old).commit()
    assert ids(read(source, position)[0]) == [30]
    table.maintenance.expire_snapshots().by_ids([table.snapshots()[0].snapshot_id]).commit()
    for chunk in begun[:4]:
        with pytest.raises(SourceError, match=r"(no more|does not follow)(.|\n)*to fix"):
            read(source, chunk.position)


@pytest.mark.parametrize("way", ["delete", "overwrite", "roll back"])
def test_rows_that_are_taken_away_are_refused(table, way):
    position = read(opened(follow=True))[1][-1].position
    if way == "delete":
        table.delete("u = 3")
    elif way == "overwrite":
        table.overwrite(rows(7, 9))
    else:
        back = table.snapshots()[0].snapshot_id
        table.manage_snapshots().rollback_to_snapshot(back).commit()
    words = "does not follow" if way == "roll back" else "cannot be taken back"
    with pytest.raises(SourceError, match=rf"{words}(.|\n)*to fix"):
        read(opened(follow=True), position)
    assert read(opened(follow=True))[0]  # a new state begins after it


def add_deletes(table, content, rows, columns=None):
    """Deletes rows as Spark and Flink do, in a file of its own; PyIceberg cannot."""
    from pyiceberg import manifest
    from pyiceberg.table.snapshots import Operation, Snapshot, Summary
    from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate
    from pyiceberg.typedef import Record

    class Deletes(manifest.ManifestWriterV2):
        def content(self):
            return manifest.ManifestContent.DELETES

    table.refresh()
    last, folder = table.current_snapshot(), table.location().removeprefix("file://")
    pq.write_table(rows, f"{folder}/deletes.parquet")
    file = manifest.DataFile.from_args(
        content=content, file_path=f"{folder}/deletes.parquet", partition=Record(),
        file_format=manifest.FileFormat.PARQUET, record_count=1, file_size_in_bytes=1,
        equality_ids=columns,
    )  # fmt: skip
    own, number = last.snapshot_id + 1, table.metadata.last_sequence_number + 1
    out = table.io.new_output(f"{folder}/deletes.avro")
    with Deletes(table.spec(), table.schema(), out, own, "deflate") as written:
        written.add_entry(manifest.ManifestEntry.from_args(
            status=manifest.ManifestEntryStatus.ADDED, snapshot_id=own, data_file=file
        ))  # fmt: skip
    out = table.io.new_output(f"{folder}/list.avro")
    with manifest.write_manifest_list(
        2, out, own, last.snapshot_id, number, "deflate"
    ) as manifests:
        manifests.add_manifests([written.to_manifest_file(), *last.manifests(table.io)])
    made = Snapshot(
        snapshot_id=own, parent_snapshot_id=last.snapshot_id, sequence_number=number,
        timestamp_ms=last.timestamp_ms + 1, manifest_list=f"{folder}/list.avro",
        summary=Summary(Operation.DELETE), schema_id=0,
    )  # fmt: skip
    to_main = SetSnapshotRefUpdate(ref_name="main", type="branch", snapshot_id=own)
    table.catalog.commit_table(table, (), (AddSnapshotUpdate(snapshot=made), to_main))


@pytest.mark.parametrize("by", ["position", "values"])
def test_files_of_deleted_rows_are_refused_by_their_name(table, by):
    """Of those that name rows by their values, PyIceberg's configuration was to be checked."""
    from pyiceberg.manifest import DataFileContent

    position = read(opened(follow=True))[1][-1].position
    file = next(iter(table.scan().plan_files())).file.file_path
    if by == "position":
        rows = pa.table({"file_path": [file], "pos": [3]})
        add_deletes(table, DataFileContent.POSITION_DELETES, rows)
    else:
        add_deletes(table, DataFileContent.EQUALITY_DELETES, pa.table({"u": [3]}), [1])
    with pytest.raises(SourceError, match=r"has files of deleted rows[^$]*compaction"):
        read(opened())
    with pytest.raises(SourceError, match="cannot be taken back"):
        read(opened(follow=True), position)


def compact(table, monkeypatch):
    """Puts all rows into one new file, as Spark's rewrite_data_files does; PyIceberg cannot."""
    from pyiceberg.io.pyarrow import _dataframe_to_data_files
    from pyiceberg.table.snapshots import Operation, Summary
    from pyiceberg.table.update import snapshot as made

    summaries = made.update_snapshot_summaries

    def as_replace(summary, **more):
        found = summaries(Summary(Operation.OVERWRITE, **summary.additional_properties), **more)
        return Summary(Operation.REPLACE, **found.additional_properties)

    monkeypatch.setattr(made, "update_snapshot_summaries", as_replace)
    table.refresh()
    whole, old = table.scan().to_arrow(), [task.file for task in table.scan().plan_files()]
    with table.transaction() as work:
        rewritten = made._OverwriteFiles(Operation.REPLACE, work, table.io)
        for file in old:
            rewritten.delete_data_file(file)
        for file in _dataframe_to_data_files(work.table_metadata, whole, table.io):
            rewritten.append_data_file(file)
        rewritten.commit()
    monkeypatch.setattr(made, "update_snapshot_summaries", summaries)
    table.refresh()
    assert table.current_snapshot().summary.operation == Operation.REPLACE
    return old


def test_rows_that_only_move_to_other_files_are_not_read_again(table, monkeypatch):
    begun = read(opened(snapshot=table.snapshots()[0].snapshot_id, follow=True), most=4)[1]
    position = read(opened(follow=True))[1][-1].position
    old = compact(table, monkeypatch)
    assert read(opened(follow=True), position)[0] == []
    add(table, 30, 33)
    compact(table, monkeypatch)
    add(table, 33, 36)
    assert ids(read(opened(follow=True), position)[0]) == list(range(30, 36))
    assert sorted(ids(read(opened(follow=True))[0])) == list(range(36))
    assert sorted(ids(read(opened(follow=True), begun[0].position)[0])) == list(range(4, 36))
    for file in old[1:]:  # nobody may need them any more, but for a job that lags
        Path(file.file_path.removeprefix("file://")).unlink()
    assert ids(read(opened(follow=True), position)[0]) == list(range(30, 36))
    with pytest.raises(SourceError, match=r"cannot be loaded(.|\n)*until they are read"):
        read(opened(follow=True), begun[0].position)


def test_another_table_at_the_same_name_is_refused_and_a_renamed_one_is_not(table, catalog):
    chunks = read(opened(follow=True), most=4)[1]
    catalog.rename_table(NAME, "shop.moved")
    moved = open_source("iceberg", {"table": "shop.moved", "follow": True})
    assert read(moved, chunks[-1].position)[0] == []
    add(catalog.create_table(NAME, rows(0, 4).schema), 0, 30)
    with pytest.raises(SourceError, match="not the one that this job began with"):
        read(opened(follow=True), chunks[0].position)


def test_a_column_may_come_and_be_called_otherwise(table):
    from pyiceberg.types import LongType

    position = read(opened(follow=True))[1][-1].position
    with table.update_schema() as change:
        change.add_column("late", LongType())
        change.rename_column("page", "place")
    table.append(pa.table({"u": [30], "place": ["x"], "late": [7]}))
    assert read(opened(follow=True), position)[0] == [{"u": 30, "place": "x", "late": 7}]
    whole = read(opened())[0]
    assert {row["late"] for row in whole} == {None, 7}
    assert [row["place"] for row in whole if row["u"] == 1] == ["a b"]


@pytest.mark.parametrize("names", ["kept", "lost", "used again"])
def test_files_of_other_programs_are_read_as_the_table_knows_them(names, catalog, tmp_path):
    """They have no numbers of columns, and none of the columns that their folders name."""
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record
    from pyiceberg.types import StringType

    made = catalog.create_table(
        NAME, pa.schema([("u", pa.int64()), ("page", pa.string()), ("day", pa.date32())])
    )
    with made.update_spec() as change:
        change.add_identity("day")
    path = tmp_path / "lake" / "a.parquet"
    pq.write_table(pa.table({"u": [1, 2], "page": ["a", "b"]}), path)
    file = DataFile.from_args(
        content=DataFileContent.DATA, file_path=str(path), file_format=FileFormat.PARQUET,
        partition=Record(20454), record_count=2, file_size_in_bytes=path.stat().st_size,
        column_sizes={}, value_counts={}, null_value_counts={}, nan_value_counts={},
        lower_bounds={}, upper_bounds={}, key_metadata=None, split_offsets=None,
        equality_ids=None, sort_order_id=None,
    )  # fmt: skip
    file.spec_id = made.spec().spec_id
    with made.transaction() as work:
        with work.update_snapshot().fast_append() as change:
            change.append_data_file(file)
        if names == "kept":
            mapping = made.schema().name_mapping.model_dump_json()
            work.set_properties({"schema.name-mapping.default": mapping})
    with made.update_schema() as change:
        change.rename_column("page", "place")
    day = date(2026, 1, 1)
    wanted = [{"u": 1, "place": "a", "day": day}, {"u": 2, "place": "b", "day": day}]
    assert read(opened())[0] == wanted
    if names == "used again":
        with made.update_schema() as change:
            change.add_column("page", StringType())
        with pytest.raises(SourceError, match="two columns of the Iceberg table had one name"):
            read(opened())


def test_what_is_no_table_is_refused_without_a_library_s_words(table, catalog):
    with pytest.raises(SourceError, match="namespace"):
        open_source("iceberg", {"table": "visits"})
    with pytest.raises(SourceError, match=r"cannot be loaded: NoSuchTableError(.|\n)*to fix"):
        open_source("iceberg", {"table": "shop.none"}).schema()
    path = next(iter(table.scan().plan_files())).file.file_path.removeprefix("file://")
    with open(path, "wb") as file:
        file.write(b"secret")
    with pytest.raises(SourceError, match="cannot be loaded") as caught:
        read(opened())
    assert "secret" not in str(caught.value)


def test_rows_have_places_where_they_are_traced(table):
    source = traced(opened())
    chunks = read(source, most=4)[1]
    places = np.concatenate([chunk.rows.column(-1).to_numpy() for chunk in chunks])
    assert len({*places.tolist()}) == 30
    assert len(source.names) == len({*source.names}) == 3


def test_a_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyiceberg.catalog", None)
    for make in (lambda: opened(), lambda: open_sink("iceberg", {"table": NAME})):
        with pytest.raises(MissingExtraError, match=r"streamveil\[iceberg\]"):
            make()


def answers(catalog, name="answers.pages"):
    return catalog.load_table(name).scan().to_arrow()


def sink():
    return open_sink("iceberg", {"table": "answers.pages"})


def test_every_release_is_there_once(catalog):
    for _ in range(2):
        send(sink())
    assert answers(catalog).num_rows == 9
    assert len(catalog.load_table("answers.pages").snapshots()) == 3
    with pytest.raises(StoreError, match="holds another release") as caught:
        sink().write("job", made(OTHER, 1, 1))
    assert "7.5" not in str(caught.value)
    sink().write("another", made(OTHER))
    assert answers(catalog).num_rows == 12


@pytest.mark.parametrize("key", ODD)
def test_no_group_stops_a_publication(catalog, key):
    release = made(pa.table({key: ODD[key], "n": [1.5, float("nan"), None]}))
    for _ in range(2):
        sink().write("job", release)
    assert catalog.load_table("answers.pages").scan().plan_files()
    assert catalog.load_table("answers.pages").current_snapshot().summary["total-records"] == "3"


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_life_that_wakes_up_between_another_one_s_look_and_commit_doubles_nothing(
    catalog, when, monkeypatch
):
    from pyiceberg.table import Transaction

    send(sink(), [(1, 1)])
    plain, calls = Transaction.commit_transaction, []

    def commit(self):
        calls.append(1)
        if len(calls) == 1:
            if when == "after":
                plain(self)
            send(sink())
            if when == "after":
                raise Killed
        return plain(self)

    monkeypatch.setattr(Transaction, "commit_transaction", commit)
    if when == "after":
        with pytest.raises(Killed):
            send(sink())
    send(sink(), TWICE)
    assert answers(catalog).num_rows == 9


@pytest.mark.slow
def test_a_job_from_table_to_table_that_is_killed_around_every_commit_counts_each_row_once(
    table, catalog, tmp_path, monkeypatch
):
    asked = (
        sv.source("iceberg", "visits", table=NAME, follow=True).protect("u")
        .group_by("page", keys=sv.public(["a b", "ü/%", "c=d"])).agg(n=sv.count())
        .bound(max_rows=1).to("iceberg", table="answers.pages")
        .release(budget=sv.Budget(epsilon=9e5, delta=1e-9), every=sv.rows(10), steps=4)
    )  # fmt: skip
    add(table, 30, 40)
    plain, deaths = IcebergSink.write, 0
    for when in ("before", "after") * 4:

        def write(self, job, release, when=when):
            if when == "after":
                plain(self, job, release)
            raise Killed

        with monkeypatch.context() as patch:
            patch.setattr(IcebergSink, "write", write)
            try:
                list(asked.run(state=tmp_path / "state"))
            except Killed:
                deaths += 1
    list(asked.run(state=tmp_path / "state"))
    assert deaths >= 4
    found = answers(catalog)
    assert sorted(found["trigger"].to_pylist()) == sorted([*range(1, 5)] * 3)
    last = found.filter(pa.compute.equal(found["trigger"], 4))
    assert counts(last) == {"a b": 10, "c=d": 10, "ü/%": 10}
