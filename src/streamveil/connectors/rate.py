"""Made-up rows at a steady rate, for tests and demonstrations: public, the same at every reading.

Row i happens i / rows_per_second seconds after the start. Unit, key and value are a mixing function
of i alone, so a row can be made wherever it is needed, and a replay makes the same one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa

from streamveil.connectors import Chunk, select
from streamveil.connectors.rejected_rows import TracedSource
from streamveil.errors import SourceError
from streamveil.types import Array, Int64

TIME = "ts"
SCHEMA = pa.schema([
    (TIME, pa.timestamp("us", tz="UTC")), ("unit", pa.int64()), ("key", pa.int64()),
    ("value", pa.float64()),
])  # fmt: skip
SECOND = 1_000_000  # microseconds
LONGEST = 2**40  # rows; with SECOND still an int64
VALUES = 1000  # values are 0.0, 0.1, ... 99.9


@dataclass(frozen=True, kw_only=True)
class RateSource(TracedSource):
    """Columns: ts, unit (0 .. units - 1), key (0 .. keys - 1), value (0 to 99.9, in tenths).

    With `follow`, a row is there once its time has come; else all are there at once.
    """

    rows: int
    start: str  # ISO 8601, UTC unless it says otherwise
    rows_per_second: int = 100
    units: int = 1000
    keys: int = 20
    follow: bool = False

    def __post_init__(self) -> None:
        for name in ("rows", "rows_per_second", "units", "keys"):
            value = getattr(self, name)
            if not isinstance(value, int) or not 1 <= value <= LONGEST:
                raise SourceError(
                    f"{name} of the source 'rate' must be a whole number from 1 to 2^40"
                )
        try:
            datetime.fromisoformat(self.start)
        except (TypeError, ValueError):
            raise SourceError(
                "start of the source 'rate' must be a time, such as '2026-01-01'"
            ) from None

    @property
    def bounded(self) -> bool:
        """See `Source`."""
        return not self.follow

    @property
    def start_us(self) -> int:
        """The start in microseconds since 1970 UTC."""
        start = datetime.fromisoformat(self.start)
        start = start if start.tzinfo else start.replace(tzinfo=UTC)
        return int(start.timestamp()) * SECOND + start.microsecond

    def schema(self) -> pa.Schema:
        """See `Source.schema`."""
        return SCHEMA

    def present(self, at: float) -> int:
        """How many rows are there at a time (seconds since 1970).

        >>> RateSource(rows=90, start="1970-01-01", rows_per_second=7, follow=True).present(2.0)
        14
        """
        if not self.follow:
            return self.rows
        passed = int(at * SECOND) - self.start_us
        return min(max(-(-passed * self.rows_per_second // SECOND), 0), self.rows)

    def times(self, index: Int64[Array, " rows"]) -> Int64[Array, " rows"]:
        """When rows happen, in microseconds since 1970 UTC."""
        seconds, rest = np.divmod(index, self.rows_per_second)
        return np.asarray(self.start_us + seconds * SECOND + rest * SECOND // self.rows_per_second)

    def table(self, first: int, rows: int) -> pa.Table:
        """Some rows."""
        index = np.arange(first, first + rows, dtype=np.int64)
        mixed = mix(index.astype(np.uint64))
        unit, rest = mixed % np.uint64(self.units), mixed // np.uint64(self.units)
        key, rest = rest % np.uint64(self.keys), rest // np.uint64(self.keys)
        columns = [self.times(index), unit.astype(np.int64), key.astype(np.int64),
                   (rest % np.uint64(VALUES)).astype(np.float64) / 10]  # fmt: skip
        return pa.table([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], SCHEMA)

    def read(
        self, position: str | None, max_rows: int, columns: list[str] | None = None
    ) -> Iterator[Chunk]:
        """See `Source.read`."""
        names = select(SCHEMA, columns, "the source 'rate'").names
        stop = self.present(time.time())  # noqa: TID251  (a source's clock)
        for row in range(json.loads(position or "0"), stop, max_rows):
            end = min(row + max_rows, stop)
            rows = self.table(row, end - row).select(names)
            yield Chunk(self.placed(rows, end), json.dumps(end))


def mix(index: Array) -> Array:
    """A bijection of 64-bit numbers that looks random: splitmix64 (Steele, Lea & Flood 2014)."""
    made = index * np.uint64(0x9E3779B97F4A7C15)
    made = (made ^ (made >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    made = (made ^ (made >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return made ^ (made >> np.uint64(31))
