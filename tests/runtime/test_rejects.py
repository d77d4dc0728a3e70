"""Rows that cannot be used are kept for whoever runs the job: each once, as it came, in private."""

from __future__ import annotations

import json
import os
import re
import stat
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import streamveil as sv
from streamveil import disk
from streamveil.batch import RejectNotes
from streamveil.connectors.rejected_rows import MALFORMED, MISFIT
from streamveil.core.noise import SeededNoise
from streamveil.errors import PlanError, StoreError
from streamveil.runtime import checkpoint, rejects
from streamveil.runtime.progress import Progress
from streamveil.runtime.run import Pace, run
from streamveil.sql.sql import parse_script

pytestmark = pytest.mark.filterwarnings("ignore:insecure noise")
SEEDED = {"noise": SeededNoise(3), "insecure": True}
LINES = [
    "ts,user,page,ms", "2026-01-01 00:10:00,1,home,5", "2026-01-01 00:20:00,,home,5", "no row",
    "2026-01-01 01:10:00,2,shop,nan", "never,3,shop,1", "2026-01-01 01:20:00,4,shop,x",
    "2026-01-02 01:20:00,5,shop,5", "2026-01-01 00:01:00,6,far,7", '2026-01-01 02:30:00,7,"open,1',
    "2026-01-01 02:40:00,8,home,2", "tail",
]  # fmt: skip
QUERY = """
CREATE STREAM clicks (ts TIMESTAMP, user INT64, page STRING, ms FLOAT64)
    WITH (source = 'files', path = '{path}', event_time = 'ts'{clock});
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 5, delta = 1e-6, privacy_unit_column = user,
    max_rows_contributed = 4, min_privacy_units_per_group = 1{options})
    page, COUNT(*) AS n, SUM(ms, contribution_bounds_per_row => (0, 10)) AS ms
FROM clicks GROUP BY page EMIT EVERY {every}
"""


def plan_of(folder: Path, clock: str = "", every: str = "2 ROWS", options: str = "") -> Any:
    path = folder / "clicks.csv"
    path.write_text("\n".join(LINES) + "\n")
    text = QUERY.format(path=path, clock=clock, every=every, options=options)
    return parse_script(text).query.plan


def kept(folder: Path) -> list[dict[str, Any]]:
    """All rejected rows, by micro-batch."""
    files = sorted((folder / "aside").glob("batch-*.parquet"))
    return [row for path in files for row in pq.read_table(path).to_pylist()]


def start(folder: Path, plan: Any, **options: Any) -> Any:
    given = {**SEEDED, "rejects": folder / "aside", **options}
    return run(plan, state=folder / "state", **given)


TWO_ROWS = {"every": "2 ROWS", "options": ", steps = 5"}
EVENTS = {"every": "INTERVAL 1 HOUR",
          "options": ", start = '2026-01-01', end = '2026-01-01 03:00'"}  # fmt: skip
LIVE = {"clock": ", follow = TRUE", "every": "INTERVAL 1 HOUR",
        "options": ", start = '2026-01-01', steps = 2"}  # fmt: skip
SOURCE = {MALFORMED: [4, 10, 12], MISFIT: [6, 7]}
FOUND = {
    "rows": (TWO_ROWS, SOURCE | {"null unit": [3], "null event time": [6]}),
    "event": (EVENTS, SOURCE | {"null unit": [3], "null in ts": [6],
                                "arrival outside the schedule": [8]}),
    "wall": (LIVE, SOURCE | {"null unit": [3], "null event time": [6]}),
}  # fmt: skip


