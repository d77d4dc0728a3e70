"""Whole lines of a file of text, compressed or not, in bounded memory.

A line longer than a limit is passed over: its start and its size are told, not the line. What one
person wrote can neither fill the memory nor end the job each time it is read.
"""

from __future__ import annotations

import io
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeVar, cast

import pyarrow as pa

from streamveil.connectors.manifest import COMPRESSIONS, guarded, shown
from streamveil.errors import SourceError

KEPT = 1 << 16  # bytes of a longer line that are told
SKIPPED = 1 << 20  # bytes of it that are read at once
THREADS = min(2, os.cpu_count() or 1)
S = TypeVar("S")
T = TypeVar("T")
MAGIC = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd")  # gzip, Zstandard


class Long(NamedTuple):
    """A line that is too long."""

    start: bytes
    size: int  # bytes, without its end


def opened(path: Path) -> BinaryIO:
    """The text of a file whose name tells how it is compressed, if it is."""
    compression = COMPRESSIONS.get(path.suffix.lower())
    if compression is not None:
        packed = guarded(path, lambda: pa.CompressedInputStream(pa.OSFile(str(path)), compression))
        return io.BufferedReader(cast(io.RawIOBase, packed), SKIPPED)
    file = guarded(path, lambda: path.open("rb"))
    if guarded(path, lambda: file.peek(4)).startswith(MAGIC):
        file.close()
        raise SourceError(
            f"'{shown(path.name)}' is compressed, and its name does not say so.\n"
            "  to fix  let it end in .gz or .zst (such as visits.csv.gz)"
        )
    return file


def blocks(file: BinaryIO, size: int, most: int) -> Iterator[bytes | Long]:
    r"""Runs of whole lines, of about `size` bytes, and by themselves the lines above `most` bytes.

    >>> list(blocks(io.BytesIO(b"a\nbb\nccccc\nd"), 4, 4))
    [b'a\nbb\n', Long(start=b'ccccc', size=5), b'd']
    """
    while block := file.read(min(size, most)):
        whole = block.rfind(b"\n") + 1
        begun = len(block) - whole  # bytes of a line that goes on
        rest = file.readline(most + 1 - begun) if begun else b""
        if begun + len(rest) <= most or rest.endswith(b"\n"):
            yield block + rest
            continue
        if whole:
            yield block[:whole]
        start = block[whole:][:KEPT]
        start += rest[: KEPT - len(start)]
        yield Long(start, begun + len(rest) + passed_over(file))


def passed_over(file: BinaryIO) -> int:
    """How many bytes the line that is being read still has; reads them."""
    size = 0
    while rest := file.readline(SKIPPED):
        size += len(rest)
        if rest.endswith(b"\n"):
            return size - 1
    return size


def first_line(file: BinaryIO, most: int) -> bytes | None:
    """The first line with its end; None if it is too long."""
    line = file.readline(most + 1)
    return None if len(line) > most and not line.endswith(b"\n") else line


def ahead(make: Callable[[S], T], of: Iterable[S]) -> Iterator[T]:
    """What is made of each, in order; the next ones are made meanwhile, by other threads.

    The first one is not: most files have no other.
    """
    with ThreadPoolExecutor(THREADS) as pool:
        waiting: deque[Future[T]] = deque()
        for number, one in enumerate(of):
            if not number:
                yield make(one)
                continue
            waiting.append(pool.submit(make, one))
            if len(waiting) > THREADS:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
