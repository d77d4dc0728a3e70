"""Iceberg tables as a sink: one commit for each release, with the mark of the release in it.

Exactly once. Proof: the rows of a release and its mark, a property of the table, are one commit of
the catalogue. A commit names the snapshot that it follows, and the catalogue takes one commit for
each; so of two lives of a job that send a release at once, one fails, reads the table again and
finds the mark. No commit is tried again without that look (`RETRIES`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from streamveil.batch import Release, require_release
from streamveil.connectors.base import signed
from streamveil.connectors.databases import plain
from streamveil.connectors.marks import ContentMark
from streamveil.errors import SourceError, StreamveilError, require_file_name, requires_extra
from streamveil.release_metadata import sentences

RETRIES = "commit.retry.num-retries"
OWN = {
    RETRIES: "0",  # see the proof
    "write.metadata.metrics.default": "counts",  # least and most of a time no calendar has: none
}
ATTEMPTS = 20


class IcebergSink:
    """Appends every release to one table, each once. The table is made at the first release.

    `catalog` names one of PyIceberg's configuration (`~/.pyiceberg.yaml`, or variables of the
    environment), which holds addresses and credentials.
    """

    def __init__(self, table: str, catalog: str = "default") -> None:
        require_package()
        self.name, self.catalog = table_name(table), catalog

    def write(self, job: str, release: Release) -> None:
        """See `Sink.write`."""
        from pyiceberg.exceptions import CommitFailedException

        window, trigger, table = require_release(release).identity
        mark, name = ContentMark.of(table), f"streamveil.{require_file_name('job', job)}/{window}"
        notes = {"streamveil.notes": json.dumps(sentences(table))}
        rows = for_iceberg(table)
        with words(self.name):
            for attempt in range(ATTEMPTS):
                target = self._table(rows.schema)
                known = json.loads(target.properties.get(name, '{"trigger": 0}'))
                if known["trigger"] == trigger:
                    kept = ContentMark(known["digest"], known["norm"])
                    return mark.require(kept, f"the Iceberg table '{self.name}'")
                if known["trigger"] > trigger:
                    return None
                said = {"trigger": trigger, "digest": mark.digest, "norm": mark.norm}
                target.metadata.properties.update(OWN)  # of this copy alone
                change = target.transaction()
                change.append(rows, snapshot_properties=notes)
                change.set_properties({name: json.dumps(said)})
                try:
                    change.commit_transaction()
                except CommitFailedException:
                    if attempt + 1 == ATTEMPTS:
                        raise
                else:
                    return None
        return None

    def close(self) -> None:
        """Nothing is pending."""

    def _table(self, schema: pa.Schema) -> Any:
        from pyiceberg.exceptions import NoSuchTableError

        catalog = opened(self.catalog)
        try:
            return catalog.load_table(self.name)
        except NoSuchTableError:
            catalog.create_namespace_if_not_exists(self.name.rpartition(".")[0])
            return catalog.create_table_if_not_exists(self.name, schema)


def for_iceberg(table: pa.Table) -> pa.Table:
    """The same rows in types that Iceberg has: its times are in UTC, or of no zone."""
    table = signed(plain(table)).replace_schema_metadata(None)
    for place, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type) and field.type.tz is not None:
            kind = pa.timestamp("us", tz="UTC")
            table = table.set_column(place, field.with_type(kind), table.column(place).cast(kind))
    return table


def require_package() -> None:
    """MissingExtraError where PyIceberg is not installed."""
    with requires_extra("Iceberg", "iceberg"):
        import pyiceberg.catalog  # noqa: F401


def table_name(table: str) -> str:
    """A table with its namespace; SourceError for another text."""
    if not all(table.split(".")) or "." not in table:
        raise SourceError(
            f"table = '{table}' has no namespace.\n  to fix  write it as 'namespace.table'"
        )
    return table


def opened(catalog: str) -> Any:
    """A catalogue of PyIceberg's configuration."""
    from pyiceberg.catalog import load_catalog

    return load_catalog(catalog)


@contextmanager
def words(name: str) -> Iterator[None]:
    """Errors in words, without what a library says: that may hold values, or a password."""
    try:
        yield
    except StreamveilError:
        raise
    except Exception as error:
        raise SourceError(
            f"the Iceberg table '{name}' cannot be loaded: {type(error).__name__}.\n"
            "  to fix  check that PyIceberg's configuration names its catalogue and its storage,"
            " that the table has the same columns, and that this user may use it; snapshots and"
            " files must be kept until they are read"
        ) from None
