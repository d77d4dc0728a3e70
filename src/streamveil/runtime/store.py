"""The state directory of one job: what it holds, how it is created, committed to and recovered.

    state.json        whose state this is: job, query, operator, format, epoch; no secret
    secret            the noise secret, mode 0600, unless it is kept elsewhere
    look.json         what a look at the rows said before the first release, if there was one
    fork.json         of a fork: when it begins (see `fork`)
    ledger            what was spent, charged once when the directory was created
    lock              held by the one process that runs the job
    log-N             the micro-batches committed after batch N
    checkpoint-N      the whole state after batch N, parts of it after later ones
    releases          every release as committed, to be read again (see `archive`)
    sink.json         in place of `releases`: where a sink keeps them
    files-read        which files a source of files has read (see `connectors.manifest`)
    joined-N/         rows that a join on live data keeps, as they came (see `live_joins`)
    rejects.json      where rows are kept that could not be used, if somebody asked
    scratch/          swept partitions of a state larger than memory, while a job runs

State, ledger and epoch are created together. The epoch is random and enters every noise address,
so a job whose state was lost starts again with other noise and a new charge.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from shlex import quote
from shutil import rmtree

from streamveil import disk
from streamveil.core.noise import KeyedNoise
from streamveil.disk import LOCK, Lock, crash_only
from streamveil.errors import PlanError, StoreError
from streamveil.runtime import checkpoint, formats, wal
from streamveil.runtime.checkpoint import Saved, Work

KIND = "state"  # of the header
HEADER, SPARK_HEADER = "state.json", "spark.json"
SECRET = "secret"  # the file's name, not a secret  # noqa: S105
WRONG_KEY = (
    "the secret is not the one this state was created with, or was last given by `rekey`.\n"
    "  to fix  give that secret; to a state that keeps its own give none, and unset"
    " STREAMVEIL_SECRET: other noise on the same data would reveal it"
)
LEDGER = "ledger"
UNCHARGED = "not charged yet (a ledger that it shares may be)"  # said of a state's own ledger
SCRATCH = "scratch"  # swept partitions; not state
LOOK = "look.json"  # what a look at the rows said
FORK = "fork.json"  # when a fork begins
BACKUP = "backup.json"  # in a backup
BEFORE_LOOK = "before its look"  # instead of a calibration, which follows what the look says
EPOCH_BYTES = 16
CLOSING_SECONDS = 4.0  # a container gives ten in all
BEFORE_CREATION = {LOCK, SECRET, SCRATCH, LOOK, FORK}  # what may be there before the header
PARTS = (LEDGER, wal.SEGMENT, checkpoint.CHECKPOINT)  # what is there after it


CALIBRATED_OTHERWISE = (
    "this version of streamveil gives the query other bounds or other noise than the one that"
    " created the state: half of the releases from each would not keep the promise.\n"
    "  to fix  resume with the version that created it, or start a new state directory (and budget)"
)


@dataclass(frozen=True)
class Identity:
    """What a state directory was created for."""

    job: str
    plan: str  # fingerprint of the query
    operator: str
    calibration: str = ""  # of its mechanisms


@dataclass(frozen=True)
class Header:
    """The content of `state.json`."""

    identity: Identity
    epoch: str  # hexadecimal
    noise_check: str  # one-way digest of the noise key: tells a wrong secret from the right one
    secure: bool  # whether its noise is fit for publishing
    ready: bool = False  # whether creation, with its charge, is complete
    key: str = ""  # the noise key, sealed under the secret; '': the secret is the noise key

    @property
    def before_look(self) -> bool:
        """Whether a look is to choose the mechanisms, or has, and nothing was drawn with them."""
        return self.identity.calibration == BEFORE_LOOK

    def require(self, identity: Identity) -> None:
        """Refuses a job that is not the one this state was created for."""
        mine, theirs = asdict(self.identity), asdict(identity)
        changed = [name for name in mine if mine[name] != theirs[name]]
        if changed == ["calibration"]:
            raise StoreError(CALIBRATED_OTHERWISE)
        if changed:
            words = {"job": "name", "plan": "query"}
            raise StoreError(
                f"the state directory was created for another job: the"
                f" {' and the '.join(words.get(name, name) for name in changed)} changed.\n"
                "  to fix  run the query it was created for, or give the changed one a state"
                " directory (and a budget) of its own"
            )


@dataclass(frozen=True)
class CheckpointPolicy:
    """When the log is long enough to be replaced by a checkpoint of the whole state."""

    log_bytes: int = 32 << 20  # never before the log has this size
    log_per_state: float = 2.0  # log bytes per byte of the last checkpoint
    effort_seconds: float = 1.5  # work to repeat after a crash, at least
    effort_per_write: float = 5.0  # work to repeat per second of writing a checkpoint


class Store:
    """An open state directory. After one failed write it refuses all others: crash only."""

    def __init__(self, directory: Path, policy: CheckpointPolicy | None = None) -> None:
        self.directory = directory = directory.absolute()
        self.policy = policy or CheckpointPolicy()
        self.checkpoint_bytes = 0
        self._checkpoint_seconds = self._drafted_seconds = 0.0
        self._error: BaseException | None = None
        self._writer = ThreadPoolExecutor(1, "checkpoint")
        self._written: Future[None] | None = None  # the last of its work
        self._draft: checkpoint.CheckpointDraft | None = None
        with crash_only("open", directory):
            require_no_backup(directory)
            if not (directory / HEADER).exists():
                require_empty(directory)  # a foreign one is left as it is
        disk.make_directory(directory)
        self._lock = Lock(directory)
        try:
            require_no_backup(directory)  # one may have been given this name meanwhile
            disk.remove([*directory.glob(f"*{disk.TEMPORARY}")])
            rmtree(directory / SCRATCH, ignore_errors=True)
            with crash_only("open", directory):  # an earlier process may have named files and died
                disk.sync_directory(directory)
            self.header = read_header(directory)
        except BaseException:
            self._lock.close()
            raise
        self._log = wal.Log(directory, self.header.epoch if self.header else "")

    def settle(self, identity: Identity) -> None:
        """Says what a job is, now that its look has been kept."""
        assert self.header is not None  # noqa: S101  (`begin` came first)
        with self.fatal():
            self.header = replace(self.header, identity=identity)
            write_header(self.directory, self.header)

    def begin(self, header: Header) -> None:
        """Writes the header of a new state; the charge comes next, then `finish`."""
        require_empty(self.directory)
        with self.fatal():
            write_header(self.directory, header)
        self.header = header
        self._log = wal.Log(self.directory, header.epoch)

    def finish(self) -> None:
        """Marks creation complete: from here on a missing ledger or log is a loss."""
        assert self.header is not None  # noqa: S101  (begin came first)
        with self.fatal():
            self._log.start(after=0)
            self._log.close()
            self.header = replace(self.header, ready=True)
            write_header(self.directory, self.header)

    def recover(self) -> tuple[Saved | None, Iterator[wal.Record]]:
        """The last checkpoint, and the records after it; the log is open once they are read."""
        saved = checkpoint.read(self.directory, self._log.epoch)
        after = saved.record.place.batch if saved else 0
        needs = saved.needs if saved else None
        arrays = saved.record.delta.values() if saved else ()
        self.checkpoint_bytes = sum(array.nbytes for array in arrays)
        return saved, self._replay(after, needs.log if needs else None)

    def _replay(self, after: int, until: wal.Until | None) -> Iterator[wal.Record]:
        with self.fatal():
            yield from self._log.replay(after, until)

    def commit(self, *records: wal.Record) -> None:
        """Makes micro-batches durable. On return they survive any crash.

        Then the lock is checked again: if it still holds, whoever opens the directory later reads
        them.
        """
        with self.fatal():
            self._log.append(*records)
            self.require_own()

    def used_up(self, effort: float) -> float:
        """How much of the patience is gone, 1 when a checkpoint is due.

        By the log, which has outgrown the state, or by repeating it (CPU seconds).
        """
        rule = self.policy
        patience = max(rule.effort_seconds, rule.effort_per_write * self._checkpoint_seconds)
        enough = max(1, rule.log_bytes, rule.log_per_state * self.checkpoint_bytes)
        return max(self._log.size / enough, effort / patience)

    @property
    def is_writing(self) -> bool:
        """Whether a checkpoint is not yet durable."""
        return self._written is not None and not self._written.done()

    def start_segment(self, after: int) -> None:
        """Begins the log segment that follows a checkpoint."""
        with self.fatal():
            self._log.start(after)

    def begin_checkpoint(self, saved: Saved) -> checkpoint.CheckpointDraft:
        """A new checkpoint, to be filled and finished; written in the background."""
        self._drafted_seconds = 0.0
        self._draft = checkpoint.CheckpointDraft(
            self.directory, self._log.epoch, saved, self._behind
        )
        return self._draft

    def finish_checkpoint(
        self, draft: checkpoint.CheckpointDraft, until: int, archive: checkpoint.Extent | None
    ) -> None:
        """Makes a checkpoint durable in the background; it needs the log, up to now, and releases.

        `until`: the last batch in the log.
        """
        draft.finish(checkpoint.Needs(wal.Until(until, self._log.hash), archive))
        self._behind(self._finished)

    def _finished(self) -> None:
        assert self._draft is not None  # noqa: S101  (it is the one that was finished)
        self.checkpoint_bytes = self._draft.bytes
        self._checkpoint_seconds = self._drafted_seconds

    def _behind(self, work: Work, after: Work | None = None) -> None:
        self._written = self._writer.submit(self._write, work, after)

    def _write(self, work: Work, after: Work | None) -> None:
        started = time.thread_time()
        try:
            with suppress(StoreError), self.fatal():  # the next write, or `wait`, raises it
                work()
        finally:
            if after is not None:
                after()
        self._drafted_seconds += time.thread_time() - started

    def wait(self) -> None:
        """Waits for the checkpoint that is being written, if any; raises when one has failed."""
        if self._written is not None:
            self._written.result()
        with self.fatal():
            pass

    @property
    def log_bytes(self) -> int:
        """Bytes of the records since the last checkpoint."""
        return self._log.size

    def require_own(self) -> None:
        """Refuses a child of the process that opened it: both would write the same log."""
        self._lock.require_own()

    @contextmanager
    def fatal(self) -> Iterator[None]:
        """What is in memory may be ahead of what is durable until this ends; an error ends all."""
        self.require_own()
        if self._error is not None:
            raise StoreError(
                "an earlier write to the state directory failed; nothing more is written.\n"
                "  to fix  start again: the job resumes from its last commit"
            ) from self._error
        try:
            yield
        except PlanError:  # refused before anything was changed
            raise
        except BaseException as error:
            self._error = error
            raise

    def close(self) -> None:
        """Lets go of the directory; everything durable already is.

        A checkpoint that is being written gets a few seconds. Without it a restart repeats more.
        """
        if self._written is not None:
            wait([self._written], CLOSING_SECONDS)
        self._writer.shutdown(cancel_futures=True)
        if self._draft is not None:
            self._draft.close()
        self._log.close()
        self._lock.close()


def require_no_backup(directory: Path) -> None:
    """Refuses to run a job in a backup: it would draw the noise of the original."""
    if (directory / BACKUP).exists():
        raise StoreError(
            f"'{directory.name}' is a backup, in which no job runs.\n"
            f"  to fix  streamveil restore {quote(str(directory))} STATE, if the original is gone"
        )


def discard(directory: Path) -> None:
    """Removes a state for which nothing was charged: first the header, so that no half is left."""
    with crash_only("remove", directory / HEADER):
        (directory / HEADER).unlink(missing_ok=True)
        disk.sync_directory(directory)
        rmtree(directory)


def require_outside(place: Path, state: Path) -> None:
    """Refuses a place inside a state, whose job and copies would take it for a part of it."""
    if place.resolve().is_relative_to(state.resolve()):
        raise StoreError(
            f"'{place.name}' would lie in the state directory '{state.name}'.\n"
            "  to fix  name a place outside it"
        )


def new_epoch() -> bytes:
    """A random epoch from the operating system."""
    return KeyedNoise.fresh().secret[:EPOCH_BYTES]


def write_header(directory: Path, header: Header) -> None:
    """Writes `state.json` durably."""
    formats.write(directory / HEADER, KIND, asdict(header))


def read_header(directory: Path) -> Header | None:
    """The header, or None in a directory that never became a state."""
    path = directory / HEADER
    with crash_only("read", path):
        is_there = path.exists()
    if not is_there:
        return None
    content = formats.read(path, KIND)
    try:
        return Header(**{**content, "identity": Identity(**content["identity"])})
    except (KeyError, TypeError):
        raise formats.damaged(path) from None


def is_state(path: str | Path) -> bool:
    """Whether a folder is the state directory of a job."""
    with crash_only("read", Path(path)):
        return (Path(path) / HEADER).is_file() or (Path(path) / SPARK_HEADER).is_file()


def states_in(home: str | Path) -> list[Path]:
    """The states of several private answers, where a folder holds those and is none itself."""
    if is_state(home) or not Path(home).is_dir():
        return []
    with crash_only("read", Path(home)):
        return sorted(place for place in Path(home).iterdir() if is_state(place))


def require_single(directory: Path) -> None:
    """Refuses a folder of several states, such as that of several private answers."""
    if states := states_in(directory):
        raise StoreError(
            f"'{directory}' holds several states, as the folder of several private answers does:"
            f" {', '.join(place.name for place in states)}.\n"
            f"  to fix  name one after another, as in {directory / states[0].name}"
        )


def require_header(directory: Path) -> Header:
    """The header of a state; StoreError where there is none."""
    header = read_header(directory) if directory.is_dir() else None
    require_single(directory)
    if header is None and (directory / FORK).is_file():
        raise StoreError(
            f"'{directory.name}' is a fork that has not started: it holds no state yet.\n"
            f"  to fix  streamveil run QUERY --state {quote(str(directory))} starts it"
        )
    if header is None and (directory / SPARK_HEADER).is_file():
        raise StoreError(
            f"'{directory.name}' is the state of a job that runs on Spark, and this needs one of"
            " the embedded engine.\n"
            "  to fix  `streamveil verify` and `streamveil ledger` read it; its releases are in the"
            " folder of its sink"
        )
    if header is None:
        raise StoreError(
            f"'{directory.name}' is not a state directory of the embedded engine.\n"
            "  to fix  run the query first, or name its state"
        )
    return header


def epoch_of(directory: Path) -> str | None:
    """The epoch of a state; None where there is none."""
    header = read_header(directory)
    return None if header is None else header.epoch


def is_ready(directory: Path) -> bool:
    """Whether there is a state whose creation, with its charge, is complete."""
    header = read_header(directory)
    return header is not None and header.ready


def of_another_engine(directory: Path, header: str) -> StoreError:
    """The error for a state that the other engine made, which has this header."""
    here, fix = "in one process", "run it without --engine spark (Python: without engine=)"
    if header == SPARK_HEADER:
        here, fix = "on Spark", "run it with --engine spark (Python: engine=sv.spark(...))"
    return StoreError(
        f"'{directory.name}' is the state of a job that runs {here}; a state does not move.\n"
        f"  to fix  {fix}, or start a new state directory"
    )


def require_empty(directory: Path, header: str = HEADER, parts: tuple[str, ...] = PARTS) -> None:
    """Refuses to create a state among files that are not its own, or are the rest of one.

    `header` and `parts`: what the names of its own files begin with.
    """
    if directory.exists() and not directory.is_dir():
        raise StoreError(
            f"the state is a directory, and '{directory.name}' is a file.\n"
            "  to fix  give the directory of the job, or a new one"
        )
    other = SPARK_HEADER if header == HEADER else HEADER
    if (directory / other).exists():
        raise of_another_engine(directory, other)
    begun = {name + disk.TEMPORARY for name in (header, *BEFORE_CREATION)}
    found = {path.name for path in directory.iterdir()} if directory.exists() else set()
    names = found - BEFORE_CREATION - begun
    if any(name.startswith(parts) for name in names):
        raise StoreError(
            f"the state directory '{directory.name}' has lost its '{header}', and with it the epoch"
            " of its noise.\n  to fix  restore it from a backup, or start a new state directory"
        )
    if names:
        raise StoreError(
            f"the directory '{directory.name}' is not empty and holds no state.\n"
            "  to fix  give a new or empty directory"
        )
