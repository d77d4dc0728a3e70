"""Sinks that keep, with each release, a mark that tells it from any other."""

from __future__ import annotations

import hashlib
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from streamveil.batch import Release, computed, exact_columns, is_near, norm, require_release
from streamveil.connectors import Sink
from streamveil.errors import StoreError


@dataclass(frozen=True)
class ContentMark:
    """Tells one release from another without its rows.

    It has a digest of exact content, and the norm of numbers that may round differently (`batch`).

    >>> first = ContentMark.of(pa.table({"key": ["a", None], "n": [1.5, 2.5]}))
    >>> first == ContentMark.of(pa.table({"key": ["a", "b"], "n": [1.5, 2.5]}))
    False
    """

    digest: str  # of keys, counts and times: names, types and values, however they lie in memory
    norm: float  # of the real numbers

    @classmethod
    def of(cls, table: pa.Table) -> ContentMark:
        """The mark of a release."""
        exact = exact_columns(table, computed(table.schema))
        told: list[Any] = [(one.name, str(one.type)) for one in table.schema]
        for column in exact.columns:
            if pa.types.is_temporal(column.type):  # Python has no time for some of them
                wide = pa.int32() if column.type.bit_width == 32 else pa.int64()
                told.append(column.cast(wide).to_pylist())
            else:
                told.append(column.to_pylist())
        return cls(hashlib.blake2b(ascii(told).encode(), digest_size=16).hexdigest(), norm(table))

    def require(self, kept: ContentMark, where: str) -> None:
        """Refuses another release than the one that a sink has."""
        if self.digest != kept.digest or not is_near(self.norm, kept.norm):
            raise StoreError(
                f"{where} holds another release of this job, window and trigger.\n"
                "  to fix  give a new state, or changed post-processing, a place of its own, or "
                "another name to its query; never go on from a copy of a state that has published "
                "since"
            )


class MarkedSink(Sink):
    """A sink that keeps, with each release, a mark that tells it from any other.

    Exactly once. Proof: `put` writes a release and its mark, both or neither, and nobody puts a
        release of the same job between `kept` and `put`; each sink says why. A job sends a release
        again until its own state says that it was sent. So wherever a process or a server dies, the
        release is there once: with a mark nothing is written, and without a mark there are no rows.
        Another release under the same name is refused.

    >>> from contextlib import nullcontext
    >>> from streamveil.core.noisy import restored
    >>> class Shelf(MarkedSink):
    ...     def __init__(self):
    ...         self.what, self.marks, self.rows = "the shelf", {}, []
    ...     def opened(self, job, release):
    ...         return nullcontext((job, release.window, release.trigger))
    ...     def kept(self, place, job, release):
    ...         return self.marks.get(place)
    ...     def put(self, place, job, release, mark):
    ...         self.rows, self.marks[place] = self.rows + release.table.to_pylist(), mark
    >>> shelf, release = Shelf(), Release(restored(pa.table({"n": [7]})), 0, 1, 1)
    >>> shelf.write("job", release), shelf.write("job", release), shelf.rows
    (None, None, [{'n': 7}])
    """

    what: str  # that it writes to, for messages: "the table 'answers'"

    def opened(self, job: str, release: Release) -> AbstractContextManager[Any]:
        """A place for `kept` and `put`; errors of its client become a `SourceError`."""
        raise NotImplementedError

    def kept(self, place: Any, job: str, release: Release) -> ContentMark | None:
        """The mark that is kept under a release's name; None if there is none.

        Where a later release took the place of its mark, it is the mark of `release` itself.
        """
        raise NotImplementedError

    def put(self, place: Any, job: str, release: Release, mark: ContentMark) -> None:
        """Writes a release and its mark at once."""
        raise NotImplementedError

    def write(self, job: str, release: Release) -> None:
        """See `Sink.write`."""
        mark = ContentMark.of(require_release(release).table)
        with self.opened(job, release) as place:
            kept = self.kept(place, job, release)
            if kept is None:
                self.put(place, job, release, mark)
            else:
                mark.require(kept, self.what)
