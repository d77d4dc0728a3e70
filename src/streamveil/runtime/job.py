"""A job: folds micro-batches into one operator, commits each, then publishes what became public.

Read, compute and commit overlap: while micro-batch n is being made durable and published, n + 1 is
folded and n + 2 is read. At most one batch is in each place, so a slow disk, sink or reader of
`releases` slows the source down and nothing piles up. Nothing of n + 1 is committed before all of
n is published, so a restart has to publish the last commit at most: it makes its releases again
from the logged delta, and they must be the ones whose marks were committed.

Syncs: a release on its own has three, one after the other. The log is synced first, or a loss of
power could leave a release without a log record, and other rows would be committed under its noise.
A sink of files syncs the content, then gives it its name, or a reader could find a name without
content. It syncs the folder before the next commit, since a restart sends only the last commit
again. No sync covers another: they are of two files and a folder, in this order.
Neither archive nor checkpoint adds a sync to a commit: both are synced before the log is cut.

In a replay of history several micro-batches are committed and published together (`grouping`). The
log says which: a restart publishes the last whole group again, and completes one that is not whole.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from inspect import GEN_CREATED, getgeneratorstate
from itertools import islice
from operator import attrgetter
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import pyarrow as pa

from streamveil.accounts.ledger import Charge, Where
from streamveil.batch import Batch, Release
from streamveil.connectors import Sink, write_all
from streamveil.core.accounting import Budget
from streamveil.core.noise import Noise
from streamveil.dataflow import Operator, total
from streamveil.errors import PlanError, StoreError
from streamveil.plan import Post
from streamveil.runtime import store as stores
from streamveil.runtime.account import Account
from streamveil.runtime.archive import Archive
from streamveil.runtime.checkpoint import CheckpointDraft, CopyBuffer, IncrementalCheckpoint, Saved
from streamveil.runtime.grouping import Prefetch, PrefetchInBlocks, Together, in_blocks
from streamveil.runtime.progress import Listener, Progress, silent
from streamveil.runtime.rejects import Owner, Rejects, Routing, kept_in, sweep
from streamveil.runtime.secret import Randomness
from streamveil.runtime.tables import Mark, made_of
from streamveil.runtime.wal import JobPosition, Record
from streamveil.types import Array

Feed = Callable[[str | None], Iterator[Batch]]  # micro-batches from a position on


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a job does: everything but where its state lives."""

    name: str
    fingerprint: str  # of the query; a changed one is refused by an old state
    calibration: str = ""  # of its mechanisms; an old state refuses a changed one, too
    operator: Operator
    feed: Feed
    limit: Budget
    sink: Sink | None = None
    post: tuple[Post, ...] = ()  # of every release on its way out; the state keeps them as drawn
    ledger: Where | None = None  # shared with other jobs over the same data; charged as well
    rejects: Routing | None = None  # where rows go that cannot be used; None: they are only counted
    keep_in: Callable[[Path], None] = lambda _: None  # tells the source where the state is
    committed: Callable[[str | None], None] = lambda _: None  # tells the source what is durable
    keep_releases: int | None = None  # in the archive, of the newest; None: all
    about: Callable[[], dict[str, Any]] = dict  # describes the job, for the ledger's export
    extension: Callable[[str], Charge] | None = None  # of an epoch, where the end was moved
    together: Together | None = None  # which releases are published together; None: none
    threads: int = 1  # that compute, at most; reading and writing have threads of their own

    @property
    def identity(self) -> stores.Identity:
        """The job that a state directory must have been created for."""
        return stores.Identity(self.name, self.fingerprint, self.operator.kind, self.calibration)

    @property
    def account(self) -> Account:
        """The charge of the job, and its ledgers."""
        return Account(
            name=self.name, limit=self.limit, guarantee=self.operator.guarantee,
            about=self.about, shared=self.ledger,
        )  # fmt: skip


class Computed(NamedTuple):
    """A micro-batch that has been folded and is not yet committed."""

    record: Record  # without marks, until its releases are made
    drawn: Sequence[Any]  # its releases, before they are tables
    rejected_rows: Iterable[pa.Table]
    releases: tuple[Release, ...] = ()


class Snapshot(NamedTuple):
    """The parts of a checkpoint that were copied after a micro-batch."""

    begins: bool = False
    whole: CheckpointDraft | None = None  # if all parts are copied


