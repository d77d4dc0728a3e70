"""A fault at the 1st, 2nd, 3rd … writing system call, until a run survives it.

After each, a restart must end with the releases and the ledger of an unbroken run, and nothing that
was published before the fault may have changed.
"""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

from tests.crash.faults import KINDS, Fault, Kind
from tests.crash.lives import FAULTED, SURVIVED, UNTOUCHED, Server, published, spent
from tests.runtime.toy import Stream

STREAM = Stream(batches=8, rows=20, per_step=2)
MOST_CALLS = 400


@pytest.mark.parametrize("kind", KINDS)
def test_every_write_may_fail(server: Server, folder: Path, kind: Kind) -> None:
    assert server.run(folder / "unbroken", STREAM) == SURVIVED
    expected, charged = published(folder / "unbroken"), spent(folder / "unbroken")
    killed = -signal.SIGKILL if "kill" in kind else FAULTED
    wanted = SURVIVED if kind == "short" else killed
    for at in range(1, MOST_CALLS):
        broken = folder / "broken"
        status = server.run(broken, STREAM, Fault(kind, at))
        if status == UNTOUCHED:
            break
        assert status == wanted, f"{kind} at call {at}"
        seen = published(broken)
        assert {name: expected[name] for name in seen} == seen, f"{kind} at call {at}"
        assert server.run(broken, STREAM) == SURVIVED, f"{kind} at call {at}"
        assert published(broken) == expected, f"{kind} at call {at}"
        assert spent(broken) == charged, f"{kind} at call {at}"
        shutil.rmtree(broken)
    assert 4 < at < MOST_CALLS - 1, "the faults were not injected"
