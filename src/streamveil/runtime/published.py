"""What was published, to be read again: the same bytes, no noise drawn, nothing charged.

`releases` in a state directory holds every release as committed, one frame each, in order: number
columns as arrays in the fewest bytes, all others as a compressed Arrow stream. It is appended to
when a release is published and synced before a checkpoint lets the log go, so that the archive and
a replay of the log together always give all of them; a restart adds what the archive has lost. A
sink that keeps releases itself and gives them back (Parquet files) is read instead, and noted in
`sink.json`.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from streamveil.batch import Release
from streamveil.connectors.base import Sink
from streamveil.connectors.blocks import write_all
from streamveil.derived.releases import Load, Moment, Releases, of_folder
from streamveil.errors import PlanError, StoreError, nearest
from streamveil.queries.kernels import INT_MAX
from streamveil.runtime import disk, frame, wal
from streamveil.runtime.store import HEADER, read_header
from streamveil.runtime.tables import Mark, from_parts, to_parts

VERSION = 3
COMPRESSION = "lz4"  # of columns that are no plain numbers
ARCHIVE, ELSEWHERE = "releases", "sink.json"
SPARK = "spark.json"  # the header of a state of the Spark engine


@dataclass(frozen=True)
class Entry:
    """Where a release lies in the archive."""

    step: int
    offset: int


class Archive:
    """The archive of an open state directory."""

    def __init__(self, directory: Path, epoch: str, sink: Sink | None) -> None:
        self.path, self.epoch = directory / ARCHIVE, epoch
        self._fd = -1
        self._end = 0  # of the file
        self._held: dict[Moment, Entry] = {}
        self.active = not keeps(sink)
        if self.active:
            self._open()
        else:
            assert sink is not None  # noqa: S101  (it keeps releases)
            note = {"path": str(Path(str(getattr(sink, "path", ""))).absolute())}
            disk.create(directory / ELSEWHERE, [memoryview(json.dumps(note).encode())])

    def _open(self) -> None:
        if not self.path.exists():
            head = {"version": VERSION, "epoch": self.epoch}
            disk.create(self.path, frame.encode(head, {}))
        self._held, end = index(self.path, self.epoch)
        with disk.crash_only("open", self.path):
            self._fd = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC)
        self._cut(end)

    def _cut(self, end: int) -> None:
        """Drops what lies at or after an offset; writing goes on there."""
        self._held = {place: entry for place, entry in self._held.items() if entry.offset < end}
        with disk.crash_only("repair", self.path):
            os.ftruncate(self._fd, end)
            os.lseek(self._fd, end, os.SEEK_SET)
        self._end = end

    def restore(self, releases: Sequence[Release], known: Sequence[Mark]) -> tuple[Release, ...]:
        """As `keep`, for releases that the log makes again; returns them as they were published.

        What a power failure left is compared. The archive is in the order of the log and whole up
        to its last sync, so from the first frame that does not read back, everything is written
        again.
        """
        held = [
            self._as_published(release, one) for release, one in zip(releases, known, strict=True)
        ]
        self.keep(held, known)
        return tuple(held)

    def _as_published(self, release: Release, known: Mark) -> Release:
        """A release with the table that the archive holds, to the last digit; else as it is."""
        entry = self._held.get(Moment(known.window, known.trigger)) if self.active else None
        if entry is None:
            return release
        try:
            mark, table = committed(self.path, entry)
        except StoreError:
            mark = None
        if mark == known:
            return replace(release, table=table)
        self._cut(entry.offset)
        return release

    def keep(self, releases: Sequence[Release], known: Sequence[Mark]) -> None:
        """Adds what is not there yet; each release comes with its mark."""
        if not self.active:
            return
        for release, one in zip(releases, known, strict=True):
            place = Moment(one.window, one.trigger)
            if place not in self._held:
                laid = frame.laid_out(asdict(one), *to_parts(release.table, COMPRESSION))
                with (
                    disk.crash_only("write the releases in", self.path.parent),
                    frame.gathered(*laid, start=self._end) as buffers,
                ):
                    size = write_all(self._fd, buffers)
                self._held[place] = Entry(one.step, self._end)
                self._end += size

    def sync(self) -> None:
        """Makes everything durable; the log may then be dropped."""
        if self._fd >= 0:
            with disk.crash_only("write the releases in", self.path.parent):
                os.fdatasync(self._fd)

    def close(self) -> None:
        """Gives the file back."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def keeps(sink: Sink | None) -> bool:
    """Whether a sink gives back what it was given."""
    return bool(getattr(sink, "keeps", False))


def index(path: Path, epoch: str) -> tuple[dict[Moment, Entry], int]:
    """What an archive holds, and where its last whole frame ends. Bodies are not read."""
    found: dict[Moment, Entry] = {}
    with disk.crash_only("read", path), path.open("rb") as file:
        end = 0
        for offset, head, sizes in frame.heads(file):
            if "window" in head:
                place = Moment(head["window"], head["trigger"])
                found[place] = Entry(head["step"], offset)
            else:
                wal.require_mine(path, head, VERSION, epoch)
            end = offset + sizes.frame
    if not end:
        raise wal.damaged(path)
    return found, end


