"""Ledgers: the losses that jobs have spent, and those that they still may.

Here: how much of a ledger's limit is spent, by caps per kind of loss, and totals per unit-period.

A journal is an append-only file of JSON records: none can be changed, dropped or reordered unseen.

One record is one line `{"hash": ..., "record": ...}`. The hash covers the record and the hash of
the line before it, so every line vouches for all lines above. One change goes unseen: cutting whole
lines off the end leaves a valid shorter file. To notice that, keep `head` elsewhere and give it to
`Ledger.verify`.

A line is written and synced before `append` returns. A line without its end was never acknowledged,
so it is cut off when the next record is appended. An exclusive lock is held only while reading or
appending, so that many processes can share one journal; each reads what the others have added. A
file that took the place of the open one, or its loss, is noticed there: what is charged to a file
without a name limits nobody else.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from errno import EACCES, ENOENT, EPERM, EROFS
from fractions import Fraction
from functools import cache
from math import ceil, exp, floor, log, pi
from pathlib import Path
from threading import RLock
from typing import Any
from weakref import WeakSet

from streamveil.compiled import ndtri
from streamveil.core.accounting import Budget
from streamveil.core.accounting.guarantee import Loss
from streamveil.disk import sync_directory
from streamveil.errors import StoreError

Record = dict[str, Any]
START = "0" * 32
OPENING = b'{"hash":"'  # of every line
NUL = b"\0"  # in no record; a power failure leaves it in a block that was not yet written
NO_WRITING = (EROFS, EACCES, EPERM)  # errors of a file that may still be read


ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


def chain(previous: str, text: str) -> str:
    """The hash of a record's text that follows `previous`."""
    return hashlib.blake2b(f"{previous}{text}".encode(), digest_size=16).hexdigest()


