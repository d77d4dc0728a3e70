"""A new job says before its first charge that its files hold nothing to release."""

import warnings
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import streamveil as sv
from streamveil.cli import warned
from streamveil.connectors import file_reader
from streamveil.connectors.files import FilesSource
from streamveil.errors import NoiseWarning, OperatorWarning, SourceError
from streamveil.runtime.run import warn_of_nothing

START = 1_767_225_600_000_000  # 2026-01-01


def plan(folder, start, end):
    stream = sv.files(
        f"{folder}/*.parquet", event_time="ts", columns={"ts": "TIMESTAMP", "u": "INT64"}
    )
    counted = stream.protect("u").agg(n=sv.count()).bound(max_rows=1)
    return counted.release(every="1 hour", start=start, end=end,
                           budget=sv.Budget(epsilon=1, delta=1e-6)).plan  # fmt: skip


def write(folder, zone):
    times = pa.array([START, START + 3_600_000_000], pa.timestamp("us", zone))
    pq.write_table(pa.table({"ts": times, "u": [1, 2]}), folder / "a.parquet")


@pytest.mark.parametrize("zone", [None, "UTC"])
def test_a_time_range_that_no_file_touches_is_said(zone, tmp_path):
    with pytest.warns(UserWarning, match="no file is there yet"):
        warn_of_nothing(plan(tmp_path, "2026-01-01", "2026-01-02"))
    write(tmp_path, zone)
    for start, end in (("2025-01-01", "2026-01-01"), ("2026-01-01 02:00", "2027-01-01")):
        with pytest.warns(UserWarning, match="no file holds a time between start and end"):
            warn_of_nothing(plan(tmp_path, start, end))
    for start, end in (("2025-12-31", "2026-01-01 01:00"), ("2026-01-01 01:00", "2026-01-02")):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warn_of_nothing(plan(tmp_path, start, end))


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_times_that_no_calendar_has_stop_nothing(unit, tmp_path):
    """One person's clock may be wrong: whether a job starts must not depend on it."""
    for name, odd in (("a", 2**62), ("b", -(2**62))):
        odd //= 1000 if unit == "s" else 1  # which Parquet stores as milliseconds
        times = pa.array([odd, odd]).cast(pa.timestamp(unit))
        pq.write_table(pa.table({"ts": times, "u": [1, 2]}), tmp_path / f"{name}.parquet")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_nothing(plan(tmp_path, "2026-01-01", "2026-01-02"))
    (tmp_path / "b.parquet").unlink()
    with pytest.warns(UserWarning, match="no file holds a time between start and end"):
        warn_of_nothing(plan(tmp_path, "2026-01-01", "2026-01-02"))


def test_it_is_said_once_before_the_charge_and_refuses_nothing(tmp_path):
    write(tmp_path, "UTC")
    state = tmp_path / "s"
    made = sv.files(f"{tmp_path}/*.parquet", event_time="ts").protect("u").agg(n=sv.count())
    made = made.bound(max_rows=1).release(every="12 hours", start="2027-01-01", end="2027-01-02",
                                          budget=sv.Budget(epsilon=1, delta=1e-6))  # fmt: skip
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        assert len(list(made.run(str(state)))) == 2
    assert [one for one in heard if "no file holds" in str(one.message)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "nothing left to do")
        assert list(made.run(str(state))) is not None


@pytest.mark.parametrize(("end", "follow"), [("2100-01-01", False), ("2100-01-01", True),
                                             ("2026-01-02", False)])  # fmt: skip
def test_a_replay_that_ends_in_the_future_is_said_whatever_the_rows(end, follow, tmp_path):
    """All is released at once, so the last windows would look like whole ones of few rows."""
    write(tmp_path, "UTC")
    stream = sv.files(f"{tmp_path}/*.parquet", event_time="ts", follow=follow)
    query = stream.protect("u", per="1 day").window(sv.tumble("1 day")).agg(n=sv.count())
    query = query.bound(max_rows=1).release(every="1 day", start="2026-01-01", end=end,
                                            budget=sv.Budget(epsilon=1, delta=1e-6))  # fmt: skip
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        query.run(str(tmp_path / "s"))
    said = [one for one in heard if "yet to come" in str(one.message)]
    assert [one.category for one in said] == [NoiseWarning] * (end > "2030" and not follow)


