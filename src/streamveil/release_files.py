"""Files of releases: their names, and several releases of a window in one file.

Such a file has their rows, one release after the other. What each says beside its numbers is in the
metadata of the file, what is the same in all of them once: `PACKED` holds the rows of every release
and, for each name of metadata, the beginning and the end that all of its texts share, and the rest
of each.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

PACKED = b"streamveil.releases"  # in the metadata of a file
NAME = re.compile(r"trigger=(\d+)(?:-(\d+))?\.(?:parquet|csv|json)")


def packed(releases: Sequence[pa.Table]) -> tuple[pa.Table, bytes]:
    """The rows of releases that have the same columns, and the metadata that tells them apart.

    >>> first, second = (pa.table({"n": [n]}).replace_schema_metadata({"said": f"of {n}"})
    ...                  for n in (1, 2))
    >>> table, told = packed([first, second])
    >>> table["n"].to_pylist(), told
    ([1, 2], b'{"rows":[1,1],"metadata":{"said":["of ","",["1","2"]]}}')
    """
    plain = [table.replace_schema_metadata(None) for table in releases]
    said = [table.schema.metadata or {} for table in releases]
    told = {name.decode(): shared([one[name].decode() for one in said]) for name in said[0]}
    rows = [table.num_rows for table in releases]
    text = json.dumps({"rows": rows, "metadata": told}, separators=(",", ":"))
    return pa.concat_tables(plain).combine_chunks(), text.encode()


def unpacked(table: pa.Table, told: bytes) -> list[pa.Table]:
    """The inverse of `packed`.

    >>> one = pa.table({"n": [1]}).replace_schema_metadata({"said": "much"})
    >>> unpacked(*packed([one, one])) == [one, one]
    True
    """
    parts: dict[str, Any] = json.loads(told)
    found, start = list[pa.Table](), 0
    for turn, rows in enumerate(parts["rows"]):
        said = {
            name: begin + rest[turn] + end for name, (begin, end, rest) in parts["metadata"].items()
        }
        found.append(table.slice(start, rows).replace_schema_metadata(said or None))
        start += rows
    return found


def read_parquet(path: Path) -> list[pa.Table]:
    """The releases in a Parquet file."""
    with pq.ParquetFile(path) as file:
        told = (file.metadata.metadata or {}).get(PACKED)
        table = file.read()
    return [table] if told is None else unpacked(table, told)


def read_schema(path: Path) -> pa.Schema:
    """The schema of the first release in a Parquet file."""
    with pq.ParquetFile(path) as file:
        told, schema = (file.metadata.metadata or {}).get(PACKED), file.schema_arrow
    return schema if told is None else unpacked(schema.empty_table(), told)[0].schema


def same_columns(first: pa.Table, second: pa.Table) -> bool:
    """Whether two releases can be in one file: same columns, with the same notes."""
    names = [set(table.schema.metadata or {}) for table in (first, second)]
    plain = [table.schema.remove_metadata() for table in (first, second)]
    return names[0] == names[1] and plain[0].equals(plain[1], check_metadata=True)


def name_of(first: int, *rest: int) -> str:
    """The name of a file of releases, by their triggers.

    >>> name_of(3), name_of(3, 4, 5)
    ('trigger=000003', 'trigger=000003-000005')
    """
    return f"trigger={first:06d}" + (f"-{rest[-1]:06d}" if rest else "")


def triggers_in(name: str) -> range:
    """The triggers of the releases in a file, by its name; empty for other files.

    >>> triggers_in("trigger=000003-000005.parquet"), triggers_in("trigger=000003.csv")
    (range(3, 6), range(3, 4))
    """
    found = NAME.fullmatch(name)
    return range(int(found[1]), int(found[2] or found[1]) + 1) if found else range(0)


def shared(texts: list[str]) -> tuple[str, str, list[str]]:
    """The beginning and the end that texts share, and the rest of each."""
    begin = beginning(texts)
    rests = [text[len(begin) :] for text in texts]
    end = beginning([rest[::-1] for rest in rests])[::-1]
    return begin, end, [rest[: len(rest) - len(end)] for rest in rests]


def beginning(texts: list[str]) -> str:
    """What all texts begin with: what the first and the last in their order do."""
    first, last = min(texts), max(texts)
    same = (
        place for place, (one, other) in enumerate(zip(first, last, strict=False)) if one != other
    )
    return first[: next(same, min(len(first), len(last)))]
