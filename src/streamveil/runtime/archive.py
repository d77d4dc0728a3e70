"""The archive of a state directory: every release as committed, appended when it is published.

`releases` is a chain of frames (`frame.chain`), one for each release, in order: number columns as
arrays in the fewest bytes, all others as a compressed Arrow stream. It is synced before a
checkpoint lets the log go, and the checkpoint names its length and hash then (`Extent`). So the
archive up to a checkpoint and a replay of the log after it always give every release:

- damage before a checkpoint is refused, since nothing can make those releases again;
- releases after it that a power failure or damage took are written again from the log;
- a whole release beyond the log's end shows that the log has lost commits. This is refused: to
  commit other rows under noise that was published would reveal the difference.

With a bound, old releases are dropped: the newest are copied to a new file when the archive holds
twice as many. A restart needs none of the dropped ones.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pyarrow as pa

from streamveil import disk
from streamveil.batch import Moment, Release
from streamveil.connectors import Sink
from streamveil.core.noisy import restored
from streamveil.disk import crash_only, write_all
from streamveil.errors import StoreError, at_least
from streamveil.runtime import formats, frame, wal
from streamveil.runtime.checkpoint import Extent
from streamveil.runtime.tables import Mark, from_parts, to_parts

VERSION = 1
COMPRESSION = "lz4"  # of columns that are no plain numbers
ARCHIVE, ELSEWHERE = "releases", "sink.json"
CHECKED_BYTES = 256 << 20  # of the newest releases, read in full at a start; `verify` reads all
COPIED_BYTES = 8 << 20  # at once, when old releases are dropped


@dataclass(frozen=True)
class Entry:
    """Where a release lies in the archive."""

    place: Moment
    step: int
    offset: int
    end: int
    hash: str  # of all releases up to this one


@dataclass(frozen=True)
class Contents:
    """The contents of an archive up to its end, or up to the first frame that fails its check."""

    dropped: int  # releases before the first one in the file
    before: str  # the hash of these
    start: int  # offset of the first one in the file
    entries: list[Entry]
    is_damaged: bool  # whether whole frames follow one that fails its check

    @property
    def end(self) -> int:
        """Offset after the last one."""
        return self.entries[-1].end if self.entries else self.start

    @property
    def hash(self) -> str:
        """The hash of all releases."""
        return self.entries[-1].hash if self.entries else self.before

    def holds(self, extent: Extent) -> bool:
        """Whether an earlier archive is a part of this one."""
        kept = extent.releases - self.dropped
        if kept > len(self.entries):
            return False
        return kept < 0 or extent.hash == (self.entries[kept - 1].hash if kept else self.before)

    def goes_beyond(self, number: int) -> bool:
        """Whether there are more whole releases than `number`, dropped ones included."""
        return self.is_damaged or self.dropped + len(self.entries) > number


def require_most(most: int | None) -> None:
    """Refuses an archive of no release."""
    at_least(1, keep_releases=1 if most is None else most)


class Archive:
    """The archive of an open state directory; inactive where a sink keeps releases itself.

    If that sink has another folder now, and the earlier one is still there, the archive begins.
    """

    def __init__(
        self,
        directory: Path,
        epoch: str,
        sink: Sink | None,
        needed: Extent | None = None,
        most: int | None = None,
    ) -> None:
        """`needed`: the archive at the checkpoint; `most`: releases to keep, None: all."""
        require_most(most)
        self.path, self.epoch, self._most = directory / ARCHIVE, epoch, most
        self._fd = -1
        self._next = needed.releases if needed else 0  # number of the next release
        self.extent = needed  # what is durable
        elsewhere = keeps(sink)
        if elsewhere:
            where = str(Path(str(getattr(sink, "path", ""))).absolute())
            note = directory / ELSEWHERE
            before = formats.read(note, "sink")["path"] if note.exists() else where
            elsewhere = before == where or not Path(before).is_dir()  # else some stay there
            formats.write(note, "sink", {"path": where if elsewhere else before})
        self.active = not elsewhere or self.path.exists() or needed is not None
        if self.active:
            self._open(needed)

    def _open(self, needed: Extent | None) -> None:
        if needed is None and not self.path.exists():
            self._create(self.path, 0, frame.first_hash(self.epoch), [])
        self._held = contents(self.path, self.epoch)
        if needed is not None and not self._held.holds(needed):
            raise formats.damaged(self.path)
        self._read_newest(self._next - self._held.dropped)
        with crash_only("open", self.path):
            self._fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)

    def _create(
        self, path: Path, dropped: int, before: str, body: Iterator[memoryview] | list[memoryview]
    ) -> None:
        head = {"version": VERSION, "epoch": self.epoch, "dropped": dropped, frame.BEFORE: before}
        with disk.created(path) as file:
            file.write(frame.encode(head, {}))
            for part in body:
                file.write([part])

    def _read_newest(self, known: int) -> None:
        """Refuses damage in the newest of the releases that nothing can make again."""
        for entry in reversed(self._held.entries[: max(known, 0)]):
            if self._held.end - entry.offset > CHECKED_BYTES:
                break
            committed(self.path, entry)

    # ---- at a start

    def restore(self, releases: Sequence[Release], known: Sequence[Mark]) -> tuple[Release, ...]:
        """Releases that the log makes again, as they were published; each comes with its mark.

        From the first release that the archive lacks or holds otherwise, all are written again.
        """
        if not self.active:
            return tuple(releases)
        return tuple(self._restored(*pair) for pair in zip(releases, known, strict=True))

    def _restored(self, release: Release, known: Mark) -> Release:
        number = self._next - self._held.dropped
        self._next += 1
        if number < 0:
            return release
        if number < len(self._held.entries):
            try:
                mark, table = committed(self.path, self._held.entries[number])
            except StoreError:
                mark = None
            if mark == known:
                return replace(release, noisy=restored(table))
        self._cut(number)
        self._append(release, known)
        return release

    def settle(self) -> None:
        """Ends the start; refuses an archive with more releases than the log leads to."""
        if not self.active:
            return
        if self._held.goes_beyond(self._next):
            raise ahead(self.path.parent)
        self._cut(len(self._held.entries))

    def _cut(self, number: int) -> None:
        """Drops the entry of this number and all after it; writing goes on there."""
        entries = self._held.entries[:number]
        self._held = replace(self._held, entries=entries, is_damaged=False)
        with crash_only("repair", self.path):
            os.ftruncate(self._fd, self._held.end)

    # ---- while the job runs

    def keep(self, releases: Sequence[Release], known: Sequence[Mark]) -> None:
        """Adds the releases of the latest commit; each comes with its mark."""
        if not self.active:
            return
        for release, one in zip(releases, known, strict=True):
            self._append(release, one)
        self._next += len(releases)
        most = self._most and max(self._most, len(releases))
        if most and len(self._held.entries) >= 2 * most:
            self._drop(len(self._held.entries) - most)

    def _append(self, release: Release, known: Mark) -> None:
        held = self._held
        head = {**asdict(known), frame.BEFORE: held.hash}
        laid = frame.laid_out(head, *to_parts(release.table, COMPRESSION))
        with (
            crash_only("write the releases in", self.path.parent),
            frame.gathered(*laid, start=held.end) as buffers,
        ):
            after = frame.chain(held.hash, buffers[0])
            os.lseek(self._fd, held.end, os.SEEK_SET)
            size = write_all(self._fd, buffers)
        place = Moment(known.window, known.trigger)
        held.entries.append(Entry(place, known.step, held.end, held.end + size, after))

    def _drop(self, number: int) -> None:
        """Goes on in a new file without the oldest releases."""
        held = self._held
        first = held.entries[number]
        with crash_only("shorten the releases in", self.path.parent):
            before = held.entries[number - 1].hash
            self._create(
                self.path, held.dropped + number, before, self._bytes(first.offset, held.end)
            )
            os.close(self._fd)
            self._fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
            start = os.fstat(self._fd).st_size - (held.end - first.offset)
        moved = start - first.offset
        entries = [
            replace(one, offset=one.offset + moved, end=one.end + moved)
            for one in held.entries[number:]
        ]
        self._held = Contents(held.dropped + number, before, start, entries, is_damaged=False)

    def _bytes(self, start: int, end: int) -> Iterator[memoryview]:
        while start < end:
            part = os.pread(self._fd, min(COPIED_BYTES, end - start), start)
            start += len(part)
            yield memoryview(part)

    def sync(self) -> None:
        """Makes everything durable; the log may then be dropped."""
        if self._fd >= 0:
            with crash_only("write the releases in", self.path.parent):
                os.fdatasync(self._fd)
            self.extent = Extent(self._next, self._held.hash)

    def close(self) -> None:
        """Gives the file back."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def keeps(sink: Sink | None) -> bool:
    """Whether releases can be read back from a sink."""
    return bool(getattr(sink, "keeps", False))