NOTHING = Snapshot()
HELD_BYTES = 4 << 20  # a group that waits for its rest is written to the log from this size on
NBYTES = attrgetter("nbytes")
CELL_BYTES = 16  # of a total and its variance
QUICK_BYTES = 1 << 20  # a larger commit is made while the next micro-batches are computed
MOST_WAITED = 0.1  # share of a job's time that its commits may wait for devices and servers


class Turns:
    """The releases of a job, for one thread at a time.

    None follows an error, after which a generator would seem to be at its end.
    """

    def __init__(self, made: Generator[Release, None, None]) -> None:
        self._made, self._turn, self._failed = made, Lock(), False

    def __iter__(self) -> Iterator[Release]:
        return self

    def __next__(self) -> Release:
        with self._alone():
            if self._failed:
                raise StoreError(
                    "the job was stopped by an error or an interrupt, and does not go on in this"
                    " object.\n"
                    "  to fix  run it on its state again: it resumes from its last commit"
                )
            try:
                return next(self._made)
            except StopIteration:
                raise
            except BaseException:
                self._failed = True
                raise

    @property
    def begun(self) -> bool:
        """Whether one was asked for."""
        return getgeneratorstate(self._made) != GEN_CREATED

    def close(self) -> None:
        """Stops between two releases."""
        with self._alone():
            self._made.close()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """A block during which no other thread may take a release or close the job."""
        if not self._turn.acquire(blocking=False):
            raise StoreError(
                "the job is making its next release: it was asked from another thread, or by its"
                " own listener.\n"
                "  to fix  take its releases and close it in one thread, between two releases"
            )
        try:
            yield
        finally:
            self._turn.release()


