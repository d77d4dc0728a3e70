"""A Delta table as a source: every row once, version after version, or a refusal in words."""

from __future__ import annotations

import datetime as dt
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq
import pytest

import streamveil as sv
from streamveil.connectors import open_source
from streamveil.connectors.delta import DeltaSink
from streamveil.connectors.rejected_rows import traced
from streamveil.errors import MissingExtraError, SourceError
from tests.connectors.test_fields import NESTED
from tests.connectors.test_kafka import counts

deltalake = pytest.importorskip("deltalake")


def rows(first, last):
    return pa.table({
        "u": pa.array(range(first, last)),
        "page": [(None, "a b", "ü/%", "c=d")[u % 4] for u in range(first, last)],
    })  # fmt: skip


def add(path, first, last, **more):
    deltalake.write_deltalake(path, rows(first, last), mode="append", **more)


def opened(path, **options):
    return open_source("delta", {"path": str(path), **options})


def read(source, position=None, most=1000, columns=None):
    chunks = list(source.read(position, most, columns))
    return [row for chunk in chunks for row in chunk.rows.to_pylist()], chunks


@pytest.fixture
def table(tmp_path):
    """Three versions of a partitioned table, of rows 0 to 29."""
    path = tmp_path / "visits"
    add(path, 0, 10, partition_by=["page"])
    add(path, 10, 20)
    add(path, 20, 30)
    return path


def test_a_missing_package_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(MissingExtraError, match=r"streamveil\[delta\]"):
        opened(tmp_path)


def test_every_position_goes_on_with_the_same_rows(table):
    add(table, 30, 45)
    found, chunks = read(opened(table, version=1, follow=True), most=2)
    assert sorted(row["u"] for row in found) == list(range(45))
    assert all(row in rows(0, 45).to_pylist() for row in found)
    assert [row["u"] < 20 for row in found] == [True] * 20 + [False] * 25
    done = 0
    for chunk in chunks:
        done += chunk.rows.num_rows
        for most in (3, 1000):
            source = opened(table, version=1, follow=True)
            assert read(source, chunk.position, most)[0] == found[done:]


def test_fields_of_structures_are_columns(tmp_path):
    deltalake.write_deltalake(tmp_path, NESTED, partition_by=["id"])
    found = read(opened(tmp_path), most=77, columns=["event.ms", "user.geo.city", "id"])[0]
    flat = NESTED.flatten().flatten().select(["event.ms", "user.geo.city", "id"]).to_pylist()
    assert sorted(found, key=str) == sorted(flat, key=str)


def test_fields_that_a_version_added_are_null_in_files_from_before(tmp_path):
    early = pa.table({"user": [{"id": 1, "geo": {"city": "a"}}, None]})
    later = pa.table({"user": [{"new": "n", "id": 2, "geo": {"lat": 0.5, "city": "b"}}]})
    for rows in (early, later):
        deltalake.write_deltalake(tmp_path, rows, mode="append", schema_mode="merge")
    names = ["user.new", "user.geo.lat", "user.geo.city", "user.id"]
    found = [(*row.values(),) for row in read(opened(tmp_path), columns=names)[0]]
    assert {*found} == {(None, None, "a", 1), (None,) * 4, ("n", 0.5, "b", 2)}


@pytest.mark.parametrize("depth", [1, 2])
def test_a_table_whose_files_name_columns_otherwise_is_refused(depth, tmp_path):
    deltalake.write_deltalake(tmp_path, NESTED)
    log = tmp_path / "_delta_log" / f"{0:020}.json"

    def renamed(action):
        if "protocol" in action:
            action["protocol"] = {"minReaderVersion": 2, "minWriterVersion": 5}
        if "metaData" in action:
            told = json.loads(action["metaData"]["schemaString"])
            fields = [*told["fields"], *(part for one in told["fields"][:2]
                                         for part in one["type"]["fields"])]  # fmt: skip
            fields += fields[5]["type"]["fields"]
            for number, field in enumerate(fields):
                known = {"id": number, "physicalName": field["name"]}
                field["metadata"] = {f"delta.columnMapping.{k}": v for k, v in known.items()}
            fields[0 if depth == 1 else 4]["name"] = "renamed"
            action["metaData"] |= {
                "schemaString": json.dumps(told),
                "configuration": {"delta.columnMapping.mode": "name"},
            }
        return json.dumps(action)

    log.write_text("\n".join(renamed(json.loads(line)) for line in log.read_text().splitlines()))
    with pytest.raises(SourceError, match=r"column mapping\.\n.*copy the table"):
        read(opened(tmp_path))


def test_a_place_within_a_file_of_many_row_groups_is_found(tmp_path):
    made = deltalake.WriterProperties(max_row_group_size=7)
    add(tmp_path, 0, 50, writer_properties=made)
    found, chunks = read(opened(tmp_path), most=5)
    assert [row["u"] for row in found] == list(range(50))
    for chunk in chunks:
        rest = read(opened(tmp_path), chunk.position)[0]
        assert [row["u"] for row in rest] == list(range(rest[0]["u"], 50)) if rest else True
        done = json.loads(chunk.position)["row"] or 50
        assert len(rest) == 50 - done


