"""Generated streams and queries over them, the same for every process that imports this."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from streamveil.core.accounting import Budget
from streamveil.plan import (
    Aggregate,
    Bounding,
    Clock,
    KeyColumn,
    KeySet,
    Plan,
    SinkSpec,
    SourceSpec,
    Window,
)

HOUR = 3_600_000_000
SPAN = 6 * HOUR
WHOLE = Window()


@dataclass(frozen=True, kw_only=True)
class Case:
    """One generated stream and the query over it."""

    name: str
    seed: int
    window: Window = WHOLE
    clock: str = "event"
    text: bool = False  # keys and units as strings
    public: bool = False
    period: int | None = None
    per_group: int | None = 2
    quadratic: int | None = None
    weights: bool = False
    quantile: bool = False
    moments: bool = False
    counter: str = "auto"
    two_keys: bool = False
    distinct: bool = False
    mixed: bool = False  # aggregates in an order that the seed draws
    preset: str = "default"
    rows: int = 900
    shards: int = 3
    every: int = 2 * HOUR  # between releases, by the event clock
    late: float = 0.3  # share of rows whose event was up to an hour before they arrived
    rows_per_unit: int = 8
    skew: float = 0.25  # share of rows that the most frequent key has

    def write(self, folder: Path) -> Path:
        """Two Parquet files with small row groups; arrivals in order, events up to an hour late."""
        rng = np.random.default_rng(self.seed)
        n = self.rows
        arrival = np.sort(rng.integers(0, SPAN, n))
        event = np.maximum(arrival - rng.integers(0, HOUR, n) * (rng.random(n) < self.late), 0)
        unit = rng.integers(0, max(n // self.rows_per_unit, 1), n)
        key = rng.geometric(self.skew, n)
        odd = rng.random(n) < 0.02
        value = rng.normal(0.2, 1.0, n)
        value[rng.random(n) < 0.01] = np.nan
        columns = {
            "unit": pa.array([f"u{u}" for u in unit] if self.text else unit, mask=odd),
            "key": pa.array([f"kéy {k}" for k in key] if self.text else key, mask=odd[::-1].copy()),
            "other": pa.array(rng.integers(0, 2, n) == 1),
            "value": pa.array(value),
            "ts": pa.array(event).cast(pa.timestamp("us", "UTC")),
            "seen": pa.array(arrival).cast(pa.timestamp("us", "UTC")),
        }
        folder.mkdir(parents=True)
        table = pa.table(columns)
        cut = n // 3
        pq.write_table(table.slice(0, cut), folder / "a.parquet", row_group_size=170)
        pq.write_table(table.slice(cut), folder / "b.parquet", row_group_size=170)
        return folder

    def plan(self, data: Path, out: Path | None = None) -> Plan:
        """The query."""
        aggregates = [
            Aggregate(name="n", function="count"),
            Aggregate(name="people", function="count_units"),
            Aggregate(name="total", function="sum", expression="value", low=-1.0, high=1.0),
        ]
        if self.quantile:
            aggregates = [
                Aggregate(name="n", function="count"),
                Aggregate(
                    name="mid", function="quantile", expression="value", low=-2.0, high=2.0,
                    options={"q": 0.5, "levels": 3},
                ),
            ]  # fmt: skip
        if self.preset == "dp-sqlp":  # which counts no units
            aggregates = [one for one in aggregates if one.function != "count_units"]
        if self.moments:
            aggregates += [
                Aggregate(name=function, function=function, expression="value", low=-1.0, high=1.0)
                for function in ("avg", "variance", "stddev")
            ]
        if self.distinct:
            aggregates += [
                Aggregate(name="kinds", function="count_distinct", expression="other"),
                Aggregate(name="stamps", function="count_distinct", expression="ts"),
            ]
        if self.mixed:
            order = np.random.default_rng(self.seed).permutation(len(aggregates))
            aggregates = [aggregates[place] for place in order]
        keys = [KeyColumn(name="key", expression="key")]
        if self.two_keys:
            keys.append(KeyColumn(name="other", expression="other"))
        known = [f"kéy {k}" if self.text else k for k in range(1, 5)]
        public = tuple((k,) for k in known) if self.public else None
        options = {"weights": True} if self.weights else {}
        return Plan(
            name=self.name, unit="unit", period_us=self.period, keys=tuple(keys),
            source=SourceSpec(name="s", kind="files", options={"path": str(data)}, event_time="ts"),
            key_set=KeySet(public=public), aggregates=tuple(aggregates), window=self.window,
            clock=self._clock(), budget=Budget(epsilon=12, delta=1e-5),
            bounding=Bounding(max_rows=None if self.quadratic else 6, quadratic=self.quadratic,
                              max_rows_per_group=None if self.quadratic else self.per_group),
            sinks=(SinkSpec(name="out", kind="files", options={"path": str(out)}),) if out else (),
            options=options, counter=self.counter, preset=self.preset,
        )  # fmt: skip

    def _clock(self) -> Clock:
        if self.clock == "rows":
            return Clock(kind="rows", every=270)
        if self.clock == "once":
            return Clock(kind="once")
        return Clock(kind="event", every=self.every, start_us=0, end_us=SPAN, arrival="seen")


TUMBLE = Window(kind="tumble", size_us=2 * HOUR, lateness_us=HOUR)
HOP = Window(kind="hop", size_us=4 * HOUR, slide_us=2 * HOUR)
GROW = Window(kind="cumulate", size_us=6 * HOUR, slide_us=2 * HOUR)

CASES = [
    Case(name="tumble", seed=1, window=TUMBLE),
    Case(name="late", seed=2, window=Window(kind="tumble", size_us=2 * HOUR)),
    Case(name="hop_text", seed=3, window=HOP, text=True, shards=2),
    Case(name="whole_rows", seed=4, clock="rows", per_group=None, shards=4),
    Case(name="public_text", seed=5, window=TUMBLE, public=True, text=True, shards=1),
    Case(name="public_rows", seed=6, clock="rows", public=True),
    Case(name="periods", seed=7, window=TUMBLE, period=2 * HOUR, moments=True),
    Case(name="quadratic", seed=8, window=TUMBLE, quadratic=12, shards=2),
    Case(name="quantile", seed=9, public=True, quantile=True, clock="rows", shards=2),
    Case(name="grow_two", seed=10, window=GROW, two_keys=True, text=True, period=SPAN),
    Case(name="once", seed=11, clock="once", shards=2),
    Case(name="distinct", seed=12, window=TUMBLE, distinct=True, shards=3),
    Case(name="distinct_public", seed=13, clock="rows", public=True, distinct=True, text=True),
    Case(name="rounds", seed=14, window=TUMBLE, preset="dp-sqlp", per_group=None, shards=3),
    Case(name="quantile_found", seed=16, window=TUMBLE, quantile=True, moments=True, mixed=True),
    Case(name="rounds_long", seed=15, window=GROW, preset="dp-sqlp", rows=4000, shards=2),
]


def published(out: Path) -> dict[str, bytes]:
    """Every complete published file."""
    return {
        str(path.relative_to(out)): path.read_bytes()
        for path in out.rglob("*") if path.is_file() and path.suffix != ".partial"
    }  # fmt: skip
