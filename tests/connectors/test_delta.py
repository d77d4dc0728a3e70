"""The Delta sink: every release once, whatever is repeated."""

from __future__ import annotations

import sys

import pyarrow as pa
import pytest

from streamveil.connectors import open_sink
from streamveil.errors import MissingExtraError, SourceError, StoreError
from tests.released import made


def release(values):
    return pa.table({"key": values, "n": [1.5] * len(values), "trigger": [1] * len(values)})


def test_a_missing_package_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(MissingExtraError, match=r"streamveil\[delta\]"):
        open_sink("delta", {"path": str(tmp_path)})


@pytest.mark.parametrize("odd", ["a[1]", "b%20c"])
def test_a_path_that_the_library_cannot_write_is_refused_at_once(odd, tmp_path):
    """The library panicked at the first release, after the charge, or looked elsewhere for it."""
    with pytest.raises(SourceError, match="cannot write to a path with"):
        open_sink("delta", {"path": str(tmp_path / odd)})


def test_every_release_is_there_once(tmp_path):
    deltalake = pytest.importorskip("deltalake")
    path = str(tmp_path / "table")
    for _ in range(2):  # the second life repeats all
        sink = open_sink("delta", {"path": path})
        for window in (0, 1):
            for trigger in (1, 2):
                sink.write("job", made(release(["a", f"{window}{trigger}"]), window, trigger))
        sink.close()
    found = deltalake.DeltaTable(path)
    assert pa.table(found.to_pyarrow_table()).num_rows == 8
    assert found.version() == 3


def test_another_release_of_the_same_identity_is_refused(tmp_path):
    pytest.importorskip("deltalake")
    sink = open_sink("delta", {"path": str(tmp_path / "table")})
    sink.write("job", made(release(["a"]), 0, 1))
    with pytest.raises(StoreError, match="another release"):
        sink.write("job", made(release(["b"]), 0, 1))


@pytest.mark.parametrize("before", [0, 1])
def test_a_life_that_wakes_up_between_another_one_s_look_and_commit_doubles_nothing(
    before, tmp_path, monkeypatch
):
    """Each of two copies of a state committed the release that both had found missing."""
    deltalake = pytest.importorskip("deltalake")
    path = str(tmp_path / "table")
    first, second = (open_sink("delta", {"path": path}) for _ in range(2))
    for trigger in range(1, before + 1):
        first.write("job", made(release(["a"]), 0, trigger))
    put, late = type(first).put, made(release(["b"]), 0, before + 1)

    def sleep_before(sink, *told):
        monkeypatch.undo()
        second.write("other job", late)
        second.write("job", late)
        put(sink, *told)

    monkeypatch.setattr(type(first), "put", sleep_before)
    with pytest.raises(SourceError, match="no other process writes under the job's name"):
        first.write("job", late)
    first.write("job", late)
    assert pa.table(deltalake.DeltaTable(path).to_pyarrow_table()).num_rows == before + 2
