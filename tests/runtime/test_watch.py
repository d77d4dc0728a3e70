"""What an operator watches is the same for neighbours, unless exact counts are asked for."""

import json
import logging
import re
import signal
import socket
import struct
import subprocess
import sys
import time
import urllib.error
import urllib.request
import warnings
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from streamveil import compiled
from streamveil.cli import app
from streamveil.commands.stopping import Stopped
from streamveil.errors import (
    MissingExtraError,
    NoiseWarning,
    OperatorWarning,
    PlanError,
    SourceError,
    StoreError,
)
from streamveil.plan import Clock
from streamveil.runtime import job as runtime_job
from streamveil.runtime.progress import Progress
from streamveil.runtime.watch import Watch, behind, charged, exposition, logged, served
from streamveil.sql.sql import parse_script

HOUR = 3_600_000_000
SQL = """
CREATE STREAM clicks WITH (source = 'files', path = '{path}', event_time = 'ts');
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (
         epsilon = 1, delta = 1e-9, privacy_unit_column = user, max_rows_contributed = 3,
         public_groups = ['a', 'b'],
         start = TIMESTAMP '1970-01-01', end = TIMESTAMP '1970-01-01 04:00:00')
       page, COUNT(*) AS n
FROM clicks GROUP BY page EMIT EVERY INTERVAL 1 HOUR;
"""


@pytest.fixture
def script(tmp_path):
    """A query over rows of some users; of neighbours, one has all rows of user 7."""

    def made(name, users):
        path = tmp_path / f"{name}.parquet"
        user = np.repeat(users, 20)
        pq.write_table(pa.table({
            "user": user, "page": np.array(["a", "b"])[np.arange(len(user)) % 2],
            "ts": pa.array(np.linspace(0, 4 * HOUR - 1, len(user)).astype(np.int64),
                           pa.timestamp("us")),
        }), path)  # fmt: skip
        (tmp_path / f"{name}.sql").write_text(SQL.format(path=path))
        return tmp_path / f"{name}.sql"

    return made


def run(script, state, *more):
    result = CliRunner().invoke(app, ["run", str(script), "--state", str(state), *more])
    assert result.exit_code == 0, result.output
    return result


def lines(result):
    return [json.loads(line) for line in result.stderr.splitlines() if line.startswith("{")]


def test_log_lines_are_the_same_for_neighbours(script, tmp_path):
    told = []
    for name, users in (("more", range(50)), ("less", [u for u in range(50) if u != 7])):
        found = lines(run(script(name, list(users)), tmp_path / name, "--log", "json", "--quiet"))
        assert all(re.fullmatch(r"[-\dT:+]+", line.pop("time")) for line in found)
        told.append(found)
    assert told[0] == told[1]
    assert [line["step"] for line in told[0] if "step" in line] == [1, 2, 3, 4]
    assert [told[0][0]["event"], told[0][-1]["event"]] == ["starting", "nothing is left to do"]


def test_log_lines_of_a_grouped_replay_are_the_same_for_neighbours(script, tmp_path, monkeypatch):
    """The log takes parts of a group that are large, which depends on rows: no line says so."""
    monkeypatch.setattr(runtime_job, "HELD_BYTES", 500)
    told = []
    for name, users in (("more", range(50)), ("less", [u for u in range(50) if u != 7])):
        path = script(name, list(users))
        path.write_text(
            path.read_text().replace("EVERY INTERVAL 1 HOUR", "EVERY INTERVAL 1 MINUTE")
        )
        found = lines(run(path, tmp_path / name, "--log", "json", "--quiet"))
        told.append([line for line in found if line.pop("time")])
    steps = [line["step"] for line in told[0] if "step" in line]
    assert steps == list(range(3, 241, 3)), "a line for each group"
    assert told[0] == told[1]


def test_an_error_stands_on_stderr_once(script, tmp_path):
    path = script("gone", list(range(5)))
    next((tmp_path).rglob("*.parquet")).unlink()
    code = "from streamveil.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "run", str(path), "--state", str(tmp_path / "s"),
         "--log", "json", "--quiet"],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode
    assert done.stderr.count("no file matches") == 1
    assert "stopped: " in done.stderr


WALL = """
CREATE STREAM clicks WITH (source = 'files', path = '{path}', event_time = 'ts');
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (
         epsilon = 1, delta = 1e-9, privacy_unit_column = user, max_rows_contributed = 3,
         public_groups = ['a', 'b'], clock = 'wall', start = TIMESTAMP '1970-01-01', steps = 3)
       page, COUNT(*) AS n
FROM clicks GROUP BY page EMIT EVERY INTERVAL 1 HOUR;
"""