def contents(path: Path, epoch: str) -> Contents:
    """The contents of an archive. Bodies are not read."""
    if not path.exists():
        raise StoreError(
            f"the state directory '{path.parent.name}' has lost its releases.\n"
            "  to fix  restore the whole directory from a backup of one moment"
        )
    held: Contents | None = None
    try:
        with crash_only("read", path), path.open("rb") as file:
            for offset, head, sizes in frame.heads(file):
                if held is None:
                    wal.require_mine(path, head, VERSION, epoch)
                    before, dropped = head[frame.BEFORE], head["dropped"]
                    held = Contents(dropped, before, sizes.frame, [], is_damaged=False)
                    if not dropped and before != frame.first_hash(epoch):
                        raise formats.damaged(path)
                    continue
                if head.get(frame.BEFORE) != held.hash or "window" not in head:
                    raise frame.TornFrameError("a frame is of another chain")
                place = Moment(head["window"], head["trigger"])
                after = frame.chain(held.hash, sizes.prefix)
                held.entries.append(Entry(place, head["step"], offset, offset + sizes.frame, after))
    except frame.TornFrameError:
        held = None if held is None else replace(held, is_damaged=True)
    if held is None:
        raise formats.damaged(path)
    return held


def ahead(directory: Path) -> StoreError:
    """The error for an archive with more releases than the log leads to."""
    return StoreError(
        f"the log of the state directory '{directory.name}' has lost its last micro-batches: the"
        " archive holds a release that it does not lead to.\n"
        "  to fix  restore the whole directory from a backup of one moment"
    )


def committed(path: Path, entry: Entry) -> tuple[Mark, pa.Table]:
    """One release, as committed."""
    try:
        with crash_only("read", path), path.open("rb") as file:
            file.seek(entry.offset)
            read = frame.read(file, entry.end - entry.offset)
    except frame.TornFrameError:
        raise formats.damaged(path) from None
    if Moment(read.head.get("window", 0), read.head.get("trigger", 0)) != entry.place:
        raise formats.damaged(path)
    del read.head[frame.BEFORE]
    return Mark(**read.head), from_parts(read.arrays, read.blobs)
