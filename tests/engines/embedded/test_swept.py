"""Sweeping units from disk changes no release, whatever fits in memory and wherever a run stops."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from streamveil.engines.embedded.swept import Budgeted, PartedTable
from streamveil.errors import StoreError
from streamveil.privacy.budget import Budget
from streamveil.privacy.noise import SeededNoise
from streamveil.queries.plan import (
    Aggregate,
    Bounding,
    Clock,
    KeyColumn,
    KeySet,
    Plan,
    SourceSpec,
)
from streamveil.runtime.run import Pace, run, work_of
from streamveil.runtime.store import SCRATCH, CheckpointPolicy

pytestmark = pytest.mark.filterwarnings("ignore:insecure noise")
ROWS, UNITS = 3_000, 1_200
BOUNDS = [Bounding(max_rows=3), Bounding(max_rows=6, max_rows_per_group=2), Bounding(quadratic=9)]


def plan(bounding: Bounding) -> Plan:
    rng = np.random.default_rng(11)
    table = pa.table({"user": rng.integers(0, UNITS, ROWS), "page": rng.geometric(0.3, ROWS)})
    return Plan(
        name="pages", unit="user", keys=(KeyColumn(name="page", expression="page"),),
        source=SourceSpec(name="m", kind="memory", options={"table": table}),
        aggregates=(Aggregate(name="n", function="count"),), key_set=KeySet(min_units=2),
        clock=Clock(kind="rows", every=750, steps=4), bounding=bounding,
        budget=Budget(epsilon=20, delta=1e-6),
    )  # fmt: skip


def released(what: Plan, folder: Path, memory: int | None, most: int = 9) -> dict[int, Any]:
    pace = Pace(max_rows=750, memory=memory)
    with run(what, state=folder, noise=SeededNoise(5), insecure=True, pace=pace) as job:
        job._store.policy = CheckpointPolicy(log_bytes=20_000, log_per_state=0)
        return {r.trigger: r.table.to_pydict() for _, r in zip(range(most), job, strict=False)}


@pytest.mark.parametrize("bounding", BOUNDS, ids=lambda b: f"{b.max_rows}/{b.quadratic}")
@pytest.mark.parametrize("memory", [0, 20_000, 1 << 30])
def test_releases_are_the_same(tmp_path: Path, bounding: Bounding, memory: int) -> None:
    expected = released(plan(bounding), tmp_path / "plain", None)
    assert len(expected) == 4
    assert expected[4]["n"], "something is shown"
    assert released(plan(bounding), tmp_path / "swept", memory) == expected


@pytest.mark.parametrize("stop", [1, 2, 3])
def test_a_restart_with_other_memory_goes_on(tmp_path: Path, stop: int) -> None:
    expected = released(plan(BOUNDS[1]), tmp_path / "plain", None)
    seen = released(plan(BOUNDS[1]), tmp_path / "swept", 0, most=stop)
    seen |= released(plan(BOUNDS[1]), tmp_path / "swept", 1 << 20)
    assert seen == expected


def test_memory_stays_within_the_limit(tmp_path: Path) -> None:
    pace = Pace(max_rows=750, memory=20_000)
    with run(
        plan(BOUNDS[0]), state=tmp_path / "s", noise=SeededNoise(5), insecure=True, pace=pace
    ) as job:
        for _ in job:
            room: Budgeted = job.work.operator.room  # type: ignore[attr-defined]
            held: PartedTable = job._state.units[0]
            resident = [table for table in held.tables if table is not None]
            assert room.resident == sum(table.nbytes for table in resident) <= 20_000
            assert held.nbytes > 20_000
            assert any(held.stored)
            assert list((tmp_path / "s" / SCRATCH).rglob("*.npy"))
            assert {
                p.stat().st_mode & 0o777 for p in (tmp_path / "s" / SCRATCH).rglob("*.npy")
            } == {0o600}
        assert held.units == job.counters()["units"] > 800


def test_the_scratch_of_a_killed_run_is_removed(tmp_path: Path) -> None:
    released(plan(BOUNDS[0]), tmp_path / "s", 0, most=1)
    (tmp_path / "s" / SCRATCH).mkdir(exist_ok=True)
    (tmp_path / "s" / SCRATCH / "left.npy").write_bytes(b"x")
    released(plan(BOUNDS[0]), tmp_path / "s", 0)
    assert not list((tmp_path / "s").rglob("left.npy"))


def test_a_plain_state_is_refused_clearly(tmp_path: Path) -> None:
    released(plan(BOUNDS[0]), tmp_path / "s", None, most=1)
    with pytest.raises(StoreError, match="operator"):
        released(plan(BOUNDS[0]), tmp_path / "s", 0)


def test_the_guarantee_is_the_plain_one(tmp_path: Path) -> None:
    plain = work_of(plan(BOUNDS[1])).operator
    swept = run(
        plan(BOUNDS[1]),
        state=tmp_path / "s",
        noise=SeededNoise(5),
        insecure=True,
        pace=Pace(memory=0),
    )
    assert swept.work.operator.guarantee == plain.guarantee
    assert replace(swept.work, operator=plain).identity != swept.work.identity
    swept.close()
