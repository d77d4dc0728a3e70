"""Changing tables as jobs: what they release, what they answer, and going on where they were."""

import json
import os
import shutil
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import streamveil as sv
from streamveil.cli import app
from streamveil.core.noise import Place, SeededNoise, SilentNoise
from streamveil.errors import BudgetError, PlanError, StoreError
from streamveil.runtime.ask import ask
from streamveil.runtime.run import Pace, run

pytestmark = pytest.mark.filterwarnings("ignore:insecure noise")
CITIES, STEPS, EACH = ["Lima", "Oslo", "Rome"], 8, 500
SILENT = {"noise": SilentNoise(), "insecure": True}
SEEDED = {"noise": SeededNoise(7), "insecure": True}


def changes(words=("+", "-", "U"), seed=0):
    """Change data, and the records alive after each step as (city, age) pairs."""
    rng = np.random.default_rng(seed)
    rows, alive, after = [], {}, []
    for number in range(STEPS * EACH):
        what = rng.random()
        person = int(rng.choice(list(alive))) if alive and what < 0.4 else number
        city = "Oslo" if rng.random() < 0.8 else str(rng.choice([*CITIES, "Bonn"]))
        age = int(rng.integers(0, 11))  # Bonn and 10 are not in the domains
        if person in alive and what < 0.25:
            rows.append((words[1], person, None, None))
            del alive[person]
        else:
            word = words[2] if person in alive else words[0]
            rows.append((word, person, city, age))
            alive[person] = (city, age)
        if (number + 1) % EACH == 0:
            after.append([v for v in alive.values() if v[0] != "Bonn" and v[1] < 10])
    columns = zip(*rows, strict=True)
    names = {"op": pa.string(), "id": pa.int64(), "city": pa.string(), "age": pa.int64()}
    arrays = [pa.array(c, t) for c, t in zip(columns, names.values(), strict=True)]
    return pa.table(dict(zip(names, arrays, strict=True))), after


TABLE, AFTER = changes()


def query(rows=TABLE, options="", by="GROUP BY CUBE(city, age)", where=""):
    return sv.sql(
        f"""CREATE TABLE people (city CHECK (city IN ('Lima', 'Oslo', 'Rome')),
                                 age CHECK (age BETWEEN 0 AND 9))
        WITH (source = rows, changelog = 'insert-delete', operation = op, id = id, lives = 50);
        SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 50, delta = 1e-6, steps = {STEPS},
          expected_size = 10000, accept_error = TRUE {options})
          COUNT(*) AS n, COUNTIF(age < 3) AS young FROM people {where} {by} EMIT EVERY {EACH} ROWS
        """,
        {"rows": rows},
    )


def counted(step, city=None, age=None, keep=lambda city, age: True):
    found = [
        (c, a) for c, a in AFTER[step - 1]
        if (city is None or c == city) and (age is None or a == age) and keep(c, a)
    ]  # fmt: skip
    return len(found), sum(a < 3 for _, a in found)


def check(releases, keep=lambda city, age: True):
    assert [one.trigger for one in releases] == list(range(1, STEPS + 1))
    for one in releases:
        for row in one.table.to_pylist():
            expected = counted(one.trigger, row["city"], row["age"], keep)
            # rounding of 8 steps
            assert (row["n"], row["young"]) == pytest.approx(expected, abs=1.5)
            assert row["n_low"] - 1e-9 <= row["n"] <= row["n_high"] + 1e-9


@pytest.mark.parametrize("words", [("+", "-", "u"), ("I", "D", "UPDATE"), ("c", "d", "U")])
def test_without_noise_a_release_is_the_table(words, tmp_path):
    rows = changes(words)[0]
    check(list(query(rows).run(tmp_path / "job", **SILENT)))


def test_where_decides_which_records_are_there(tmp_path):
    # ids and operations come with every row, so a row that only deletes is never filtered out
    made = query(where="WHERE city <> 'Rome' OR age = 4")
    check(list(made.run(tmp_path / "job", **SILENT)), lambda city, age: city != "Rome" or age == 4)


@pytest.mark.parametrize("name", ["interval_tree", "rerun", "two_streams", "continual_mwem"])
def test_other_mechanisms_release_numbers_without_a_plain_deviation(name, tmp_path):
    made = query(options=f", mechanism = '{name}'", by="GROUP BY city")
    last = list(made.run(tmp_path / "job", **SEEDED))[-1].table
    assert last["n_sd"].null_count == len(last)
    assert last.num_rows == 3


