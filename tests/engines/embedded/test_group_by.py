"""Where units live changes no release, whatever fits in memory and wherever a run stops."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from streamveil import engines
from streamveil.compiler.group_by import compile_plan
from streamveil.core.accounting import Budget
from streamveil.core.noise import SeededNoise
from streamveil.engines import EmbeddedGroupBy, PartedTable, Room, embedded
from streamveil.errors import PlanError
from streamveil.plan import (
    Aggregate,
    Bounding,
    Clock,
    KeyColumn,
    KeySet,
    Plan,
    SourceSpec,
    Window,
)
from streamveil.runtime.run import Pace, run
from streamveil.runtime.store import SCRATCH, CheckpointPolicy
from tests.dataflow.test_bounding import make_rows

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


def released(
    what: Plan, folder: Path, memory: int | None, most: int = 9, large: int = 1 << 20,
    threads: int = 1,
) -> dict[int, Any]:  # fmt: skip
    """Releases with so many bytes of units in memory, divided from so many units on."""

    def engine(inner: Plan) -> EmbeddedGroupBy:
        return embedded(compile_plan(inner), Room(memory, folder / SCRATCH, threads))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engines, "LARGE", large)
        patch.setattr(engines, "WORTH_THREADS", 1)
        options: Any = {"noise": SeededNoise(5), "insecure": True, "engine": engine}
        with run(what, state=folder, pace=Pace(max_rows=750), **options) as job:
            job._store.policy = CheckpointPolicy(log_bytes=4_000, log_per_state=0)
            return {r.trigger: r.table.to_pydict() for _, r in zip(range(most), job, strict=False)}


@pytest.mark.parametrize("bounding", BOUNDS, ids=lambda b: f"{b.max_rows}/{b.quadratic}")
@pytest.mark.parametrize(
    ("memory", "large", "threads"),
    [(0, 1 << 20, 1), (20_000, 1 << 20, 1), (1 << 30, 1, 1), (None, 700, 1), (None, 700, 4)],
)
def test_releases_are_the_same(
    tmp_path: Path, bounding: Bounding, memory: int | None, large: int, threads: int
) -> None:
    expected = released(plan(bounding), tmp_path / "plain", None)
    assert len(expected) == 4
    assert expected[4]["n"], "something is shown"
    other = released(plan(bounding), tmp_path / "other", memory, large=large, threads=threads)
    assert other == expected


def test_the_published_system_is_the_same(tmp_path: Path) -> None:
    published = replace(plan(BOUNDS[0]), preset="dp-sqlp")
    expected = released(published, tmp_path / "plain", None)
    assert expected[4]["n"], "something is shown"
    assert released(published, tmp_path / "swept", 0) == expected


def test_user_days_are_the_same_and_their_files_go(tmp_path: Path) -> None:
    hour = 3_600_000_000
    rng = np.random.default_rng(4)
    rows = pa.table({
        "user": rng.integers(0, 300, ROWS), "page": rng.geometric(0.4, ROWS),
        "ts": np.sort(rng.integers(0, 72 * hour, ROWS)),
    })  # fmt: skip
    source = SourceSpec(name="m", kind="memory", options={"table": rows}, event_time="ts")
    clock = Clock(kind="event", every=8 * hour, start_us=0, end_us=72 * hour)
    days = replace(
        plan(BOUNDS[1]), source=source, clock=clock, period_us=24 * hour,
        window=Window(kind="tumble", size_us=24 * hour),
    )  # fmt: skip
    expected = released(days, tmp_path / "plain", None, most=99)
    assert released(days, tmp_path / "swept", 5_000, most=99) == expected
    assert not list((tmp_path / "swept" / SCRATCH).rglob("*.units"))


ROOMS: list[dict[str, Any]] = [
    {"memory": None},
    {"memory": None, "large": 1},
    {"memory": 0},
    {"memory": 1 << 20},
]


@pytest.mark.parametrize("stop", [1, 3])
@pytest.mark.parametrize("before", range(len(ROOMS)))
def test_a_restart_with_other_memory_goes_on(tmp_path: Path, stop: int, before: int) -> None:
    expected = released(plan(BOUNDS[1]), tmp_path / "plain", None)
    for after, room in enumerate(ROOMS):
        folder = tmp_path / str(after)
        seen = released(plan(BOUNDS[1]), folder, **ROOMS[before], most=stop)
        assert list(folder.glob("checkpoint-*")) or stop == 1
        assert {**seen, **released(plan(BOUNDS[1]), folder, **room)} == expected


def test_memory_stays_within_the_limit(tmp_path: Path) -> None:
    scratch = tmp_path / "s" / SCRATCH
    room = Room(20_000, scratch)
    with run(
        plan(BOUNDS[0]), state=tmp_path / "s", noise=SeededNoise(5), insecure=True,
        engine=lambda inner: embedded(compile_plan(inner), room), pace=Pace(max_rows=750),
    ) as job:  # fmt: skip
        for _ in job:
            held: PartedTable = job._state.units[0]
            resident = [table for table in held.tables if table is not None]
            assert room.resident == sum(table.nbytes for table in resident) <= 20_000
            assert held.nbytes > 20_000
            assert any(held.stored)
            assert {p.stat().st_mode & 0o777 for p in scratch.rglob("*.units")} == {0o600}
        assert held.units == job.counters()["units"] > 800


def test_a_checkpoint_under_a_tight_limit_copies_nothing(tmp_path: Path) -> None:
    operator = embedded(compile_plan(plan(BOUNDS[0])), Room(1 << 30, tmp_path / SCRATCH))
    rows = make_rows(1, 5_000, 2_000, 9, 1)
    state = operator.init()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engines, "LARGE", 1)
        for _ in range(2):
            operator.bound(state, 0, rows)
    roomy = operator.save(state)
    operator.room.limit = operator.room.resident
    tight = operator.save(state)
    assert roomy.keys() == tight.keys()
    for name, array in tight.items():
        np.testing.assert_array_equal(roomy[name], array)
        if name.startswith("unit0.") and not name.endswith(f"/{engines.HELD}"):
            assert isinstance(array, np.memmap) or not array.size
            assert not isinstance(roomy[name], np.memmap)


def test_keys_take_the_room_of_units(tmp_path: Path) -> None:
    operator = embedded(compile_plan(plan(BOUNDS[0])), Room(0, tmp_path / SCRATCH), 1 << 20)
    state = operator.init()
    operator._make_room(state)
    assert operator.room.limit == 1 << 20
    operator.room.counters = 100_000
    operator._make_room(state)
    assert operator.room.limit == (1 << 20) - 200_000
    operator.room.counters = 10 << 20
    operator._make_room(state)
    assert operator.room.limit == 0


def test_tables_are_moved_out_when_keys_need_the_room(tmp_path: Path) -> None:
    operator = embedded(compile_plan(plan(BOUNDS[0])), Room(0, tmp_path / SCRATCH), 1 << 30)
    state = operator.init()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engines, "LARGE", 1)
        for _ in range(2):
            operator.bound(state, 0, make_rows(1, 5_000, 2_000, 9, 1))
    before, units = operator.room.resident, state.units[0].units
    assert before > 10_000
    operator.room.counters = 1 << 29
    operator._make_room(state)
    assert operator.room.resident == 0
    assert state.units[0].units == units


def test_a_limit_below_the_program_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="give at least"):
        run(plan(BOUNDS[0]), state=tmp_path / "s", pace=Pace(memory=20 << 20))
    assert not (tmp_path / "s").exists()
    with run(plan(BOUNDS[0]), state=tmp_path / "s", pace=Pace(memory=8 << 30)) as job:
        assert job.work.operator.room.limit is not None  # type: ignore[attr-defined]


def test_the_scratch_of_a_killed_run_is_removed(tmp_path: Path) -> None:
    released(plan(BOUNDS[0]), tmp_path / "s", 0, most=1)
    (tmp_path / "s" / SCRATCH).mkdir(exist_ok=True)
    (tmp_path / "s" / SCRATCH / "left.units").write_bytes(b"x")
    released(plan(BOUNDS[0]), tmp_path / "s", 0)
    assert not list((tmp_path / "s").rglob("left.units"))


def test_the_guarantee_and_the_format_are_the_plain_ones(tmp_path: Path) -> None:
    plain = compile_plan(plan(BOUNDS[1]))
    other = embedded(plain, Room(0, tmp_path))
    assert other.guarantee == plain.guarantee
    assert other.kind == plain.kind
