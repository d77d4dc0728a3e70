"""Rows that cannot be used, kept in a private directory for whoever runs the job.

    _owner.json                    the owner of the rows: the state's epoch, and its place
    batch-000000000012.parquet     rows that the 12th micro-batch could not use, if any

A file is durable before its micro-batch is committed and named by the micro-batch's number. So a
micro-batch that is read again after a crash overwrites its own file; a start removes files beyond
the last commit, and whatever is left is of committed micro-batches, once each. The state directory
names this one, so that a start does so even when nobody asks for rejected rows any more.

The files hold raw rows: mode 0600, in a directory of mode 0700. Those of committed micro-batches
are never touched again, and may be moved or deleted at any time.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from streamveil import disk
from streamveil.batch import Batch, RejectNotes
from streamveil.connectors.rejected_rows import beside, rejected_table, schema_of
from streamveil.disk import Unnamed, crash_only
from streamveil.errors import PlanError, StoreError
from streamveil.runtime import formats

OWNER = "_owner.json"  # readers of a directory of Parquet files pass over such names
WHERE = "rejects.json"  # in the state directory
BATCH, ENDING = "batch-", ".parquet"


class Owner(NamedTuple):
    """The owner of rejected rows. A copy of a state differs from it by its place."""

    epoch: str
    state: str  # its directory


@dataclass(frozen=True, kw_only=True)
class Routing:
    """The directory for rejected rows, and their form."""

    directory: Path
    columns: pa.Schema  # of the rows of a micro-batch
    files: Callable[[], list[str]] = list  # the source's, by number

    def require(self, state: Path, epoch: str | None) -> None:
        """Refuses, before anything is made, a directory that is not this job's own.

        `epoch`: of the state; None if it is new.
        """
        where = self.directory
        if where.absolute() == state.absolute():
            raise StoreError(
                "rejected rows need a directory of their own, not that of the state.\n"
                "  to fix  give another directory, such as one below it"
            )
        require_writable(self.columns)
        if not where.exists():
            return
        if not where.is_dir():
            raise StoreError(f"rejected rows go to a directory, and '{where.name}' is none")
        with crash_only("read", where):
            mode = stat.S_IMODE(where.stat().st_mode)
            begun = OWNER + disk.TEMPORARY  # a start that did not come further
            empty = all(path.name == begun for path in where.iterdir())
        if mode & 0o077:
            raise StoreError(
                f"others may look into the directory of rejected rows '{where.name}'"
                f" (mode {mode:04o}).\n  to fix  chmod 700 '{where.name}', or give a new directory"
            )
        owner = owner_of(where)
        if not empty and (owner is None or owner.epoch != epoch):
            raise StoreError(
                f"the directory of rejected rows '{where.name}' is not empty, and not of this"
                " state.\n  to fix  give a new or empty directory"
            )

    def open(self, state: Path, epoch: str, committed: int) -> Rejects:
        """The directory as of the last commit, made durable with its owner's mark if it is new."""
        where, owner = self.directory.absolute(), Owner(epoch, str(state))
        with naming(where):
            disk.make_directory(where)
            if owner_of(where) != owner:
                formats.write(where / OWNER, "rejects", owner._asdict())
        if kept_in(state) != where:
            formats.write(state / WHERE, "place of rejects", {"directory": str(where)})
            sweep(where, owner, committed)
        return Rejects(where, self)


def sweep(where: Path | None, owner: Owner, committed: int) -> None:
    """Removes the files of micro-batches that were never committed."""
    if where is None or owner_of(where) != owner:
        return
    with naming(where):
        numbers = {path: path.stem[len(BATCH) :] for path in where.glob(f"{BATCH}*{ENDING}")}
        late = [path for path, n in numbers.items() if n.isdigit() and int(n) > committed]
        disk.remove([*where.glob(f"{BATCH}*{disk.TEMPORARY}"), *late])
        if late:  # nothing else syncs the folder, if the micro-batches of these numbers write none
            with crash_only("remove", late[0]):
                disk.sync_directory(where)


class Rejects:
    """The open directory."""

    def __init__(self, where: Path, routing: Routing) -> None:
        self.where, self.routing = where, routing
        self.schema = schema_of(routing.columns)

    @staticmethod
    def asking(batches: Iterable[Batch]) -> Iterator[Batch]:
        """The same micro-batches, each with room for the rows that its operator cannot use."""
        for batch in batches:
            yield replace(batch, reject_notes=RejectNotes())

    def of(self, batch: Batch) -> Iterable[pa.Table]:
        """The rejected rows of a folded micro-batch: of its source, then of the operator."""
        found = batch.reject_notes.found if batch.reject_notes else []
        files = self.routing.files() if found else []
        rows = [(reason, batch.rows.take(pa.array(numbers))) for reason, numbers in found]
        return chain(
            batch.rejected_rows, [kept_table(reason, some, files) for reason, some in rows]
        )

    def write(self, number: int, tables: Iterable[pa.Table]) -> None:
        """Makes the rejected rows of a micro-batch durable, if there are any."""
        full = (table for table in tables if table.num_rows)
        first = next(full, None)
        if first is None:
            return
        path = self.where / f"{BATCH}{number:012d}{ENDING}"
        with naming(self.where), disk.created(path) as file:
            out = pa.PythonFile(AnonymousFile(file), "w")
            with pq.ParquetWriter(out, self.schema, write_page_checksum=True) as writer:
                for table in chain([first], full):
                    writer.write_table(table)


def kept_table(reason: str, rows: pa.Table, files: list[str]) -> pa.Table:
    """Rejected rows; as lines where Parquet, which tells milliseconds, holds no time of theirs."""
    table = rejected_table(reason, rows, files)
    if "timestamp[s" in str(rows.schema.types):
        try:
            pq.write_table(table, pa.BufferOutputStream())
        except pa.ArrowInvalid:
            return beside(table, rows.schema)
    return table


class AnonymousFile:
    """An unnamed file as Arrow writes to one."""

    closed = False

    def __init__(self, file: Unnamed) -> None:
        self.file = file

    def write(self, data: bytes) -> int:
        """Adds bytes."""
        return self.file.write([memoryview(data)])

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        """The file gets its name, or none, elsewhere."""


def kept_in(state: Path) -> Path | None:
    """Where a state says its rejected rows are."""
    path = state / WHERE
    return Path(formats.read(path, "place of rejects")["directory"]) if path.exists() else None


def owner_of(where: Path) -> Owner | None:
    """The state whose rejected rows a directory holds."""
    path = where / OWNER
    return Owner(**formats.read(path, "rejects")) if path.exists() else None


def require_writable(columns: pa.Schema) -> None:
    """Refuses types that Parquet does not have, before a row can ask for them."""
    try:
        pq.write_table(schema_of(columns).empty_table(), pa.BufferOutputStream())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        kinds = ", ".join(f"'{field.name}' {field.type}" for field in columns)
        raise PlanError(
            f"rejected rows cannot be kept: Parquet has no such columns ({kinds}).\n"
            "  to fix  leave rejects out, or cast these columns in the source"
        ) from None


@contextmanager
def naming(where: Path) -> Iterator[None]:
    """Names the directory of rejected rows in the error of a failed write."""
    try:
        yield
    except StoreError as error:
        if not isinstance(error.__cause__, OSError):
            raise
        raise StoreError(
            f"cannot write to the directory of rejected rows '{where.name}':"
            f" {error.__cause__.strerror}.\n  to fix  free the disk or repair its permissions, then"
            " start again: the job resumes from its last commit"
        ) from error.__cause__
