"""Statements of several private answers on Spark: a job of each, and what is made of all."""

import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import streamveil as sv
from streamveil.cli import app
from streamveil.errors import PlanError, StoreError
from streamveil.runtime.joint import run_joint
from streamveil.runtime.spark import SparkJob

OPTIONS = (
    "WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 9, delta = 1e-6, privacy_unit_column = u,"
    " max_rows_contributed = 1, public_groups = ['a', 'b'], start = '1970-01-01',"
    " end = '1970-01-01 03:00:00')"
)
TEXT = f"""
CREATE STREAM v WITH (source = 'files', path = 'in/*.parquet', event_time = 'ts');
CREATE SINK both WITH (sink = 'files', path = 'out', format = 'json');
INSERT INTO both
WITH seen AS (SELECT {OPTIONS} c, COUNT(*) AS n FROM v GROUP BY c EMIT EVERY INTERVAL 1 HOUR),
     late AS (SELECT {OPTIONS} c, COUNT(*) AS n FROM v WHERE late GROUP BY c
              EMIT EVERY INTERVAL 1 HOUR)
SELECT c, late.n / seen.n AS share, seen.n AS seen FROM seen LEFT JOIN late USING (c)
"""


def written(folder):
    return {path.name: path.read_bytes() for path in folder.rglob("trigger=*")}


@pytest.mark.spark
def test_several_answers_are_put_together(session, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    turn = np.arange(3_000)
    times = pa.array(turn * 3_600_000, pa.timestamp("us", "UTC"))
    rows = {"u": turn, "c": np.array(["a", "b"])[turn % 2], "late": turn % 5 == 0, "ts": times}
    pq.write_table(pa.table(rows), tmp_path / "in" / "a.parquet")
    query, engine = sv.sql(TEXT), sv.spark(session, shards=2)
    made = list(query.run("s", engine=engine))
    assert [(one.trigger, one.table.num_rows) for one in made] == [(1, 2), (2, 2), (3, 2)]
    last = made[-1].table
    assert abs(last["share"].to_numpy() - 0.2).max() < 0.05
    assert abs(last["seen"].to_numpy() - 1_500).max() < 60
    for name in ("seen", "late"):  # each answer has a state, a charge and noise of its own
        assert (tmp_path / "s" / name / "ledger").is_file()
    assert sv.answers("s", query=query).to_arrow().equals(sv.answers("out").to_arrow())
    expected = written(tmp_path / "out")
    shutil.rmtree("out")
    shutil.rmtree("s/kept-late")  # as if that job had begun later
    shutil.rmtree("s/late")
    other = list(query.run("s", engine=engine))
    assert [one.table["seen"] for one in other] == [one.table["seen"] for one in made]
    assert written(tmp_path / "out") != expected
    again = list(query.run("s", engine=engine))  # nothing is left to do: read from the folders
    assert [one.table for one in again] == [one.table for one in other]
    with pytest.raises(PlanError, match="could refuse the second"):
        query.run("t", engine=engine, ledger="ledger").__next__()


class Unstarted:
    """The Spark engine without Java: what it makes is charged and never runs."""

    def start(self, plan, **options):
        return SparkJob(plan, session=None, **options)


def test_no_answer_is_charged_where_another_one_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    times = pa.array([0, 1], pa.timestamp("us", "UTC"))
    rows = pa.table({"u": [1, 2], "c": ["a", "b"], "late": [True, False], "ts": times})
    pq.write_table(rows, tmp_path / "in" / "a.parquet")
    (tmp_path / "s" / "late").mkdir(parents=True)
    (tmp_path / "s" / "late" / "letter.txt").write_text("dear")
    with pytest.raises(StoreError, match="holds no state"):
        list(run_joint(sv.sql(TEXT).plan, state=tmp_path / "s", spark=Unstarted()))
    assert not (tmp_path / "s" / "seen" / "ledger").exists()


def test_options_of_the_other_engine_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "q.sql").write_text(TEXT)
    with pytest.raises(PlanError, match="--memory"):
        CliRunner().invoke(
            app, ["run", "q.sql", "--state", "s", "--engine", "spark", "--memory", "1GB"],
            catch_exceptions=False,
        )  # fmt: skip
