"""Columns that names of folders hold: rides/month=2026-01/a.parquet has the month '2026-01'.

They are part of every row of a file, as if each row held them: so a value is as private as any
other, and the existing folders reveal no more than the existing files. Values are text in any
folder: no folder decides a type, and none can have a value of a wrong type. A name that is not
UTF-8 is null: written in any other way, it could be that of another person.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from urllib.parse import unquote_to_bytes

import pyarrow as pa

from streamveil.connectors import Chunk
from streamveil.connectors.manifest import shown, to_bytes
from streamveil.connectors.rejected_rows import PLACE, text_or_none
from streamveil.errors import SourceError

NULL = "__HIVE_DEFAULT_PARTITION__"  # what Hive and Spark write for a null


def schema_of(names: str | list[str], declared: pa.Schema | None) -> pa.Schema:
    """The columns of folders, as texts; SourceError where one is declared as anything else.

    >>> schema_of(["year", "month"], None).names
    ['year', 'month']
    """
    asked = [names] if isinstance(names, str) else list(names)
    fine = all(isinstance(name, str) and name and not {*name} & {*"=/,"} for name in asked)
    if not asked or not fine or len({*asked}) < len(asked):
        raise SourceError(
            "folder_columns is a list of different names of columns, as they stand before the = in"
            " names of folders.\n"
            "  to fix  folder_columns = ['year', 'month'] for year=2026/month=01"
        )
    kinds = {} if declared is None else {field.name: field.type for field in declared}
    for name in asked:
        if kinds.get(name, pa.string()) != pa.string():
            raise SourceError(
                f"names of folders are text, and the column '{shown(name)}' is declared as another"
                " type.\n"
                "  to fix  declare it STRING, or not at all, and CAST it in the query"
            )
    return pa.schema([(name, pa.string()) for name in asked])


def values_of(name: str, columns: Sequence[str], *, must: bool) -> dict[str, str | None]:
    """The values of columns in the names of a file's folders; the innermost folder counts.

    `must`: SourceError where there is no such folder; else its value is null.

    >>> values_of("rides/month=2026-01/city=S%C3%A3o/a.csv", ["city", "month"], must=True)
    {'city': 'São', 'month': '2026-01'}
    >>> values_of(f"month={NULL}/a.csv", ["month", "day"], must=False)
    {'month': None, 'day': None}
    """
    folders = name.replace(os.sep, "/").split("/")[:-1]
    told = dict(folder.split("=", 1) for folder in folders if "=" in folder)
    lacking = [column for column in columns if column not in told]
    if must and lacking:
        place = shown("/".join([*folders[-1:], name.rsplit("/", 1)[-1]]))
        raise SourceError(
            f"'{place}' lies in no folder whose name begins with '{shown(lacking[0])}='.\n"
            "  to fix  correct folder_columns or the path, or say fill_missing = TRUE: the column"
            " is then null in rows of such files"
        )
    return {column: value_of(told.get(column, NULL)) for column in columns}


def value_of(text: str) -> str | None:
    """A value as Hive and Spark write it: %2F stands for a slash; null where it is no text.

    >>> value_of("a%2Fb"), value_of("a%FF")
    ('a/b', None)
    """
    return None if text == NULL else text_or_none(unquote_to_bytes(to_bytes(text)))


def with_values(chunk: Chunk, wanted: pa.Schema, values: Mapping[str, str | None]) -> Chunk:
    """Rows of a file with the columns of its folders, in the wanted order."""
    rows = chunk.rows
    names = [*wanted.names, *(name for name in rows.schema.names if name == PLACE)]
    columns = [
        pa.repeat(pa.scalar(values[name], pa.string()), rows.num_rows)
        if name in values
        else rows[name]
        for name in names
    ]
    return replace(chunk, rows=pa.table(columns, names))
