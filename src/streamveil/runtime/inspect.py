"""A state directory's content, for `streamveil inspect DIR`: sizes and places, no row value."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from stat import S_ISREG
from typing import Any, Literal

from streamveil.accounts.ledger import Ledger
from streamveil.connectors.manifest import MARK, LocalFiles, Manifest, files_in
from streamveil.connectors.remote import RemoteFiles
from streamveil.errors import StoreError
from streamveil.runtime import checkpoint, formats, frame, wal
from streamveil.runtime.store import LEDGER, SECRET, UNCHARGED, Header, require_header

FIRST = {  # what positions count, before the place of a source within them
    "step": "step {:,}", "version": "version {}", "snapshot": "snapshot {}",
    "lsn": "byte {:,} of the log", "file": "{:,} of its files done", "rows": "{:,} rows done",
    "count": "{:,} events done",
}  # fmt: skip
LAST = {
    "next": "next is {:,}", "skip": "{:,} rows further", "taken": "{:,} rows of it done",
}  # fmt: skip


@dataclass(frozen=True)
class Summary:
    """A state as it is on disk. Reading it needs neither the secret nor the lock."""

    job: str
    plan: str
    operator: str
    epoch: str
    secure: bool
    secret_kept: bool  # whether the secret lies in the directory
    batch: int  # micro-batches committed
    step: int
    closed: bool  # whether the last micro-batch closed its step
    position: str  # where the source resumes, in words
    position_before: str  # and where the last micro-batch began, if the log tells
    committed: str | None  # time of the last commit, UTC
    formats: dict[str, int]  # versions of the formats
    checkpoint_batch: int | None
    checkpoint_bytes: int
    log_records: int  # since the checkpoint
    log_bytes: int
    arrays: dict[str, int]  # bytes in the checkpoint, by the first word of their names
    files: dict[str, int]  # bytes on disk, by what they are
    protects: str
    limit: str
    spent: str
    left: str
    charges: int

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)

    def rows(self) -> list[tuple[str, str]]:
        """Labels and texts for a reader."""
        state = ", ".join(f"{name} {size_text(size)}" for name, size in self.arrays.items())
        saved = f"after micro-batch {self.checkpoint_batch}, {size_text(self.checkpoint_bytes)}"
        secret = "in this directory" if self.secret_kept else "kept elsewhere: give it to resume"
        return [
            ("job", f"{self.job}, a {self.operator}, query {self.plan}"),
            ("noise", f"epoch {self.epoch}, secret {secret}" if self.secure
             else "INSECURE: releases of this state protect nobody"),
            ("done", f"{self.batch:,} micro-batches, step {self.step:,} is"
             f" {'closed' if self.closed else 'open'}"),
            ("last commit", self.committed or "none yet"),
            ("source", f"from {self.position_before}"),
            ("  next", self.position),
            ("checkpoint", "none yet" if self.checkpoint_batch is None else saved),
            ("  state in it", state or "none"),
            ("log since", f"{self.log_records:,} micro-batches, {size_text(self.log_bytes)}"),
            ("on disk", ", ".join(f"{k} {size_text(v)}" for k, v in self.files.items())),
            ("formats", ", ".join(f"{name} {number}" for name, number in self.formats.items())),
            ("ledger", f"protects {self.protects}"),
            ("  limit", self.limit),
            ("  spent", f"{self.spent}, by {self.charges:,} charge{'s' * (self.charges != 1)}"),
            ("  left", self.left),
        ]  # fmt: skip


def inspect(directory: str | Path) -> Summary:
    """Reads a state directory without changing it, also while a job is running in it."""
    return read(Path(directory))[0]


def read(folder: Path) -> tuple[Summary, str | None]:
    """A state as it is on disk, and the position at which its source resumes."""
    return checkpoint.at_one_moment(folder, partial(_read, folder, require_header(folder)))


def _read(
    folder: Path, header: Header, saved: list[tuple[int, Path]]
) -> tuple[Summary, str | None]:
    """The same, by the checkpoints that were found."""
    after, path = saved[-1] if saved else (0, None)
    parts = [] if path is None else checkpoint.heads_of(path, header.epoch)[0]
    log = logged(folder, header.epoch, after) if header.ready else []
    heads = parts[:1] + [head for head, _ in log]
    places = [wal.JobPosition(**head["place"]) for head in heads] or [wal.JobPosition()]
    place, before = places[-1], places[-2] if len(places) > 1 else wal.JobPosition()
    identity = header.identity
    summary = Summary(
        identity.job, identity.plan, identity.operator, header.epoch, header.secure,
        (folder / SECRET).exists(), place.batch, place.step, place.closed, words(place.position),
        words(before.position), last_change(folder),
        {"directory": formats.VERSION, "log": wal.VERSION, "checkpoint": checkpoint.VERSION},
        after if path else None, path.stat().st_size if path else 0,
        len(log), sum(size for _, size in log), sizes(parts), on_disk(folder),
        *spending(folder, header),
    )  # fmt: skip
    return summary, place.position


def last_change(folder: Path) -> str | None:
    """When the log was last written."""
    segments = wal.kept(folder)
    if not segments:
        return None
    newest = segments[-1][1].stat().st_mtime  # a running job removes others
    return datetime.fromtimestamp(newest, UTC).isoformat(" ", "seconds")


def on_disk(folder: Path) -> dict[str, int]:
    """Bytes of all files, by the first word of their names."""
    total: dict[str, int] = {}
    for path in sorted(folder.rglob("*")):
        with suppress(FileNotFoundError):  # a running job removes what it has replaced
            status = path.stat()
            word = path.relative_to(folder).parts[0].split("-")[0]
            total[word] = total.get(word, 0) + status.st_size * S_ISREG(status.st_mode)
    return {word: size for word, size in total.items() if size}


def words(position: str | None) -> str:
    """A place in the source, for a reader: counts and names, and nothing from rows.

    A position also holds digests of rows, by which a source knows them again. Whoever guesses a row
    could check the guess against its digest, so none is shown.

    >>> words('{"step": 3, "taken": 20}')
    'step 3, 20 rows of it done'
    >>> words('{"files": 3, "recent": "", "name": "a.csv", "row": 7, "mark": 81985529}')
    "3 files done, file 'a.csv' from row 7"
    >>> words('{"offsets": {"0": 7, "1": 9}, "next": 1, "last": [0, 6, "4d65"]}')
    'partition 0 from offset 7, partition 1 from offset 9, next is 1'
    """
    if position is None:
        return "the start"
    return ", ".join(parts_of(json.loads(position))) or "a place that its source alone can read"


def parts_of(place: Any) -> Iterator[str]:
    """The words of a place."""
    if isinstance(place, list):  # of combined rows: with a digest of them
        place = place[0]
    if isinstance(place, int):
        yield f"row {place:,}"
    if not isinstance(place, dict):
        return
    yield from counted(place, FIRST)
    if "recent" in place:
        yield f"{files_in(place):,} files done"
    if place.get("name"):
        yield f"file '{place['name']}' from row {place.get('row', 0):,}"
    else:
        yield from counted(place, {"row": "row {:,}"})
    for partition, offset in place.get("offsets", {}).items():
        yield f"partition {partition} from offset {offset:,}"
    others = [other["source"] for other in place.get("others", [])]
    for inner in (place.get("source"), place.get("stream"), *others):
        if isinstance(inner, str):
            yield from parts_of(json.loads(inner))
    yield from counted(place, LAST)


def counted(place: dict[str, Any], phrases: dict[str, str]) -> Iterator[str]:
    """Phrases of the numbers that a place gives."""
    for name, phrase in phrases.items():
        if isinstance(place.get(name), int) and place[name]:
            yield phrase.format(place[name])


def size_text(size: float) -> str:
    """Bytes for a reader.

    >>> size_text(999), size_text(2_500_000)
    ('999 B', '2.5 MB')
    """
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.1f} GB"


def logged(folder: Path, epoch: str, after: int) -> list[tuple[frame.Head, int]]:
    """Head and size of every record after a batch; a torn tail or one being written is left out."""
    parts = wal.linked(wal.needed(folder, after), epoch, wal.heads_only)
    return [(one.head, one.size) for one in parts if one.is_record and one.batch > after]


def sizes(heads: list[frame.Head]) -> dict[str, int]:
    """Stored bytes of a checkpoint's arrays, summed by the first word of their names."""
    total: dict[str, int] = {}
    for name, _, _, kept, size in (array for head in heads for array in head["arrays"]):
        word = re.split(r"[^a-z]", str(name))[0]
        total[word] = total.get(word, 0) + size * int(kept[2:])
    return total