def committed(path: Path, entry: Entry) -> tuple[Mark, pa.Table]:
    """One release, as committed."""
    try:
        with disk.crash_only("read", path), path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(entry.offset)
            read = frame.read(file, size - entry.offset)
    except frame.TornFrameError:
        raise wal.damaged(path) from None
    return Mark(**read.head), from_parts(read.arrays, read.blobs)


def is_state(path: str | Path) -> bool:
    """Whether a folder is the state directory of a job."""
    return (Path(path) / HEADER).is_file() or (Path(path) / SPARK).is_file()


def of_state(path: str | Path) -> Releases:
    """Every release of a job, from its state directory (or the sink that keeps them).

    Reads files only, also while the job runs: no secret, no lock, no charge.
    """
    home = Path(path)
    if (home / SPARK).is_file():
        raise StoreError(
            f"'{home.name}' is a state of the Spark engine, which leaves releases to the sink.\n"
            "  to fix  read the folder of its sink"
        )
    header = read_header(home) if home.is_dir() else None
    if header is None:
        raise StoreError(f"'{home.name}' is not a state directory")
    archive, loads = home / ARCHIVE, dict[Moment, Load]()
    if archive.exists():
        entries, _ = index(archive, header.epoch)
        loads = {place: _load(archive, entry) for place, entry in entries.items()}
    if (home / ELSEWHERE).exists():
        folder = Path(json.loads(disk.read(home / ELSEWHERE))["path"]) / header.identity.job
        if folder.is_dir():
            loads = of_folder(folder).loads | loads
    if not loads:
        raise StoreError(
            f"the job in '{home.name}' has not released anything yet.\n"
            "  to fix  run it until its first trigger"
        )
    return Releases(loads)


def _load(path: Path, entry: Entry) -> Load:
    return lambda: committed(path, entry)[1]


def read(
    source: str | Path,
    *,
    window: int | None = None,
    trigger: int | None = None,
    key: Mapping[str, Any] | None = None,
) -> Release:
    """A release that was made before, or its row for one key: the same numbers, free of charge.

    `source` is a state directory or a sink's folder. Without a window or trigger, the last. A
    release that was never made, or a key that it does not show, is an error: nothing is ever drawn
    to answer a read.
    """
    return pick(opened(source), window, trigger, key)


def opened(source: str | Path) -> Releases:
    """The releases of a state directory or a sink's folder."""
    return of_state(source) if is_state(source) else of_folder(source)


def pick(
    releases: Releases,
    window: int | None,
    trigger: int | None,
    key: Mapping[str, Any] | None = None,
) -> Release:
    """See `read`."""
    if window is None:
        window = releases.moments[-1].window
    if trigger is None:
        trigger = max((m.trigger for m in releases.moments if m.window == window), default=1)
    moment = releases.require(Moment(window, trigger))
    table = releases.table(moment)
    if key:
        table = rows_of(table, releases.key_names, key)
    step = releases.step(moment)
    return Release(table, *moment, moment.trigger if step is None else step)


WRITTEN = {
    "timestamp[us, tz=UTC]": ".\n  to fix  write it as '2026-01-31 12:00:00' (UTC)",
    "date32[day]": ".\n  to fix  write it as '2026-01-31'",
    "bool": ".\n  to fix  write it as true or false",
}


def scalar_of(value: Any, kind: pa.DataType) -> Any:
    """A value of a key, given as it is or as text. Times without an offset are in UTC."""
    large = isinstance(value, int) and abs(value) > INT_MAX  # Arrow takes those as text
    plain = pa.scalar(str(value) if large else value)
    if not pa.types.is_timestamp(kind):
        return plain.cast(kind)
    try:
        return plain.cast(kind)
    except pa.ArrowInvalid:
        return plain.cast(pa.timestamp(kind.unit)).cast(kind)


def rows_of(table: pa.Table, names: list[str], key: Mapping[str, Any]) -> pa.Table:
    """The rows of one key, or of a part of it; values may be given as text."""
    kept: Any = pa.array([True] * table.num_rows)
    for name, value in key.items():
        if name not in names:
            raise PlanError(f"'{name}' is no key column{nearest(name, names)}")
        kind = table.schema.field(name).type
        try:
            wanted = scalar_of(value, kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
            raise PlanError(
                f"the key column '{name}' holds {kind}, and the value given is none of these"
                f"{WRITTEN.get(str(kind), '')}"
            ) from None
        same = pc.is_null(table[name]) if value is None else pc.equal(table[name], wanted)
        if pa.types.is_floating(kind) and wanted.is_valid and math.isnan(wanted.as_py()):
            same = pc.is_nan(table[name])  # one group, which equals nothing
        kept = pc.and_(kept, pc.fill_null(same, fill_value=False))
    found = table.filter(kept)
    if not found.num_rows:
        raise PlanError(
            "this release shows no such group: it was not public then, and nothing is drawn to"
            " answer a read.\n  to fix  name a group that is shown, or a later release"
        )
    return found
