"""Which release a sink has: a digest of what is exact, and the norm of what may round otherwise."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from streamveil.connectors.content import computed, exact_columns, is_near, norm
from streamveil.errors import StoreError


@dataclass(frozen=True)
class ContentMark:
    """Tells one release from another without its rows; see `connectors.content`.

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
