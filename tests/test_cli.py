"""The command line: teaches by --help, explains, runs, resumes, and fails in one clear block."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from errno import ENAMETOOLONG
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from streamveil import cli, kept
from streamveil.accounts.ledger import Ledger
from streamveil.commands.answers import place
from streamveil.commands.common import print_rows, read_query, size_of, write_rows
from streamveil.core.accounting import Budget
from streamveil.errors import PlanError, SourceError

SECRET = "patient-4711"
QUERY = """
CREATE STREAM visits WITH (source = 'files', path = '{folder}/visits.parquet', event_time = 'ts');
CREATE SINK out WITH (sink = 'files', path = '{folder}/out', format = 'csv');
INSERT INTO out
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 2, delta = 1e-6, privacy_unit_column = person,
         privacy_unit_period = INTERVAL 1 DAY, max_rows_contributed = 2, max_rows_per_group = 1,
         start = '2026-01-01', end = '2026-01-02')
       window_start, ward, COUNT(*) AS n
FROM TUMBLE(TABLE visits, DESCRIPTOR(ts), size => INTERVAL 1 DAY)
GROUP BY window_start, ward
EMIT EVERY INTERVAL 6 HOUR;
"""


def test_keys_that_look_like_markup_are_printed_as_they_are(capsys):
    print_rows(pa.table({"url": ["[/home]", "[red]"], "n": [1, 2]}), "release 1")
    shown = capsys.readouterr().out
    assert [name for name in ("[/home]", "[red]") if name in shown] == ["[/home]", "[red]"]


def test_keys_of_any_time_and_any_bytes_are_printed_and_written(capsys, tmp_path):
    far = pa.array([0, 1 << 61]).cast(pa.timestamp("us"))
    table = pa.table({"at": far, "mark": [b"a", b"\xff"], "n": [1, 2]})
    print_rows(table, "release 1")
    assert "out of range" in capsys.readouterr().out
    for kind in ("csv", "json", "parquet", "arrow"):
        write_rows(table, tmp_path / f"rows.{kind}")


def test_groups_that_differ_are_shown_apart_and_numbers_are_not_written_out(capsys):
    seconds = pa.array([1, 2]).cast(pa.timestamp("s", "UTC"))
    table = pa.table({
        "at": seconds, "size": [10_000.25, 10_000.5], "year": [2025, 2026], "n": [1e300, 12_345.6],
        "n_low": [0.0, 0.0], "n_high": [1e300, 2e4],
    })  # fmt: skip
    print_rows(table, "release 1")
    shown = capsys.readouterr().out
    for text in ("00:00:01", "00:00:02", "10000.25", "10000.5", " 2026 ", "1e+300", "12,346"):
        assert text in shown
    assert max(map(len, shown.splitlines())) < 100


def test_a_wide_table_is_cut_by_nobody(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    print_rows(pa.table({f"column {i}": [1000 + i] for i in range(30)}), "release 1")
    shown = capsys.readouterr().out
    assert [i for i in range(30) if f"{1000 + i}" not in shown] == []
    assert {len(line) for line in shown.splitlines()[1:] if line} == {
        len(shown.splitlines()[1])
    }  # no line is folded


@pytest.mark.parametrize("place", ["streamveil.commands.run.read_script", "click.Group.parse_args"])
@pytest.mark.parametrize(
    ("raised", "code", "says"),
    [
        (KeyboardInterrupt, cli.INTERRUPTED, "Run again to resume"),
        (EOFError, 1, "unexpected failure: EOFError at"),  # of a reader: no command asks anything
        (OSError(ENAMETOOLONG, "", "s" * 300), 1, "the path 'sss"),
    ],
)
def test_ctrl_c_and_the_system_say_how_to_go_on(raised, code, says, place, monkeypatch, capsys):
    def interrupted(*_):
        raise raised

    monkeypatch.setattr(place, interrupted)
    monkeypatch.setattr(sys, "argv", ["streamveil", "run", "q.sql", "--state", "s"])
    monkeypatch.setattr(cli.signal, "signal", lambda *_: None)  # of the tests themselves
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == code
    assert says in capsys.readouterr().err


BUSY = """
import sys, time
from threading import Thread
from streamveil import cli
from streamveil.commands import run

