"""Delta tables as a sink: one transaction for each release, remembered by the table itself."""

from __future__ import annotations

import hashlib
from typing import Any

import pyarrow as pa

from streamveil.batch import Release, require_release
from streamveil.connectors.base import signed
from streamveil.connectors.names import shown
from streamveil.errors import MissingExtraError, SourceError, require_file_name


class DeltaSink:
    """Appends every release to one Delta table, each once.

    The table's log keeps, for (job, window), the last trigger that was written, and with each
    commit a digest of its release. A release that is there already is not written again; another
    release under the same identity is refused, as it can only come from another state.
    """

    def __init__(self, path: str) -> None:
        try:
            import deltalake
        except ImportError:
            raise MissingExtraError("the sink 'delta'", "delta") from None
        self.path, self.delta = str(path), deltalake

    def write(self, job: str, release: Release) -> None:
        """See `Sink.write`."""
        try:
            self._write(job, release)
        except (self.delta.exceptions.DeltaError, pa.ArrowException, OSError) as error:
            raise SourceError(
                f"the sink cannot write the Delta table '{shown(self.path)}':"
                f" {type(error).__name__}.\n"
                "  to fix  check that there is room, that this user may write there and that the"
                " table has the columns of this query, then start again: it is sent then"
            ) from None

    def _write(self, job: str, release: Release) -> None:
        window, trigger, table = require_release(release).identity
        app = f"streamveil/{require_file_name('job', job)}/{window}"
        digest = digest_of(table)
        if self._last(app) >= trigger:
            self._require_same(f"{app}/{trigger}", digest)
            return
        properties = self.delta.CommitProperties(
            custom_metadata={f"{app}/{trigger}": digest},
            app_transactions=[self.delta.Transaction(app, trigger)],
        )
        self.delta.write_deltalake(
            self.path, signed(table), mode="append", commit_properties=properties
        )

    def close(self) -> None:
        """Nothing is pending."""

    def _last(self, app: str) -> int:
        """The last trigger of a job's window in the table; 0 before the first."""
        if not self.delta.DeltaTable.is_deltatable(self.path):
            return 0
        return int(self._table().transaction_version(app) or 0)

    def _require_same(self, identity: str, digest: str) -> None:
        """Refuses another release where one is known; old entries may be gone from the log."""
        known = {commit[identity] for commit in self._table().history() if identity in commit}
        if known and known != {digest}:
            raise SourceError(
                "the Delta table holds another release of this job, window and trigger.\n"
                "  to fix  give a new state a table of its own, or another name to its query"
            )

    def _table(self) -> Any:
        return self.delta.DeltaTable(self.path)


def digest_of(table: pa.Table) -> str:
    """Of the exact content of a release."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return hashlib.blake2b(sink.getvalue(), digest_size=16).hexdigest()
