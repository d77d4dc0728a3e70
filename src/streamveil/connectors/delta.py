"""Delta tables as a sink: one transaction for each release, remembered by the table itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

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

    Exactly once. Proof: a commit is made to the version of the table that `kept` looked at, or to
        none where there was no table. If a later version has another trigger of the same (job,
        window), by a second life of the job, the log takes no commit; other jobs may commit.
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
    def opened(self, job: str, release: Release) -> Iterator[Any]:
        """The table as it is now; None where it is missing."""
        require_file_name("job", job)
        with in_words(
            (self.delta.exceptions.DeltaError, pa.ArrowException, OSError),
            f"the sink cannot write {self.what}",
            "check that there is room, that this user may write there, that the table has the"
            " columns of this query and that no other process writes under the job's name, then"
            " start again: it is sent then",
        ):
            is_there = self.delta.DeltaTable.is_deltatable(self.path)
            yield self.delta.DeltaTable(self.path) if is_there else None

    def kept(self, place: Any, job: str, release: Release) -> ContentMark | None:
        """See `MarkedSink`. Old entries may be gone from the log; the first were other digests."""
        name = name_of(job, release)
        if place is None or (place.transaction_version(name) or 0) < release.trigger:
            return None
        known = (commit.get(f"{name}/{release.trigger}", "") for commit in place.history())
        marks = (ContentMark(**json.loads(one)) for one in known if one.startswith("{"))
        return next(marks, ContentMark.of(release.table))

    def put(self, place: Any, job: str, release: Release, mark: ContentMark) -> None:
        """See `MarkedSink`."""
        name = name_of(job, release)
        properties = self.delta.CommitProperties(
            custom_metadata={f"{name}/{release.trigger}": json.dumps(vars(mark))},
            app_transactions=[self.delta.Transaction(name, release.trigger)],
        )
        self.delta.write_deltalake(
            self.path if place is None else place,
            signed(release.table),
            mode="error" if place is None else "append",
            commit_properties=properties,
        )


def name_of(job: str, release: Release) -> str:
    """The name under which a table keeps the last trigger of a window."""
    return f"streamveil/{job}/{release.window}"