def interrupted(*_):
    Thread(target=time.sleep, args=(60,)).start()  # an answer of the disk that takes its time
    raise KeyboardInterrupt

run.read_script = interrupted
sys.argv = ["streamveil", "run", "q.sql", "--state", "s"]
cli.main()
"""


def test_a_second_ctrl_c_ends_what_is_waited_for_in_silence():
    job = subprocess.Popen([sys.executable, "-c", BUSY], stderr=subprocess.PIPE, text=True)
    assert job.stderr is not None
    first = job.stderr.readline() + job.stderr.readline()  # after the terminal's own "^C"
    time.sleep(0.5)  # Python waits for the thread by now
    job.send_signal(signal.SIGINT)
    rest = job.communicate(timeout=50)[1]
    assert "Run again to resume" in first
    assert rest == ""
    assert job.returncode == -signal.SIGINT


def test_a_run_that_used_duckdb_ends_in_silence():
    code = """
import sys
from streamveil import cli
from streamveil.commands import run

def used(*_):
    import duckdb
    duckdb.connect().execute("SELECT 1").fetchall()
    sys.exit()

run.read_script = used
sys.argv = ["streamveil", "run", "q.sql", "--state", "s"]
cli.main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


LOADING = """
import os, signal, sys

class Interrupts:  # whoever loads numpy
    def find_spec(name, *_):
        if name == "numpy":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupts)
sys.argv = ["streamveil", "--version"]
from streamveil.__main__ import main
main()
"""


@pytest.mark.parametrize(("before", "code"), [("default_int_handler", cli.INTERRUPTED),
                                              ("SIG_IGN", 0)])  # fmt: skip
def test_ctrl_c_while_the_command_line_loads_ends_it_in_silence(before, code):
    """A shell starts what is in the background with SIG_IGN, so the handler is set here."""
    asked = f"import signal; signal.signal(signal.SIGINT, signal.{before})\n"
    done = subprocess.run([sys.executable, "-c", asked + LOADING], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (code, b"")


@pytest.mark.parametrize("text", ["lots", "-4GB", "0", "nan", "infGB", "1e400GB", "4XB", ""])
def test_sizes_that_are_none_are_refused(text):
    with pytest.raises(PlanError, match="--memory takes a number above 0"):
        size_of(text)


@pytest.fixture
def folder(tmp_path):
    """A small file of visits and a query over it."""
    people = 400
    hours = [i % 24 for i in range(people)]
    table = pa.table({
        "ts": pa.array([1_767_225_600_000_000 + h * 3_600_000_000 for h in hours],
                       pa.timestamp("us", "UTC")),
        "person": [f"{SECRET}-{i}" for i in range(people)],
        "ward": [["north", "south"][i % 2] for i in range(people)],
    })  # fmt: skip
    pq.write_table(table, tmp_path / "visits.parquet")
    (tmp_path / "q.sql").write_text(QUERY.format(folder=tmp_path))
    return tmp_path


@pytest.fixture(autouse=True)
def home(tmp_path_factory, monkeypatch):
    """Nobody's home."""
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))


FORKING = """
import gc, json, os, signal, sys
import numba, pyarrow.dataset, pyarrow.parquet, sqlglot
import streamveil.advise, streamveil.api, streamveil.compiler.group_by, streamveil.runtime.run
import streamveil.sql.parts
from streamveil import cli

gc.collect()
gc.freeze()  # no child collects it, which would copy all of its pages
for line in sys.stdin:
    arguments, env, files = json.loads(line)
    if child := os.fork():
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        continue
    signal.alarm(120)  # seconds
    os.environ.clear()
    os.environ.update(env)
    for number, name in enumerate(files):
        os.dup2(os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC), number)
    sys.argv = ["streamveil", *arguments]
    cli.main()
    sys.exit()
"""


