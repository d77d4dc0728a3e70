"""Whole lines of a file, in bounded memory: one longer than a limit is reported, not read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO, NamedTuple

KEPT = 1 << 16  # bytes of a longer line that are told
SKIPPED = 1 << 20  # bytes of it that are read at once


class Long(NamedTuple):
    """A line that is too long."""

    start: bytes
    size: int  # bytes, without its end


def blocks(
    file: BinaryIO, size: int, most: int, seen: Callable[[bytes], object] = len
) -> Iterator[bytes | Long]:
    r"""Runs of whole lines, of about `size` bytes, and by themselves the lines above `most` bytes.

    `seen` is called with all parts of such a line, one after the other, before it is told.

    >>> import io
    >>> list(blocks(io.BytesIO(b"a\nbb\nccccc\nd"), 4, 4))
    [b'a\nbb\n', Long(start=b'ccccc', size=5), b'd']
    """
    found: list[bytes] = []
    held = 0
    for block in read_blocks(file, min(size, most), most, seen):
        if not isinstance(block, Long):
            found.append(block)
            held += len(block)
            if held < size:
                continue
        if found:
            yield b"".join(found)
            found, held = [], 0
        if isinstance(block, Long):
            yield block
    if found:
        yield b"".join(found)


def read_blocks(
    file: BinaryIO, size: int, most: int, seen: Callable[[bytes], object]
) -> Iterator[bytes | Long]:
    """The same, each read at once: `size` is `most` or less."""
    while block := file.read(size):
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
        seen(block[whole:] + rest)
        yield Long(start, begun + len(rest) + passed_over(file, seen))


def cut_at_returns(found: Iterable[bytes | Long], size: int) -> Iterator[bytes | Long]:
    r"""The same, cut behind carriage returns as well, which end lines of CSV: about `size` bytes.

    What `blocks` takes for one line may be millions, which took a multiple of it to read.

    >>> list(cut_at_returns([b"a\rb\r\nc\rd\n"], 2))
    [b'a\rb\r\n', b'c\rd\n']
    """
    for block in found:
        if isinstance(block, Long):
            yield block
            continue
        begun = 0
        while end := 1 + block.find(b"\r", begun + size, -2):
            end += block.startswith(b"\n", end)
            yield block[begun:end]
            begun = end
        yield block[begun:]


def passed_over(file: BinaryIO, seen: Callable[[bytes], object]) -> int:
    """Reads the rest of the current line; returns how many bytes it had."""
    size = 0
    while rest := file.readline(SKIPPED):
        line = rest.removesuffix(b"\n")
        seen(line)
        size += len(line)
        if line != rest:
            break
    return size


def first_line(file: BinaryIO, most: int) -> bytes | None:
    """The first line with its end; None if it is too long."""
    line = file.readline(most + 1)
    return None if len(line) > most and not line.endswith(b"\n") else line
