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
from tests.crash.lives import (
    FAULTED,
    SURVIVED,
    UNTOUCHED,
    Server,
    archived,
    published,
    rejected_rows,
    spent,
)
from tests.crash.streams import RELEASES

MOST_CALLS = 5_000
DIFFERENT = [kind for kind in KINDS if kind != "kill after"]  # a kill before the next call


@pytest.mark.parametrize("kind", DIFFERENT)
def test_some_writes_of_the_toy_may_fail(server: Server, folder: Path, kind: Kind) -> None:
    try_calls(server, folder, Fault(kind, 1), "toy", every=5 if kind == "EIO" else 3)


@pytest.mark.parametrize(("kind", "first"), [("kill", 1), ("short and kill", 2), ("ENOSPC", 3)])
def test_some_writes_of_rejected_rows_may_fail(
    server: Server, folder: Path, kind: Kind, first: int
) -> None:
    try_calls(server, folder, Fault(kind, first), "picky toy", every=11)


@pytest.mark.parametrize(("kind", "first"), [("short and kill", 3), ("short", 1)])
def test_some_writes_past_the_page_cache_may_fail(
    server: Server, folder: Path, kind: Kind, first: int
) -> None:
    try_calls(server, folder, Fault(kind, first), "large toy", every=5)


@pytest.mark.parametrize(("kind", "first"), [("short and kill", 2), ("ENOSPC", 5), ("kill", 7)])
def test_some_writes_of_the_group_by_may_fail(
    server: Server, folder: Path, kind: Kind, first: int
) -> None:
    try_calls(server, folder, Fault(kind, first), "visits", every=43)


@pytest.mark.parametrize(("kind", "first"), [("kill", 4), ("short and kill", 2), ("fsync", 1)])
def test_some_writes_of_a_checkpoint_in_portions_may_fail(
    server: Server, folder: Path, kind: Kind, first: int
) -> None:
    try_calls(server, folder, Fault(kind, first), "divided visits", every=53)


@pytest.mark.parametrize(("kind", "first"), [("short and kill", 1), ("fsync", 2), ("kill", 3)])
def test_some_writes_of_groups_of_releases_may_fail(
    server: Server, folder: Path, kind: Kind, first: int
) -> None:
    try_calls(server, folder, Fault(kind, first), "grouped toy", every=11)


@pytest.mark.parametrize(("kind", "first"), [("short and kill", 3), ("EIO", 6), ("kill after", 9)])
def test_some_writes_of_a_changing_table_and_its_questions_may_fail(
    server: Server, folder: Path, kind: Kind, first: int
) -> None:
    try_calls(server, folder, Fault(kind, first), "people", every=97)


@pytest.mark.parametrize(("kind", "first"), [("short and kill", 2), ("fsync", 4), ("kill", 6)])
def test_some_writes_of_a_join_on_live_data_may_fail(
    server: Server, folder: Path, kind: Kind, first: int
) -> None:
    try_calls(server, folder, Fault(kind, first), "joined", every=101)


@pytest.mark.parametrize(
    ("kind", "first"), [("kill", 1), ("EIO", 2), ("short and kill", 3), ("ENOSPC", 1)]
)
def test_some_writes_of_a_job_that_looks_may_fail(
    server: Server, folder: Path, kind: Kind, first: int
) -> None:
    try_calls(server, folder, Fault(kind, first), "looked visits", every=17)


def test_the_questions_are_of_every_kind(server: Server, folder: Path) -> None:
    assert server.run(folder, "people") == SURVIVED
    answers = [text.decode() for name, text in published(folder).items() if "answer" in name]
    assert {text.split()[0] for text in answers} == {"RELEASED", "EASY", "HARD"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "job",
    [
        "toy",
        "large toy",
        "picky toy",
        "visits",
        "picky visits",
        "swept visits",
        "divided visits",
        "grouped toy",
        "grouped visits",
        "looked visits",
        "people",
        "values",
        "joined",
    ],
)
@pytest.mark.parametrize("kind", DIFFERENT)
def test_every_write_may_fail(server: Server, folder: Path, kind: Kind, job: str) -> None:
    try_calls(server, folder, Fault(kind, 1), job)


def try_calls(server: Server, folder: Path, fault: Fault, job: str, every: int = 1) -> None:
    kind = fault.kind
    assert server.run(folder / "unbroken", job) == SURVIVED
    expected, charged = published(folder / "unbroken"), spent(folder / "unbroken")
    kept, rejected = archived(folder / "unbroken"), rejected_rows(folder / "unbroken")
    assert bool(rejected) == job.startswith("picky")
    assert len(expected) == RELEASES[job]
    killed = -signal.SIGKILL if "kill" in kind else FAULTED
    wanted = SURVIVED if kind == "short" else killed
    for at in range(fault.at, MOST_CALLS, every):
        broken = folder / "broken"
        status = server.run(broken, job, Fault(kind, at))
        if status == UNTOUCHED:
            break
        assert status == wanted, f"{kind} at call {at}"
        seen = published(broken)
        assert {name: expected[name] for name in seen} == seen, f"{kind} at call {at}"
        assert server.run(broken, job) == SURVIVED, f"{kind} at call {at}"
        assert published(broken) == expected, f"{kind} at call {at}"
        assert spent(broken) == charged, f"{kind} at call {at}"
        assert archived(broken) == kept, f"{kind} at call {at}"
        assert rejected_rows(broken) == rejected, f"{kind} at call {at}"
        shutil.rmtree(broken)
    assert 4 < at < MOST_CALLS - every, "the faults were not injected"
