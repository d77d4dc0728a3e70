"""Faults injected at the n-th system call that writes.

Every function of `os` through which this package, its ledger and its sinks change durable files is
counted; the n-th call of a life fails in a chosen way. Half a write can only happen to a write, so
those kinds count only these: at any other call they would repeat "kill" or "EIO", or do nothing.

Swept partitions are a cache that the next life throws away, renamed hundreds of times between two
durable writes: a kill at any of these leaves the same durable files. So only one in `CACHED_EACH`
is counted. Their removal is not: when it fails, the job goes on.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from streamveil.disk import DIRECT

Kind = Literal["kill", "short and kill", "kill after", "short", "ENOSPC", "EIO", "fsync"]
KINDS: tuple[Kind, ...] = (
    "kill",  # SIGKILL instead of the call
    "short and kill",  # half of the bytes, then SIGKILL
    "kill after",  # SIGKILL right after the call: as before the next one
    "short",  # half of the bytes and no error: the caller must go on
    "ENOSPC",  # half of the bytes, then the disk is full
    "EIO",  # the call fails
    "fsync",  # only syncs count, and fail after syncing
)
WRITES = ("write", "writev", "pwrite")
SYNCS = ("fsync", "fdatasync")
OTHERS = ("replace", "rename", "ftruncate", "unlink")
CACHED_EACH = 16
REAL_WRITE, REAL_PWRITE = os.write, os.pwrite


@dataclass(frozen=True)
class Fault:
    """What happens at which call, counted from 1."""

    kind: Kind
    at: int


def install(fault: Fault | None) -> Callable[[], int]:
    """Arms a fault in this process; returns a function that tells how many calls there were."""
    calls = cached = 0
    if fault is None:
        return lambda: 0
    halves = fault.kind in ("short", "short and kill", "ENOSPC")
    names = SYNCS if fault.kind == "fsync" else WRITES + (() if halves else SYNCS + OTHERS)

    def armed(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal calls, cached
            if name in OTHERS and any(str(path).endswith(".units") for path in arguments[:2]):
                cached += 1
                if name == "unlink" or cached % CACHED_EACH:
                    return real(*arguments, **named)
            calls += 1
            if calls != fault.at:
                return real(*arguments, **named)
            return strike(fault.kind, name, real, *arguments, **named)

        return call

    for name in names:
        setattr(os, name, armed(name, getattr(os, name)))
    return lambda: calls


def strike(kind: Kind, name: str, real: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Fails one call."""
    written = None
    try:
        if kind in ("short", "short and kill", "ENOSPC"):
            written = write_half(arguments)
        elif kind in ("kill after", "fsync"):
            written = real(*arguments, **named)
    finally:
        if "kill" in kind:
            os.kill(os.getpid(), signal.SIGKILL)
    if kind == "short":
        return written
    code = errno.ENOSPC if kind == "ENOSPC" else errno.EIO
    raise OSError(code, os.strerror(code))


def write_half(arguments: tuple[Any, ...]) -> int:
    """Writes the first half of what a call was asked to write."""
    fd, data = arguments[:2]
    whole = b"".join(bytes(part) for part in data) if isinstance(data, list) else bytes(data)
    half = whole[: (len(whole) + 1) // 2]
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    fcntl.fcntl(fd, fcntl.F_SETFL, flags & ~DIRECT)  # a device may take whole blocks only
    return REAL_PWRITE(fd, half, arguments[2]) if len(arguments) > 2 else REAL_WRITE(fd, half)
