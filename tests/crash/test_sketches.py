"""Sketch jobs that are killed or cannot write: the releases of an unbroken run, and its ledger."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.crash.faults import Fault, Kind
from tests.crash.lives import SURVIVED, Server, published
from tests.crash.test_faults import DIFFERENT, try_calls
from tests.crash.test_sigkill import kill_often

SKETCHES = ["heavy", "frequency"]


@pytest.mark.parametrize("job", SKETCHES)
def test_a_few_kills(server: Server, folder: Path, job: str) -> None:
    kill_often(server, folder, job, 5)


def test_some_writes_may_fail(server: Server, folder: Path) -> None:
    try_calls(server, folder, Fault("short and kill", 2), "frequency", every=17)


@pytest.mark.slow
@pytest.mark.parametrize("job", SKETCHES)
def test_many_kills(server: Server, folder: Path, job: str) -> None:
    kill_often(server, folder, job, 300)


@pytest.mark.slow
@pytest.mark.parametrize("job", SKETCHES)
@pytest.mark.parametrize("kind", DIFFERENT)
def test_every_write_may_fail(server: Server, folder: Path, kind: Kind, job: str) -> None:
    try_calls(server, folder, Fault(kind, 1), job)


def test_the_killed_jobs_do_find_and_count(server: Server, folder: Path) -> None:
    assert server.run(folder, "heavy") == SURVIVED
    found = [rows(text) for text in published(folder).values()]
    assert {row["key"] for row in found[-1]} <= {str(page) for page in range(1, 9)}
    assert any(found)
    assert server.run(folder / "second", "frequency") == SURVIVED
    counted = [rows(text) for text in published(folder / "second").values()]
    assert all([row["page"] for row in release] == ["page 1", "page 2"] for release in counted)


def rows(text: bytes) -> list[dict[str, object]]:
    """The rows of a published file."""
    return [json.loads(line) for line in text.splitlines() if line]
