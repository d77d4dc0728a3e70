"""Raw rows of neighbours, as jobs of generated queries read them (`tests.audit.texts`)."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from streamveil.plan import Plan, SourceSpec
from streamveil.plan.joins import OwnJoin, OwnUnion
from streamveil.plan.own_rows import OwnRows

HOUR = 3_600_000_000
DAY = 24 * HOUR
MINE = ("Z", "z", "Z")  # spellings of the unit that is in one input only
OTHERS = 12
NOBODY = 16  # one of so many rows names no unit
MANY = 30  # times that the unit has its rows in the second relation
FAR = (None, -(2**62), 2**62, -(10**15), 10**17)
NAME, SECOND, PUBLIC = "clicks", "visits", "pages"


def pick(rng, some):
    return some[int(rng.integers(len(some)))]


@dataclass(frozen=True)
class Span:
    """When a job runs and how long its steps are; lengths as SQL writes them."""

    start: str
    end: str
    zone: str
    every: str
    step_us: int  # about
    begin_us: int
    sizes: tuple[str, ...]  # of windows
    steps: tuple[str, ...]  # of windows that hop or grow
    periods: tuple[str, ...]


HOURS = Span(
    "1970-01-01", "1970-01-01 04:00:00", "", "INTERVAL 1 HOUR", HOUR, 0,
    ("INTERVAL 2 HOUR", "INTERVAL 90 MINUTE", "INTERVAL 3 HOUR"), ("INTERVAL 1 HOUR",),
    ("INTERVAL 2 HOUR", "INTERVAL 3 HOUR", "INTERVAL 1 HOUR"),
)  # fmt: skip
SPANS = (
    HOURS, HOURS, HOURS,
    Span("2026-03-28", "2026-04-01", "Europe/Berlin", "INTERVAL 1 DAY", DAY,
         1_774_652_400_000_000, ("INTERVAL 1 DAY", "INTERVAL 2 DAY", "INTERVAL 1 WEEK"),
         ("INTERVAL 1 DAY",), ("INTERVAL 1 DAY", "INTERVAL 1 WEEK", "INTERVAL 1 MONTH")),
    Span("2026-01-01", "2026-05-01", "America/New_York", "INTERVAL 1 MONTH", 30 * DAY,
         1_767_243_600_000_000, ("INTERVAL 1 MONTH", "INTERVAL 2 MONTH"), ("INTERVAL 1 MONTH",),
         ("INTERVAL 1 MONTH", "INTERVAL 1 QUARTER")),
    Span("2026-10-24 18:00:00", "2026-10-26 00:00:00", "Europe/Berlin", "INTERVAL 6 HOUR",
         6 * HOUR, 1_792_857_600_000_000, ("INTERVAL 12 HOUR", "INTERVAL 1 DAY"),
         ("INTERVAL 6 HOUR",), ("INTERVAL 1 DAY", "INTERVAL 12 HOUR")),
)  # fmt: skip
COLUMNS = {
    "user": pa.string(), "number": pa.int64(), "real": pa.float64(), "page": pa.string(),
    "kind": pa.int64(), "ms": pa.float64(), "tags": pa.string(), "list": pa.list_(pa.int64()),
    "ts": pa.timestamp("us", tz="UTC"), "at": pa.timestamp("us", tz="UTC"),
}  # fmt: skip
VISITS = {
    "user": pa.string(), "number": pa.int64(), "real": pa.float64(), "page": pa.string(),
    "kind": pa.int64(), "w": pa.float64(), "seen": pa.timestamp("us", tz="UTC"),
}  # fmt: skip
REGIONS = pa.table({
    "page": ["a", "b", "b", "c", "new", None, "7"], "kind": [0, 1, 2, 1, None, 3, 2],
    "region": ["east", "west", "north", None, "new", "a", "b"], "size": [1.0, 5.0, -2.0, 8.0, 0.0,
                                                                        4.0, np.nan],
})  # fmt: skip
PAGES = ("a", "b", "c", "ab", "7")


def other_row(rng, span):
    """A row of one of many units, or of none."""
    unit, at = int(rng.integers(OTHERS)), int(rng.integers(4 * span.step_us))
    page, named = pick(rng, PAGES), at % NOBODY > 0
    own = {"user": f"u{unit}", "number": unit, "real": unit / 2}
    return {
        **{name: value if named else None for name, value in own.items()}, "page": page,
        "kind": int(rng.integers(4)), "ms": pick(rng, (0.0, 1.0, 4.0, 7.0, 2.5)),
        "tags": pick(rng, ("a,b", "a", "b,b,c", None)), "list": pick(rng, ([1, 2], [0], [], None)),
        "ts": span.begin_us + at, "at": span.begin_us + at + int(rng.integers(2)) * span.step_us,
    }  # fmt: skip


ENDS = (8.0, 0.0, -9.0, 1e308, -1e308, np.nan, np.inf, -np.inf, None, 4.0, 5.0, 1.5, 1.0, 1e-320)
TAGS = ("a,b,c,ab", "a,a,a", ",,", "", None, ",".join("abcdefgh") * 3)
LISTS = ([0, 1, 2, 3], [1] * 9, [], None, [None, 2], [-(2**63), 2**63 - 1])


def mine(rng, span):
    """Rows of the unit that is in one input only: all alike, spread out, or anything."""
    count, way = int(rng.choice([1, 4, 12, 40])), int(rng.integers(4))
    pages = (*PAGES, "new", "new2", None, "")
    step, real = int(rng.integers(4)), pick(rng, (-0.5, np.nan))
    fixed = {
        "page": pick(rng, pages), "kind": pick(rng, (0, 1, 2, 3, None, 2**63 - 1, -(2**63))),
        "ms": pick(rng, ENDS), "tags": pick(rng, TAGS), "list": pick(rng, LISTS),
    }  # fmt: skip
    found = []
    for nth in range(count):
        at = span.begin_us + step * span.step_us + int(rng.integers(span.step_us)) * (way != 0)
        row = {**fixed, "ts": at, "at": at}
        if way == 1:
            row |= {"page": pages[nth % len(pages)], "kind": nth % 4}
        if way >= 2:
            at = span.begin_us + int(rng.integers(4)) * span.step_us
            row |= {
                "page": pick(rng, pages), "kind": pick(rng, (0, 1, 2, None, 2**62)),
                "ms": pick(rng, ENDS), "tags": pick(rng, TAGS), "list": pick(rng, LISTS),
                "ts": at, "at": at + int(rng.integers(3)) * span.step_us,
            }  # fmt: skip
        if way == 3:
            row |= {name: pick(rng, FAR) for name in ("ts", "at") if rng.random() < 0.3}
        found.append({"user": pick(rng, MINE), "number": -7, "real": real, **row})
    return found


def visit_of(rng, row):
    """A row of the second relation, like one of the first."""
    return {**{name: row[name] for name in VISITS if name in row}, "seen": row["ts"],
            "w": row["ms"], "page": pick(rng, (*PAGES, row["page"]))}  # fmt: skip


def table_of(rows, columns=COLUMNS):
    """Rows as a source hands them over."""
    found = {name: [row[name] for row in rows] for name in columns}
    return pa.table({name: pa.array(found[name], kind) for name, kind in columns.items()})


def tables_of(rows, visits=()):
    return {NAME: table_of(rows), SECOND: table_of(visits, VISITS)}


def sources_of(tables):
    """What a query can name: two relations of people's rows, and a public table."""
    made = {
        name: SourceSpec(name=name, kind="memory", options={"table": table},
                         event_time="ts" if name == NAME else "seen")
        for name, table in tables.items()
    }  # fmt: skip
    regions = SourceSpec(name=PUBLIC, kind="memory", options={"table": REGIONS}, public=True)
    return {**made, PUBLIC: regions}