@cache
def loaded():
    """A process that has loaded the command line and forks one for each call."""
    return subprocess.Popen([sys.executable, "-c", FORKING], env=environment(), text=True,
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def forking():
    yield
    if loaded.cache_info().currsize:
        loaded().stdin.close()
        assert loaded().wait(60) == 0


def environment():
    return {"PATH": "/usr/bin:/bin", "COLUMNS": "200", "NO_COLOR": "1",
            **{name: os.environ[name] for name in ("HOME", kept.FOLDER)},
            "PYTHONPATH": str(Path(cli.__file__).parents[1])}  # fmt: skip


def call(*arguments, **env):
    """Runs the whole program; returns (exit code, output, errors) without escape codes."""
    typed = [*map(str, arguments)]
    strip = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
    if env:  # it is read when Python starts
        done = subprocess.run([sys.executable, "-m", "streamveil", *typed], timeout=120,
                              capture_output=True, text=True, check=False,
                              env=environment() | env)  # fmt: skip
        return done.returncode, strip.sub("", done.stdout), strip.sub("", done.stderr)
    with tempfile.TemporaryDirectory() as folder:
        shown, errors = (Path(folder) / name for name in ("out", "err"))
        told = json.dumps([typed, environment(), [os.devnull, str(shown), str(errors)]])
        print(told, file=loaded().stdin, flush=True)
        code = int(loaded().stdout.readline())
        return code, strip.sub("", shown.read_text()), strip.sub("", errors.read_text())


NOISE = "warning: ", "  to fix  a larger epsilon", "  to fix  larger bounds"  # of few rows


def without_cut(errors):
    """What a run says, but for how many rows were over the bound, which it always says."""
    lines = errors.splitlines()
    said = "over the contribution bound", "a private look at the rows"
    kept = [line for line in lines if not any(words in line for words in (*said, *NOISE))]
    assert any(said[0] in line for line in lines)
    return kept


def test_no_command_loads_pandas_for_arrow(folder):
    """Arrow loads it, where it is installed, at the first value that it makes."""
    pytest.importorskip("pandas")
    arguments = ["-X", "importtime", "-m", "streamveil", "run", "q.sql", "--state", "s", "--quiet"]
    done = subprocess.run([sys.executable, *arguments], cwd=folder, timeout=120, text=True,
                          capture_output=True, check=True, env=environment())  # fmt: skip
    loaded_modules = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "pyarrow" in loaded_modules
    assert "pandas.core" not in loaded_modules


def test_run_resume_inspect_and_ledger(folder):
    state = folder / "q.veil"
    code, _, errors = call("run", folder / "q.sql", "--state", state, "--quiet")
    assert (code, without_cut(errors)) == (0, [])
    written = {f.name: f.read_bytes() for f in sorted((folder / "out").rglob("*.csv"))}
    assert len(written) >= 4
    assert call("run", folder / "q.sql", "--state", state, "--quiet")[0] == 0
    assert written == {f.name: f.read_bytes() for f in sorted((folder / "out").rglob("*.csv"))}

    code, shown, _ = call("inspect", state)
    assert code == 0
    assert "out" in shown
    code, shown, _ = call("ledger", "show", state)
    assert code == 0
    assert "epsilon = 2" in shown or "epsilon = 1.9" in shown
    assert len(call("ledger", "verify", state)[1].strip()) >= 32
    assert "in 7 days" in call("ledger", "convert", state, "--to", "user-week")[1]
    assert json.loads(call("ledger", "export", state)[1])["protects"]["unit"] == "person"
    assert call("ledger", "convert", state, "--to", "user-fortnight")[0] == 2

    changed = (folder / "q.sql").read_text().replace("epsilon = 2", "epsilon = 3")
    (folder / "q.sql").write_text(changed)
    code, _, errors = call("run", folder / "q.sql", "--state", state, "--quiet")
    assert code == 4
    assert errors.startswith("StoreError: ")


def test_rejected_rows_are_kept_where_asked_and_nowhere_else(folder):
    table = pq.read_table(folder / "visits.parquet")
    persons = pa.array([None if i == 7 else f"{SECRET}-{i}" for i in range(400)])
    pq.write_table(table.set_column(1, "person", persons), folder / "visits.parquet")
    given = ("run", folder / "q.sql", "--state", folder / "s", "--rejects", folder / "aside")
    code, shown, errors = call(*given, "--engine", "spark")
    assert (code, shown) == (2, "")
    assert "embedded engine only" in errors
    assert not (folder / "aside").exists()
    code, shown, errors = call(*given)
    assert code == 0
    assert without_cut(errors)[1:] == ["rows that could not be used: null unit (1)"]
    assert SECRET not in shown + errors
    [path] = (folder / "aside").glob("batch-*.parquet")
    [row] = pq.read_table(path).to_pylist()
    assert (row["reason"], row["number"], row["row"]["ward"]) == ("null unit", 8, "south")


def test_a_query_may_begin_with_a_byte_order_mark(folder):
    text = (folder / "q.sql").read_text()
    (folder / "q.sql").write_text(text, encoding="utf-8-sig")
    assert read_query(folder / "q.sql").plan.unit == "person"


@pytest.mark.parametrize(
    ("option", "value", "engine"),
    [("--memory", "4GB", "spark"), ("--shards", 2, "embedded"),
     ("--storage", "there", "embedded"), ("--master", "local[2]", "embedded")],
)  # fmt: skip
def test_an_option_of_the_other_engine_is_refused_not_passed_over(option, value, engine, folder):
    given = ("run", folder / "q.sql", "--state", folder / "s", "--engine", engine)
    code, shown, errors = call(*given, option, value)
    assert (code, shown) == (2, "")
    assert option in errors
    assert not (folder / "s").exists()


def test_a_live_job_that_is_run_before_a_step_ends_does_nothing_and_says_when(folder):
    """Run by a timer more often than steps come, it closed one each time, ahead of the calendar."""
    begins = datetime.now(UTC).replace(microsecond=0)
    (folder / "in").mkdir()
    rows = pa.table({"person": np.arange(400), "page": np.arange(400) % 3})
    pq.write_table(rows, folder / "in" / "1.parquet")

    def first_hour(state, more):
        (folder / "f.sql").write_text(f"""
            CREATE STREAM visits (person INT64, page INT64)
              WITH (source = 'files', path = '{folder}/in/*.parquet', follow = TRUE);
            SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 2, delta = 1e-7, clock = 'wall',
                     privacy_unit_column = person, steps = 2{more},
                     start = TIMESTAMP '{begins:%Y-%m-%d %H:%M:%S}')
                   page, COUNT(*) AS n FROM visits GROUP BY page EMIT EVERY INTERVAL 1 HOUR""")
        return call("run", folder / "f.sql", "--state", folder / state, "--once")

    ends = begins + timedelta(hours=1)
    code, shown, said = first_hour("a.veil", ", max_rows_contributed = 1, look_share = 0")
    assert (code, shown) == (0, "")
    assert f"nothing to do yet: step 1 ends at {ends:%Y-%m-%d %H:%M:%S} UTC" in said
    code, shown, said = first_hour("b.veil", "")
    assert (code, shown) == (cli.CODES[SourceError], "")
    assert "the first release is not due yet" in said
    assert "a new state directory, for which a shared ledger is charged again" in said


def test_a_followed_folder_without_new_rows_is_not_said_to_be_done(folder):
    """The line said that later rows are in no release, with seven steps to come."""
    (folder / "arriving").mkdir()
    rows = pa.table({"person": np.arange(400)})
    pq.write_table(rows, folder / "arriving" / "1.parquet")
    (folder / "f.sql").write_text(f"""
        CREATE STREAM visits (person INT64)
          WITH (source = 'files', path = '{folder}/arriving/*.parquet', follow = TRUE);
        SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 2, delta = 1e-7,
                 privacy_unit_column = person, max_rows_contributed = 1, steps = 2)
               COUNT(*) AS n FROM visits EMIT EVERY 400 ROWS""")
    again = ("run", folder / "f.sql", "--state", folder / "f.veil", "--once")
    assert call(*again)[0] == 0
    assert "nothing to do yet: step 2 has not all of its rows" in call(*again)[2]
    pq.write_table(rows, folder / "arriving" / "2.parquet")
    assert call(*again)[0] == 0
    assert "nothing left to do" in call(*again)[2]


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (("run", "q.sql", "--keep-releases", "abc"), "'--keep-releases': 'abc' is not a valid int"),
        (("tune", "q.sql", "--fraction", "half"), "'--fraction': 'half' is not a valid float"),
        (("derive", "top", "pages", "n", "-k", "abc"), "'-k': 'abc' is not a valid integer"),
        (("run", "q.sql", "--stat", "x"), "--storage"),
        (("ask", "q.sql", "COUNT(*)"), "Missing option '--state'"),
    ],
)
def test_a_wrong_option_is_named_with_its_value(command, says):
    code, _, err = call(*command)
    assert (code, says in err) == (2, True), err


