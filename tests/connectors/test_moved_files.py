"""Where files lie is not what a job is; what was read is, by names below the place and by sizes."""

import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import streamveil as sv
from streamveil.connectors.files import FilesSource
from streamveil.errors import SourceError


def written(folder, parts):
    folder.mkdir(parents=True, exist_ok=True)
    for name, users in parts.items():
        pq.write_table(pa.table({"user": users, "page": ["a"] * len(users)}), folder / name)


PARTS = {"1.parquet": [1, 2], "2.parquet": [3, 4], "3.parquet": [5]}
SPELLINGS = {
    "folder": lambda root: str(root),
    "pattern": lambda root: str(root / "*.parquet"),
    "list": lambda root: [str(root / name) for name in PARTS],
}


def rest(source, position):
    return [u for c in source.read(position, 1) for u in c.rows["user"].to_pylist()]


@pytest.mark.parametrize("spelled", SPELLINGS.values(), ids=SPELLINGS)
def test_reading_goes_on_where_the_files_moved(spelled, tmp_path):
    written(tmp_path / "here", PARTS)
    chunks = list(FilesSource(spelled(tmp_path / "here")).read(None, 1))
    shutil.copytree(tmp_path / "here", tmp_path / "a" / "there")
    for done, chunk in enumerate(chunks, start=1):
        moved = FilesSource(spelled(tmp_path / "a" / "there"))
        assert rest(moved, chunk.position) == [1, 2, 3, 4, 5][done:]


@pytest.mark.parametrize("change", [
    {"1.parquet": [1, 2, 7, 8]}, {"2.parquet": [3, 4, 5, 6]},
], ids=["read before", "half read"])  # fmt: skip
def test_files_that_changed_after_they_were_read_are_refused(change, tmp_path):
    written(tmp_path, PARTS)
    third = list(FilesSource(str(tmp_path)).read(None, 1))[2]
    written(tmp_path, change)
    with pytest.raises(SourceError, match="chang"):
        rest(FilesSource(str(tmp_path)), third.position)


def test_a_file_that_changes_while_the_job_follows_is_refused(tmp_path):
    written(tmp_path, PARTS)
    source = FilesSource(str(tmp_path), follow=True)
    last = list(source.read(None, 9))[-1]
    written(tmp_path, {"3.parquet": list(range(5, 99)), "4.parquet": [7]})
    with pytest.raises(SourceError, match="chang"):
        rest(source, last.position)


def test_a_job_goes_on_where_its_files_moved_and_keeps_its_budget(tmp_path):
    def job(root):
        return sv.files(str(root), event_time=None).protect(unit="user").group_by("page").agg(
            n=sv.count()
        ).bound(max_rows=2).release(budget=sv.Budget(epsilon=1, delta="1e-6"))  # fmt: skip

    written(tmp_path / "here", PARTS)
    first = [r.table for r in job(tmp_path / "here").run(state=tmp_path / "s")]
    shutil.move(tmp_path / "here", tmp_path / "there")
    again = list(job(tmp_path / "there").run(state=tmp_path / "s"))
    assert len(first) == 1
    assert [r.table for r in again] in ([], first)
    assert job("x").plan.fingerprint == job("y").plan.fingerprint
