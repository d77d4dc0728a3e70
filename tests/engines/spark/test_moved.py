"""Where a source lies is not what a job is: relative paths, moved files, and other files there."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from streamveil.core.noise import SeededNoise
from streamveil.errors import SourceError, StoreError
from streamveil.plan import SourceSpec
from streamveil.runtime.on_spark import spark
from streamveil.runtime.run import run
from tests.engines.spark.streams import CASES

if importlib.util.find_spec("pyspark") is None:
    pytest.skip("the extra 'spark' is not installed", allow_module_level=True)

from streamveil.runtime.spark import as_on_spark, placed

CASE = CASES[3]  # by rows, so that steps do not depend on when they run
START = {"noise": SeededNoise(1), "insecure": True}


def plan_at(path):
    plan = CASE.plan(Path("x"))
    return replace(plan, source=replace(plan.source, options={"path": path}))


def test_paths_are_made_absolute_and_are_no_part_of_what_a_job_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert placed(plan_at("in")).source.options == {"path": f"{tmp_path}/in"}
    assert placed(plan_at(["a", "/b"])).source.options == {"path": [f"{tmp_path}/a", "/b"]}
    assert plan_at("in").fingerprint == plan_at(["a", "/b"]).fingerprint
    follow = plan_at("in")
    follow = replace(follow, source=replace(follow.source, options={"path": "in", "follow": True}))
    assert follow.fingerprint != plan_at("in").fingerprint
    options = {"servers": "x:1", "topic": "t", "columns": {}, "config": "kafka.json"}
    topic = replace(plan_at("in"), source=SourceSpec(name="s", kind="kafka", options=options))
    assert placed(topic).source.options == {**options, "config": f"{tmp_path}/kafka.json"}


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore:insecure noise")
def test_a_job_goes_on_where_its_files_were_moved_and_nowhere_else(session, tmp_path, monkeypatch):
    CASE.write(tmp_path / "in" / "data")
    plan = as_on_spark(plan_at(str(tmp_path / "in" / "data")))
    wanted = list(run(plan, state=tmp_path / "embedded", **START))
    monkeypatch.chdir(tmp_path / "in")  # not the folder of Spark's workers
    engine, state = spark(session, shards=2), tmp_path / "state"
    with engine.start(plan_at("data"), state=state, **START) as running:
        found = [next(releases := iter(running))]
        releases.close()
    made = found[-1].step
    other = CASE.write(tmp_path / "other")
    rows = pq.read_table(other / "a.parquet")
    pq.write_table(rows.slice(0, rows.num_rows - 1), other / "a.parquet", row_group_size=170)
    with pytest.raises(SourceError, match="changed"), engine.start(
        plan_at("../other"), state=state, **START
    ) as running:  # fmt: skip
        list(running)
    (tmp_path / "in" / "data").rename(tmp_path / "moved")
    with engine.start(plan_at("../moved"), state=state, **START) as running:
        found += list(running)
    assert made < wanted[-1].step
    assert [(r.window, r.trigger) for r in found] == [(r.window, r.trigger) for r in wanted]
    assert all(a.table.equals(b.table) for a, b in zip(found, wanted, strict=True))
    longer = replace(plan_at("../moved"), clock=replace(CASE._clock(), every=271))
    with pytest.raises(StoreError, match="another query"):
        engine.start(longer, state=state, **START)
