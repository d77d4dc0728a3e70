"""Files as a sink: a release is written once, and another under its name is refused."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from rich.console import Console

import streamveil as sv
from streamveil.connectors import sinks
from streamveil.connectors.sinks import WRITERS, ConsoleSink, FilesSink
from streamveil.errors import PlanError, SourceError, StoreError
from streamveil.release_metadata import ReleaseTime, kept_time, noted
from streamveil.sql.sql import parse_script
from tests.released import made

TABLE = pa.table({"key": [1, 2, 3], "n": [4.5, 5.5, 6.5]})
OTHER = pa.table({"key": [1, 2, 3], "n": [4.5, 5.5, 7.5]})


# groups that anybody's data may hold, and no publication may stumble over
ODD = {
    "markup": pa.array(["[/red]", "[bold]x", None]),
    "bytes": pa.array([b"\xff\x00", b"plain", None]),
    "times": pa.array([1 << 61, -(1 << 61), 0]).cast(pa.timestamp("us", "UTC")),
    "naive times": pa.array([1 << 61, -(1 << 61), 0]).cast(pa.timestamp("us")),
    "days": pa.array([2**31 - 1, -(2**31), 0], pa.int32()).cast(pa.date32()),
    "numbers": pa.array([float("nan"), float("inf"), None]),
}


def written(folder):
    return {path.name: path.read_bytes() for path in folder.rglob("trigger*")}


@pytest.mark.parametrize("kind", WRITERS)
def test_the_same_release_may_come_again_and_another_one_is_refused(kind, tmp_path):
    sink = FilesSink(str(tmp_path), kind)
    sink.write("job", made(TABLE, 0, 1))
    first = written(tmp_path)
    sink.write("job", made(TABLE, 0, 1))
    assert written(tmp_path) == first
    with pytest.raises(StoreError, match="holds another release") as error:
        sink.write("job", made(OTHER, 0, 1))
    assert "7.5" not in str(error.value)
    assert written(tmp_path) == first  # and nothing is left beside it
    sink.write("job", made(OTHER, 0, 2))
    assert len(written(tmp_path)) == 2


def test_a_release_written_by_another_version_of_arrow_is_known_by_its_content(tmp_path):
    sink = FilesSink(str(tmp_path))
    sink.write("job", made(TABLE, 0, 1))
    file = next(tmp_path.rglob("*.parquet"))
    pq.write_table(TABLE, file, compression="zstd")
    sink.write("job", made(TABLE, 0, 1))
    pq.write_table(OTHER, file, compression="zstd")
    with pytest.raises(StoreError, match="another release"):
        sink.write("job", made(TABLE, 0, 1))
    file.write_bytes(b"no Parquet")
    with pytest.raises(StoreError, match="another release"):
        sink.write("job", made(TABLE, 0, 1))


@pytest.mark.parametrize("kind", WRITERS)
def test_what_differs_in_a_last_digit_leaves_a_parquet_file_as_it_is(kind, tmp_path):
    near = TABLE.set_column(1, "n", pa.array([4.5, 5.5, np.nextafter(6.5, 7)]))
    sink = FilesSink(str(tmp_path), kind)
    sink.write("job", made(TABLE, 0, 1))
    first = written(tmp_path)
    if sink.keeps:
        sink.write("job", made(near, 0, 1))
    else:  # nothing to read the numbers from exactly
        with pytest.raises(StoreError, match="holds another release"):
            sink.write("job", made(near, 0, 1))
    assert written(tmp_path) == first


@pytest.mark.parametrize("kind", [kind for kind in WRITERS if kind != "parquet"])
def test_metadata_that_a_power_failure_took_come_again_with_their_numbers(kind, tmp_path):
    place = kept_time(ReleaseTime(0, "2026-01-01", None))
    sink, one = FilesSink(str(tmp_path), kind), made(noted(TABLE, "keys collide", place))
    sink.write("job", one)
    beside = next(tmp_path.rglob("metadata*"))
    told = beside.read_bytes()
    beside.unlink()
    with pytest.raises(StoreError, match="another release"):
        sink.write("job", made(noted(OTHER, "other", place)))
    assert not beside.exists()
    sink.write("job", one)
    assert beside.read_bytes() == told


def test_a_folder_that_a_killed_process_made_becomes_durable_too(tmp_path, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    synced = []
    with monkeypatch.context() as patch:
        patch.setattr(sinks, "write_all", killed)
        with pytest.raises(KeyboardInterrupt):
            FilesSink(str(tmp_path / "out")).write("job", made(TABLE, 0, 1))
    monkeypatch.setattr(sinks, "sync_directory", synced.append)
    sink = FilesSink(str(tmp_path / "out"))
    sink.write("job", made(TABLE, 0, 1))
    folders = [tmp_path / "out" / "job" / "window=0", tmp_path / "out" / "job", tmp_path / "out"]
    assert synced == [*folders, tmp_path]
    sink.write("job", made(TABLE, 0, 2))
    assert synced[4:] == folders[:1]


def test_folders_of_releases_that_are_published_together_become_durable_once(tmp_path, monkeypatch):
    synced, job = [], tmp_path / "out" / "job"
    monkeypatch.setattr(sinks, "sync_directory", synced.append)
    sink = FilesSink(str(tmp_path / "out"))
    many = [made(TABLE, window, trigger) for window in (1, 2, 3) for trigger in (1, 2)]
    sink.write_together("job", many)
    windows = [job / f"window={window}" for window in (1, 2, 3)]
    assert synced == [*windows, job, tmp_path / "out", tmp_path]
    assert sorted(job.iterdir()) == windows


def test_a_damaged_file_is_refused_in_words(tmp_path):
    """Arrow tells of damage by more than one kind of error, some without a reason."""
    table = pa.table({"key": list(map(str, range(300))), "n": [0.5] * 300})
    sink = FilesSink(str(tmp_path))
    sink.write("job", made(table, 0, 1))
    file = next(tmp_path.rglob("*.parquet"))
    whole = file.read_bytes()
    for place in (4, 40, 200):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 255]) + whole[place + 1 :])
        with pytest.raises(StoreError, match="holds another release"):
            sink.write("job", made(table, 0, 1))


@pytest.mark.parametrize("kind", [*WRITERS, "console"])
@pytest.mark.parametrize("key", ODD)
def test_no_group_stops_a_publication(kind, key, tmp_path):
    out = io.StringIO()
    sink = ConsoleSink() if kind == "console" else FilesSink(str(tmp_path), kind)
    sink.console = Console(file=out, width=200)
    table = pa.table({key: ODD[key], "n": [1.5, 2.5, 3.5]})
    for _ in range(2):  # as after a restart
        sink.write("job", made(table, 0, 1))
    sink.close()
    if key == "markup" and kind == "console":
        assert "[/red]" in out.getvalue()
    if key == "bytes" and kind == "csv":
        assert written(tmp_path)["trigger=000001.csv"].splitlines()[1:3] == [
            b'"\\xff\x00",1.5',
            b'"plain",2.5',
        ]
    if key == "bytes" and kind == "json":
        assert written(tmp_path)["trigger=000001.json"].splitlines()[:2] == [
            b'{"bytes": "\\\\xff\\u0000", "n": 1.5}',
            b'{"bytes": "plain", "n": 2.5}',
        ]
    if key == "times" and kind != "parquet":  # Arrow would write the year 9503
        shown = out.getvalue() or str(written(tmp_path))
        assert f"<value out of range: {1 << 61}>" in shown


def test_cells_that_a_spreadsheet_would_compute_are_escaped_where_that_is_asked_for(tmp_path):
    texts = ["=1+1", "+1", "-1", "@x", "\t=1", "\r=1", "'=1", "plain", "a=b", None]
    table = pa.table({"=key": texts, "raw": [t and t.encode() for t in texts], "n": [-1.0] * 10})
    for escape in (False, True):
        folder = tmp_path / str(escape)
        FilesSink(str(folder), "csv", escape_formulas=escape).write("job", made(table, 0, 1))
        (told,) = written(folder).values()
        lines = told.split(b"\n")
        assert lines[0].startswith(b'"\'=key"' if escape else b'"=key"')
        read = pyarrow.csv.read_csv(
            pa.BufferReader(told), parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True),
            convert_options=pyarrow.csv.ConvertOptions(strings_can_be_null=True),
        )  # fmt: skip
        for column in read.columns[:2]:
            found = column.to_pylist()
            assert any(text and text[0] in "=+-@\t\r" for text in found) == (not escape)
            if escape:  # and nothing is lost
                found = [text and text.removeprefix("'") for text in found]
            assert found == texts
        assert set(read.column(2).to_pylist()) == {-1}  # numbers are numbers
    with pytest.raises(SourceError, match="escape_formulas is for format = 'csv'"):
        FilesSink(str(tmp_path), escape_formulas=True)


ELSEWHERE = ["../../esc", "..", ".", "", "/tmp/esc", "a/b", "a\\b", "a\0b", "a\x1b[2Jb", "x" * 300]


@pytest.mark.parametrize("name", ELSEWHERE)
def test_no_name_leads_out_of_the_folder_of_a_sink(tmp_path: Path, name: str) -> None:
    sink = FilesSink(str(tmp_path / "in" / "out"), "json")
    with pytest.raises(PlanError, match="cannot be the name") as caught:
        sink.write(name, made(pa.table({"n": [1]}), 0, 1))
    assert "\x1b" not in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["../../esc", "..", ".", "/tmp/esc", "a/b"])
def test_no_name_that_a_query_gives_is_a_path(name: str) -> None:
    text = f"""CREATE STREAM s WITH (source = 'files', path = 'x.parquet', event_time = 'ts');
    CREATE SINK `{name}` WITH (sink = 'files', path = 'out');
    INSERT INTO `{name}` SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, delta = 1e-6,
      privacy_unit_column = user, max_rows_contributed = 1) page, COUNT(*) AS n FROM s
    GROUP BY page"""
    with pytest.raises(PlanError, match="cannot be the name"):
        parse_script(text)
    stream = sv.memory(pa.table({"user": [1], "page": ["a"]})).protect(unit="user")
    with pytest.raises(PlanError, match="cannot be the name"):
        stream.group_by("page").agg(n=sv.count()).bound(max_rows=1).release(
            budget=sv.Budget(epsilon=1, delta=1e-6), name=name
        )