class Shared:
    """A file or connection that threads of one process share in turn, and no forked process does.

    An open file or connection stays open when a process forks, and its lock would hold for both.
    """

    def __init__(self) -> None:
        self._turn = RLock()
        self._locked = False  # by the thread that has its turn
        self._parted = False  # from the process that opened it, within a turn or for ever
        OPEN.add(self)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """A block of one thread; others wait for its end."""
        if self._parted:
            raise StoreError(
                "this ledger was opened before this process was forked, and is its parent's.\n"
                "  to fix  open it again in this process, by the path of a file that both share"
            )
        with self._turn:
            yield

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the lock against other processes, once; waits for them."""
        with self.turn():
            if self._locked:
                yield
                return
            with self._held():
                self._locked = True
                try:
                    yield
                finally:
                    self._locked = False

    def _held(self) -> AbstractContextManager[None]:
        """A block with the lock against other processes."""
        raise NotImplementedError

    def part(self) -> None:
        """Gives up the parent's file or connection, in a process that was just forked.

        Memory may hold half of what another thread was reading or charging, and is not used.
        """
        self._parted |= not self._turn.acquire(blocking=False)
        self._turn = RLock()


OPEN: WeakSet[Shared] = WeakSet()


def part_all() -> None:
    """Calls `Shared.part` of all journals, in a process that was just forked."""
    for one in OPEN:
        one.part()


os.register_at_fork(after_in_child=part_all)


class Journal(Shared):
    """The records of one file, or of this process's memory when there is no path."""

    def __init__(self, path: Path | None) -> None:
        super().__init__()
        self.path = path and path.absolute()  # wherever this process works later
        self.head = START  # the hash of the last record read or appended
        self._at = 0  # bytes read so far, always at a line's start
        self._file: int | None = None
        self._refused: OSError | None = None  # why nothing can be written to the open file

    @contextmanager
    def _held(self) -> Iterator[None]:
        """See `Shared`: the file's lock.

        Raises:
            StoreError: the file that was opened is no longer the one of that name.
        """
        if self.path is None:
            yield
            return
        file = self._open()
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            self._require_same_file(file)
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)

    def unread(self) -> list[Record]:
        """The records appended since the last call, by anyone; StoreError if one was altered."""
        return [record for record, _ in self._unread()]

    @property
    def name(self) -> str:
        """The name of the journal in messages."""
        return "in memory" if self.path is None else self.path.stem

    def make(self) -> None:
        """Does nothing: a file is made when it is opened."""

    def exists(self) -> bool:
        """Whether there is a file."""
        return self.path is not None and self.path.is_file()

    def reread(self) -> list[str]:
        """The hashes of all records, read again from the first; refuses a torn tail."""
        if self.path is None:
            return [self.head]
        fresh = Journal(self.path)
        with fresh.locked():
            torn = has_torn_tail(self.path)
            hashes = [claimed for _, claimed in fresh._unread()]
        fresh.close()
        if torn:
            raise StoreError(
                f"{self.path} ends within a record that was never acknowledged.\n"
                "  to fix  start the job that was just being charged again; if one says that its"
                " charge is missing, restore it from a copy"
            )
        return hashes

    def _unread(self) -> list[tuple[Record, str]]:
        with self.locked():
            if self.path is None:
                return []
            size = os.fstat(self._open()).st_size
            if size < self._at:
                raise StoreError(f"{self.path} has lost records.\n  to fix  restore it from a copy")
            data = _read(self._open(), self._at, size)
            if not self._at:
                self._require_ours(data)
            whole = acknowledged(data)
            self._require_torn(data[len(whole) :])
            found = []
            for line in whole.splitlines():
                record, self.head = self._checked(line)
                found.append((record, self.head))
            self._at += len(whole)
        return found

    def _require_same_file(self, file: int) -> None:
        assert self.path is not None  # noqa: S101  (callers return early without a path)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file), self.path.stat()):
                return
        raise StoreError(
            f"{self.path} was moved, deleted or replaced while it was open. Nothing was recorded.\n"
            "  to fix  put back the file that has all charges (`streamveil ledger verify --head`"
            " tells), then start again; stop all jobs before a ledger is restored"
        )

    def _require_ours(self, data: bytes) -> None:
        """Refuses a file of another kind: it would be cut off as a torn tail, or called altered.

        A power failure may leave a file its size but none of its bytes: zeros.
        """
        if any(data) and not OPENING.startswith(data[: len(OPENING)]):
            raise StoreError(
                f"{self.path} is not a ledger of streamveil, and was left as it is.\n"
                "  to fix  name the ledger's own file, or one that does not exist yet"
            )

    def _require_torn(self, tail: bytes) -> None:
        """Refuses a tail that is a whole record with another last byte: it was acknowledged."""
        with suppress(ValueError):
            json.loads(tail[:-1])
            raise altered(str(self.path))

    def append(self, records: Sequence[Record]) -> None:
        """Adds records: on return all of them are durable; if it raises, none is.

        A power failure may leave the first ones of several.

        The caller holds the lock and has read to the end.
        """
        lines, head = [], self.head
        for record in records:
            text = ENCODER.encode(record)
            head = chain(head, text)
            lines.append(f'{{"hash":"{head}","record":{text}}}\n')
        if self.path is not None:
            self._write("".join(lines).encode())
        self.head = head

    def close(self) -> None:
        """Gives the file back; the journal may be used again."""
        if self._file is not None:
            os.close(self._file)
            self._file = self._refused = None

    def part(self) -> None:
        """See `Shared`: the file is opened again, for a lock of its own."""
        super().part()
        self._parted |= self.path is None
        self.close()

    def __del__(self) -> None:
        self.close()

    def _write(self, data: bytes) -> None:
        file = self._open()
        if self._refused is not None:
            raise self._unwritten(self._refused) from self._refused
        try:
            if os.fstat(file).st_size > self._at:  # a torn tail
                os.ftruncate(file, self._at)
                os.fsync(file)
            one = data[:-1].replace(b"\n", NUL) + b"\n"  # torn, until all of it is durable
            for some in dict.fromkeys((one, data)):
                done = 0
                while done < len(some):
                    done += os.pwrite(file, some[done:], self._at + done)
                os.fsync(file)
        except OSError as error:
            os.ftruncate(file, self._at)
            raise self._unwritten(error) from error
        self._at += len(data)

    def _unwritten(self, error: OSError) -> StoreError:
        return StoreError(
            f"{self.path} could not be written: {error.strerror}. Nothing was recorded.\n"
            "  to fix  free space or repair the disk or its permissions, then start again"
        )

    def _checked(self, line: bytes) -> tuple[Record, str]:
        try:
            entry = json.loads(line)
            record, claimed = entry["record"], entry["hash"]
        except (ValueError, KeyError, TypeError):
            record, claimed = None, ""
        return record, checked(str(self.path), self.head, record, claimed)

    def _open(self) -> int:
        if self._file is None:
            assert self.path is not None  # noqa: S101  (callers return early without a path)
            try:
                self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError as error:
                self._file = self._open_to_read(error)
            if not os.fstat(self._file).st_size:  # made by us, or by a process that then died
                sync_directory(self.path.parent)
        return self._file

    def _open_to_read(self, error: OSError) -> int:
        """Opens a file for reading only: the charges of a backup, or of others, may be read."""
        assert self.path is not None  # noqa: S101  (there was something to open)
        if error.errno in NO_WRITING:
            with suppress(OSError):
                file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
                self._refused = error
                return file
        fix = "let this user read and write it and its folder, then start again"
        if error.errno == ENOENT:
            fix = "make its folder, or correct the path"
        raise StoreError(
            f"{self.path} cannot be opened: {error.strerror}.\n  to fix  {fix}"
        ) from error


