"""Reads all of a state directory and says which parts are whole, for `streamveil verify DIR`.

Nothing is changed, no secret is needed and no row is shown. Every checksum is computed again, and
so is every part that vouches for another: the header for the secret, the checkpoint for log and
archive, the log for the releases after the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from streamveil.accounts.ledger import Ledger
from streamveil.batch import Moment
from streamveil.core.noise import KeyedNoise
from streamveil.disk import Lock
from streamveil.errors import SourceError, StoreError, StreamveilError
from streamveil.runtime import checkpoint, rejects, wal
from streamveil.runtime import secret as secrets
from streamveil.runtime.archive import ARCHIVE, ahead, committed, contents
from streamveil.runtime.inspect import size_text
from streamveil.runtime.progress import counted
from streamveil.runtime.published import kept_by_sink, lacking, led_to, of_state
from streamveil.runtime.secret import check
from streamveil.runtime.spark_state import SHARDS, Home, require_present
from streamveil.runtime.spark_state import SparkHeader as SparkHeader
from streamveil.runtime.store import LEDGER, SECRET, SPARK_HEADER, UNCHARGED, Header, require_header

Words = str  # what was found whole


@dataclass(frozen=True)
class Finding:
    """The result of checking one part of a state."""

    part: str
    is_whole: bool
    words: str


def verify(directory: str | Path) -> list[Finding]:
    """Reads everything in a state directory; no job may be running in it.

    Raises:
        StoreError: there is no such directory, or a job is running in it.
    """
    home = Path(directory).absolute()
    if not home.is_dir():
        raise StoreError(f"there is no directory '{directory}'.\n  to fix  name the state of a job")
    if not (home / SPARK_HEADER).is_file():
        first = examine("identity", identity, home)
        if not first.is_whole:
            return [first]
    with closing(Lock(home, reads=True)):
        return examined(home)


def identity(home: Path) -> Words:
    """The job that the state belongs to."""
    header = require_header(home)
    return f"job '{header.identity.job}', epoch {header.epoch}"


def examined(home: Path) -> list[Finding]:
    """`verify` for a directory whose lock is held."""
    if (home / SPARK_HEADER).is_file():
        return [examine(name, part, home) for name, part in SPARK_PARTS.items()]
    first = examine("identity", identity, home)
    if not first.is_whole:
        return [first]
    header = require_header(home)
    return [first, *(examine(name, part, home, header) for name, part in PARTS.items())]


def examine(name: str, part: Callable[..., Words], home: Path, *header: Header) -> Finding:
    """One part, and why it is not whole if it is not."""
    try:
        return Finding(name, True, part(home, *header))  # noqa: FBT003
    except StreamveilError as error:
        return Finding(name, False, str(error))  # noqa: FBT003


def secret(home: Path, header: Header) -> Words:
    """The secret is the one that the noise was drawn with."""
    if header.key or not (home / SECRET).exists():
        return "not kept here"
    if not header.secure:
        return "not used: the noise is for tests"
    noise = KeyedNoise(secrets.kept(home), bytes.fromhex(header.epoch))
    if check(noise) != header.noise_check:
        raise StoreError("the secret is not the one that this state was created with")
    return "the one that this state was created with"


def ledger(home: Path, header: Header | SparkHeader) -> Words:
    """All records of the ledger, and this job's charge."""
    if not header.ready:
        return UNCHARGED
    with Ledger.load(home / LEDGER) as opened:
        head = opened.verify()
        opened.require_charged(header.epoch)
        return f"{counted(len(opened.entries()), 'charge')}, hash {head}"


def saved(home: Path, header: Header) -> Words:
    """The newest checkpoint, with all arrays."""
    found = checkpoint.read(home, header.epoch)
    if found is None:
        return "none yet"
    size = sum(array.nbytes for array in found.record.delta.values())
    return f"after micro-batch {found.record.place.batch:,}, {size_text(size)} of state"