@pytest.mark.parametrize("most", [1, 100])
def test_integers_of_another_unit_are_said_to_be_read_as_microseconds(most, tmp_path, monkeypatch):
    monkeypatch.setattr(file_reader, "LOOKED_AT", most)
    pq.write_table(pa.table({"ts": [START // 1_000] * 2, "u": [1, 2]}), tmp_path / "a.parquet")
    stream = sv.files(f"{tmp_path}/*.parquet", event_time="ts")
    query = stream.protect("u").agg(n=sv.count()).bound(max_rows=1).release(
        every="1 day", start="2026-01-01", end="2026-01-02",
        budget=sv.Budget(epsilon=1, delta=1e-6))  # fmt: skip
    with pytest.warns(OperatorWarning, match="integers are read as microseconds since 1970"):
        warn_of_nothing(query.plan)


@pytest.mark.parametrize("columns", [None, {"u": "INT64"}])
def test_a_folder_of_folders_is_told_how_to_name_their_files(columns, tmp_path):
    (tmp_path / "month=2026-01").mkdir()
    write(tmp_path / "month=2026-01", "UTC")
    stream = sv.files(str(tmp_path), columns=columns)
    query = stream.protect("u").agg(n=sv.count()).bound(max_rows=1).release(
        budget=sv.Budget(epsilon=1, delta=1e-6))  # fmt: skip
    said = r"holds folders, and '.*/\*\*/\*\.parquet' would name the files"
    if columns is None:  # the job is refused for it, so no budget is said to be spent
        warn_of_nothing(query.plan)
        with pytest.raises(SourceError, match=said):
            FilesSource(str(tmp_path)).schema()
    else:
        with pytest.warns(OperatorWarning, match=said):
            warn_of_nothing(query.plan)


@pytest.mark.parametrize("follow", [False, True])
def test_files_that_come_later_are_named_where_they_are_read(follow, tmp_path):
    made = plan(tmp_path, "2026-01-01", "2026-01-02")
    source = replace(made.source, options={**made.source.options, "follow": follow})
    with pytest.warns(OperatorWarning, match="releases without rows") as heard:
        warn_of_nothing(replace(made, source=source))
    assert ("unless files come later" in str(heard[0].message)) == follow


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_without_footers_the_first_rows_tell(kind, tmp_path, monkeypatch):
    """CSV and JSON, and Parquet without statistics."""
    monkeypatch.setattr(file_reader, "AT_ONCE", 2)
    times = [f"2026-01-01T0{hour}:00:00Z" for hour in range(4)]
    if kind == "csv":
        (tmp_path / "a.csv").write_text("ts,u\n" + "".join(f"{ts},1\n" for ts in times))
    elif kind == "jsonl":
        rows = "".join(f'{{"ts": "{ts}", "u": 1}}\n' for ts in times)
        (tmp_path / "a.jsonl").write_text(rows)
    else:
        table = pa.table({"ts": pa.array(times).cast(pa.timestamp("us", "UTC")), "u": [1] * 4})
        pq.write_table(table, tmp_path / "a.parquet", write_statistics=False)

    def made(start, end):
        stream = sv.files(
            f"{tmp_path}/*.{kind}", event_time="ts", columns={"ts": "TIMESTAMP", "u": "INT64"}
        )
        counted = stream.protect("u").agg(n=sv.count()).bound(max_rows=1)
        budget = sv.Budget(epsilon=1, delta=1e-6)
        return counted.release(every="1 hour", start=start, end=end, budget=budget).plan

    with pytest.warns(UserWarning, match="no row has a time between start and end"):
        warn_of_nothing(made("2025-01-01", "2026-01-01"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_nothing(made("2026-01-01 03:00", "2026-01-02"))
    monkeypatch.setattr(file_reader, "LOOKED_AT", 2)
    with pytest.warns(UserWarning, match="none of the first 2 rows has a time between"):
        warn_of_nothing(made("2026-01-01 03:00", "2026-01-02"))


def test_a_query_that_answers_once_says_that_no_file_is_there(tmp_path):
    stream = sv.files(f"{tmp_path}/*.csv", columns={"u": "INT64"})
    once = stream.protect("u").agg(n=sv.count()).bound(max_rows=1).release(
        budget=sv.Budget(epsilon=1, delta=1e-6)).plan  # fmt: skip
    with pytest.warns(UserWarning, match="no file is there yet"):
        warn_of_nothing(once)
    (tmp_path / "a.csv").write_text("u\n")
    with pytest.warns(UserWarning, match="no file holds a row: the budget"):
        warn_of_nothing(once)
    (tmp_path / "b.csv").write_text("u\n1\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_nothing(once)


def test_a_named_file_that_is_not_there_is_refused_before_anything_is_charged(tmp_path):
    stream = sv.files(f"{tmp_path}/sales.csv", columns={"u": "INT64"})
    once = stream.protect("u").agg(n=sv.count()).bound(max_rows=1).release(
        budget=sv.Budget(epsilon=1, delta=1e-6))  # fmt: skip
    with pytest.raises(SourceError, match=r"no file matches .*sales\.csv"):
        list(once.run(str(tmp_path / "s"), ledger=str(tmp_path / "l")))
    assert not (tmp_path / "l").exists()
    (tmp_path / "sales.csv").write_text("u\n")
    with pytest.warns(UserWarning, match="no file holds a row"):
        list(once.run(str(tmp_path / "s")))


@pytest.mark.parametrize("kind", ["memory", "files"])
def test_no_row_is_said_and_refuses_nothing(kind, tmp_path):
    """No row and one row are neighbours: what is released may not tell them apart."""

    def releases(rows):
        table = pa.table({"u": pa.array(range(rows), pa.int64())})
        folder = tmp_path / str(rows)
        folder.mkdir()
        pq.write_table(table, folder / "a.parquet")
        stream = sv.memory(table) if kind == "memory" else sv.files(f"{folder}/*.parquet")
        query = stream.protect("u").agg(n=sv.count()).bound(max_rows=1)
        job = query.release(budget=sv.Budget(epsilon=1, delta=1e-6)).run(str(folder / "s"))
        return [(one.table.schema, one.table.num_rows) for one in job]

    with pytest.warns(OperatorWarning, match="no rows|no file holds a row"):
        nothing = releases(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", OperatorWarning)
        assert releases(1) == nothing


def test_the_command_line_words_it_without_a_line_of_code(capsys):
    warned("no file is there yet", OperatorWarning, "cli.py", 288)
    assert capsys.readouterr().err == "warning: no file is there yet\n"
