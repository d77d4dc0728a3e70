"""What an operator released must not change with its state: it is published while others fold."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from streamveil.batch import Release
from streamveil.core.noise import SeededNoise
from streamveil.runtime.tables import settled, to_bytes
from tests.crash.streams import JOBS, work
from tests.released import made
from tests.runtime.toy import Stream, Toy

NOISE = SeededNoise(7)
ROOT = Path(__file__).parents[2]


def changes(operator: Any, feed: Any) -> int:
    """Runs an operator to the end; how many of its releases changed afterwards."""
    state, kept = operator.init(), list[tuple[Release, bytes]]()
    for batch in feed(None):
        operator.fold(state, batch, NOISE)
        if batch.closes_step:
            made = operator.release(state, batch.step, NOISE)
            kept += [(settled(one)[0], bytes(to_bytes(one.table))) for one in made]
    assert len(kept) > 2
    return sum(bytes(to_bytes(release.table)) != data for release, data in kept)


@pytest.mark.parametrize("name", [name for name in JOBS if "toy" not in name])
def test_no_release_changes_with_the_state(name: str, tmp_path: Path) -> None:
    job = work(name, tmp_path)
    assert changes(job.operator, job.feed) == 0


def test_the_check_sees_a_shared_array() -> None:
    class Sharing(Toy):
        def release(self, state: Any, step: int, noise: Any) -> list[Release]:
            return [made(pa.table({"n": state.totals}), 0, step, step)]

    assert changes(Sharing(), Stream()) > 2


def test_the_data_of_these_jobs_go_with_the_process(tmp_path: Path) -> None:
    code = "from tests.crash import streams; streams.visits(), streams.people()"
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, cwd=ROOT)
    assert not list(tmp_path.iterdir())
