"""Which files a job has read, for whoever deletes them: `streamveil inspect DIR --files PATH`.

For the operator alone, as counts of rows are: which files there are, and when they were read, may
depend on people. Neighbours differ in rows, and no release depends on the names of files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from streamveil.connectors.manifest import Manifest
from streamveil.connectors.remote import MARK, LocalFiles, RemoteFiles
from streamveil.errors import StoreError
from streamveil.runtime.inspect import inspect

Reading = Literal["read", "needed", "changed"]


def files_read(state: str | Path, pattern: str) -> Iterator[tuple[str, Reading]]:
    """Each file of a pattern, which is the path of the query, and whether it was read to its end.

    What is committed counts: a file that is 'read' may go, whatever happens to the job.
    """
    at = place_of(inspect(state).position)
    if at is None:
        raise StoreError(
            "the position of this job does not tell which files were read: it reads them again"
            " after a restart, or has no files.\n  to fix  keep its files until it is done"
        )
    manifest = Manifest.of(at, Path(state))
    store = RemoteFiles([pattern]) if MARK in pattern else LocalFiles()
    names = store.found([pattern])
    for name, file in zip(names, manifest.find(store.below([pattern], names)), strict=True):
        if file is None:  # or it was read in part
            yield name, "needed"
        else:
            yield name, "read" if store.listed(name).size == file.size else "changed"


def place_of(position: str | None) -> dict[str, Any] | None:
    """The part of a position that tells of files."""
    if position is None:
        return {"files": 0, "hash": "", "recent": ""}
    at = json.loads(position)
    while isinstance(at, dict) and "files" not in at:
        inner = at.get("source")
        at = json.loads(inner) if isinstance(inner, str) else None
    return at if isinstance(at, dict) else None
