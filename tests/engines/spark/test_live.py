"""`streamveil run --engine spark` as a user starts it, live, killed with -9 and started again.

It runs a minute of steps on a wall clock and compares what was published with the
embedded engine's operator under the same secret and epoch.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from streamveil.batch import Batch
from streamveil.compiler import operator_of
from streamveil.runtime.spark import as_on_spark
from streamveil.sql.sql import parse_script
from tests.engines.spark.broker import PARTITIONS, rows_of
from tests.engines.spark.user import charges, end, killed_and_resumed, noise_of, tables_in

if importlib.util.find_spec("pyspark") is None:
    pytest.skip("the extra 'spark' is not installed", allow_module_level=True)

pytestmark = [
    pytest.mark.spark, pytest.mark.slow, pytest.mark.filterwarnings("ignore:insecure noise"),
]  # fmt: skip
ROOT = Path(__file__).parents[3]
SECONDS = 1_000_000
EVERY, STEPS, LATER = 6, 8, 30  # seconds; steps; seconds until the clock starts
OPTIONS = """SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 9, delta = 1e-6,
  privacy_unit_column = unit, max_rows_contributed = 6, clock = 'wall', start = '{start}',
  steps = {steps})
  key, COUNT(*) AS n, SUM(value, contribution_bounds_per_row => (0, 100)) AS total
FROM made GROUP BY key EMIT EVERY INTERVAL {every} SECOND;"""
TOPIC = """CREATE STREAM made (unit BIGINT, key BIGINT, value DOUBLE)
  WITH (source = 'kafka', servers = '{servers}', topic = 't');"""
SINK = "CREATE SINK out WITH (sink = 'files', path = '{out}'); INSERT INTO out "


def script(folder, stream, start, **values):
    """Writes the query; returns its file and its plan."""
    when = datetime.fromtimestamp(start, UTC).isoformat(timespec="seconds")[:19]
    text = (stream + SINK + OPTIONS).format(
        start=when, steps=STEPS, every=EVERY, out=folder / "out", **values
    )
    (folder / "q.sql").write_text(text)
    return parse_script(text).query.plan


def same(found, wanted):
    assert len(found) == len(wanted) == STEPS
    return all(one.equals(other.cast(one.schema)) for one, other in zip(found, wanted, strict=True))


def test_a_topic_runs_live_and_resumes(tmp_path):
    if importlib.util.find_spec("confluent_kafka") is None:
        pytest.skip("the extra 'kafka' is not installed")
    start = int(time.time()) + LATER
    command = [sys.executable, "-m", "tests.engines.spark.broker", "12000", "300"]
    broker = subprocess.Popen(
        command, cwd=ROOT, start_new_session=True, stdout=subprocess.PIPE, text=True
    )
    try:
        plan = script(tmp_path, TOPIC, start, servers=broker.stdout.readline().strip())
        (tmp_path / "out").mkdir()
        killed_and_resumed(tmp_path, [1, 3])
    finally:
        end(broker)
    wanted, counts = by_steps(plan, tmp_path)
    assert same(tables_in(tmp_path / "out"), wanted)
    assert charges(tmp_path) == 1
    assert sum(counts) > 500
    assert min(counts) > 0  # rows came while the job ran, into every step
    mark = json.loads((tmp_path / "state" / "committed").read_text())
    assert (mark["step"], mark["rows"]) == (STEPS, sum(counts))


def by_steps(plan, folder):
    """The embedded engine's operator over the ranges that Spark logged, step by step."""
    operator, noise, made, counts = operator_of(as_on_spark(plan)), noise_of(folder), [], []
    state, before = operator.init(), dict.fromkeys(range(PARTITIONS), 0)
    logs = sorted(
        (folder / "state" / "checkpoint" / "offsets").iterdir(), key=lambda p: (len(p.name), p.name)
    )
    for log in (log for log in logs if log.name.isdecimal()):
        offset = json.loads(log.read_text().splitlines()[-1])
        if not offset["step"]:  # Spark began before the clock did
            continue
        rows = []
        for partition in range(PARTITIONS):
            start, stop = offset["ranges"][str(partition)]
            assert start == before[partition]  # nothing lost, nothing twice
            before[partition] = stop
            rows += rows_of(partition, start, stop)
        schema = pa.schema({"unit": pa.int64(), "key": pa.int64(), "value": pa.float64()})
        table = pa.Table.from_pylist(rows, schema)
        operator.fold(state, Batch(table, offset["step"], True, "{}"), noise)
        made += operator.release(state, offset["step"], noise)
        counts.append(len(rows))
    return [release.table for release in made], counts