def test_a_version_is_read_as_it_was_and_what_follows_when_it_comes(table):
    assert len(read(opened(table, version=0))[0]) == 10
    now, follower = opened(table), opened(table, follow=True)
    for source in (now, follower):
        found, chunks = read(source)
        assert len(found) == 30
    position = chunks[-1].position
    assert read(follower, position) == ([], [])
    add(table, 30, 33)
    follows = read(follower, position, columns=["u"])[0]
    assert sorted(row["u"] for row in follows) == [30, 31, 32]
    assert read(now, position)[0] == []


def test_rows_that_only_move_to_other_files_are_not_read_again(table):
    _, chunks = read(opened(table, follow=True))
    deltalake.DeltaTable(table).optimize.compact()
    add(table, 30, 31)
    add(table, 30, 31)
    deltalake.DeltaTable(table).vacuum(0, enforce_retention_duration=False, dry_run=False)
    follows = read(opened(table, follow=True), chunks[-1].position, columns=["u"])[0]
    assert follows == [{"u": 30}] * 2
    deltalake.DeltaTable(table).optimize.compact()
    assert len(read(opened(table, follow=True), chunks[-1].position)[0]) == 2
    deltalake.DeltaTable(table).vacuum(0, enforce_retention_duration=False, dry_run=False)
    with pytest.raises(SourceError, match="until they are read"):
        read(opened(table, follow=True), chunks[-1].position)


@pytest.mark.parametrize("way", ["delete", "update", "overwrite"])
def test_a_version_that_takes_rows_away_is_refused(table, way):
    _, chunks = read(opened(table, follow=True))
    if way == "delete":
        deltalake.DeltaTable(table).delete("u = 3")
    elif way == "update":
        deltalake.DeltaTable(table).update(updates={"u": "u + 100"}, predicate="u = 3")
    else:
        deltalake.write_deltalake(table, rows(7, 9), mode="overwrite")
    with pytest.raises(SourceError, match=r"cannot be taken back.*\n.*to fix"):
        read(opened(table, follow=True), chunks[-1].position)
    assert read(opened(table, follow=True))[0]  # a new state begins after it


def test_a_table_that_lost_what_is_to_be_read_is_refused(table):
    _, chunks = read(opened(table, version=0, follow=True), most=3)
    second = next(chunk for chunk in chunks if json.loads(chunk.position)["version"] == 2)
    log = table / "_delta_log" / f"{2:020}.json"
    deltalake.DeltaTable(table).create_checkpoint()
    kept = log.read_bytes()
    log.unlink()
    with pytest.raises(SourceError, match=r"cannot read.*\n.*logRetentionDuration"):
        read(opened(table, follow=True), second.position)
    log.write_bytes(kept)
    for version in (0, 1):  # what was read may go
        (table / "_delta_log" / f"{version:020}.json").unlink()
    assert len(read(opened(table, version=0, follow=True), second.position)[0]) == 10
    for file in table.rglob("*.parquet"):
        if "_delta_log" not in str(file):
            file.unlink()
    with pytest.raises(SourceError, match="VACUUM") as caught:
        read(opened(table))
    assert caught.value.__cause__ is None


def stored_as(path, table, **how):
    """The only file of a table as another writer might have stored it."""
    [file], [log] = path.glob("*.parquet"), path.glob("_delta_log/*.json")
    size = file.stat().st_size
    pq.write_table(table, file, **how)
    log.write_text(log.read_text().replace(f'"size":{size}', f'"size":{file.stat().st_size}'))


def test_a_value_that_does_not_fit_its_column_is_null_and_counted(tmp_path):
    """A library that cast the whole file stopped at it: whether a job went on told of one row."""
    add(tmp_path / "t", 0, 3)
    stored_as(tmp_path / "t", rows(0, 3).set_column(0, "u", pa.array([1.0, 2.5, 3.0])))
    found, chunks = read(opened(tmp_path / "t"))
    assert [row["u"] for row in found] == [1, None, 3]
    assert sum(sum(chunk.rejected.values()) for chunk in chunks) == 1


@pytest.mark.parametrize("day", ["+10000-01-01", "-0001-12-31", "0000-01-01"])
@pytest.mark.parametrize("folders", [None, ["k 1", "day"]])
def test_a_day_that_python_does_not_have_stops_nobody(day, folders, tmp_path):
    """As Spark writes one into the statistics of a file."""
    days = [dt.date(2026, 1, 1), None, dt.date(2026, 1, 2)]
    made = pa.table({"u": [1, 2, 3], "k 1": ["a/%é", "b", None], "day": days, "x": days})
    deltalake.write_deltalake(tmp_path / "t", made, partition_by=folders)
    before = read(opened(tmp_path / "t"))[0]
    log = tmp_path / "t" / "_delta_log" / f"{0:020}.json"
    text = log.read_text()
    log.write_text(text.replace(r"\"x\":\"2026-01-02", rf"\"x\":\"{day}"))
    assert log.read_text() != text
    with pytest.raises(ValueError, match=r"isoformat|year"):
        deltalake.DeltaTable(tmp_path / "t").to_pyarrow_dataset()
    assert read(opened(tmp_path / "t"))[0] == before


