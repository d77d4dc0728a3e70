"""Which bytes of a Parquet file hold some of its columns: a copy to read them needs no others.

A reader that went beyond them would find zeros, which are no page of Parquet: it fails, as at a
damaged file, and gives no wrong value.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

TAIL = 1 << 16  # bytes in which most footers lie
END = 8  # bytes: the length of the footer, and a word
GAP = 1 << 20  # bytes between two parts that are asked for at once
PADDING = 128  # bytes behind a chunk: some writers state it shorter than it is
Spans = list[tuple[int, int]]


def spans(file: pa.NativeFile, size: int, columns: Collection[str]) -> tuple[Spans, bytes]:
    """The spans to copy, in order, and the end of the file, which has been read.

    All of a file whose end is no footer.
    """
    tail = file.read_at(min(size, TAIL), max(0, size - TAIL))
    whole = [(0, size - len(tail))]
    length = int.from_bytes(tail[-END:-4], "little") + END
    if tail[-4:] != b"PAR1" or length > size:
        return whole, tail
    if length > len(tail):
        tail = file.read_at(length, size - length)
        whole = [(0, size - length)]
    try:
        found = [*chunks(pq.read_metadata(pa.BufferReader(tail)), set(columns))]
    except (pa.ArrowException, OSError):
        return whole, tail
    if not all(0 <= start < end for start, end in found):
        return whole, tail
    before = size - len(tail)
    ends = sorted((start, min(end + PADDING, before)) for start, end in found if start < before)
    return joined(ends), tail


def chunks(facts: Any, columns: set[str]) -> Iterator[tuple[int, int]]:
    """Where the parts of some columns lie, of every row group."""
    wanted = [
        place for place in range(facts.num_columns)
        if facts.schema.column(place).path.partition(".")[0] in columns
    ]  # fmt: skip
    for number in range(facts.num_row_groups):
        group = facts.row_group(number)
        for place in wanted:
            one = group.column(place)
            first = one.dictionary_page_offset if one.has_dictionary_page else None
            start = one.data_page_offset if first is None else min(first, one.data_page_offset)
            yield start, start + one.total_compressed_size


def joined(some: Spans) -> Spans:
    """Spans with those made one that are next to each other, or nearly.

    >>> joined([(0, 4), (90, 200), (GAP + 100, GAP + 400), (3 * GAP, 3 * GAP + 1)])
    [(0, 1048976), (3145728, 3145729)]
    """
    made = some[:1]
    for start, end in some[1:]:
        if start - made[-1][1] > GAP:
            made.append((start, end))
        else:
            made[-1] = (made[-1][0], max(made[-1][1], end))
    return made
