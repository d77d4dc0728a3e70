"""`inspect` tells places and sizes, changes nothing and shows no private value."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

from streamveil.cli import app
from streamveil.core.accounting import Budget
from streamveil.errors import StoreError
from streamveil.plan import Aggregate, Bounding, Clock, KeyColumn, Plan, SourceSpec
from streamveil.runtime import wal
from streamveil.runtime.inspect import files_read, inspect
from streamveil.runtime.job import Job
from streamveil.runtime.run import Pace, run
from streamveil.runtime.store import CheckpointPolicy
from tests.runtime.toy import SEEDED, work

pytestmark = pytest.mark.filterwarnings("ignore:insecure noise")


def test_a_state_is_described_while_the_job_runs_and_after(tmp_path: Path) -> None:
    policy = CheckpointPolicy(log_bytes=2000, log_per_state=0)
    with Job(tmp_path / "s", work(), SEEDED, policy=policy) as job:
        next(job)
        assert inspect(tmp_path / "s").batch >= 2
        list(job)
    before = {path.name: path.read_bytes() for path in (tmp_path / "s").iterdir()}
    seen = inspect(tmp_path / "s")
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "s").iterdir()}
    assert (seen.job, seen.operator, seen.batch, seen.step) == ("toy", "toy", 12, 6)
    assert seen.position == "next is 12"
    assert seen.checkpoint_batch
    assert seen.checkpoint_batch + seen.log_records == 12
    assert seen.arrays["totals"] <= 64
    assert (seen.limit, seen.charges) == ("mu=1", 1)
    assert not seen.secure
    assert seen.position_before == "next is 11"
    assert seen.committed
    assert seen.committed.startswith("20")
    assert seen.formats == {"directory": 1, "log": 1, "checkpoint": 1}
    assert {"log", "checkpoint", "ledger", "state.json"} <= seen.files.keys()
    assert seen.left
    text = "\n".join(" ".join(row) for row in seen.rows())
    for word in (
        "12 micro-batches",
        "step 6 is closed",
        "INSECURE",
        "mu=1",
        "one user",
        "log since",
    ):
        assert word in text
    assert "malformed" not in json.dumps(seen.to_dict())


def test_a_segment_that_a_running_job_removed_is_not_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Job(tmp_path / "s", work(), SEEDED) as job:
        list(job)
    segments = wal.kept(tmp_path / "s")
    monkeypatch.setattr(wal, "kept", lambda _: [(-1, tmp_path / "s" / "log-gone"), *segments])
    assert inspect(tmp_path / "s").committed is not None


def test_no_private_value_is_shown(tmp_path: Path) -> None:
    rows = pa.table({
        "user": [f"patient {i % 40}" for i in range(400)], "ward": ["ward nine"] * 400,
    })  # fmt: skip
    plan = Plan(
        name="stay", unit="user", keys=(KeyColumn(name="ward", expression="ward"),),
        source=SourceSpec(name="m", kind="memory", options={"table": rows}),
        aggregates=(Aggregate(name="n", function="count"),), clock=Clock(kind="rows", every=100),
        bounding=Bounding(max_rows=3), budget=Budget(epsilon=9, delta=1e-6),
    )  # fmt: skip
    with run(plan, state=tmp_path / "s", pace=Pace(max_rows=37)) as job:
        list(job)
    seen = inspect(tmp_path / "s")
    shown = json.dumps(seen.to_dict()) + str(seen.rows()) + repr(seen)
    assert "step 5" in str(seen.rows())
    assert "patient" not in shown
    assert "nine" not in shown
    assert (tmp_path / "s" / "secret").read_text().strip() not in shown


def test_a_state_without_checkpoint_and_one_without_records(tmp_path: Path) -> None:
    with Job(tmp_path / "s", work(), SEEDED) as job:
        assert inspect(tmp_path / "s").batch == 0
        next(job)
    assert inspect(tmp_path / "s").checkpoint_batch is None


def test_a_state_on_spark_is_called_one(tmp_path: Path) -> None:
    (tmp_path / "spark.json").touch()
    with pytest.raises(StoreError, match="a job that runs on Spark"):
        inspect(tmp_path)


def test_other_directories_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(StoreError, match="not a state directory"):
            inspect(path)


def test_who_deletes_files_is_told_which_were_read(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("b", "a"):
        (folder / f"{name}.csv").write_text("user\n1\n2\n3\n")
    plan = Plan(
        name="q", source=SourceSpec(name="f", kind="files",
                                    options={"path": str(folder), "follow": True}),
        unit="user", aggregates=(Aggregate(name="n", function="count"),),
        clock=Clock(kind="rows", every=4, steps=9), bounding=Bounding(max_rows=1),
        budget=Budget(epsilon=1, delta=1e-9),
    )  # fmt: skip
    job = run(plan, state=tmp_path / "s", pace=Pace(max_rows=2, once=True))
    next(job)
    job.close()
    assert [how for _, how in files_read(tmp_path / "s", str(folder))] == ["read", "needed"]
    list(run(plan, state=tmp_path / "s", pace=Pace(max_rows=2, once=True)))
    (folder / "0.csv").write_text("user\n9\n")
    with (folder / "b.csv").open("a") as file:
        file.write("4\n")
    shown = CliRunner().invoke(
        app, ["inspect", str(tmp_path / "s"), "--files", str(folder), "--json"]
    )
    told = {Path(name).name: how for name, how in json.loads(shown.stdout).items()}
    assert told == {"0.csv": "needed", "a.csv": "read", "b.csv": "changed"}
    (folder / "b.csv").unlink()
    (folder / "a.csv").unlink()
    assert [how for _, how in files_read(tmp_path / "s", str(folder))] == ["needed"]
    with Job(tmp_path / "t", work(), SEEDED) as job:
        list(job)
    with pytest.raises(StoreError, match=r"does not tell which files(.|\n)*to fix"):
        list(files_read(tmp_path / "t", str(folder)))