@pytest.mark.parametrize("how", [{}, {"use_deprecated_int96_timestamps": True}])
def test_times_in_nanoseconds_are_read_in_microseconds(tmp_path, how):
    times = pa.table({"t": pa.array([1, 2], pa.timestamp("us"))})
    deltalake.write_deltalake(tmp_path / "t", times)
    longer = pa.table({"t": pa.array([1001, 2000], pa.timestamp("ns"))})
    stored_as(tmp_path / "t", longer, **how)
    found, _ = read(opened(tmp_path / "t"))
    assert [row["t"].microsecond for row in found] == [1, 2]


def test_another_table_at_the_same_place_is_refused_and_a_moved_one_is_not(table, tmp_path):
    _, chunks = read(opened(table, follow=True), most=4)
    moved = Path(shutil.move(table, tmp_path / "moved"))
    assert read(opened(moved, follow=True), chunks[-1].position)[0] == []
    add(table, 0, 30)
    with pytest.raises(SourceError, match="not the one that this job began with"):
        read(opened(table, follow=True), chunks[0].position)


def test_a_column_may_come_and_one_that_is_read_may_not_go(table):
    source = opened(table, follow=True)
    _, chunks = read(source)
    more = rows(30, 32).append_column("late", pa.array([1, 2]))
    deltalake.write_deltalake(table, more, mode="append", schema_mode="merge")
    at = chunks[-1].position
    assert len(read(opened(table, follow=True), at, columns=["u", "page"])[0]) == 2
    assert {row["late"] for row in read(opened(table))[0]} == {None, 1, 2}
    with pytest.raises(SourceError, match="no_such"):
        read(opened(table), columns=["no_such"])


def test_what_is_no_table_is_refused_without_a_library_s_words(table, tmp_path):
    for source in (opened(tmp_path / "nowhere"), opened(table, version=99)):
        with pytest.raises(SourceError, match="cannot read the Delta table"):
            source.schema()
    file = next(file for file in table.rglob("*.parquet"))
    file.write_bytes(b"secret")
    with pytest.raises(SourceError, match="cannot read") as caught:
        read(opened(table))
    assert "secret" not in str(caught.value)
    with pytest.raises(SourceError, match="from 0"):
        opened(table, version=-1)


def test_rows_have_places_where_they_are_traced(table):
    source = traced(opened(table))
    _, chunks = read(source, most=4)
    places = np.concatenate([chunk.rows.column(-1).to_numpy() for chunk in chunks])
    assert len({*places.tolist()}) == 30
    assert len(source.names) == len({*source.names}) > 3


def test_a_table_answers_a_question(table):
    asked = (
        sv.source("delta", "visits", path=str(table)).protect("u")
        .group_by("page", keys=sv.public(["a b", "c=d"])).agg(n=sv.count()).bound(max_rows=1)
    )  # fmt: skip
    answer = asked.release(budget=sv.Budget(epsilon=9e5, delta=1e-9)).answer().table
    assert counts(answer) == {"a b": 8, "c=d": 7}


class Killed(BaseException):
    pass


def test_a_job_from_table_to_table_that_is_killed_around_every_commit_counts_each_row_once(
    table, tmp_path, monkeypatch
):
    asked = (
        sv.source("delta", "visits", path=str(table), follow=True).protect("u")
        .group_by("page", keys=sv.public(["a b", "ü/%", "c=d"])).agg(n=sv.count())
        .bound(max_rows=1).to("delta", path=str(tmp_path / "answers"))
        .release(budget=sv.Budget(epsilon=9e5, delta=1e-9), every=sv.rows(5), steps=8)
    )  # fmt: skip
    add(table, 30, 40)
    plain, deaths = DeltaSink.write, 0
    for when in ("before", "after") * 8:

        def write(self, job, release, when=when):
            if when == "after":
                plain(self, job, release)
            raise Killed

        with monkeypatch.context() as patch:
            patch.setattr(DeltaSink, "write", write)
            try:
                list(asked.run(state=tmp_path / "state"))
            except Killed:
                deaths += 1
    list(asked.run(state=tmp_path / "state"))
    assert deaths >= 8
    found = deltalake.DeltaTable(tmp_path / "answers")
    answers = found.to_pyarrow_table()
    assert found.version() == 7
    assert sorted(answers["trigger"].to_pylist()) == sorted([*range(1, 9)] * 3)
    last = answers.filter(pa.compute.equal(answers["trigger"], 8))
    assert counts(last) == {"a b": 10, "c=d": 10, "ü/%": 10}