def test_noise_has_the_deviation_it_is_released_with(tmp_path):
    gaps, said = [], []
    for seed in range(30):
        made = query(by="GROUP BY CUBE(city, age)").run(
            tmp_path / f"{seed}", noise=SeededNoise(seed), insecure=True
        )
        rows = list(made)[-1].table.to_pylist()
        gaps.append([row["n"] - counted(STEPS, row["city"], row["age"])[0] for row in rows])
        said.append([row["n_sd"] for row in rows])
    ratio = np.array(gaps) / np.array(said)
    assert np.abs(ratio.mean()) < 0.3
    assert 0.9 < np.sqrt((ratio**2).mean()) < 1.1
    assert np.abs(ratio).max() < 5.5


def test_a_job_in_pieces_and_asked_in_between_goes_on_with_the_same_bytes(tmp_path):
    made = query(options=", ask_share = 0.5", by="GROUP BY city")
    small = Pace(max_rows=130)
    whole = {r.trigger: r.table for r in made.run(tmp_path / "a", pace=small, **SEEDED)}
    seen, answers = {}, []
    while len(seen) < STEPS:
        with run(made.plan, state=tmp_path / "b", pace=small, **SEEDED) as job:
            for release in job:
                fresh = release.trigger not in seen
                seen[release.trigger] = release.table
                if fresh and release.trigger % 2:
                    break
        for text in ("COUNT(*) WHERE age < 2", "COUNT(*) WHERE 2 > age", "COUNT(*)"):
            answers.append(made.ask(text, tmp_path / "b", **SEEDED))
    assert all(seen[trigger].equals(table) for trigger, table in whole.items())
    for first, again, total in zip(answers[::3], answers[1::3], answers[2::3], strict=True):
        assert (first.kind, first.n) == (again.kind, again.n)
        assert first.kind in ("EASY", "HARD")
        assert total.kind == "RELEASED"
        exact, _ = counted(first.trigger, keep=lambda city, age: age < 2)
        assert first.n_low <= exact <= first.n_high
        assert total.n_low <= counted(first.trigger)[0] <= total.n_high


def test_a_query_with_other_names_may_ask_as_it_may_go_on(tmp_path):
    made = query(options=", ask_share = 0.5", by="GROUP BY city")
    list(made.run(tmp_path / "job", **SEEDED))
    other = replace(made.plan, name="other", aggregates=tuple(
        replace(one, name=f"{one.name}_too") for one in made.plan.aggregates))  # fmt: skip
    assert list(run(other, state=tmp_path / "job", **SEEDED))[-1].table.num_rows
    first, again = (ask(plan, "COUNT(*) WHERE age < 2", state=tmp_path / "job", **SEEDED)
                    for plan in (made.plan, other))  # fmt: skip
    assert first == again


@pytest.mark.parametrize("cut", [False, True])
def test_an_answer_lies_in_its_interval_and_is_what_was_released(cut, tmp_path):
    """The interval ended at 0, and a number below it stood beside."""
    below = 0
    for seed in range(12):
        made = query(options=f", non_negative = {str(cut).upper()}", by="GROUP BY CUBE(city, age)",
                     where="WHERE age <> 4")  # fmt: skip
        noise = {"noise": SeededNoise(seed), "insecure": True}
        rows = list(made.run(tmp_path / f"{seed}", **noise))[-1].table.to_pylist()
        [row] = [row for row in rows if (row["city"], row["age"]) == ("Rome", 4)]  # of nobody
        asked = made.ask("COUNT(*) WHERE city = 'Rome' AND age = 4", tmp_path / f"{seed}", **noise)
        assert (asked.kind, asked.n) == ("RELEASED", pytest.approx(row["n"]))
        assert asked.n_low <= asked.n <= asked.n_high
        below += asked.n < 0
    assert (below > 0) == (not cut)  # each is, with chance about a half: false alarms below 1e-3


def test_a_question_that_follows_from_a_release_is_free_and_needs_no_share(tmp_path):
    made = query(by="GROUP BY CUBE(city, age)")
    list(made.run(tmp_path / "job", **SILENT))
    found = made.ask("COUNT(*) WHERE city IN ('Rome', 'Oslo') AND age >= 5", tmp_path / "job",
                     **SILENT)  # fmt: skip
    exact, _ = counted(STEPS, keep=lambda city, age: city in ("Rome", "Oslo") and age >= 5)
    assert (found.kind, round(found.n), found.corrections_left) == ("RELEASED", exact, None)
    assert found.to_arrow().num_rows == 1
    coarse = query(by="GROUP BY city")
    list(coarse.run(tmp_path / "coarse", **SILENT))
    with pytest.raises(PlanError, match="ask_share"):
        coarse.ask("COUNT(*) WHERE age = 1", tmp_path / "coarse", **SILENT)


