"""How a job takes its input: micro-batches of any size, one by default, never ahead of its sink."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import streamveil as sv
from streamveil.batch import Batch, Release
from streamveil.connectors import open_source
from streamveil.connectors.sinks import MemorySink
from streamveil.core.accounting import Budget
from streamveil.core.noise import SeededNoise
from streamveil.dataflow import grouping
from streamveil.errors import PlanError
from streamveil.plan import Aggregate, Bounding, Clock, KeyColumn, KeySet, Plan, SourceSpec
from streamveil.runtime.job import Job
from streamveil.runtime.run import FEWEST_ROWS, MOST_ROWS, Pace, batch_rows, feed_of, run
from tests.runtime.toy import SEEDED, Stream, work

pytestmark = pytest.mark.filterwarnings("ignore:insecure noise")
SMALLEST, LARGEST = 100, 1_000_000


def plan(rows: int, users: int) -> Plan:
    rng = np.random.default_rng(6)
    table = pa.table({"user": rng.integers(0, users, rows), "page": rng.geometric(0.3, rows)})
    return Plan(
        name="pages", unit="user", keys=(KeyColumn(name="page", expression="page"),),
        source=SourceSpec(name="m", kind="memory", options={"table": table}),
        aggregates=(Aggregate(name="n", function="count"),), key_set=KeySet(min_units=2),
        clock=Clock(kind="rows", every=rows // 2), bounding=Bounding(max_rows=6),
        budget=Budget(epsilon=20, delta=1e-6),
    )  # fmt: skip


def released(
    what: Plan, folder: Path, rows: int | None, threads: int | None = None
) -> tuple[list[Any], int]:
    options: dict[str, Any] = {"noise": SeededNoise(3), "insecure": True}
    with run(what, state=folder, pace=Pace(max_rows=rows, threads=threads), **options) as job:
        return [release.table.to_pydict() for release in job], job.place.batch


def test_a_hundred_records_or_all_of_them(tmp_path: Path) -> None:
    small, batches = released(plan(20_000, 5_000), tmp_path / "small", SMALLEST)
    assert batches == 200
    whole, batches = released(plan(20_000, 5_000), tmp_path / "whole", 20_000)
    assert batches == 2
    assert small == whole
    assert len(whole[-1]["n"]) > 5


def test_a_million_records(tmp_path: Path) -> None:
    largest, batches = released(plan(2 * LARGEST, 300_000), tmp_path / "largest", LARGEST)
    assert batches == 2
    chosen, batches = released(plan(2 * LARGEST, 300_000), tmp_path / "chosen", None)
    assert batches == 2, "16 MiB hold a million rows of two integers"
    assert chosen == largest


@pytest.mark.parametrize("kind", [pa.int64(), pa.string()])
def test_no_number_of_threads_changes_a_release(
    kind: pa.DataType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of which some have no unit or no key, in micro-batches of several sizes."""
    ahead, real = [], grouping.prepare_batch

    def spy(*given: Any) -> Any:
        ahead.append(threading.current_thread() is not threading.main_thread())
        return real(*given)

    monkeypatch.setattr(grouping, "prepare_batch", spy)
    monkeypatch.setattr(grouping, "LARGE", 600)
    asked = plan(20_000, 5_000)
    table = asked.source.options["table"]
    user = pa.array(table["user"].to_numpy(), mask=np.arange(20_000) % 11 == 0)
    page = pa.array(table["page"].to_numpy(), mask=np.arange(20_000) % 7 == 0)
    table = pa.table({"user": user.cast(kind), "page": page.cast(kind)})
    source = replace(asked.source, options={"table": table})
    asked = replace(asked, source=source)
    found = []
    for threads in (1, 2, 3, 5):
        found.append(released(asked, tmp_path / f"{threads}", 700, threads))
        assert any(ahead) == (threads > 1)
    assert len(found[0][0][-1]["n"]) > 5
    assert all(one == found[0] for one in found)
    for threads in (0, 10**20):  # so many never began
        with pytest.raises(PlanError, match=f"threads must be between 1 and 1,024, not {threads}"):
            Pace(threads=threads)
    for name in ("threads", "max_rows", "memory"):
        with pytest.raises(PlanError, match=f"{name} must be a whole number"):
            Pace(**{name: 2.5})


@pytest.mark.parametrize("columns", [1, 2, 40, 4_000])
@pytest.mark.parametrize("kind", [pa.int64(), pa.string(), pa.bool_()])
def test_the_chosen_size_stays_in_its_range(columns: int, kind: pa.DataType) -> None:
    names = [f"c{place}" for place in range(columns)]
    schema = pa.schema([(name, kind) for name in names])
    limited = batch_rows(schema, names, limited=True)
    assert SMALLEST < FEWEST_ROWS <= limited <= batch_rows(schema, names) <= MOST_ROWS == LARGEST


@pytest.mark.parametrize("window", [sv.hop, sv.cumulate])
def test_rows_that_count_in_many_windows_come_few_at_a_time(window: Any) -> None:
    rows = 5_000  # at 480 windows a row: what they take would be 270 MB
    table = pa.table({"u": range(rows), "ts": pa.array([0] * rows, pa.timestamp("us"))})
    asked = (
        sv.memory(table, event_time="ts").protect("u")
        .window(window("8 hours", "1 minute")).agg(n=sv.count()).bound(max_rows=480)
        .release(budget=sv.Budget(mu=1, delta=1e-6), every="1 hour", start="1970-01-01", steps=2)
    ).plan  # fmt: skip
    source = open_source("memory", {"table": table})
    batches = [*feed_of(asked, source, Pace())(None)]
    assert sum(batch.rows.num_rows for batch in batches) == rows
    assert max(batch.rows.num_rows for batch in batches) * 480 <= MOST_ROWS


@pytest.mark.parametrize("rows", [0, -5])
def test_no_rows_is_no_size(rows: int) -> None:
    with pytest.raises(PlanError, match="max_rows"):
        Pace(max_rows=rows)


def test_a_sink_that_stands_still_stops_the_source(tmp_path: Path) -> None:
    blocked, open_again, read = threading.Event(), threading.Event(), 0

    class Blocked(MemorySink):
        def write(self, job: str, release: Release) -> None:
            if release.trigger == 3:
                blocked.set()
                assert open_again.wait(100)
            super().write(job, release)

    def counted(position: str | None) -> Iterator[Batch]:
        nonlocal read
        for batch in Stream(batches=200, per_step=1)(position):
            read += 1
            yield batch

    sink, seen = Blocked(), []
    with Job(tmp_path / "s", work(counted, sink=sink), SEEDED) as job:
        runner = threading.Thread(target=lambda: seen.extend(job))
        runner.start()
        assert blocked.wait(100)
        before = -1
        while read != before:  # until nothing moves
            before = read
            time.sleep(0.3)
        assert read <= 3 + 3, "the one written, the one folded, the one read"
        assert len(sink.releases) == 2
        open_again.set()
        runner.join(100)
    assert read == 200
    assert len(seen) == 200


HELD = """
from streamveil.runtime.run import Pace
held = Pace().held
import numpy as np
from streamveil.dataflow.hashing import by_words
from streamveil.runtime.progress import resident_bytes
by_words(np.arange(9))
print((resident_bytes() - held) >> 20)
"""


def test_a_limit_counts_what_compiled_functions_take():
    """They are loaded when one is first called: 120 MiB, which units were given as well."""
    told = subprocess.run([sys.executable, "-c", HELD], capture_output=True, text=True, check=True)
    assert int(told.stdout) < 40