def log(home: Path, header: Header) -> Words:
    """Every record since the checkpoint."""
    if not header.ready:
        return "not begun"
    paths = checkpoint.kept(home)
    after, until = 0, None
    if paths:
        after, until = paths[-1][0], checkpoint.heads_of(paths[-1][1], header.epoch)[1].log
    batch, end, segments = 0, 0, wal.needed(home, after)
    for part in wal.linked(segments, header.epoch, wal.whole_frames):
        part.require(until)
        batch, end = part.batch, part.offset + part.size
    if batch < max(after, until.batch if until else 0):
        raise wal.lost(home, batch)
    torn = segments[-1][1].stat().st_size - end
    rest = f"; {torn:,} bytes after it are of none, and will be cut" if torn else ""
    return f"micro-batches {after + 1:,} to {batch:,}{rest}" if batch > after else f"empty{rest}"


def archive(home: Path, header: Header) -> Words:
    """Every release, all that were committed and no more.

    The last ones may be missing: a restart writes those from the log.
    """
    path = home / ARCHIVE
    needed, marks, _ = led_to(home, header)
    if not path.exists() and needed is None and (not marks or kept_by_sink(home) is not None):
        return "none: nothing was released yet, or the sink keeps releases"
    held = contents(path, header.epoch)
    behind = lacking(path, held, needed, marks)
    if held.goes_beyond((needed.releases if needed else 0) + len(marks)):
        raise ahead(home)
    for entry in held.entries:
        committed(path, entry)
    dropped = f", {held.dropped:,} older ones were dropped" if held.dropped else ""
    more = f"; {counted(behind, 'more release')} from the log when the job goes on"
    return f"{counted(len(held.entries), 'release')}{dropped}{more if behind else ''}"


def sink(home: Path, header: Header) -> Words:
    """Every release that a sink keeps for this state, without a gap since the checkpoint.

    The last ones may be missing: a job that died before it wrote them does so when it goes on.
    Earlier ones may have gone to another sink.
    """
    if kept_by_sink(home) is None:
        return "keeps nothing for this state"
    led = led_to(home, header)
    if not led.published and not checkpoint.kept(home):
        return "no release yet"
    try:
        releases = of_state(home)
    except SourceError:
        return "no release yet"
    for moment in releases.moments:
        releases.table(moment)
    there, known = set(releases.moments), [Moment(one.window, one.trigger) for one in led.marks]
    has = [place for place, one in enumerate(known) if one in there]
    if has and (lost := set(known[has[0] : has[-1]]) - there):
        first = min(lost)
        raise StoreError(
            f"the folder of the sink lacks {counted(len(lost), 'release')} between those that it"
            f" has, first number {first.trigger} of window {first.window}: somebody removed them,"
            " or they went to another sink.\n"
            "  to fix  restore the folder from a copy: this state leaves releases to its sink"
        )
    return f"{counted(len(there), 'release')} can be read"


def rejected(home: Path, header: Header) -> Words:
    """Every file of rejected rows that is still there."""
    where = rejects.kept_in(home)
    if where is None:
        return "not kept"
    owner = rejects.owner_of(where) if where.is_dir() else None
    if owner is None or owner.epoch != header.epoch:
        raise StoreError(f"the directory of rejected rows '{where.name}' is not of this state")
    paths = sorted(where.glob(f"{rejects.BATCH}*{rejects.ENDING}"))
    for path in paths:
        try:
            pq.ParquetFile(path, page_checksum_verification=True).read()
        except (OSError, pa.ArrowException):
            raise StoreError(f"'{path.name}' of the rejected rows is damaged") from None
    return counted(len(paths), "file")


def spark_header(home: Path) -> SparkHeader:
    """The header of a state of the Spark engine; raises where there is none."""
    header = SparkHeader.read(home / SPARK_HEADER)
    if header is None:
        raise StoreError(f"'{home.name}' is not a state directory")
    return header


def mark(home: Path) -> Words:
    """The last published step, with the checkpoint that leads to it."""
    state, header = Home(home), spark_header(home)
    state.require_logged()
    step = state.mark.step
    if step and header.storage is None:
        require_present(home / SHARDS, "shards")
    return f"step {step:,} was published; its shards are checked when the job starts"


PARTS: dict[str, Callable[[Path, Header], Words]] = {
    "secret": secret, "ledger": ledger, "checkpoint": saved, "log": log, "archive": archive,
    "sink": sink, "rejected rows": rejected,
}  # fmt: skip
SPARK_PARTS: dict[str, Callable[[Path], Words]] = {
    "identity": lambda home: "epoch {0.epoch}, {0.shards} shards".format(spark_header(home)),
    "ledger": lambda home: ledger(home, spark_header(home)),
    "mark": mark,
}  # fmt: skip