TALL = "COUNT(*) WHERE city = 'Oslo' AND age < 9"


def asked_of_copies(folder, monkeypatch, number=3):
    """What copies of one state answer to one question, under noise as in use."""
    monkeypatch.setattr(os, "urandom", np.random.default_rng(5).bytes)  # the same at every run
    made = query(options=", ask_share = 0.95", by="")
    list(made.run(folder / "job"))
    for copy in range(number):
        shutil.copytree(folder / "job", folder / f"{copy}")
    found = [made.ask(TALL, folder / f"{copy}") for copy in range(number)]
    return {(one.kind, one.n) for one in found}


def test_copies_of_a_state_answer_with_noise_of_their_own(tmp_path, monkeypatch):
    """Else those whose next step takes other rows, as by the wall clock, differ by these alone."""
    assert len(asked_of_copies(tmp_path, monkeypatch)) == 3


def test_noise_that_copies_share_is_seen(tmp_path, monkeypatch):
    monkeypatch.setattr(Place, "opened", lambda noise, purpose, *path: Place(noise, purpose, path))
    assert len(asked_of_copies(tmp_path, monkeypatch)) == 1


def test_questions_are_paid_from_one_share_and_end_when_it_is_spent(tmp_path):
    made = query(options=", ask_share = 0.9", by="")
    list(made.run(tmp_path / "job", **SEEDED))
    kinds = []
    for number in range(400):
        text = f"COUNT(*) WHERE city = '{CITIES[number % 3]}' AND age <= {9 - number % 9}"
        kinds.append(made.ask(text, tmp_path / "job", **SEEDED).kind)
        if len(kinds) > 27:
            break
    assert "HARD" in kinds
    assert kinds[27] == kinds[0]  # asked before


