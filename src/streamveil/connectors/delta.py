"""Delta tables as a sink: one transaction for each release, remembered by the table itself."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from streamveil.batch import Release, require_release
from streamveil.connectors.base import signed
from streamveil.connectors.marks import ContentMark
from streamveil.connectors.names import shown
from streamveil.errors import SourceError, require_file_name, requires_extra


class DeltaSink:
    """Appends every release to one Delta table, each once.

    The table's log keeps, for (job, window), the last trigger that was written, and with each
    commit the mark of its release. A release that is there already is not written again; another
    one under the same identity is refused, as it can only come from another state.
    """

    def __init__(self, path: str) -> None:
        with requires_extra("the sink 'delta'", "delta"):
            import deltalake
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
        mark = ContentMark.of(table)
        if self._last(app) >= trigger:
            self._require_same(f"{app}/{trigger}", mark)
            return
        properties = self.delta.CommitProperties(
            custom_metadata={f"{app}/{trigger}": json.dumps(vars(mark))},
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

    def _require_same(self, identity: str, mark: ContentMark) -> None:
        """Refuses another release where one is known.

        Old entries may be gone from the log; the first ones were digests of another kind.
        """
        for commit in self._table().history():
            if commit.get(identity, "").startswith("{"):
                kept = ContentMark(**json.loads(commit[identity]))
                mark.require(kept, f"the Delta table '{shown(self.path)}'")

    def _table(self) -> Any:
        return self.delta.DeltaTable(self.path)