def checked(where: str, head: str, record: Record | None, claimed: str) -> str:
    """The hash of a record that follows `head`; it must be the claimed one."""
    if record is None or chain(head, ENCODER.encode(record)) != claimed:
        raise altered(where)
    return claimed


def altered(where: str) -> StoreError:
    """The error for records that were changed after they were written."""
    return StoreError(
        f"{where} was altered: a record does not match its hash.\n"
        "  to fix  restore it from a copy; nothing more may be charged to it"
    )


def acknowledged(data: bytes) -> bytes:
    """All lines but a torn tail, which was never acknowledged.

    A torn tail is a last line without an end, or one that holds a NUL.
    """
    end = data.rfind(b"\n") + 1
    last = data.rfind(b"\n", 0, max(end - 1, 0)) + 1
    return data[: last if NUL in data[last:end] else end]


def has_torn_tail(path: Path) -> bool:
    """Whether the file ends in a torn line."""
    data = path.read_bytes()
    return acknowledged(data) != data


def _read(file: int, start: int, end: int) -> bytes:
    parts = []
    while start < end:
        part = os.pread(file, end - start, start)
        if not part:
            break
        parts.append(part)
        start += len(part)
    return b"".join(parts)


UNIT = 10**60  # charges are rounded up, caps down, to multiples of 1 / UNIT
KINDS = ("gaussian", "zcdp", "pure", "delta", "distance")
Amounts = tuple[int, ...]  # one per kind, in units
Cost = tuple[Amounts, Amounts]  # within the charge's range, and everywhere
Periods = tuple[int, int]  # unit-periods [first, end)
ZERO: Amounts = (0,) * len(KINDS)


def own_caps(limit: Budget) -> Loss | None:
    """A limit in epsilon, rho or mu is its own cap; an (epsilon, delta) limit is a curve: None."""
    delta = limit.delta or Fraction(0)
    if limit.rho is not None:
        return Loss(zcdp=limit.rho, delta=delta)
    if limit.mu is not None:
        return Loss(gaussian=limit.mu**2, delta=delta)
    assert limit.epsilon is not None  # noqa: S101  (a budget has exactly one of the three)
    return Loss(pure=((limit.epsilon, 1),)) if limit.is_pure else None


def caps_for(limit: Budget, first: Loss) -> Loss:
    """Caps per kind of loss for an (epsilon, delta) limit, fixed by the first charge.

    They are the first charge scaled up as far as it fits (as it is, or as zCDP if that goes
    further), and the rest of delta. So repeating the first charge uses up the limit, and any single
    mechanism that fits the limit fits the ledger. A first charge that does not fit is scaled down:
    the caps then fit, and the charge is refused.
    """
    delta, first = limit.delta or Fraction(0), first.stated()
    first = replace(first, delta=first.delta + first.chance, chance=Fraction(0))
    assert limit.epsilon is not None  # noqa: S101  (other limits have caps of their own)
    if not (first.gaussian or first.zcdp or first.distance) and not _small(first, limit):
        return Loss(pure=((limit.epsilon, 1),), delta=delta)
    if _small(first, limit):
        first = Loss(zcdp=Fraction(first.rho()), delta=first.delta, distance=first.distance)
    return _with_rest_of_delta(_scaled_to(limit, first), limit)