def test_what_questions_cost_is_remembered_when_the_state_is_opened_again(tmp_path):
    """A meter that is set back there would pay for answers for ever."""
    made, spent = query(options=", ask_share = 0.5", by=""), []
    list(made.run(tmp_path / "job", **SEEDED))
    for asked in ([np.arange(30) // 10 != 1], []):
        with run(made.plan, state=tmp_path / "job", **SEEDED) as job:
            spent.append(job.held.asking.inner.meter.spent)
            assert [job.ask(one).kind for one in asked] == ["HARD"] * len(asked)
            spent.append(job.held.asking.inner.meter.spent)
    assert spent[0] < spent[1] == spent[2]


def test_there_is_nothing_to_ask_before_a_step_is_closed(tmp_path):
    made = query(options=", ask_share = 0.5")
    with pytest.raises(StoreError, match="run the query first"):
        made.ask("COUNT(*)", tmp_path / "job", **SEEDED)
    job = run(made.plan, state=tmp_path / "job", pace=Pace(max_rows=100), **SEEDED)
    with job, pytest.raises(PlanError, match="no step is closed"):
        job.ask(np.ones(30, bool))


def test_a_running_job_takes_no_questions(tmp_path):
    made = query(options=", ask_share = 0.5")
    with run(made.plan, state=tmp_path / "job", **SEEDED) as job:
        next(job)
        with pytest.raises(StoreError, match="open the state again"):
            job.ask(np.ones(30, bool))
    with pytest.raises(PlanError, match="unknown column"):
        made.ask("COUNT(*) WHERE agge = 3", tmp_path / "job", **SEEDED)


def test_a_query_over_a_stream_takes_no_questions(tmp_path):
    stream = sv.sql(
        "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, delta = 1e-6, "
        "privacy_unit_column = id) COUNT(*) AS n FROM rows",
        {"rows": TABLE},
    )
    with pytest.raises(PlanError, match="changing table"):
        stream.ask("COUNT(*)", tmp_path / "job")


def test_the_budget_is_checked_against_one_ledger(tmp_path):
    made = query(options=", ask_share = 0.5")
    next(made.run(tmp_path / "job", **SEEDED))
    larger = sv.sql(
        """CREATE TABLE people (age CHECK (age BETWEEN 0 AND 9)) WITH (source = rows,
             changelog = 'insert-delete', operation = op, id = id);
           SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 60, delta = 1e-6, steps = 8,
             expected_size = 10000) COUNT(*) AS n FROM people EMIT EVERY 500 ROWS""",
        {"rows": TABLE},
    )
    with pytest.raises((StoreError, BudgetError)):
        larger.run(tmp_path / "job", **SEEDED)


# -- the command line, files ----------------------------------------------------------------------

SCRIPT = """
CREATE TABLE people (op STRING, id INT64, city STRING CHECK (city IN ('Lima', 'Oslo', 'Rome')),
                     age INT64 CHECK (age BETWEEN 0 AND 9))
WITH (source = 'files', path = '{path}', changelog = 'insert-delete', operation = op, id = id,
      lives = 50);
CREATE SINK out WITH (sink = 'files', path = '{out}', format = 'json');
INSERT INTO out
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 50, delta = 1e-6, steps = 8,
  expected_size = 10000, ask_share = 0.5, accept_error = TRUE)
  city, COUNT(*) AS n FROM people GROUP BY city EMIT EVERY 500 ROWS;
ASK people COUNT(*) WHERE age < 5;
"""


def call(*words):
    done = CliRunner().invoke(app, [str(word) for word in words])
    return done.exit_code, done.output


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_script_from_files_to_files_with_questions(form, tmp_path):
    path = tmp_path / f"changes.{form}"
    (pq.write_table if form == "parquet" else pa.csv.write_csv)(TABLE, path)
    file, state = tmp_path / "people.sql", tmp_path / "state"
    file.write_text(SCRIPT.format(path=path, out=tmp_path / "out"))
    code, text = call("explain", file)
    assert code == 0
    assert "counter (runs)" in text
    facts = json.loads(call("explain", file, "--json")[1])
    assert facts["useful"] is True
    code, text = call("run", file, "--state", state, "--quiet")
    assert code == 0, text
    assert "COUNT(*) WHERE age < 5 = " in text
    assert "after release 8" in text
    assert len(list((tmp_path / "out").rglob("trigger=*.json"))) == STEPS
    code, text = call("ask", file, "COUNT(*) WHERE city = 'Oslo'", "--state", state)
    assert code == 0
    assert "RELEASED" in text
    assert call("ledger", "show", state)[0] == 0
    assert call("inspect", state)[0] == 0


def test_a_live_script_with_questions_is_refused(tmp_path):
    file = tmp_path / "q.sql"
    file.write_text(
        SCRIPT.format(path=tmp_path, out=tmp_path / "out")
        .replace("steps = 8", "steps = 8, clock = 'wall', start = '2026-01-01'")
        .replace("EVERY 500 ROWS", "EVERY INTERVAL 1 DAY")
    )
    code = CliRunner().invoke(app, ["run", str(file), "--state", str(tmp_path / "s")])
    assert isinstance(code.exception, PlanError)
    assert "never does" in str(code.exception)


@pytest.mark.parametrize("kind", ["text", "binary", "dictionary"])
def test_no_operation_stops_the_rows_around_it(kind, tmp_path):
    op = pa.array([b"+", b"\xff?" if kind != "dictionary" else b"?", b"i", b"Delete"], pa.binary())
    city = pa.array(["Lima", "Oslo", "Lima", "Lima"])
    if kind != "binary":
        op = pa.Array.from_buffers(pa.string(), 4, op.buffers())
    if kind == "dictionary":
        op, city = op.dictionary_encode(), city.dictionary_encode()
    made = sv.sql(
        """CREATE TABLE people (city CHECK (city IN ('Lima', 'Oslo')))
        WITH (source = rows, changelog = 'insert-delete', operation = op, id = id);
        SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, delta = 1e-6, steps = 1,
          expected_size = 4, accept_error = TRUE, mechanism = 'counter')
          COUNT(*) AS n FROM people GROUP BY city EMIT EVERY 4 ROWS""",
        {"rows": pa.table({"op": op, "id": [1, 2, 3, 1], "city": city})},
    )
    [release] = made.run(tmp_path / "job", **SILENT)
    assert release.table["n"].to_pylist() == [1, 0]


@pytest.mark.parametrize(
    ("place", "name"), [(lambda job: job, "_send"), (lambda job: job._store, "commit")]
)
def test_an_answer_that_was_not_kept_is_never_given(place, name, tmp_path, monkeypatch):
    """Once the state is opened again it is drawn anew and unpaid: two answers for one price."""
    made = query(options=", ask_share = 0.95", by="")
    list(made.run(tmp_path / "job"))
    asked = np.arange(30) % 10 < 9
    with run(made.plan, state=tmp_path / "job") as job:
        with monkeypatch.context() as fault:
            fault.setattr(place(job), name, fails)
            with pytest.raises(OSError, match="full"):
                job.ask(asked)
        with pytest.raises(StoreError, match="start again"):
            job.ask(asked)


def fails(*_):
    raise OSError("the disk is full")
