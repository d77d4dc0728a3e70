"""Commands about what was released and spent, as a new user would type them."""

import json
from shutil import copytree

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import streamveil as sv
from streamveil import cli
from streamveil.commands import answers, ledger
from streamveil.commands.audit import REFUTED
from streamveil.core.counters.blt import BltSchedule
from streamveil.errors import BudgetError, PlanError, StoreError

QUERY = """
CREATE STREAM visits WITH (source = 'files', path = '{folder}/visits.parquet', event_time = 'ts');
CREATE SINK pages WITH (sink = 'files', path = '{folder}/out', format = 'csv');
INSERT INTO pages
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 4, delta = 1e-6, privacy_unit_column = person,
         privacy_unit_period = INTERVAL 1 DAY, max_rows_contributed = 2, max_rows_per_group = 1,
         start = '2026-01-01', end = '2026-01-02')
       window_start, ward, COUNT(*) AS n, SUM(age, contribution_bounds_per_row => (0, 100)) AS age
FROM TUMBLE(TABLE visits, DESCRIPTOR(ts), size => INTERVAL 1 DAY)
GROUP BY window_start, ward
EMIT EVERY INTERVAL 6 HOUR;
"""


def call(*arguments):
    """What a command prints; errors come as they are raised."""
    return CliRunner().invoke(cli.app, [str(a) for a in arguments], catch_exceptions=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A job that has run, charged to a shared ledger."""
    home = tmp_path_factory.mktemp("commands")
    people = 3000
    rng = np.random.default_rng(1)
    hours = np.sort(rng.integers(0, 24, people))
    pq.write_table(pa.table({
        "ts": pa.array(1_767_225_600_000_000 + hours * 3_600_000_000, pa.timestamp("us", "UTC")),
        "person": np.arange(people), "ward": rng.choice(["north", "south", "west"], people),
        "age": rng.integers(0, 100, people),
    }), home / "visits.parquet")  # fmt: skip
    (home / "q.sql").write_text(QUERY.format(folder=home))
    made = call("ledger", "create", home / "l", "--unit", "person", "--per", "1 day",
                "--epsilon", "4", "--delta", "1e-6")  # fmt: skip
    assert made.exit_code == 0
    assert "epsilon=4, delta=1e-06" in made.stdout
    done = call(
        "run", home / "q.sql", "--state", home / "q.veil", "--quiet", "--ledger", home / "l"
    )
    assert done.exit_code == 0
    return home


def test_a_second_job_is_refused_by_the_shared_ledger(folder):
    with pytest.raises(BudgetError, match="would overspend the ledger 'l'"):
        call("run", folder / "q.sql", "--state", folder / "b.veil", "--quiet",
             "--ledger", folder / "l")  # fmt: skip
    again = call("run", folder / "q.sql", "--state", folder / "q.veil", "--quiet",
                 "--ledger", folder / "l")  # fmt: skip
    assert again.exit_code == 0
    record = json.loads(call("ledger", "export", folder / "l").stdout)
    assert [charge["charge"] for charge in record["charges"]] == ["pages"]
    with pytest.raises(StoreError, match=r"never changed[^$]*name a new one"):
        call("ledger", "create", folder / "l", "--unit", "person", "--epsilon", "9")
    with pytest.raises(PlanError, match="none was given"):
        call("ledger", "create", folder / "m", "--unit", "person")


def test_show_says_that_tables_count_by_their_own_epsilon(folder, tmp_path):
    """Nothing was left of a limit of 4 though less was spent, and no line said why."""
    text = QUERY.format(folder=folder).replace("INSERT INTO pages", "")
    (tmp_path / "q.sql").write_text(text.replace("epsilon = 4", "epsilon = 2, selection = 'table'"))
    call("ledger", "create", tmp_path / "l", "--unit", "person", "--per", "1 day",
         "--epsilon", "4", "--delta", "2e-6")  # fmt: skip
    said = []
    for state in ("a", "b"):
        call("run", tmp_path / "q.sql", "--state", tmp_path / state, "--quiet",
             "--ledger", tmp_path / "l")  # fmt: skip
        said.append(call("ledger", "show", tmp_path / "l").stdout)
    assert ["tables count by their own epsilon" in one for one in said] == [False, True]
    assert "left:  epsilon = 0 (" in said[1]


@pytest.mark.parametrize(("per", "begins"), [
    ("1 week", " of 7 days, one of which begins at 1970-01-05 00:00:"), ("7 days", " of 7 days:"),
    ("1 month", "each month:"),
])  # fmt: skip
def test_a_ledger_of_weeks_is_none_of_seven_days(folder, tmp_path, per, begins):
    made = call("ledger", "create", tmp_path / "l", "--unit", "person", "--per", per,
                "--epsilon", "4", "--delta", "1e-6")  # fmt: skip
    assert begins in made.stdout


def test_read_lists_picks_and_writes(folder, tmp_path):
    places = call("read", folder / "q.veil", "--list").stdout.split()
    assert places == [f"2026-01-01/{t}" for t in range(1, 5)]
    charged = (folder / "q.veil" / "ledger").read_bytes()
    for kind in ("csv", "json", "parquet", "arrow"):
        out = tmp_path / f"r.{kind}"
        done = call("read", folder / "q.veil", "--trigger", 3, "--key", "ward=north", "--out", out)
        assert done.stdout.startswith("1 row: ")
        assert out.stat().st_size > 0
    table = pa.ipc.open_file(tmp_path / "r.arrow").read_all()  # as Feather and Polars read it
    assert table["ward"].to_pylist() == ["north"]
    first = call("read", folder / "q.veil").stdout
    assert first == call("read", folder / "q.veil").stdout
    assert "north" in call("read", folder / "out").stdout
    for source, options, told in (("q.veil", (), True), ("out", (), False),
                                  ("q.veil", ("--sql", folder / "q.sql"), False)):  # fmt: skip
        said = call("read", folder / source, *options).output
        assert ("--sql QUERY computes the query" in said) == told
    notes = sv.read(folder / "q.veil").notes
    assert notes, "a release of bounded rows says what is in no number"
    assert all(f"note: {note}" in call("read", folder / "q.veil").output for note in notes)
    assert (folder / "q.veil" / "ledger").read_bytes() == charged
    other = tmp_path / "other.sql"
    other.write_text((folder / "q.sql").read_text().replace("(0, 100)", "(0, 50)"))
    with pytest.raises(StoreError, match=r"query changed.\n  changed .*high was 100"):
        call("read", folder / "q.veil", "--sql", other)
    for arguments, words in (
        (("--trigger", "9"), "there is no release 9"),
        (("--key", "ward"), "column=value"),
        (("--key", "ward is null"), "shows no such group"),
        (("--key", "wart IS NULL"), "did you mean 'ward'"),
        (("--out", "x.xls"), "must end in"),
        *(
            (("--out", f"/nowhere/x.{kind}"), "/nowhere/x.* cannot be written: No such file")
            for kind in ("csv", "json", "parquet", "arrow")
        ),
    ):
        with pytest.raises(PlanError, match=words):
            call("read", folder / "q.veil", *arguments)


def test_derive_answers_from_state_and_files_alike(folder, tmp_path):
    state, files = folder / "q.veil", folder / "out"
    for question in (
        ("difference", "n", "--since", "20454/1"),
        ("last", "age", "--triggers", "2"),
        ("ratio", "age", "n", "--triggers", "2"),
        ("top", "n", "-k", "2"),
    ):
        name, *rest = question
        outs = [tmp_path / f"{name}{place}.csv" for place in (1, 2)]
        done = call("derive", name, state, *rest, "--out", outs[0])
        assert done.exit_code == 0
        assert "note: " in done.stdout
        call("derive", name, files, *rest, "--sql", folder / "q.sql", "--out", outs[1])
        assert outs[0].read_text().splitlines()[0] == outs[1].read_text().splitlines()[0]
        one, two = (np.genfromtxt(out, delimiter=",", skip_header=1)[:, 1:5] for out in outs)
        np.testing.assert_allclose(one, two, rtol=1e-9)
    assert "correlation" not in call("derive", "difference", files, "n").stdout
    for text, message in (("noon", "no window 'noon'; known: "), ("1/", "WINDOW/TRIGGER")):
        with pytest.raises(PlanError, match=message):
            call("derive", "difference", state, "n", "--at", text)


def test_dashboard_writes_its_page(folder, tmp_path):
    done = call("dashboard", folder / "q.veil", "--out", tmp_path / "d.html")
    assert "d.html" in done.stdout
    assert "Ledger" in (tmp_path / "d.html").read_text()
    call("dashboard", folder / "out", "--out", tmp_path / "e.html", "--ledger", folder / "l")
    assert "budget spent" in (tmp_path / "e.html").read_text()
    assert "correlation" not in (tmp_path / "e.html").read_text()
    bare = copytree(folder / "out", tmp_path / "bare")
    for beside in bare.rglob("metadata=*"):
        beside.unlink()
    call("dashboard", bare, "--out", tmp_path / "e.html")
    assert "correlation" in (tmp_path / "e.html").read_text()
    call("dashboard", bare, "--out", tmp_path / "f.html", "--sql", folder / "q.sql")
    assert "correlation" not in (tmp_path / "f.html").read_text()
    with pytest.raises(PlanError, match="cannot be written"):
        call("dashboard", folder / "out", "--out", "/nowhere/f.html")


def test_audit_prints_its_bets_and_fails_when_a_claim_does(folder, monkeypatch):
    from streamveil.audit import reduced, residuals

    seen = call("audit", folder / "q.sql")
    assert seen.exit_code == 0
    assert "the claim stands" in seen.stdout
    assert seen.stdout.count("stands") == 2 + 2 + 1  # lanes, shown, the last line
    planted = call("audit", folder / "q.sql", "--plant")
    assert planted.exit_code == 0
    assert "as it must be" in planted.stdout
    assert "REFUTED after" in planted.stdout
    honest = residuals.noise_tests
    monkeypatch.setattr(
        residuals, "noise_tests", lambda plan, alpha, _: honest(plan, alpha, reduced.halved)
    )
    caught = call("audit", folder / "q.sql")
    assert caught.exit_code == REFUTED
    assert "please report this query" in caught.stdout


def test_verify_privacy_prints_the_worst_pair_and_fails_when_a_claim_does(folder, monkeypatch):
    seen = call("verify-privacy", folder / "q.sql", "--seconds", "2")
    assert seen.exit_code == 0
    assert "the claim stands" in seen.stdout
    assert "all counters together" in seen.stdout
    assert "the worst: a unit with" in seen.stdout

    def less(counter, t):
        return scale(counter, t) / 8

    scale = BltSchedule.scale
    monkeypatch.setattr(BltSchedule, "scale", less)
    caught = call("verify-privacy", folder / "q.sql", "--seconds", "2")
    assert caught.exit_code == REFUTED
    assert "NOT COVERED: lane" in caught.stdout


@pytest.mark.parametrize("command", [
    "explain", "what-if", "audit", "verify-privacy --seconds 1", "tune --target 0.1 --units 50",
])  # fmt: skip
def test_every_question_about_a_query_names_a_column_that_is_not_there(folder, tmp_path, command):
    """No job could run such a query. Files that are not there yet are no error."""
    name, *more = command.split()
    text = QUERY.format(folder=folder)
    (tmp_path / "q.sql").write_text(text.replace("ward", "wart"))
    with pytest.raises(PlanError, match="unknown column 'wart'; did you mean 'ward'"):
        call(name, tmp_path / "q.sql", *more)
    (tmp_path / "q.sql").write_text(text.replace("visits.parquet", "later/*.parquet"))
    assert call(name, tmp_path / "q.sql", *more).exit_code == 0


@pytest.mark.parametrize("rows", ["--sample", "--private"])
def test_bounds_on_rows_are_not_advised_where_they_are_combined(folder, tmp_path, rows):
    query, visits = tmp_path / "q.sql", folder / "visits.parquet"
    query.write_text(
        "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, delta = 1e-6,"
        " privacy_unit_column = person)"
        f" ward, SUM(age, contribution_bounds_per_group => (0, 9)) AS s FROM '{visits}'"
        " GROUP BY ward"
    )
    with pytest.raises(PlanError, match="one of all rows of a unit"):
        call("tune", query, rows, visits)


@pytest.mark.parametrize(("command", "says"), [
    ("explain {q} --groups 10", "--groups is asked about --memory"),
    ("explain {q} --json --forecast", "--forecast is for text"),
    ("explain {q} --json --memory 4GB", "--memory is for text"),
    ("tune {q} --target 0.1 --units 50 --fraction 0.5", "--fraction is for --sample"),
    ("tune {q} --target 0.1 --units 50 --metric l2", "--metric is for --sample"),
    ("tune {q} --sample {rows} --units 50", "--units is for a forecast without --sample"),
    ("tune {q} --sample {rows} --ledger l", "--ledger is for a survey of --private"),
    ("tune {q} --sample {rows} --epsilon 3", "--epsilon is for a survey of --private"),
    ("what-if {q} --fraction 0.5", "--fraction is for --sample"),
    ("read {state} --list --out x.csv", "--out is for the rows of a release"),
    ("read {state} --list --trigger 1", "--trigger is for the rows of a release"),
    ("read {state} --query pages", "--query is for --sql"),
    ("read {state} --table t=x.csv", "--table is for --sql"),
    ("dashboard {state} --port 80", "--port is for --serve"),
    ("dashboard {state} --host ::", "--host is for --serve"),
    ("dashboard {state} --serve --out x.html", "--out is for a page in a file"),
    ("read {state} --key ward=north --key ward=south", "--key names a column twice"),
    ("tune {q} --sample {rows} --target 0", "target must be a finite number above 0"),
    ("tune {q} --sample {rows} --target nan", "target must be a finite number above 0"),
    ("tune {q} --sample {rows} --target 1e6 --metric keys", "reaches keys = 1e.06: at 64 it is"),
])  # fmt: skip
def test_an_option_that_would_be_passed_over_is_refused(folder, command, says):
    places = {"q": folder / "q.sql", "rows": folder / "visits.parquet", "state": folder / "q.veil"}
    with pytest.raises(PlanError, match=says):
        call(*(word.format(**places) for word in command.split()))


def test_every_command_has_an_example_and_a_sentence():
    groups = {"": cli.app, "ledger": ledger.app, "derive": answers.app}
    for group, app in groups.items():
        for name, command in app.commands.items():
            shown = call(*group.split(), name, "--help").stdout
            assert command.help.split(".")[0].split("\n")[0][:30] in " ".join(shown.split())
            if name not in ("demo", "inspect"):
                assert "Example:" in shown, name


@pytest.mark.parametrize(("typed", "told"), [
    (("read", "q.veil", "--key", ""), "--key takes column=value"),
    (("what-if", "q.sql", "--plot", "errors.txt"), "--plot must end in .png, .svg, .pdf"),
    (("dashboard", "q.veil", "--serve", "--port", 70000), "70000 is not in the range"),
    (("verify-privacy", "q.sql", "--seed", -4), "at least 0, not -4"),
    (("ledger", "register", "l", "--name", "n", "--about", "a", "--use", "u", "--curator", "",
      "--region", "r", "--published", "2026-01-01", "--author", "x"), "needs curators"),
])  # fmt: skip
def test_a_value_that_an_option_cannot_have_is_refused_by_name(folder, monkeypatch, typed, told):
    """All but the last were reported as a bug; the last wrote an empty curator."""
    monkeypatch.chdir(folder)
    try:
        words = call(*typed).stderr
    except PlanError as refused:
        words = str(refused)
    assert told in words