def test_what_was_typed_stays_in_its_line_and_is_spelled_out():
    code, shown, err = call("run", "q.sql", "x\nspent: nothing\x1b[2J")
    assert (code, shown) == (2, "")
    assert r"(x\nspent: nothing\x1b[2J)" in err, err


@pytest.mark.parametrize("group", [(), ("ledger",), ("derive",)])
def test_a_group_alone_gives_its_help(group):
    code, shown, err = call(*group)
    assert (code, err, "Usage: " in shown) == (2, "", True)


def test_wrong_use_with_a_closed_stream_is_wrong_use():
    wrong = ["sh", "-c", '"$0" -m streamveil runn 2>&-', sys.executable]
    assert subprocess.run(wrong, check=False).returncode == 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that Linux has")
def test_a_full_disk_under_the_output_is_no_bug():
    full = ["sh", "-c", '"$0" -m streamveil --help > /dev/full', sys.executable]
    done = subprocess.run(full, check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("the output cannot be written: No space left on device")


def test_run_reports_memory_and_takes_a_limit(folder):
    code, _, err = call("run", folder / "q.sql", "--state", folder / "a.veil")
    assert code == 0
    (summary,) = without_cut(err)  # no bar where nobody watches
    assert re.search(r"400 rows in .*4 releases; memory at most [1-9][\d,]* MiB", summary), err
    expected = {p.name: p.read_bytes() for p in folder.rglob("out/**/*.csv")}
    assert expected
    code, _, err = call("run", folder / "q.sql", "--state", folder / "a.veil")
    assert (code, without_cut(err)) == (
        0, ["nothing left to do: all releases were made before; rows that came later are in none"]
    )  # fmt: skip
    code, _, err = call("run", folder / "q.sql", "--state", folder / "b.veil", "--memory", "50MB")
    assert code == cli.CODES[cli.PlanError]
    assert "give at least" in err
    limited = ("run", folder / "q.sql", "--state", folder / "b.veil", "--memory", "4GB", "--quiet")
    code, _, err = call(*limited)
    assert code == cli.CODES[cli.StoreError]
    assert "holds another release" in err  # of the first state
    shutil.rmtree(folder / "out")
    code, _, err = call(*limited)
    assert (code, without_cut(err)) == (0, [])


def test_explain_reads_no_data(folder):
    (folder / "visits.parquet").unlink()
    runner = CliRunner()
    done = runner.invoke(cli.app, ["explain", str(folder / "q.sql"), "--forecast"])
    assert done.exit_code == 0
    assert done.stdout.startswith("PROMISE")
    numbers = json.loads(
        runner.invoke(cli.app, ["explain", str(folder / "q.sql"), "--json"]).stdout
    )
    assert numbers["triggers"] == 4


def test_explain_privacy_in_the_script_describes_instead_of_running(folder):
    text = (folder / "q.sql").read_text().replace("INSERT INTO", "EXPLAIN PRIVACY INSERT INTO")
    (folder / "q.sql").write_text(text)
    done = CliRunner().invoke(cli.app, ["run", str(folder / "q.sql")])
    assert done.stdout.startswith("PROMISE")


def test_a_survey_of_private_rows_says_what_the_forecast_chooses(folder):
    """It ended in a ValueError, after it had been charged."""
    people = np.repeat(np.arange(9_000), 2)
    table = pa.table({
        "ts": pa.array(np.full(len(people), 1_767_225_600_000_000), pa.timestamp("us", "UTC")),
        "person": people, "ward": people % 7,
    })  # fmt: skip
    pq.write_table(table, folder / "private.parquet")
    code, shown, errors = call(
        "tune", folder / "q.sql", "--private", folder / "private.parquet", "--epsilon", "6",
    )  # fmt: skip
    assert code == 0, errors
    chosen = shown.partition("the forecast chooses\n")[2]
    assert re.search(r"^  hidden_groups = \d+$", chosen, re.M)
    assert "selection = auto" in chosen


@pytest.mark.parametrize("pays", ["--private", "--sample"])
def test_no_survey_of_files_that_are_not_there_is_paid_for(folder, pays):
    call("ledger", "create", folder / "new", "--unit", "person", "--per", "1 day", "--epsilon", "8")
    before, query = (folder / "new").read_bytes(), folder / "declared.sql"
    declared = "visits (ts TIMESTAMP, person INT64, ward INT64) WITH ("
    query.write_text((folder / "q.sql").read_text().replace("visits WITH (", declared))
    paid = ["--ledger", folder / "new"] if pays == "--private" else []
    code, _, errors = call("tune", query, pays, folder / "missing*.parquet", *paid)
    assert (code, "no file matches" in errors) == (5, True), errors
    assert (folder / "new").read_bytes() == before


ONCE = "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 2, delta = 1e-6, {}) {} FROM {}"
OF_PERSON = "privacy_unit_column = person, max_rows_contributed = 2"
DP_SQLP = ", preset = 'dp-sqlp', start = '2026-01-01', end = '2026-01-02'"
SURVEYED = {  # query -> what a refusal names; '': the ledger pays
    ONCE.format(OF_PERSON, "ward, COUNT(*) AS n", "visits GROUP BY ward"): "",
    ONCE.format(OF_PERSON, "HEAVY_HITTERS(ward, k => 3, text_length => 4) AS n",
                "visits"): "a sketch",
    ONCE.format(OF_PERSON + DP_SQLP, "ward, COUNT(*) AS n",
                "visits GROUP BY ward EMIT EVERY INTERVAL 6 HOUR"): "dp-sqlp",
    ONCE.format("steps = 3, expected_size = 50, accept_error = TRUE", "COUNT(*) AS n",
                "people EMIT EVERY 100 ROWS"): "a changing table",
    ONCE.format(OF_PERSON + ", max_units = 100000000000000000", "ward, COUNT(*) AS n",
                "visits GROUP BY ward"): "max_units",
}  # fmt: skip


@pytest.mark.parametrize(("text", "refusal"), SURVEYED.items(), ids=range(len(SURVEYED)))
def test_the_ledger_pays_for_a_survey_and_for_none_without_advice(folder, text, refusal):
    """Sketches, changing tables and a preset were paid for, and then refused."""
    source = QUERY.partition(";")[0].format(folder=folder)
    people = (
        "CREATE TABLE people (ward CHECK (ward BETWEEN 0 AND 6)) WITH (source = 'files',"
        f" path = '{folder}/visits.parquet', changelog = 'insert', id = person)"
    )
    query, ledger = folder / "asked.sql", folder / "paid"
    query.write_text(f"{source}; {people}; {text}")
    call("ledger", "create", ledger, "--unit", "person", "--epsilon", "90", "--delta", "1e-3")
    code, _, errors = call(
        "tune", query, "--private", folder / "visits.parquet", "--epsilon", "80", "--delta",
        "1e-4", "--ledger", ledger,
    )  # fmt: skip
    charged = [one.loss for one in Ledger.load(ledger).entries()]
    assert (code, refusal in errors) == (2 if refusal else 0, True), errors
    assert [one.fits(Budget(epsilon=80, delta="1e-4")) for one in charged] == [True] * (not refusal)
    assert not any(one.fits(Budget(epsilon=79, delta="1e-4")) for one in charged)


def test_a_survey_with_a_target_is_refused_before_it_is_paid_for(folder):
    code, _, errors = call(
        "tune", folder / "q.sql", "--private", folder / "visits.parquet", "--target", "0.1",
    )  # fmt: skip
    assert code == 2
    assert "leave --target and --units out" in errors


def test_tune_reads_a_public_sample(folder):
    code, shown, errors = call(
        "tune", folder / "q.sql", "--sample", folder / "visits.parquet", "--fraction", "0.5",
    )  # fmt: skip
    assert (code, errors) == (0, "")
    assert "least l1 first" in shown
    assert "keeps 100.0% of the rows" in shown
    assert "max rows" in shown
    assert "…" not in shown  # no cell is cut


def test_a_file_answers_once_without_declarations(folder):
    (folder / "once.sql").write_text(
        "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 2, delta = 1e-6, "
        "privacy_unit_column = person) ward, COUNT(*) AS n FROM visits GROUP BY ward"
    )
    table = f"visits={folder}/visits.parquet"
    state = folder / "once.veil"
    code, shown, errors = call(
        "run", folder / "once.sql", "--state", state, "--quiet", "--table", table
    )
    assert (code, without_cut(errors)) == (0, [])
    assert "north" in shown
    assert "interval" in shown


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        (("epsilon = 2", "epsilonn = 2"), 2, "PlanError: unknown option 'epsilonn'"),
        (("person,", "persn,"), 2, "unknown column 'persn'; did you mean 'person'?"),
        (("visits.parquet", "visitors.parquet"), 5, "SourceError: "),
        (("SELECT", "SELEKT"), 2, "PlanError: "),
    ],
)
def test_errors_are_one_block_without_traceback_or_data(folder, change, code, message):
    (folder / "q.sql").write_text((folder / "q.sql").read_text().replace(*change))
    got, _, errors = call("run", folder / "q.sql", "--state", folder / "s", "--quiet")
    assert message in errors
    assert got == code
    assert "Traceback" not in errors
    assert SECRET not in errors