class Job:
    """An open job; iterating over it runs it and yields every release once it is durable.

    After a restart the releases of the last commit come again, with the same content: callers that
    need each once recognise them by (window, trigger), as every sink does.
    """

    def __init__(
        self,
        directory: str | Path,
        work: Work,
        keys: Randomness | None = None,
        *,
        progress: Listener | None = None,
        policy: stores.CheckpointPolicy | None = None,
    ) -> None:
        self.work = work
        self._tell = progress or silent
        self._started, self._waited = time.perf_counter(), 0.0
        self._rows = self._published = 0
        self._health: dict[str, int] = {}
        self._copies = CopyBuffer()
        self._checkpoint: IncrementalCheckpoint | None = None  # the one that is not yet whole
        self._effort = 0.0  # CPU seconds since the last checkpoint: what a restart would repeat
        if work.rejects is not None or work.ledger is not None:
            require(work, Path(directory))
        self._store = stores.Store(Path(directory), policy)
        try:
            self._noise = (keys or Randomness()).noise_of(self._store, work.identity)
            self._open_ledger()
            header = self._store.header
            assert header is not None  # noqa: S101  (the noise was checked against it)
            self._recover(header.epoch)
            self._rejects = self._open_rejects(header.epoch)
        except BaseException:
            self._store.close()
            raise
        self._turns = Turns(self._run())
        self._asking = Lock()  # one question after another

    def _open_ledger(self) -> None:
        """Charges a new job once; an existing one must still have its charge."""
        header = self._store.header
        assert header is not None  # noqa: S101  (the noise was checked against it)
        path = self._store.directory / stores.LEDGER
        if header.ready and not path.exists():
            raise StoreError(
                f"the state directory '{self._store.directory.name}' has lost its ledger.\n"
                "  to fix  restore it from a backup, or start a new state directory"
            )
        account = self.work.account
        if header.ready:
            account.require_charged(path, header.epoch)
            if self.work.extension is not None:
                account.extend(path, self.work.extension(header.epoch))
        else:
            account.charge(path, header.epoch)
            self._store.finish()

    def _recover(self, epoch: str) -> None:
        """Rebuilds the state: checkpoint, then the same operator over the logged deltas."""
        operator, directory = self.work.operator, self._store.directory
        saved, records = self._store.recover()
        extent = saved.needs.archive if saved and saved.needs else None
        keeper = None if self.work.post else self.work.sink  # a sink has the post-processed ones
        self._archive = Archive(directory, epoch, keeper, extent, self.work.keep_releases)
        self._state = operator.init() if saved is None else operator.load(saved.record.delta)
        self._last = replace(saved.record, delta={}) if saved else Record(JobPosition(), {})
        self._latest = saved.releases if saved else ()
        self._marks = self._last.releases
        self._released = sum(map(rows_of, self._latest))  # rows, of the group so far
        self._held = list[Computed]()  # waits to be committed
        self._unsettled = 0  # bytes of totals that wait to become tables
        if extent is None:
            self._latest = self._archive.restore(self._latest, self._marks)
        begun = min((release.step for release in self._latest), default=1)  # of a group so far
        self._closed_steps = closed_after(self._last, begun - 1)
        started = time.thread_time()
        for record in records:
            operator.apply(self._state, record.delta)
            drawn = self._draw(record.place.step, closed=record.place.closed)
            made = made_of(operator, drawn)
            require_same(record.releases, tuple(known for _, known in made))
            releases = tuple(release for release, _ in made)
            self._take(record, self._archive.restore(releases, record.releases))
            self._closed_steps = closed_after(record, self._closed_steps)
        self._archive.settle()
        self._effort = time.thread_time() - started

    def _open_rejects(self, epoch: str) -> Rejects | None:
        """The directory for rows that cannot be used, as of the last commit."""
        directory, committed = self._store.directory, self.place.batch
        sweep(kept_in(directory), Owner(epoch, str(directory)), committed)
        routing = self.work.rejects
        return None if routing is None else routing.open(directory, epoch, committed)

    def _draw(self, step: int, *, closed: bool) -> Sequence[Any]:
        """Closes a step, if it ends now, and returns its releases."""
        operator: Any = self.work.operator
        draw = getattr(operator, "draw", operator.release)
        return draw(self._state, step, self._noise) if closed else ()

    def _settle(self) -> None:
        """Makes the tables of the waiting releases, many small ones at once."""
        started = time.thread_time()
        waiting = [turn for turn, one in enumerate(self._held) if one.drawn]
        drawn = [some for turn in waiting for some in self._held[turn].drawn]
        made = iter(made_of(self.work.operator, drawn))
        for turn in waiting:
            one = self._held[turn]
            own = list(islice(made, len(one.drawn)))
            releases, marks = tuple(release for release, _ in own), tuple(mark for _, mark in own)
            record = Record(one.record.place, one.record.delta, marks, one.record.more)
            self._held[turn] = one._replace(record=record, drawn=(), releases=releases)
            self._latest, self._marks = (*self._latest, *releases), (*self._marks, *marks)
        self._unsettled = 0
        self._effort += time.thread_time() - started

    def _take(self, record: Record, releases: tuple[Release, ...] = ()) -> None:
        """Makes a micro-batch the last one. Its releases are published with their group."""
        if not self._last.more:
            self._latest, self._marks, self._released = (), (), 0
        self._latest = (*self._latest, *releases)
        self._marks = (*self._marks, *record.releases)
        self._released += sum(map(rows_of, releases))
        self._last = Record(record.place, {}, record.releases, record.more)

    def _goes_on(self, batch: Batch, drawn: Sequence[Any]) -> bool:
        """Whether the next micro-batch is published together with this one."""
        together = self.work.together
        if together is None or not batch.closes_step:
            return together is not None
        before = self._released if self._last.more else 0
        return not together.ends(batch.step, before + sum(map(rows_of, drawn)))

    @property
    def place(self) -> JobPosition:
        """How far the job has come."""
        return self._last.place

    @property
    def closed_steps(self) -> int:
        """How many steps are closed and published, over all runs: a public number."""
        return self._closed_steps

    @property
    def held(self) -> Any:
        """The operator's state in memory, for checks of it. Secret."""
        return self._state

    def counters(self) -> dict[str, int]:
        """Operator-only health numbers. Never published."""
        return self.work.operator.counters(self._state)

    def ask(self, question: Array) -> Any:
        """Puts a question to an operator that answers questions; returns the durable answer.

        Only while the job is not iterating: then the state in memory is the committed one. The
        releases of the last commit are published first, as a restart would do. An answer that could
        not be stored is never given, neither now nor later: it would be unpaid.
        """
        ask = getattr(self.work.operator, "ask", None)
        if ask is None:
            raise PlanError("only a query over a changing table takes questions")
        if self._turns.begun:
            raise StoreError(
                "the job has been running in this process: questions come before it goes on.\n"
                "  to fix  open the state again to ask"
            )
        with self._asking, self._store.fatal():
            answer, delta = ask(self._state, question, self._noise)
            if delta is not None:
                self._send(self._latest)
                place = replace(self.place, batch=self.place.batch + 1, closed=False)
                self._last, self._latest, self._marks = Record(place, {}), (), ()
                self._store.commit(replace(self._last, delta=delta))
        return answer

    def __iter__(self) -> Iterator[Release]:
        return self

    def __next__(self) -> Release:
        self._store.require_own()
        return next(self._turns)

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stops. Commits are kept; the next run reads all later rows again."""
        self._turns.close()
        self._archive.close()
        self._store.close()

    def read(
        self,
        window: int | str | None = None,
        trigger: int | None = None,
        key: Mapping[str, Any] | None = None,
    ) -> Release:
        """A release that was made before (or one key's row of it): see `published.read`."""
        from streamveil.runtime.published import of_state, pick  # only to read again

        return pick(of_state(self._store.directory), window, trigger, key)

    def _run(self) -> Generator[Release]:
        yield from () if self._last.more else self._send(self._latest)
        self._published = 0  # whether the last commit closed its step may depend on rows
        self.work.keep_in(self._store.directory)
        self.work.committed(self.place.position)
        batches = self._batches()
        committer = ThreadPoolExecutor(1, "commit")
        pending: Future[tuple[Release, ...]] | None = None
        size = 0
        try:
            for batch in batches:
                self._held.append(self._compute(batch, batches.done))
                size += sum(map(NBYTES, self._held[-1].record.delta.values()))
                if self._unsettled >= HELD_BYTES:
                    self._settle()
                if pending is not None and (pending.done() or not self._last.more):
                    yield from pending.result()
                    pending = None
                checkpoint = self._snapshot()
                del batch  # its memory is free before the next but one is read
                if self._last.more and checkpoint == NOTHING and size < HELD_BYTES:
                    continue
                if pending is not None:
                    yield from pending.result()
                self._settle()
                ready = () if self._last.more else self._latest
                self._health = self.counters()
                pending = committer.submit(self._commit, self._held, ready, checkpoint)
                alone = size < QUICK_BYTES and self._commits_quickly
                self._held, size = [], 0
                if batches.waiting or alone:  # nothing worth overlapping: publish without delay
                    yield from pending.result()
                    pending = None
            if pending is not None:
                yield from pending.result()
            if self._checkpoint is not None:
                self._checkpoint.go_on(1)
                self._finish_checkpoint(self._checkpoint.draft, self.place.batch)
            self._store.wait()
        finally:
            batches.close()
            committer.shutdown()
            self._archive.close()
            self._store.close()

    @property
    def _commits_quickly(self) -> bool:
        """Whether it is quicker not to compute during a small commit of a replay.

        Two threads hand the interpreter's lock to each other at every compiled call. Where devices
        and servers are quick, that takes longer than waiting for them.
        """
        elapsed = time.perf_counter() - self._started
        return self.work.together is not None and self._waited <= MOST_WAITED * elapsed

    def _batches(self) -> Prefetch[Batch] | PrefetchInBlocks[Batch]:
        """The micro-batches that are left, made and prepared in a thread of their own."""
        feed = self.work.feed(self.place.position)
        ahead = getattr(self.work.operator, "ahead", None) if self.work.threads > 1 else None
        if self._rejects is not None:
            feed = self._rejects.asking(feed)
        elif ahead is not None:
            feed = ahead(feed, self._noise)
        return Prefetch(feed) if self.work.together is None else PrefetchInBlocks(in_blocks(feed))

    def _compute(self, batch: Batch, folded: Callable[[], None]) -> Computed:
        """Folds one micro-batch; the state in memory is now ahead of the durable one.

        Once its rows are `folded`, the memory that they were prepared in is free: while a release
        is drawn, which takes one thread, the micro-batch after the next one is read.
        """
        started = time.thread_time()
        delta = self.work.operator.fold(self._state, batch, self._noise)
        folded()
        drawn = self._draw(batch.step, closed=batch.closes_step)
        place = JobPosition(
            batch=self.place.batch + 1,
            step=batch.step,
            closed=batch.closes_step,
            position=batch.position,
            rejected=total([self.place.rejected, batch.rejected]),
        )
        record = Record(place, delta, more=self._goes_on(batch, drawn))
        self._take(record)
        self._released += sum(map(rows_of, drawn))
        self._unsettled += sum(
            CELL_BYTES * rows_of(one) * getattr(one, "lanes", 1) for one in drawn
        )
        self._rows += batch.rows.num_rows
        self._effort += time.thread_time() - started
        rejected_rows = () if self._rejects is None else self._rejects.of(batch)
        return Computed(record, drawn, rejected_rows)

    def _snapshot(self) -> Snapshot:
        """Copies what a checkpoint needs after the last micro-batch."""
        used_up = self._store.used_up(self._effort)
        begins = self._checkpoint is None and used_up >= 1 and not self._store.is_writing
        if begins:
            self._settle()
            tables = tuple(release.table for release in self._latest)
            record = replace(self._last, releases=self._marks)
            draft = self._store.begin_checkpoint(Saved(record, tables))
            self._checkpoint = IncrementalCheckpoint(
                draft, self.work.operator, self._state, self._copies
            )
            self._effort = 0.0
            used_up -= 1
        if self._checkpoint is None or not self._checkpoint.go_on(used_up):
            return Snapshot(begins)
        draft, self._checkpoint = self._checkpoint.draft, None
        return Snapshot(begins, draft)

    def _commit(
        self, held: list[Computed], ready: tuple[Release, ...], checkpoint: Snapshot
    ) -> tuple[Release, ...]:
        """Durable first, then public; a checkpoint never overtakes its batches."""
        last, idle = held[-1].record, time.perf_counter() - time.thread_time()
        if self._rejects is not None:
            for one in held:
                self._rejects.write(one.record.place.batch, one.rejected_rows)
        self._store.commit(*(one.record for one in held))
        self.work.committed(last.place.position)
        for one in held:
            self._archive.keep(one.releases, one.record.releases)
        shown = self._send(ready)
        if checkpoint.begins:
            self._archive.sync()  # the log that leads to these releases goes
            self._store.start_segment(last.place.batch)
        if checkpoint.whole is not None:
            self._finish_checkpoint(checkpoint.whole, last.place.batch)
        self._report(last)
        self._waited += time.perf_counter() - time.thread_time() - idle
        return shown

    def _finish_checkpoint(self, draft: CheckpointDraft, until: int) -> None:
        self._store.finish_checkpoint(draft, until, self._archive.extent)

    def _send(self, releases: tuple[Release, ...]) -> tuple[Release, ...]:
        """Sends the releases of a durable record to the sink, and returns them; safe to repeat."""
        shown = releases
        if self.work.post:
            from streamveil.results.post import post_processed  # loaded when there is some

            shown = tuple(post_processed(release, self.work.post) for release in releases)
        if self.work.sink is not None:
            write_all(self.work.sink, self.work.name, shown)
        self._published += len(shown)
        return shown

    def _report(self, record: Record) -> None:
        place = record.place
        self._closed_steps = closed_after(record, self._closed_steps)
        self._tell(
            Progress(
                batch=place.batch,
                step=place.step,
                rows=self._rows,
                releases=self._published,
                seconds=time.perf_counter() - self._started,
                log_bytes=self._store.log_bytes,
                checkpoint_bytes=self._store.checkpoint_bytes,
                rejected=place.rejected,
                counters=self._health,
                unpublished=place.step - self._closed_steps,
            )
        )


def rows_of(made: Any) -> int:
    """The rows of a release, drawn or finished."""
    return made.table.num_rows if isinstance(made, Release) else int(made.rows)


def closed_after(record: Record, before: int) -> int:
    """How many steps are closed and published after a record; an open group does not count."""
    place = record.place
    return before if record.more else max(before, place.step - (not place.closed))


def require(work: Work, directory: Path) -> None:
    """Refuses, before anything is made, what would be refused later."""
    epoch = stores.epoch_of(directory)
    if work.rejects is not None:
        work.rejects.require(directory, epoch)
    if epoch is None:
        work.account.require_room()


def begin(directory: Path, work: Work, keys: Randomness) -> tuple[str, Noise]:
    """The epoch and noise of a state; a new one is made, without its charge, if there is none."""
    with closing(stores.Store(directory)) as store:
        noise = keys.noise_of(store, work.identity)
        assert store.header is not None  # noqa: S101  (the noise was checked against it)
        return store.header.epoch, noise


def require_same(committed: tuple[Mark, ...], again: tuple[Mark, ...]) -> None:
    """Refuses to go on when replaying the log gives other releases than were committed."""
    if len(committed) != len(again) or not all(map(Mark.agrees, committed, again)):
        raise StoreError(
            "replaying the log gives other releases than those committed: the state was written by"
            " another version of streamveil or of a library it computes with.\n"
            "  to fix  resume with the versions that wrote it"
        )
