"""Iceberg tables as a sink: one commit for each release, with the mark of the release in it.

Exactly once. Proof: the rows of a release and its mark, a property of the table, are one commit of
the catalogue. A commit names the snapshot that it follows, and the catalogue takes one commit for
each; so of two lives of a job that send a release at once, one fails, reads the table again and
finds the mark. No commit is tried again without that look (`RETRIES`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pyarrow as pa

from streamveil.batch import Release
from streamveil.connectors import in_words, signed
from streamveil.connectors.databases import plain
from streamveil.connectors.marks import ContentMark, MarkedSink
from streamveil.errors import SourceError, require_file_name, requires_extra
from streamveil.release_metadata import sentences

RETRIES = "commit.retry.num-retries"
OWN = {
    RETRIES: "0",  # see the proof
    "write.metadata.metrics.default": "counts",  # least and most of a time no calendar has: none
}
ATTEMPTS = 20


class IcebergSink(MarkedSink):
    """Appends every release to one table, each once. The table is made at the first release.

    `catalog` names one of PyIceberg's configuration (`~/.pyiceberg.yaml`, or variables of the
    environment), which holds addresses and credentials.
    """

    def __init__(self, table: str, catalog: str = "default") -> None:
        require_package()
        self.name, self.catalog = table_name(table), catalog
        self.what = f"the Iceberg table '{self.name}'"

    def write(self, job: str, release: Release) -> None:
        """See `Sink.write`. Looks again where another commit came first."""
        from pyiceberg.exceptions import CommitFailedException

        with words(self.name):
            for attempt in range(ATTEMPTS):
                try:
                    return super().write(job, release)
                except CommitFailedException:
                    if attempt + 1 == ATTEMPTS:
                        raise
        return None

    @contextmanager
    def opened(self, job: str, release: Release) -> Iterator[Any]:
        """The table as it is now; made where it is missing."""
        from pyiceberg.exceptions import NoSuchTableError

        catalog = opened(self.catalog)
        try:
            table = catalog.load_table(self.name)
        except NoSuchTableError:
            catalog.create_namespace_if_not_exists(self.name.rpartition(".")[0])
            schema = for_iceberg(release.table).schema
            table = catalog.create_table_if_not_exists(self.name, schema)
        yield table

    def kept(self, place: Any, job: str, release: Release) -> ContentMark | None:
        """See `MarkedSink`. A table keeps the mark of the last release of each window."""
        known = json.loads(place.properties.get(property_of(job, release), '{"trigger": 0}'))
        if known["trigger"] == release.trigger:
            return ContentMark(known["digest"], known["norm"])
        return ContentMark.of(release.table) if known["trigger"] > release.trigger else None

    def put(self, place: Any, job: str, release: Release, mark: ContentMark) -> None:
        """See `MarkedSink`."""
        place.metadata.properties.update(OWN)  # of this copy alone
        said = {"trigger": release.trigger, **vars(mark)}
        change = place.transaction()
        change.append(
            for_iceberg(release.table),
            snapshot_properties={"streamveil.notes": json.dumps(sentences(release.table))},
        )
        change.set_properties({property_of(job, release): json.dumps(said)})
        change.commit_transaction()


def property_of(job: str, release: Release) -> str:
    """The property of a table that holds the mark of a window's last release."""
    return f"streamveil.{require_file_name('job', job)}/{release.window}"


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


def words(name: str) -> AbstractContextManager[None]:
    """Errors in words, without what a library says: that may hold values, or a password."""
    return in_words(
        Exception,
        f"the Iceberg table '{name}' cannot be loaded",
        "check that PyIceberg's configuration names its catalogue and its storage, that the table"
        " has the same columns, and that this user may use it; snapshots and files must be kept"
        " until they are read",
    )