def places(rows: list[dict[str, Any]]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for row in rows:
        found.setdefault(row["reason"], []).append(row["number"])
    return {reason: sorted(numbers) for reason, numbers in found.items()}


@pytest.mark.parametrize("clock", FOUND)
@pytest.mark.parametrize("size", [1, 3, 100])
def test_every_counted_row_is_kept_once_with_its_reason_and_place(
    tmp_path: Path, clock: str, size: int
) -> None:
    options, expected = FOUND[clock]
    plan = plan_of(tmp_path, **options)
    with start(tmp_path, plan, pace=Pace(max_rows=size)) as job:
        releases = [release.table for release in job]
        counted = job.counters()
    assert places(kept(tmp_path)) == expected
    assert {reason: counted[reason] for reason in expected} == {
        reason: len(numbers) for reason, numbers in expected.items()
    }
    for row in kept(tmp_path):
        line = LINES[row["number"] - 1]
        assert row["file"] == str(tmp_path / "clicks.csv")
        if row["line"] is not None:
            assert row["line"].decode() == line
        else:
            assert row["row"]["page"] == line.split(",")[2]
    plain = run(plan, state=tmp_path / "plain", pace=Pace(max_rows=size), **SEEDED)
    assert [release.table for release in plain] == releases


def test_a_run_in_pieces_leaves_the_same_files(tmp_path: Path) -> None:
    whole, pieces = tmp_path / "whole", tmp_path / "pieces"
    for folder in (whole, pieces):
        folder.mkdir()
    plan = plan_of(tmp_path, **TWO_ROWS)
    list(start(whole, plan, pace=Pace(max_rows=1)))
    for _ in range(20):
        with start(pieces, plan, pace=Pace(max_rows=1)) as job:
            next(job, None), next(job, None)  # the last one again, then a new one
    assert contents(pieces) == contents(whole)
    assert len(contents(whole)) > 3


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "aside").glob("batch-*")}


def test_files_beyond_the_last_commit_go_even_if_nobody_asks_for_rejects(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, **TWO_ROWS)
    list(start(tmp_path, plan))
    before = contents(tmp_path)
    for name in ("batch-000000000099.parquet", "batch-000000000003.parquet.tmp"):
        (tmp_path / "aside" / name).touch()
    (tmp_path / "aside" / "notes").touch()
    list(start(tmp_path, plan, rejects=None))
    assert contents(tmp_path) == before
    assert (tmp_path / "aside" / "notes").exists()


def test_no_power_failure_brings_back_files_beyond_the_last_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(tmp_path, **TWO_ROWS)
    list(start(tmp_path, plan))
    late, synced = tmp_path / "aside" / "batch-000000000099.parquet", list[Path]()
    late.touch()
    real = disk.sync_directory

    def sync(folder: Path) -> None:
        if not late.exists():
            synced.append(folder)
        real(folder)

    monkeypatch.setattr(disk, "sync_directory", sync)
    list(start(tmp_path, plan))
    assert late.parent in synced


def test_kept_rows_are_for_their_owner_only(tmp_path: Path) -> None:
    list(start(tmp_path, plan_of(tmp_path, **TWO_ROWS)))
    assert stat.S_IMODE((tmp_path / "aside").stat().st_mode) == 0o700
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "aside").iterdir()}
    assert modes == {0o600}


def test_the_query_of_the_page_reads_lines_that_are_not_text(tmp_path: Path) -> None:
    """`decode` failed at the first of them, and malformed lines often are none."""
    duckdb = pytest.importorskip("duckdb")
    plan = plan_of(tmp_path, **TWO_ROWS)
    with (tmp_path / "clicks.csv").open("ab") as file:
        file.write(b"caf\xe9\n")
    list(start(tmp_path, plan))
    page = (Path(__file__).parents[2] / "docs" / "rejects.md").read_text()
    [query] = re.findall(r"^SELECT .*\*\.parquet'", page, re.M)
    found = duckdb.sql(query.replace("pages.rejects", str(tmp_path / "aside"))).fetchall()
    assert "caf\\xE9" in {line for *_, line in found}


def test_a_stream_without_bad_rows_keeps_none(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, **TWO_ROWS)
    good = [line for line in LINES if "home,2" in line or ("home,5" in line and ",," not in line)]
    (tmp_path / "clicks.csv").write_text("\n".join([LINES[0], *good, ""]))
    list(start(tmp_path, plan))
    assert contents(tmp_path) == {}


def test_moved_and_deleted_files_are_not_missed(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, **TWO_ROWS)
    with start(tmp_path, plan, pace=Pace(max_rows=1)) as job:
        next(job)
    done = contents(tmp_path)
    for path in (tmp_path / "aside").glob("batch-*"):
        path.unlink()
    (tmp_path / "aside").rename(tmp_path / "other")
    list(start(tmp_path, plan, pace=Pace(max_rows=1), rejects=tmp_path / "other"))
    after = {path.name for path in (tmp_path / "other").glob("batch-*")}
    assert after
    assert not after & set(done)
    assert rejects.kept_in(tmp_path / "state") == tmp_path / "other"