def _small(first: Loss, limit: Budget) -> bool:
    """Whether many charges like this compose better as zCDP than by adding epsilons."""
    if not first.pure or first.gaussian or first.zcdp or first.distance or not limit.delta:
        return False
    half = Loss(delta=limit.delta / 2)
    as_zcdp = Loss(zcdp=Fraction(first.rho()))
    assert limit.epsilon is not None  # noqa: S101  (only called for epsilon limits)
    times = int(limit.epsilon / first.pure_total) + 1
    slack = Loss(delta=first.delta * times)
    return as_zcdp.times(times).compose(half, slack).fits(limit)


def _scaled_to(limit: Budget, first: Loss) -> Loss:
    low, high = Fraction(1), Fraction(2)
    if not _times(first, low).fits(limit):
        if first.fits(limit):
            return first  # its pure losses compose better than their sum does
        low, high = Fraction(0), low
    while _times(first, high).fits(limit):
        low, high = high, 2 * high
    for _ in range(64):
        middle = (low + high) / 2
        low, high = (middle, high) if _times(first, middle).fits(limit) else (low, middle)
    return _times(first, low)


def joined(loss: Loss) -> Loss:
    """A loss with its pure losses as one: one charge may take all of a cap."""
    return replace(loss, pure=((loss.pure_total, 1),))


def _times(loss: Loss, factor: Fraction) -> Loss:
    pure = ((loss.pure_total * factor, 1),)
    return Loss(
        loss.gaussian * factor,
        loss.zcdp * factor,
        pure,
        loss.delta * factor,
        loss.distance * factor,
    )


def _with_rest_of_delta(caps: Loss, limit: Budget) -> Loss:
    if limit.epsilon is None or limit.delta is None:
        return caps
    spare = limit.delta - Fraction(caps.delta_at(float(limit.epsilon)))
    wider = caps.compose(Loss(delta=max(spare, Fraction(0))))
    return wider if wider.fits(limit) else caps


def amounts(loss: Loss) -> Amounts:
    """A loss in units, kind by kind, rounded up."""
    return tuple(ceil(x * UNIT) for x in _numbers(loss))


@cache
def limits(caps: Loss) -> Amounts:
    """Caps in units, kind by kind, rounded down."""
    return tuple(floor(x * UNIT) for x in _numbers(caps))


def _taken(number: Fraction, cap: Fraction) -> int:
    """A number in units, rounded up, but not above a cap that holds it.

    Proof: `limits` rounds a cap down, so a number within the cap may be above its last unit. Such
        a number takes all units of the cap, and leaves room for zeros alone.
    """
    units, whole = ceil(number * UNIT), floor(cap * UNIT)
    return whole if 0 < whole < units and number <= cap else units


def _numbers(loss: Loss) -> tuple[Fraction, ...]:
    return loss.gaussian, loss.zcdp, loss.pure_total, loss.delta + loss.chance, loss.distance


def split(loss: Loss, *, given_past: bool) -> tuple[Loss, Loss]:
    """The loss of a charge for unit-periods in its range alone, and its loss for all of them.

    Proof: `ledger.Ledger`. A pure loss holds on every transcript, so given any past; another loss
        does only if that is proved. Chances and distances are about all draws of a run: after some
        past they may be larger, so that cannot be proved for them.
    """
    if given_past:
        whole = Loss(distance=loss.distance, chance=loss.chance)
        return replace(loss, distance=Fraction(0), chance=Fraction(0)), whole
    plain = loss.stated()
    return Loss(pure=plain.pure), replace(plain, pure=())


def has_room(asked: Amounts, spent: Amounts, limit: Amounts) -> bool:
    """Whether a cost and the spent amounts fit the limit together, in every kind."""
    return all(a + b <= cap for a, b, cap in zip(asked, spent, limit, strict=True))


def as_loss(spent: Amounts) -> Loss:
    """The loss that amounts stand for."""
    gaussian, zcdp, pure, delta, distance = (Fraction(amount, UNIT) for amount in spent)
    return Loss(gaussian, zcdp, ((pure, 1),) if pure else (), delta, distance)