def test_a_bug_shows_its_place_and_no_message(monkeypatch, capsys):
    def broken():
        raise ValueError(f"could not convert '{SECRET}'")

    monkeypatch.setattr(cli, "app", broken)
    monkeypatch.delenv(cli.DEBUG, raising=False)
    with pytest.raises(SystemExit) as left:
        cli.main()
    shown = capsys.readouterr().err
    assert left.value.code == 1
    assert "ValueError at cli.py:" in shown
    assert SECRET not in shown
    monkeypatch.setenv(cli.DEBUG, "1")
    with pytest.raises(ValueError, match=SECRET):
        cli.main()


def test_wrong_use():
    runner = CliRunner()
    code, _, errors = call("run", "/nowhere.sql", "--state", "/tmp/x")
    assert (code, "No such file or directory" in errors) == (2, True)
    assert runner.invoke(cli.app, ["--version"]).stdout.startswith("streamveil ")
    assert call("inspect", "/nowhere")[0] == 4
    assert call("ledger", "show", "/nowhere")[0] == 4


def test_help_teaches():
    runner = CliRunner()
    top = runner.invoke(cli.app, ["--help"]).stdout
    for command in cli.app.commands:
        assert command in top
    assert "Example:" in runner.invoke(cli.app, ["run", "--help"]).stdout
    assert "130" in top


