"""Reads published releases again: the same bytes, no noise is drawn, nothing is charged.

Releases come from the archive of a state directory (see `archive`), or from a sink that keeps them
itself and returns them (Parquet files), which is noted in `sink.json`. A read returns every release
that was published, or says why not. Commits may go further: they include parts of an incomplete
group (`grouping`), and where these end depends on rows.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from streamveil.batch import Moment, Release
from streamveil.core.noisy import Noisy, restored, values
from streamveil.dataflow.group_by import GroupBy
from streamveil.errors import (
    PlanError,
    SourceError,
    StoreError,
    fitting,
    got,
    nearest,
    require_file_name,
    require_path,
    whole,
)
from streamveil.expressions.kernels import INT_MAX
from streamveil.results.releases import Load, Releases, of_folder
from streamveil.runtime import checkpoint, formats, wal
from streamveil.runtime.archive import ARCHIVE, ELSEWHERE, Contents, Entry, committed, contents
from streamveil.runtime.checkpoint import Extent
from streamveil.runtime.store import (
    FORK,
    LEDGER,
    SPARK_HEADER,
    Header,
    is_state,
    require_header,
    states_in,
)
from streamveil.runtime.tables import Mark

ATTEMPTS, PAUSE = 6, 0.1  # a job that runs commits, then publishes; seconds


def of_state(path: str | Path) -> Releases:
    """Every release of a job, from its state directory (or the sink that keeps them).

    Reads files only, also while the job runs: no secret, no lock, no charge.
    """
    home = Path(path)
    if (home / SPARK_HEADER).is_file():
        raise StoreError(
            f"'{home.name}' is a state of the Spark engine, which leaves releases to the sink.\n"
            "  to fix  read the folder of its sink"
        )
    require_header(home)
    led: LedTo | None = None
    for attempt in range(ATTEMPTS):
        try:
            header = require_header(home)  # a job that begins is not ready at first
            led = led or led_to(home, header)  # a job that runs would lead further every time
            return _of_state(home, header, led)
        except StoreError:
            if attempt == ATTEMPTS - 1:
                raise
            time.sleep(PAUSE)
    raise AssertionError


def _of_state(home: Path, header: Header, led: LedTo) -> Releases:
    """The releases of a state as it is now; `led`: what it led to now, or before."""
    archive, loads = home / ARCHIVE, dict[Moment, Load]()
    elsewhere, dropped = kept_by_sink(home), 0
    if archive.exists() or led.extent is not None or (led.marks and elsewhere is None):
        held = contents(archive, header.epoch)
        if lacking(archive, held, led.extent, led.marks):
            raise StoreError(
                f"'{archive.name}' in the state directory lacks releases that were committed: a job"
                " is about to write them, or ended before it did.\n"
                "  to fix  if the job runs, read again; else run it again, which writes them from"
                " its log (of a backup: run what `streamveil restore` makes of it)"
            )
        there = held.dropped + len(held.entries)
        if there > led.committed:  # by a job that runs: it commits before it archives
            led = led_to(home, header)
        if there > led.committed:
            raise formats.damaged(home)  # the log or the checkpoint lost what led to some
        whole = held.entries[: max(led.published - held.dropped, 0)]
        loads = {one.place: _load(archive, header.epoch, one) for one in whole}
        dropped = held.dropped
    folder = elsewhere and elsewhere / require_file_name("job", header.identity.job)
    if folder and folder.is_dir():
        loads = of_folder(folder).loads | loads
    if not loads:
        kept = f", or no file of its sink is in '{elsewhere}'" if elsewhere else ""
        raise StoreError(
            f"the job in '{home.name}' has not released anything yet{kept}.\n"
            "  to fix  run it until its first trigger"
            + (", or restore the folder of its sink" if elsewhere else "")
        )
    return Releases(loads, dropped=dropped)


class LedTo(NamedTuple):
    """The releases that a state leads to."""

    extent: Extent | None  # what the checkpoint knew of the archive
    marks: list[Mark]  # of all releases committed after it
    waiting: int  # how many of the last ones wait for the rest of their group: see `grouping`

    @property
    def committed(self) -> int:
        """How many there are, from the first one that the archive ever held."""
        return (self.extent.releases if self.extent else 0) + len(self.marks)

    @property
    def published(self) -> int:
        """How many of them are published."""
        return self.committed - self.waiting


def led_to(home: Path, header: Header) -> LedTo:
    """The releases that the checkpoint and the log of a state lead to, as of one moment."""
    return checkpoint.at_one_moment(home, partial(_led_to, home, header))


def _led_to(home: Path, header: Header, saved: list[tuple[int, Path]]) -> LedTo:
    """`led_to`, with the checkpoints that were found."""
    after, extent, marks, waiting = 0, None, list[Mark](), 0
    if saved:
        heads, needs = checkpoint.heads_of(saved[-1][1], header.epoch)
        after, extent, known = saved[-1][0], needs.archive, wal.marks_of(heads[0])
        marks = known if extent is None else []
        waiting = len(known) if heads[0].get(wal.MORE) else 0
    if header.ready:
        for part in wal.linked(wal.needed(home, after), header.epoch, wal.heads_only):
            if part.is_record and part.batch > after:
                marks += wal.marks_of(part.head)
                for one in wal.each_in(part.head):
                    waiting = waiting + len(one["releases"]) if one.get(wal.MORE) else 0
    return LedTo(extent, marks, waiting)


def lacking(path: Path, held: Contents, needed: Extent | None, marks: list[Mark]) -> int:
    """How many of the last releases an archive lacks, which a restart writes from the log.

    Refuses an archive that lacks others, or holds another release in place of one.
    """
    first = (needed.releases if needed else 0) - held.dropped
    found = held.entries[max(first, 0) :]
    wanted = [Moment(one.window, one.trigger) for one in marks[max(-first, 0) :]]
    if held.is_damaged or (needed is not None and not held.holds(needed)):
        raise formats.damaged(path)
    if any(one.place != place for one, place in zip(found, wanted, strict=False)):
        raise formats.damaged(path)
    return max(0, len(wanted) - len(found))


def kept_by_sink(home: Path) -> Path | None:
    """The folder of a sink that keeps the releases of a state, if there is one."""
    path = home / ELSEWHERE
    return Path(formats.read(path, "sink")["path"]) if path.exists() else None


def _load(path: Path, epoch: str, entry: Entry) -> Load:
    def load() -> Noisy[pa.Table]:
        try:
            return restored(committed(path, entry)[1])
        except StoreError:  # a running job may have dropped old releases, and moved the others
            again = {one.place: one for one in contents(path, epoch).entries}.get(entry.place)
            if again == entry:
                raise
        if again is None:
            raise StoreError(
                f"release {entry.place.trigger} of window {entry.place.window} has been dropped"
                " from the archive meanwhile.\n  to fix  read a newer one"
            )
        return restored(committed(path, again)[1])

    return load


@fitting('read("clicks.veil")')
def read(
    source: str | Path,
    *,
    window: int | str | None = None,
    trigger: int | None = None,
    key: Mapping[str, Any] | None = None,
) -> Release:
    """A release that was made before, or its row for one key: the same numbers, free of charge.

    Args:
        source: a state directory or a sink's folder.
        window: its time, as in "2026-01-01", or its number; the last if left out.
        trigger: the release within the window, from 1; the last if left out.
        key: values of key columns by name: only their row.

    Raises:
        StoreError: the folder cannot be read, or lacks a release that was committed.
        PlanError: the release was never made or does not show the key: nothing is ever drawn to
            answer a read.
        SourceError: no folder is there, or releases of several jobs are in it.

    >>> import streamveil as sv
    >>> from tempfile import TemporaryDirectory
    >>> query = (sv.memory({"user": [1, 2, 3] * 40, "page": ["a", "b"] * 60}).protect("user")
    ...          .group_by("page", keys=sv.public(["a", "b"])).agg(n=sv.count()).bound(max_rows=40)
    ...          .release(budget=sv.Budget(epsilon=9, delta=1e-9), name="pages"))
    >>> with TemporaryDirectory() as folder:
    ...     made = list(query.run(state=f"{folder}/pages.veil"))
    ...     again = sv.read(f"{folder}/pages.veil", key={"page": "a"})
    >>> again.to_arrow()["n"][0] == made[0].to_arrow()["n"][0]
    True
    """
    if not isinstance(key, Mapping | None):
        raise PlanError(f"key must be values by name, such as {{'page': 'a'}}, not {got(key)}")
    return pick(opened(source), window, trigger, key)


def require_one(source: str | Path) -> None:
    """Refuses the folder of several private answers, where one is meant."""
    states = states_in(source)
    if states:
        name = Path(source).name
        raise SourceError(
            f"'{name}' holds the states of several private answers:"
            f" {', '.join(place.name for place in states)}.\n"
            f"  to fix  name one, as in {name}/{states[0].name}, or give the query that puts them"
            " together: --sql FILE, or answers(..., query=query)"
        )


def opened(source: str | Path, operator: GroupBy | None = None) -> Releases:
    """The releases of a state directory or a sink's folder."""
    require_path("source", source, "a state or of a sink's folder")
    require_one(source)
    left = any((Path(source) / name).is_file() for name in (FORK, LEDGER))  # of a state
    return of_state(source) if left or is_state(source) else of_folder(source, operator)


def pick(
    releases: Releases,
    window: int | str | None,
    trigger: int | None,
    key: Mapping[str, Any] | None = None,
) -> Release:
    """See `read`."""
    if window is None:
        window = releases.moments[-1].window
    window = releases.window(window)
    if trigger is None:
        trigger = max((m.trigger for m in releases.moments if m.window == window), default=1)
    moment = releases.require(Moment(window, whole("trigger", trigger)))
    table = releases.noisy(moment)
    if key:
        table = restored(rows_of(values(table), releases.key_names, key))
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
            raise PlanError(f"'{name}' is not a key column{nearest(name, names)}")
        kind = table.schema.field(name).type
        try:
            wanted = scalar_of(value, kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, UnicodeError):
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