@cache
def cost(loss: Loss, caps: Loss) -> Amounts:
    """The amount that a loss takes from each cap, restated in the kinds that have one.

    Proof: a Gaussian mechanism is mu^2/2-zCDP. A pure mechanism is zCDP (`convert.pure_zcdp`); it
        is also GDP with mu = 2 Phi^-1(e^eps / (1 + e^eps)), because randomised response dominates
        it and is itself the sign of a Gaussian with that mu. A kind without a cap has room 0.
        Tables count as they are stated.
    """
    loss = loss.stated()
    gaussian, zcdp, pure = loss.gaussian, loss.zcdp, loss.pure
    if gaussian and not caps.gaussian and caps.zcdp:
        gaussian, zcdp = Fraction(0), zcdp + gaussian / 2
    if pure and not caps.pure and caps.zcdp:
        zcdp, pure = zcdp + Fraction(Loss(pure=pure).rho()), ()
    elif pure and not caps.pure and caps.gaussian:
        squares = (times * _gaussian_square(float(epsilon)) for epsilon, times in pure)
        gaussian, pure = gaussian + sum(map(Fraction, squares), Fraction(0)), ()
    restated = replace(loss, gaussian=gaussian, zcdp=zcdp, pure=pure)
    return tuple(map(_taken, _numbers(restated), _numbers(caps)))


def _gaussian_square(epsilon: float) -> float:
    """The least mu^2 such that epsilon-DP is mu-GDP, rounded up.

    From -Phi^-1(1 / (1 + e^eps)), whose digits are exact in the lower tail. Near 1/2 they are not:
    there Phi^-1(1/2 + x) is at most u + u^3 for u = sqrt(2 pi) x below 0.1, and x at most eps / 4.
    """
    if epsilon < 1e-3:
        return max(pi / 2 * epsilon**2 * (1 + epsilon**2) * (1 + 1e-9), 1e-300)
    if epsilon > 600:
        return 4 * 2 * (epsilon + log(2))  # Phi(-x) <= e^(-x^2/2) / 2
    tail = float(ndtri(1 / (1 + exp(epsilon))))
    return 4 * tail**2 * (1 + 1e-9)


class PeriodTotals:
    """The loss of each unit-period: an amount for all of them, and more within ranges.

    Memory: one row per distinct end of a range. A charge costs O(log ranges + ranges it meets).
    """

    def __init__(self) -> None:
        self.everywhere = ZERO
        self.most = ZERO  # kind by kind, the largest ranged amount of any unit-period
        self._starts: list[int] = []  # of segments; the last one only ends the segment before
        self._ranged: list[Amounts] = []

    def copy(self) -> PeriodTotals:
        """An independent copy."""
        other = PeriodTotals()
        other.everywhere, other.most = self.everywhere, self.most
        other._starts, other._ranged = list(self._starts), list(self._ranged)
        return other

    def worst(self, periods: Periods | None = None) -> Amounts:
        """The most that any unit-period (of a range) has lost, kind by kind."""
        ranged = self.most
        if periods is not None:
            first, end = self._span(*periods)
            ranged = _most(self._ranged[first:end])
        return _sum(self.everywhere, ranged)

    def has_room(self, cost: Cost, periods: Periods | None, limit: Amounts) -> bool:
        """Whether a charge fits, for the unit-periods of its range and for all others."""
        ranged, everywhere = cost
        if not has_room(everywhere, self.worst(), limit):
            return False
        return has_room(_sum(ranged, everywhere), self.worst(periods), limit)

    def book(self, cost: Cost, periods: Periods | None) -> None:
        """Books a charge."""
        self.add(cost[0], periods)
        self.add(cost[1], None)

    def add(self, charge: Amounts, periods: Periods | None) -> None:
        """Books amounts."""
        if periods is None:
            self.everywhere = _sum(self.everywhere, charge)
            return
        first, end = self._split(periods[0]), self._split(periods[1])
        for place in range(first, end):
            self._ranged[place] = _sum(self._ranged[place], charge)
        self.most = _most([self.most, *self._ranged[first:end]])

    def _span(self, first: int, end: int) -> tuple[int, int]:
        low = bisect_left(self._starts, first)
        if low == len(self._starts) or self._starts[low] != first:
            low -= 1  # the segment that contains the first period
        return max(low, 0), bisect_left(self._starts, end)

    def _split(self, period: int) -> int:
        """The place of the segment that starts at a period; makes one if there is none."""
        place = bisect_left(self._starts, period)
        if place == len(self._starts) or self._starts[place] != period:
            self._starts.insert(place, period)
            self._ranged.insert(place, self._ranged[place - 1] if place else ZERO)
        return place


def _sum(a: Amounts, b: Amounts) -> Amounts:
    return tuple(x + y for x, y in zip(a, b, strict=True))


def _most(rows: list[Amounts]) -> Amounts:
    return tuple(max(column) for column in zip(ZERO, *rows, strict=True))