def open_to_others(folder: Path) -> None:
    (folder / "aside").mkdir(mode=0o755)


def another_states(folder: Path) -> None:
    list(start(folder, plan_of(folder, **TWO_ROWS)))
    (folder / "state").rename(folder / "old")


def foreign(folder: Path) -> None:
    (folder / "aside").mkdir(mode=0o700)
    (folder / "aside" / "thesis.tex").touch()


def a_file(folder: Path) -> None:
    (folder / "aside").touch()


@pytest.mark.parametrize(
    ("made", "words"),
    [(open_to_others, "chmod 700"), (another_states, "not of this state"),
     (foreign, "new or empty"), (a_file, "is none")],
)  # fmt: skip
def test_a_directory_that_will_not_do_is_refused_before_anything_is_made(
    tmp_path: Path, made: Any, words: str
) -> None:
    made(tmp_path)
    with pytest.raises(StoreError, match=words):
        start(tmp_path, plan_of(tmp_path, **TWO_ROWS))
    assert not (tmp_path / "state").exists()


def test_the_state_directory_itself_is_refused(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, **TWO_ROWS)
    with pytest.raises(StoreError, match="a directory of their own"):
        start(tmp_path, plan, rejects=tmp_path / "state")
    assert not (tmp_path / "state").exists()
    list(start(tmp_path, plan, rejects=tmp_path / "state" / "rejects"))
    assert any((tmp_path / "state" / "rejects").glob("batch-*"))


def test_a_write_that_fails_ends_the_run_uncommitted_and_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(tmp_path, **TWO_ROWS)
    list(start(tmp_path / "whole", plan))
    real = os.open

    def full(path: Any, *more: Any, **named: Any) -> int:
        if "batch-" in str(path):
            raise OSError(28, "No space left on device")
        return real(path, *more, **named)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", full)
        job = start(tmp_path, plan)
        with pytest.raises(StoreError, match=r"rejected rows 'aside': No space.*\n.*start again"):
            list(job)
        assert job._store._log.size == 0
    list(start(tmp_path, plan))
    assert contents(tmp_path) == contents(tmp_path / "whole")


def test_nothing_of_a_kept_row_is_told(tmp_path: Path, capfd: Any) -> None:
    heard: list[Progress] = []
    with start(tmp_path, plan_of(tmp_path, **TWO_ROWS), progress=heard.append) as job:
        list(job)
    assert capfd.readouterr() == ("", "")
    text = json.dumps([vars(one) for one in heard], default=str)
    assert "no row" not in text
    assert "tail" not in text
    assert "late" not in repr(RejectNotes([("late", pa.array([1]))]))


def test_more_rejected_rows_than_memory_go_by_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(tmp_path, **EVENTS)
    list(start(tmp_path / "a", plan))
    monkeypatch.setattr(checkpoint, "SPILL_BYTES", 1)
    list(start(tmp_path / "b", plan))
    assert kept(tmp_path / "a") == kept(tmp_path / "b") != []


def test_types_that_cannot_be_kept_are_refused_before_the_start(tmp_path: Path) -> None:
    kinds = pa.schema([("odd", pa.month_day_nano_interval())])
    routing = rejects.Routing(directory=tmp_path / "aside", columns=kinds)
    with pytest.raises(PlanError, match="Parquet has no such columns"):
        routing.require(tmp_path / "state", None)


def test_a_time_in_seconds_that_parquet_cannot_hold_is_kept_in_a_line(tmp_path: Path) -> None:
    odd = pa.array([7, 1 << 62]).cast(pa.timestamp("s"))
    rows = sv.memory({"user": [1, None], "odd": odd}).protect("user").where("odd IS NULL OR TRUE")
    asked = rows.agg(n=sv.count()).bound(max_rows=1)
    made = asked.release(budget=sv.Budget(epsilon=1, delta=1e-6), look_share=0)
    with start(tmp_path, made.plan) as job:
        assert len(list(job)) == 1
    (row,) = kept(tmp_path)
    assert (row["reason"], row["row"]) == ("null unit", None)
    assert json.loads(row["line"])["odd"] == f"<value out of range: {1 << 62}>"