def test_the_help_has_each_command_once_in_the_order_of_use():
    top = CliRunner().invoke(cli.app, ["--help"]).stdout
    order = [name for names in cli.PANELS.values() for name in names]
    assert sorted(order) == sorted(cli.app.commands)
    named = [name for name in re.findall(r"^  ([a-z][a-z-]+)  ", top, re.M) if name in order]
    assert named == order
    assert all(panel in top for panel in cli.PANELS)


def test_an_option_out_of_range_is_refused_with_its_value(folder):
    for option, value in (("--threads", "0"), ("--keep-releases", "-3")):
        code, _, errors = call("run", folder / "q.sql", "--state", folder / "s", option, value)
        assert code == 2
        assert f"not {value}" in " ".join(errors.split())


def test_a_shared_ledger_of_another_unit_is_refused_in_words(folder):
    shared = folder / "shared"
    made = call("ledger", "create", shared, "--unit", "device", "--epsilon", 8, "--delta", "1e-6")
    assert made[0] == 0
    code, _, errors = call("run", folder / "q.sql", "--state", folder / "s", "--ledger", shared)
    assert code == cli.CODES[cli.PlanError]
    assert "made for this privacy unit and period" in errors


@pytest.mark.parametrize(
    ("command", "wrong", "word"),
    [
        ("run QUERY", "--quiet", "--state q.veil makes it"),
        ("tune QUERY --sample ROWS", "--metric l3", "metric"),
        ("tune QUERY --private ROWS", "--epsilon abc", "epsilon must be a finite number"),
        ("tune QUERY --private ROWS", "--epsilon 0", "epsilon must be above 0"),
        ("tune QUERY --private ROWS", "--sample ROWS", "give one of them"),
        ("audit QUERY", "--alpha 2", "--alpha is a chance"),
        ("explain QUERY", "--groups -1", "--groups"),
        ("derive top nowhere n", "--hidden -1", "--hidden"),
        ("ledger create new --epsilon 1", "--unit=", "--unit is empty"),
        ("ledger create new --unit u", "--epsilon 0", "epsilon must be above 0"),
    ],
)
def test_what_is_typed_is_refused_by_name(folder, command, wrong, word, monkeypatch, capsys):
    names = {"QUERY": str(folder / "q.sql"), "ROWS": str(folder / "visits.parquet")}
    words = [names.get(part, part) for part in f"{command} {wrong}".split()]
    monkeypatch.setattr(sys, "argv", ["streamveil", *words])
    with pytest.raises(SystemExit) as left:
        cli.main()
    said = capsys.readouterr().err
    assert left.value.code == 2
    assert word in said
    assert "a bug" not in said


def test_a_release_has_at_most_two_numbers():
    assert [place("4"), place("20454/4"), place(None)] == [4, ("20454", 4), None]
    assert place("2026-01-01") == "2026-01-01"  # its last release
    for text in ("2/3/4", "", "/4", "1/"):
        with pytest.raises(PlanError, match="WINDOW/TRIGGER"):
            place(text)


def test_names_that_look_like_markup_are_shown(tmp_path):
    ledger = tmp_path / "clicks.ledger"
    limit = ("--epsilon", 1, "--delta", "1e-6")
    assert call("ledger", "create", ledger, "--unit", "user[/red]", *limit)[0] == 0
    code, shown, _ = call("ledger", "show", ledger)
    assert code == 0
    assert "user[/red]" in shown


def test_a_terminal_of_few_characters_gets_the_others_spelled_out(folder):
    assert call("run", folder / "q.sql", "--state", folder / "s")[0] == 0
    for encoding in ("ascii", "latin-1"):
        code, shown, errors = call("read", folder / "s", PYTHONIOENCODING=encoding)
        assert (code, errors) == (0, "")
        assert "north" in shown
        assert "\\u2026" in shown
