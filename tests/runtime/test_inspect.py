"""`inspect` tells places and sizes, changes nothing and shows no private value."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from streamveil.errors import StoreError
from streamveil.runtime.inspect import inspect
from streamveil.runtime.job import Job
from streamveil.runtime.store import CheckpointPolicy
from tests.runtime.toy import SEEDED, work

pytestmark = pytest.mark.filterwarnings("ignore:insecure noise")


def test_a_state_is_described_while_the_job_runs_and_after(tmp_path: Path) -> None:
    policy = CheckpointPolicy(log_bytes=1500, log_per_state=0)
    with Job(tmp_path / "s", work(), SEEDED, policy=policy) as job:
        next(job)
        assert inspect(tmp_path / "s").batch >= 2
        list(job)
    before = {path.name: path.read_bytes() for path in (tmp_path / "s").iterdir()}
    seen = inspect(tmp_path / "s")
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "s").iterdir()}
    assert (seen.job, seen.operator, seen.batch, seen.step) == ("toy", "toy", 12, 6)
    assert json.loads(seen.position or "") == {"next": 12}
    assert seen.checkpoint_batch
    assert seen.checkpoint_batch + seen.log_records == 12
    assert seen.arrays["totals"] <= 64
    assert (seen.limit, seen.charges) == ("mu=1", 1)
    assert not seen.secure
    assert "malformed" not in json.dumps(seen.to_dict())


def test_a_state_without_checkpoint_and_one_without_records(tmp_path: Path) -> None:
    with Job(tmp_path / "s", work(), SEEDED) as job:
        assert inspect(tmp_path / "s").batch == 0
        next(job)
    assert inspect(tmp_path / "s").checkpoint_batch is None


def test_other_directories_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(StoreError, match="not a state directory"):
            inspect(path)