def test_a_step_without_rows_is_logged_as_one_with_them(script, tmp_path):
    """Of neighbours one has all rows of the first step: its micro-batches leave the step open."""
    told = []
    for name, users in (("all", [7]), ("none", [])):
        path = script(name, users)
        path.write_text(WALL.format(path=tmp_path / f"{name}.parquet"))
        result = run(path, tmp_path / f"state-{name}", "--log", "json")
        assert "micro-batches" not in result.stderr, "counts are no log lines"
        found = lines(result)
        assert len(found) == len(result.stderr.splitlines()), "nothing but log lines"
        assert [line["step"] for line in found if "step" in line] == [1, 2, 3]
        told.append([line for line in found if line.pop("time")])
    assert told[0] == told[1]


def test_a_log_has_no_line_of_what_is_compiled(script, tmp_path, monkeypatch):
    """It may compile when the first row comes, or the first that is late."""
    monkeypatch.setattr(compiled, "ON_COMPILING", [])
    for more, told in ((["--log", "json"], 0), (["--quiet"], 0), ([], 1)):
        run(script("q", [1]), tmp_path / "s", *more)
        assert len(compiled.ON_COMPILING) == told


@pytest.mark.parametrize("options", [[], ["--log", "text"]])
def test_a_run_says_when_its_first_release_is_due(options, script, tmp_path, monkeypatch):
    path, stops = script("q", [1]), Stopped(signal.SIGTERM)
    path.write_text(WALL.format(path=path.with_suffix(".parquet")).replace("1970", "2970"))
    clock = mock.Mock(wraps=time, sleep=mock.Mock(side_effect=stops))
    monkeypatch.setattr("streamveil.runtime.run.time", clock)
    result = CliRunner().invoke(app, ["run", str(path), "--state", str(tmp_path / "s"), *options])
    assert result.exception is stops
    assert "waits: the first release is due at 2970-01-01 01:00:00 UTC" in result.stderr


def test_a_log_says_of_a_run_of_what_is_due_that_more_may_come(script, tmp_path):
    path, begin = script("q", [1]), datetime.now(UTC) - timedelta(days=1)
    text = WALL.format(path=path.with_suffix(".parquet")).replace("steps = 3", "steps = 72")
    path.write_text(text.replace("1970-01-01", f"{begin:%Y-%m-%d}"))
    told = lines(run(path, tmp_path / "s", "--log", "json", "--once"))
    assert told[-1]["event"] == "what is due is done"


def test_a_line_that_names_no_job_is_of_all(capsys):
    with logged("text", "all", several=True):
        logging.getLogger("streamveil.files").warning("'a' is not whole yet")
    assert "WARNING all: 'a' is not whole yet" in capsys.readouterr().err


def test_a_log_tells_of_warnings_only_those_of_ours_that_are_public(capsys):
    said = (("much noise", NoiseWarning), ("3 rows are late", OperatorWarning),
            ("'alice' is odd", UserWarning))  # fmt: skip
    for job in "ab":  # in one process
        with logged("text", job):
            for text, category in said:
                warnings.warn(text, category, stacklevel=1)
    told = capsys.readouterr().err
    assert told.count("much noise") == 2
    assert "late" not in told
    assert "alice" not in told


def test_a_job_that_starts_again_knows_its_steps(script, tmp_path):
    plan = plan_of(script("q", [1]))
    object.__setattr__(plan, "clock", Clock(kind="wall", every=HOUR, start_us=0, steps=24))
    watch = Watch(plan, tmp_path / "s", now=lambda: 12.5 * 3600)
    assert watch.figures().healthy, "nothing is known yet"
    watch.begin(12)
    assert (watch.figures().step, watch.figures().behind, watch.figures().behind_seconds) == (
        12, 0, 0.0
    )  # fmt: skip
    watch.hear(Progress(900, 13, 5, 0, 0.0, 0, 0, unpublished=1))
    assert watch.figures().step == 12, "rows of an open step change nothing"
    watch.begin(9)
    assert (watch.figures().behind, watch.figures().behind_seconds) == (3, 2.5 * 3600)


def plan_of(script):
    return parse_script(script.read_text(), {}).query.plan


