"""Made-up rows on Spark: the releases of the embedded engine, under the clocks that replay."""

from __future__ import annotations

import importlib.util

import pytest

from streamveil.core.noise import SeededNoise
from streamveil.runtime.run import run
from streamveil.runtime.secret import Randomness
from streamveil.sql.sql import parse_script
from tests.engines.spark import lives
from tests.engines.spark.streams import published

if importlib.util.find_spec("pyspark") is None:
    pytest.skip("the extra 'spark' is not installed", allow_module_level=True)

from streamveil.engines.spark import source_offsets
from streamveil.engines.spark.source import feed_of
from streamveil.engines.spark.splits import Split
from streamveil.runtime.spark import SparkJob, as_on_spark
from streamveil.runtime.spark_state import SparkLayout

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore:insecure noise")]
QUERY = """
CREATE STREAM made WITH (source = 'rate', rows = 3000, rows_per_second = 1, start = '2026-01-01',
                         units = 300, keys = 5, event_time = ts);
CREATE SINK out WITH (sink = 'files', path = '{out}');
INSERT INTO out
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 4, delta = 1e-6, privacy_unit_column = unit,
         max_rows_contributed = 4, start = '2026-01-01', end = '2026-01-01 01:00:00')
       key, COUNT(*) AS n, SUM(value, contribution_bounds_per_row => (0, 100)) AS total
FROM made GROUP BY key EMIT EVERY {every};
"""


def test_publishes_the_bytes_of_the_embedded_engine(session, tmp_path, monkeypatch):
    monkeypatch.setattr(source_offsets, "PIECE", 700)  # several tasks a step
    noise = SeededNoise(lives.SEED)
    here, there = (
        parse_script(QUERY.format(out=tmp_path / name, every="INTERVAL 20 MINUTE")).query.plan
        for name in "ab"
    )
    list(run(as_on_spark(here), state=tmp_path / "embedded", noise=noise, insecure=True))
    keys = Randomness(noise=noise, insecure=True)
    with SparkJob(
        there, state=tmp_path / "state", session=session, layout=SparkLayout(shards=2), keys=keys
    ) as job:
        made = list(job)
    assert len(made) == 3
    assert job.mark.rows == 3000
    assert published(tmp_path / "b") == published(tmp_path / "a") != {}


def taken(plan, step, before, seen):
    """The positions of a step's rows, as far as its plan tells."""
    feed = feed_of(source_offsets.options_for("rate", plan.source.options, plan.clock, "ts"))
    splits = [Split.parse(text) for piece in feed.splits(before, seen, step) for text in piece]
    return sorted((part.base + part.skip, part.rows) for part in splits)


@pytest.mark.parametrize("every", ["INTERVAL 20 MINUTE", "1000 ROWS"])
def test_a_replay_has_all_rows_and_ends(every):
    text = QUERY.format(out="out", every=every)
    if "ROWS" in every:  # which takes a number of steps instead
        text = text.replace("start = '2026-01-01', end = '2026-01-01 01:00:00')", "steps = 9)")
    plan = parse_script(text).query.plan
    feed = feed_of(source_offsets.options_for("rate", plan.source.options, plan.clock, "ts"))
    seen = feed.seen(feed.nothing(), 0.0)
    assert [feed.has(seen, step) for step in (1, 3, 4)] == [True, True, False]
    if plan.clock.kind == "rows":
        assert taken(plan, 2, feed.nothing(), seen) == [(1000, 1000)]


def test_a_live_step_takes_the_rows_whose_time_came_before_it():
    live = QUERY.replace("units = 300", "units = 300, follow = TRUE")
    plan = parse_script(live.format(out="out", every="INTERVAL 20 MINUTE")).query.plan
    assert plan.clock.kind == "wall"
    feed = feed_of(source_offsets.options_for("rate", plan.source.options, plan.clock, None))
    start = plan.clock.start_us / 1e6
    first = feed.seen(feed.nothing(), start + 1200)
    second = feed.seen(first, start + 2400)
    assert taken(plan, 1, feed.nothing(), first) == [(0, 1200)]
    assert taken(plan, 2, first, second) == [(1200, 1200)]
    assert taken(plan, 3, second, second) == []  # a step happens also without rows