def holding(plan: Plan, tables) -> Plan:
    """The same plan over other rows."""
    return replace(plan, source=read_from(plan.source, tables))


def read_from(spec, tables):
    changes: dict[str, Any] = {"options": {**spec.options, "table": tables[spec.name]}}
    if isinstance(spec, OwnRows):
        changes["steps"] = tuple(
            replace(step, other=read_from(step.other, tables))
            if isinstance(step, OwnJoin | OwnUnion) else step
            for step in spec.steps
        )  # fmt: skip
    return replace(spec, **changes)


# ---- neighbours


def protected_rows(plan: Plan, rows, several: bool) -> tuple[list[dict[str, Any]], int]:
    """Those of one unit, of one spelling, and of how many periods: of one, or of all."""
    if "LOWER(" not in plan.unit and "UPPER(" not in plan.unit and "user" in plan.unit:
        rows = [{**row, "user": MINE[0]} for row in rows]
    if plan.periods is None:
        return rows, 1
    timed = [row for row in rows if row["ts"] is not None and abs(row["ts"]) < 10**16]
    periods = plan.periods.numbers(np.array([row["ts"] for row in timed], np.int64))
    numbers, counts = np.unique(periods, return_counts=True)
    if several or not timed:
        return timed, max(1, len(numbers))
    chosen = numbers[counts.argmax()]
    return [row for row, period in zip(timed, periods, strict=True) if period == chosen], 1


def mixed(rng, others, added, plan):
    """Both inputs: rows in one order, without the unit's rows or, by position, with gaps."""
    own = np.zeros(len(others) + len(added), bool)
    places = np.arange(len(own)) if rng.random() < 0.3 else rng.permutation(len(own))
    own[places[: len(added)]] = True
    rows, mine_next = iter(others), iter(added)
    with_unit = [next(mine_next) if one else next(rows) for one in own]
    gap = [dict.fromkeys(COLUMNS)] if plan.clock.kind == "rows" else []
    without = [
        row for row, one in zip(with_unit, own, strict=True) for row in (gap if one else [row])
    ]
    return with_unit, without


@dataclass(frozen=True)
class Neighbours:
    """One query over two inputs: with a unit's rows and without them."""

    plans: tuple[Plan, Plan]
    periods: int  # that the unit is in


def others_drawn(rng, span):
    """Rows that are in both inputs, of both relations."""
    rows = [other_row(rng, span) for _ in range(int(rng.integers(20, 160)))]
    return rows, [visit_of(rng, other_row(rng, span)) for _ in range(int(rng.integers(60)))]


def neighbours_drawn(rng, plan: Plan, span, *, several=False, others=None) -> Neighbours:
    """Two inputs of a query: one has a unit's rows in both relations, or in one of them."""
    added, periods = protected_rows(plan, mine(rng, span), several)
    shared, theirs = others or others_drawn(rng, span)
    one, other = mixed(rng, shared, added, plan)
    own = [visit_of(rng, row) for row in protected_rows(plan, mine(rng, span), several=True)[0]]
    own = pick(rng, (own, own, [], own * MANY))
    person = {name: (added or own)[0][name] for name in ("user", "real")} if own else {}
    own = [row | person for row in own]
    places = np.sort(rng.integers(0, len(theirs) + 1, len(own)))[::-1]
    visits = list(theirs)
    for place, row in zip(places.tolist(), own, strict=True):
        visits.insert(place, row)
    found = holding(plan, tables_of(one, visits)), holding(plan, tables_of(other, theirs))
    return Neighbours(found, periods)