WINDOWED = """
CREATE STREAM clicks (ts TIMESTAMP, seen TIMESTAMP, user INT64, page STRING)
    WITH (source = 'files', path = '{path}', event_time = 'ts');
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 5, delta = 1e-6, privacy_unit_column = user,
    max_rows_contributed = 1, arrival = seen, start = '2026-01-01',
    end = '2026-01-01 03:00'{options})
    {what}
EMIT EVERY INTERVAL 1 HOUR
"""
GROUPED = """page, COUNT(*) AS n
FROM TUMBLE(TABLE clicks, DESCRIPTOR(ts), size => INTERVAL 1 HOUR) WHERE user IS NULL OR user < 9
GROUP BY page, window_start"""
SKETCHED = """HEAVY_HITTERS(LENGTH(page) - 3, k => 3)
FROM TUMBLE(TABLE clicks, DESCRIPTOR(ts), size => INTERVAL 1 HOUR)"""
TIMES = [
    ("00:10", "00:10", "1", "home"), ("00:10", "00:20", "9", "home"),
    ("00:10", "02:20", "2", "home"), ("02:10", "00:10", "3", "home"),
    ("00:20", "00:20", "4", "far"), ("01:20", "01:20", "", "home"),
    ("00:10", "00:10", "1", "home"), ("00:30", "00:30", "5", "no"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("what", "options", "expected"),
    [(GROUPED, ", public_groups = ['home', 'far']",
      {"late": [4], "early": [5], "null unit": [7], "not a public key": [9]}),
     (SKETCHED, "", {"late": [4], "early": [5], "null unit": [7], "key out of range": [9]})],
)  # fmt: skip
def test_rows_of_closed_windows_and_unlisted_keys_are_kept_and_bounded_ones_are_not(
    tmp_path: Path, what: str, options: str, expected: dict[str, list[int]]
) -> None:
    path = tmp_path / "clicks.csv"
    day = "2026-01-01 "
    lines = [f"{day}{ts},{day}{seen},{user},{page}" for ts, seen, user, page in TIMES]
    path.write_text("\n".join(["ts,seen,user,page", *lines, ""]))
    plan = parse_script(WINDOWED.format(path=path, what=what, options=options)).query.plan
    with start(tmp_path, plan) as job:
        list(job)
        counted = job.counters()
    assert places(kept(tmp_path)) == expected
    assert counted["over the contribution bound"] >= 1
    for reason, numbers in expected.items():
        assert counted[reason] == len(numbers)


def test_a_late_row_of_several_windows_is_kept_once(tmp_path: Path) -> None:
    path = tmp_path / "clicks.csv"
    path.write_text("ts,seen,user,page\n2026-01-01 00:50,2026-01-01 02:20,1,home\n")
    what = GROUPED.replace("TUMBLE", "HOP").replace(
        "size =>", "slide => INTERVAL 10 MINUTE, size =>"
    )
    plan = parse_script(WINDOWED.format(path=path, what=what, options="")).query.plan
    with start(tmp_path, plan) as job:
        list(job)
        counted = job.counters()
    assert counted["late"] > 1
    assert places(kept(tmp_path)) == {"late": [2]}


TABLE = """
CREATE TABLE people (op STRING, id INT64, city STRING CHECK (city IN ('Lima', 'Oslo')))
WITH (source = 'files', path = '{path}', changelog = 'insert-delete', operation = op, id = id);
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 9, delta = 1e-6, expected_size = 20000,
    steps = 2) city, COUNT(*) AS n FROM people GROUP BY city EMIT EVERY 4 ROWS
"""


def test_change_data_that_cannot_be_used_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "changes.csv"
    path.write_text("op,id,city\n+,1,Oslo\n?,2,Oslo\n+,,Oslo\n+,3,Rome\n+,1,Oslo\n")
    plan = parse_script(TABLE.format(path=path)).query.plan
    with start(tmp_path, plan) as job:
        list(job)
        counted = job.counters()
    assert places(kept(tmp_path)) == {
        "unknown operation": [3], "null id": [4], "outside the domain": [5],
    }  # fmt: skip
    assert [counted[f"rejected_{why}"] for why in ("operation", "id", "domain")] == [1, 1, 1]


def test_rows_of_sources_without_files_have_a_number_only(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, **TWO_ROWS)
    table = pa.table({
        "ts": pa.array([0, 1], pa.timestamp("us", "UTC")), "user": [1, None],
        "page": pa.array(["a", "b"]).dictionary_encode(), "ms": [1.0, 2.0],
    })  # fmt: skip
    source = replace(plan.source, kind="memory", options={"table": table})
    list(start(tmp_path, replace(plan, source=source)))
    [row] = kept(tmp_path)
    assert (row["reason"], row["file"], row["number"]) == ("null unit", None, 2)
    assert row["row"]["page"] == "b"


def test_combined_rows_have_no_place_and_lines_of_their_source_do(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("user,page,ms\n1,a,2\n,b,3\nbad\n")
    text = f"""
    CREATE STREAM t (user INT64, page STRING, ms FLOAT64)
        WITH (source = 'files', path = '{path}');
    SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 5, delta = 1e-6,
        privacy_unit_column = user, max_groups_contributed = 2)
        page, SUM(ms, contribution_bounds_per_group => (0, 10)) AS ms FROM t GROUP BY page
    """
    list(start(tmp_path, parse_script(text).query.plan))
    assert [(row["reason"], row["number"]) for row in kept(tmp_path)] == [
        (MALFORMED, 4), ("null unit", None),
    ]  # fmt: skip
    path.write_text("user,page,ms\nbad\n")
    again = parse_script(text).query.plan
    list(run(again, state=tmp_path / "new", rejects=tmp_path / "new-aside", **SEEDED))
    assert Counter(
        row["reason"]
        for part in (tmp_path / "new-aside").glob("batch-*")
        for row in pq.read_table(part).to_pylist()
    ) == {MALFORMED: 1}


def test_rejects_are_kept_in_a_long_replay_of_which_a_step_has_no_rows(tmp_path: Path) -> None:
    times = pa.array([0, 200 * 60_000_000 - 1], pa.timestamp("us", "UTC"))
    pq.write_table(pa.table({"ts": times, "user": [1, None]}), tmp_path / "t.parquet")
    text = """
    SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 5, delta = 1e-6,
        privacy_unit_column = user, max_rows_contributed = 2, start = '1970-01-01',
        end = '1970-01-01 03:20') COUNT(*) AS n FROM t EMIT EVERY INTERVAL 1 MINUTE
    """
    source = f"WITH (source = 'files', path = '{tmp_path}/t.parquet', event_time = 'ts');"
    plan = parse_script(f"CREATE STREAM t {source}{text}").query.plan
    assert len(list(start(tmp_path, plan))) == 200
    assert [(row["reason"], row["number"]) for row in kept(tmp_path)] == [("null unit", 2)]


CHANGED = {
    "alone": "SELECT user, tag AS page, ms, ts FROM t, UNNEST(SPLIT(page, '/')) AS tag",
    "beside": "SELECT user, page, ms, ts FROM t UNION ALL SELECT user, page, ms, ts FROM o",
    "joined": "SELECT t.user, o.page, t.ms, t.ts FROM t JOIN o ON t.user = o.user",
}


@pytest.mark.parametrize("name", CHANGED)
def test_lines_of_a_source_are_kept_beside_live_rows_of_other_columns(
    tmp_path: Path, name: str
) -> None:
    relation, more = CHANGED[name], ", join_rows = 1" * (name == "joined")
    for folder in "to":
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "1.csv").write_text(
            "user,page,ms,ts\n1,a,2,2026-01-01 00:30:00\nbad\n1,b,x,2026-01-01\n,c,2,2026-01-01\n"
        )
    columns = "(user INT64, page STRING, ms FLOAT64, ts TIMESTAMP)"
    options = ", follow = TRUE, event_time = 'ts'"
    text = f"""
    CREATE STREAM t {columns} WITH (source = 'files', path = '{tmp_path / "t"}'{options});
    CREATE STREAM o {columns} WITH (source = 'files', path = '{tmp_path / "o"}'{options});
    SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 5, delta = 1e-6, clock = 'wall', steps = 1,
        privacy_unit_column = user, max_rows_contributed = 2, start = '2026-01-01'{more})
        page, SUM(ms, contribution_bounds_per_row => (0, 10)) AS ms FROM ({relation}) GROUP BY page
    EMIT EVERY INTERVAL 1 HOUR
    """
    list(start(tmp_path, parse_script(text).query.plan))
    found = places([row for row in kept(tmp_path) if row["line"] is not None])
    assert found == {MALFORMED: [3], MISFIT: [4]}
