"""From a plan to releases: any batch size and any stop give the same bytes."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import streamveil as sv
from streamveil.accounts import deployment
from streamveil.accounts.ledger import Ledger
from streamveil.batch import Release
from streamveil.core.accounting import Budget
from streamveil.core.accounting.guarantee import NOTHING
from streamveil.core.noise import SeededNoise, SilentNoise
from streamveil.errors import BudgetError, PlanError, SourceError, StoreError
from streamveil.plan import (
    Aggregate,
    Bounding,
    Clock,
    KeyColumn,
    KeySet,
    Plan,
    SinkSpec,
    SourceSpec,
)
from streamveil.runtime.published import kept_by_sink
from streamveil.runtime.run import Pace, needed_columns, run, work_of

pytestmark = pytest.mark.filterwarnings("ignore:insecure noise")
ROWS = 900


@pytest.fixture(scope="module")
def clicks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clicks")
    rng = np.random.default_rng(5)
    table = pa.table({
        "User": rng.integers(0, 150, ROWS), "page": rng.geometric(0.3, ROWS),
        "ms": rng.normal(100, 50, ROWS), "unused": np.zeros(ROWS),
    })  # fmt: skip
    for number in range(3):
        pq.write_table(
            table.slice(number * 300, 300), folder / f"{number}.parquet", row_group_size=110
        )
    return folder


def plan(clicks: Path, every: int = 250, **changes: Any) -> Plan:
    base = Plan(
        name="pages", unit="user", keys=(KeyColumn(name="page", expression="page"),),
        source=SourceSpec(name="clicks", kind="files", options={"path": str(clicks)}),
        aggregates=(Aggregate(name="n", function="count"),
                    Aggregate(name="ms", function="sum", expression="ms", low=0.0, high=300.0)),
        clock=Clock(kind="rows", every=every, steps=-(-ROWS // every)), key_set=KeySet(min_units=2),
        bounding=Bounding(max_rows=6, max_rows_per_group=2),
        budget=Budget(epsilon=30, delta=1e-6),
    )  # fmt: skip
    return replace(base, **changes)


def released(what: Plan, folder: Path, rows: int, most: int = 99, **options: Any) -> list[Release]:
    chosen = {"noise": SeededNoise(3), "insecure": True, **options}
    with run(what, state=folder, pace=Pace(max_rows=rows), **chosen) as job:
        return [release for _, release in zip(range(most), job, strict=False)]


def tables(releases: list[Release]) -> dict[tuple[int, int], Any]:
    return {(one.window, one.trigger): one.table.to_pydict() for one in releases}


@pytest.mark.parametrize("rows", [37, 110, 5000])
def test_any_batch_size_gives_the_same_releases(clicks: Path, tmp_path: Path, rows: int) -> None:
    expected = tables(released(plan(clicks), tmp_path / "a", 250))
    assert len(expected) == 4
    assert tables(released(plan(clicks), tmp_path / "b", rows)) == expected


@pytest.mark.parametrize(("before", "after"), [(37, 5000), (5000, 37), (110, 101)])
@pytest.mark.parametrize("stop", [1, 2, 3])
def test_a_restart_may_use_another_batch_size(
    clicks: Path, tmp_path: Path, before: int, after: int, stop: int
) -> None:
    expected = tables(released(plan(clicks), tmp_path / "a", 250))
    seen = tables(released(plan(clicks), tmp_path / "b", before, most=stop))
    seen |= tables(released(plan(clicks), tmp_path / "b", after))
    assert seen == expected


def test_without_noise_releases_are_the_bounded_counts(clicks: Path, tmp_path: Path) -> None:
    everything = plan(
        clicks,
        bounding=Bounding(max_rows=1000),
        key_set=KeySet(public=tuple((page,) for page in range(1, 30))),
    )
    last = released(everything, tmp_path / "s", 200, noise=SilentNoise())[-1].table
    pages = pq.read_table(clicks)["page"].to_numpy()
    assert dict(zip(last["page"].to_pylist(), last["n"].to_pylist(), strict=True)) == {
        page: int((pages == page).sum()) for page in range(1, 30)
    }


def test_the_sink_of_the_plan_is_written(clicks: Path, tmp_path: Path) -> None:
    sink = SinkSpec(name="out", kind="files", options={"path": str(tmp_path / "out")})
    lines = SinkSpec(
        name="lines", kind="files", options={"path": str(tmp_path / "b"), "format": "csv"}
    )
    seen = released(plan(clicks, sinks=(lines, sink)), tmp_path / "s", 300)
    assert len(list((tmp_path / "b").rglob("*.csv"))) == len(seen)
    assert kept_by_sink(tmp_path / "s") == tmp_path / "out"  # which keeps types
    files = sorted((tmp_path / "out").rglob("*.parquet"))
    assert len(files) == len(seen) == 4
    for path, release in zip(files, seen, strict=True):
        assert pq.ParquetFile(path).read().equals(release.table)


def test_only_mentioned_columns_are_read(clicks: Path) -> None:
    schema = pq.read_schema(clicks / "0.parquet")
    assert needed_columns(plan(clicks), schema) == ["User", "page", "ms"]
    timed = plan(clicks, clock=Clock(kind="event", every=1, arrival="unused"))
    assert needed_columns(timed, schema) == ["User", "page", "ms", "unused"]


@pytest.mark.parametrize("arrival", [None, "seen"])
def test_columns_of_times_are_found_in_any_case(tmp_path: Path, arrival: str | None) -> None:
    rows: dict[str, Any] = {
        "User": [f"u{n}" for n in range(90)], "Seen": pa.array(range(90), pa.timestamp("us", "UTC"))
    }  # fmt: skip
    counts = []
    for name in ("Seen", "SEEN"):
        query = (
            sv.memory(rows, event_time=name).protect("user", per="30 microseconds")
            .window(sv.tumble("30 microseconds")).agg(n=sv.count()).bound(max_rows=1)
            .release(every="10 microseconds", start="1970-01-01", steps=9,
                     arrival=arrival and name.lower(), budget=sv.Budget(epsilon=1, delta=1e-9))
        )  # fmt: skip
        made = run(query.plan, state=tmp_path / f"{name}.veil", noise=SilentNoise(), insecure=True)
        counts.append([(one.window, one.trigger, one.table["n"].to_pylist()) for one in made])
    assert counts[0] == counts[1]
    assert [n for *_, (n,) in counts[0]] == [10, 20, 30] * 3


def test_nothing_is_spent_before_the_source_can_be_read(clicks: Path, tmp_path: Path) -> None:
    absent = plan(clicks, source=SourceSpec(name="x", kind="files", options={"path": "/absent/*"}))
    with pytest.raises(SourceError):
        released(absent, tmp_path / "s", 100)
    unknown = plan(clicks, unit="nobody")
    with pytest.raises((PlanError, SourceError), match="nobody"):
        released(unknown, tmp_path / "s", 100)
    assert not (tmp_path / "s").exists()


def test_jobs_that_share_a_ledger_share_its_limit(clicks: Path, tmp_path: Path) -> None:
    shared, query = tmp_path / "shared", plan(clicks)
    protects = work_of(query).operator.guarantee.protects
    with Ledger.open(shared, query.budget, protects):
        pass

    def charged() -> list[str]:
        with Ledger.load(shared) as ledger:
            return [charge.name for charge in ledger.entries() if charge.loss != NOTHING]

    released(query, tmp_path / "a", 200, ledger=shared)
    released(query, tmp_path / "a", 200, ledger=shared)  # a restart pays nothing
    assert charged() == [query.name]
    again = replace(query, name="again")
    with pytest.raises(BudgetError, match="'again'"):
        released(again, tmp_path / "b", 200, ledger=shared)
    assert charged() == [query.name]
    assert not (tmp_path / "b").exists(), "refused after something was made"
    released(query, tmp_path / "alone", 200)
    with pytest.raises(StoreError, match="'shared' does not hold this job's charge"):
        released(query, tmp_path / "alone", 200, ledger=shared)  # it would spend beside its limit
    with pytest.raises(StoreError, match="no ledger"):
        released(query, tmp_path / "c", 200, ledger=tmp_path / "absent")
    other = tmp_path / "other"
    with Ledger.open(other, query.budget, replace(protects, unit="household")):
        pass
    with pytest.raises(PlanError, match="the ledger protects"):
        released(query, tmp_path / "c", 200, ledger=other)
    assert not (tmp_path / "c").exists()


def test_the_charge_says_what_was_charged(clicks: Path, tmp_path: Path) -> None:
    query = plan(clicks, options={"look_share": 0})
    released(query, tmp_path / "s", 200)
    with Ledger.load(tmp_path / "s" / "ledger") as ledger:
        (charge,) = json.loads(json.dumps(deployment.record(ledger), allow_nan=False))["charges"]
    about = charge["about"]
    assert about["query"]["fingerprint"] == query.fingerprint
    assert about["mechanisms"]["bounding"]["max_rows"] == query.bounding.max_rows
    assert about["mechanisms"]["counters"][0]["sigma"] > 0
    assert about["versions"]["streamveil"]
    assert about["charged_at"].startswith("20")
    assert "secret" not in json.dumps(about)


def test_a_changed_query_is_refused(clicks: Path, tmp_path: Path) -> None:
    released(plan(clicks), tmp_path / "s", 100)
    with pytest.raises(StoreError, match="query"):
        released(plan(clicks, bounding=Bounding(max_rows=7)), tmp_path / "s", 100)


@pytest.mark.parametrize("ended", [0, 3])
def test_a_job_that_stops_at_once_closes_the_steps_that_are_due_and_no_other(
    clicks: Path, tmp_path: Path, ended: int
) -> None:
    start = int(dt.datetime.now(dt.UTC).timestamp() * 1e6) - ended * 3_600_000_000
    live = plan(clicks, clock=Clock(kind="wall", every=3_600_000_000, start_us=start, steps=10))
    closed = set[int]()
    for _ in range(2):  # the second gives the last release again
        with run(
            live, state=tmp_path / "s", noise=SilentNoise(), insecure=True, pace=Pace(once=True)
        ) as job:
            closed |= {release.trigger for release in job}
        assert closed == set(range(1, ended + 1))


def test_a_one_shot_query_is_answered_once_whatever_comes_later(tmp_path: Path) -> None:
    rows = tmp_path / "rows"
    rows.mkdir()
    once = replace(
        plan(rows), clock=Clock(kind="once"), key_set=KeySet(public=((1,), (2,))),
        aggregates=(Aggregate(name="n", function="count"),),
    )  # fmt: skip
    made = []
    for number in range(3):
        table = pa.table({"user": pa.array(range(100)), "page": [1] * 100})
        pq.write_table(table.slice(0, 100 >> number), rows / f"{number}.parquet")
        with run(once, state=tmp_path / "state") as job:
            made.append([release.table for release in job])
    assert [len(releases) for releases in made] == [1, 1, 1]
    assert made[0] == made[1] == made[2]


@pytest.mark.parametrize(
    ("groups", "kind"),
    [
        ((float("nan"), float("nan")), pa.float64()),
        ((dt.datetime(2026, 1, 1), dt.datetime(2026, 1, 1, tzinfo=dt.UTC)),  # noqa: DTZ001
         pa.timestamp("us", "UTC")),
        (("a", b"a"), pa.string()),
    ],
)  # fmt: skip
def test_public_groups_that_are_one_value_are_refused_before_anything_is_made(
    groups: tuple[Any, ...], kind: pa.DataType, tmp_path: Path
) -> None:
    table = pa.table({"user": [1, 2], "page": pa.array(groups, kind), "ms": [1.0, 2.0]})
    pq.write_table(table, tmp_path / "0.parquet")
    same = replace(plan(tmp_path), key_set=KeySet(public=tuple((group,) for group in groups)))
    with pytest.raises(PlanError, match="same value"):
        run(same, state=tmp_path / "state")
    assert not (tmp_path / "state").exists()
