"""Delta tables as a sink: one transaction for each release, remembered by the table itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from streamveil.batch import Release
from streamveil.connectors import absolute, in_words, signed
from streamveil.connectors.manifest import shown
from streamveil.connectors.marks import ContentMark, MarkedSink
from streamveil.errors import SourceError, require_file_name, requires_extra


class DeltaSink(MarkedSink):
    """Appends every release to one Delta table, each once.

    The table's log keeps, for (job, window), the last trigger that was written, and with each
    commit the mark of its release. An existing release is not written again; a different one under
    the same identity is refused, as it can only come from another state.
    """

    def __init__(self, path: str) -> None:
        with requires_extra("the sink 'delta'", "delta"):
            import deltalake
        if odd := sorted({*"[]%"} & {*str(path)}):
            raise SourceError(
                f"the sink 'delta' cannot write to a path with {odd[0]}: '{shown(str(path))}'.\n"
                "  to fix  give a path without it; the library that writes Delta tables takes none"
            )
        self.path, self.delta = absolute(str(path)), deltalake
        self.what = f"the Delta table '{shown(self.path)}'"

    @contextmanager
    def opened(self, job: str, release: Release) -> Iterator[str]:
        """The name under which the table keeps the last trigger of the release's window."""
        with in_words(
            (self.delta.exceptions.DeltaError, pa.ArrowException, OSError),
            f"the sink cannot write {self.what}",
            "check that there is room, that this user may write there and that the table has the"
            " columns of this query, then start again: it is sent then",
        ):
            yield f"streamveil/{require_file_name('job', job)}/{release.window}"

    def kept(self, place: str, job: str, release: Release) -> ContentMark | None:
        """See `MarkedSink`. Old entries may be gone from the log; the first were other digests."""
        is_there = self.delta.DeltaTable.is_deltatable(self.path)
        table = self.delta.DeltaTable(self.path) if is_there else None
        if table is None or (table.transaction_version(place) or 0) < release.trigger:
            return None
        known = (commit.get(f"{place}/{release.trigger}", "") for commit in table.history())
        marks = (ContentMark(**json.loads(one)) for one in known if one.startswith("{"))
        return next(marks, ContentMark.of(release.table))

    def put(self, place: str, job: str, release: Release, mark: ContentMark) -> None:
        """See `MarkedSink`."""
        properties = self.delta.CommitProperties(
            custom_metadata={f"{place}/{release.trigger}": json.dumps(vars(mark))},
            app_transactions=[self.delta.Transaction(place, release.trigger)],
        )
        self.delta.write_deltalake(
            self.path, signed(release.table), mode="append", commit_properties=properties
        )
