"""One fork server for the whole folder."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.lives import Server


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    started = Server()
    yield started
    started.close()


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory in memory where there is one: SIGKILL spares the page cache, syncs cost time."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        yield Path(name)