def spending(folder: Path, header: Header) -> tuple[str, str, str, str, int]:
    """Whom the ledger protects, its limit, what is spent and left, and how many charges it has."""
    path = folder / LEDGER
    if not header.ready and not path.exists():
        return "nobody yet", UNCHARGED, "nothing", "everything", 0
    with Ledger.load(path) as ledger:
        whom, limit = ledger.protects.phrase, str(ledger.limit)
        return whom, limit, str(ledger.spent()), str(ledger.left()), len(ledger.entries())


Reading = Literal["read", "needed", "changed"]


def files_read(state: str | Path, pattern: str) -> Iterator[tuple[str, Reading]]:
    """Each file of a pattern, which is the path of the query, and whether it was read to its end.

    Only commits count: a file that is 'read' may be deleted, whatever happens to the job.
    """
    at = place_of(read(Path(state))[1])
    if at is None:
        raise StoreError(
            "the position of this job does not tell which files were read: it reads them again"
            " after a restart, or has no files.\n  to fix  keep its files until it is done"
        )
    manifest = Manifest.of(at, Path(state))
    store = RemoteFiles([pattern]) if MARK in pattern else LocalFiles()
    names = store.found([pattern])
    kept = store.below([pattern], names)
    for name, own, held in zip(names, kept, manifest.holds(kept), strict=True):
        if not held:  # or it was read in part
            yield name, "needed"
        else:
            size = manifest.find(own).size
            yield name, "read" if store.listed(name).size == size else "changed"


def place_of(position: str | None) -> dict[str, Any] | None:
    """The part of a position that tells of files."""
    if position is None:
        return {"files": 0, "hash": "", "recent": ""}
    at = json.loads(position)
    while isinstance(at, dict) and "files" not in at:
        inner = at.get("source", at.get("stream"))  # of a join on live data
        at = json.loads(inner) if isinstance(inner, str) else None
    return at if isinstance(at, dict) else None