def test_metrics_are_the_same_for_neighbours_unless_exact(script, tmp_path):
    watch = Watch(plan_of(script("q", list(range(50)))), tmp_path / "s", now=lambda: 0.0)
    run(tmp_path / "q.sql", tmp_path / "s", "--quiet")
    pages = []
    for rows in (1000, 1020):
        watch.hear(Progress(4, 4, rows, 4, 1.0, 0, 0, {"malformed row": rows}, {"units": rows}))
        pages.append((exposition(watch), exposition(watch, exact=True)))
    assert pages[0][0] == pages[1][0]
    assert pages[0][1] != pages[1][1], "the operator asked for it"
    text = pages[0][0].decode()
    for line in ('streamveil_step{job="query"} 4.0', 'streamveil_steps{job="query"} 4.0',
                 'streamveil_epsilon_limit{job="query"} 1.0'):  # fmt: skip
        assert line in text
    assert 0.9 < float(re.search(r"epsilon_charged\S+ (\S+)", text)[1]) <= 1


def fetched(port, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_a_ledger_whose_first_line_is_being_written_has_no_charge_yet(tmp_path):
    path = tmp_path / "ledger"
    assert charged(path) == (None, None)
    for begun in (b"", b'{"version": 1'):
        path.write_bytes(begun)
        assert charged(path) == (None, None)
    path.write_bytes(b'{"version": 1}\n')
    with pytest.raises(StoreError):
        charged(path)  # it was altered


def test_of_a_damaged_ledger_words_are_served(script, tmp_path, capfd):
    """A scrape got "A server error occurred", and the log a traceback."""
    watch = Watch(plan_of(script("q", [1])), tmp_path, now=lambda: 0.0)
    with served("0", watch) as port:
        (tmp_path / "ledger").write_bytes(b'{"version": 1}\n')
        for page in ("/metrics", "/health"):
            status, words = fetched(port, page)
            assert status == 500
            assert "ledger" in words
            assert "to fix" in words
        (tmp_path / "ledger").unlink()
        assert fetched(port, "/health")[0] == 200
    assert capfd.readouterr().err == ""


def test_health_follows_the_public_calendar(script, tmp_path):
    plan = plan_of(script("q", [1]))
    clock = Clock(kind="wall", every=HOUR, start_us=0, steps=24)
    object.__setattr__(plan, "clock", clock)
    now = [2.5 * 3600]
    watch = Watch(plan, tmp_path / "s", now=lambda: now[0])
    watch.hear(Progress(1, 1, 0, 1, 0.0, 0, 0))
    with served("0", watch) as port:
        assert fetched(port, "/health") == (200, "ok\n")
        now[0] += 3600
        assert fetched(port, "/health") == (503, "2 steps behind\n")
        watch.hear(Progress(2, 3, 0, 3, 0.0, 0, 0))
        assert fetched(port, "/health")[0] == 200
        assert "streamveil_behind_steps" in fetched(port, "/metrics")[1]
        assert fetched(port, "/rows")[0] == 404
        with pytest.raises(SourceError, match="cannot be served at"), served(str(port), watch):
            pass
    assert behind(Clock(kind="rows", every=9, steps=3), 1, now[0]) == 0


def test_a_client_that_says_nothing_holds_up_neither_others_nor_the_end(script, tmp_path, capfd):
    watch = Watch(plan_of(script("q", [1])), tmp_path / "s", now=lambda: 0.0)
    with ExitStack() as clients, served("0", watch) as port:
        clients.enter_context(socket.create_connection(("127.0.0.1", port)))
        assert fetched(port, "/health") == (200, "ok\n")
        with socket.create_connection(("127.0.0.1", port)) as gone:  # and one that breaks off
            gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            gone.sendall(b"GET /metrics")
        assert fetched(port, "/health") == (200, "ok\n")
        ended = time.monotonic()
    assert time.monotonic() - ended < 5
    assert capfd.readouterr().err == ""


def test_other_peoples_messages_are_not_logged(capsys):
    with pytest.raises(KeyError), logged("json", "q"):
        raise KeyError("a row of Ann's")
    with pytest.raises(PlanError), logged("text", "q"):
        raise PlanError("told in words")
    said = capsys.readouterr().err
    assert "Ann" not in said
    assert "stopped by KeyError" in said
    assert "told in words" in said
    assert logging.getLogger("streamveil.job").handlers == []


@pytest.mark.parametrize("wrong", [["--log", "xml"], ["--metrics", "no port"], ["--exact-metrics"]])
def test_wrong_settings_are_refused_before_a_charge(script, tmp_path, wrong):
    command = ["run", str(script("q", [1])), "--state", str(tmp_path / "s"), *wrong]
    assert CliRunner().invoke(app, command).exit_code != 0
    assert not Path(tmp_path / "s" / "ledger").exists()


def test_the_missing_extra_is_named(script, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "prometheus_client", None)
    watch = Watch(plan_of(script("q", [1])), tmp_path, now=lambda: 0.0)
    with pytest.raises(MissingExtraError, match=r"streamveil\[metrics\]"), served("0", watch):
        pass
