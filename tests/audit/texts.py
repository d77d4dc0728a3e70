"""Queries as texts over the whole grammar, and raw rows of neighbours: what a job itself reads.

Unlike `tests.audit.queries`, rows go through everything: conditions and expressions, subqueries by
the privacy unit, UNNEST, ROLLUP, combined contributions, calendars, arrival times, the clock.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from streamveil.audit.account import MechanismLoss, QueryAccount, account
from streamveil.audit.laid_open import Transcript, run
from streamveil.errors import BudgetError, PlanError
from streamveil.plan.plan import Plan, SourceSpec
from streamveil.runtime.run import work_of
from streamveil.sql.sql import parse_script

HOUR = 3_600_000_000
DAY = 24 * HOUR
MINE = ("Z", "z", "Z")  # spellings of the unit that is in one input only
OTHERS = 12
FAR = (None, -(2**62), 2**62, -(10**15), 10**17)
NAME = "clicks"


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
BUDGETS = ("epsilon = 2, delta = 1e-6", "epsilon = 6, delta = 1e-9", "mu = 0.5, delta = 1e-6",
           "rho = 0.125, delta = 1e-6")  # fmt: skip
BOUNDS = ("max_rows_contributed = 1", "max_rows_contributed = 4, max_rows_per_group = 1",
          "max_rows_contributed = 5, max_rows_per_group = 2", "max_squared_rows = 6",
          "max_rows_contributed = 5, max_squared_rows = 9", "max_groups_contributed = 3",
          "max_groups_contributed = 2, max_rows_per_group = 3", "max_rows_contributed = 3",
          "max_squared_rows = 20, max_rows_per_group = 3", "")  # fmt: skip
CHOICES = ("", "", "", "selection = 'gaussian'", "selection = 'table'", "cut_share = 0.1",
           "cut_share = 0", "total_tests = 0", "hidden_groups = 2", "weights = 'flat'",
           "entry_weight = 0.5", "monotone = TRUE, non_negative = TRUE", "integer = TRUE",
           "intervals = 'true'", "selection_share = 0.3", "delta_share = 0.2", "max_units = 1000",
           "expected_rows = 3", "expected_rows = 6, expected_units = 100",
           "min_privacy_units_per_group = 3", "confidence = 0.8", "mu_share = 0.6",
           "weight_reference = 20",
           "hidden_groups = 3, entry_weight = 0.3")  # fmt: skip
AGGREGATES = (
    "COUNT(*)", "COUNT(ms)", "COUNT(DISTINCT {unit})", "COUNT(DISTINCT kind)",
    "APPROX_COUNT_DISTINCT(page)", "COUNTIF(ms > 3)", "LOGICAL_OR(ms > 3)", "LOGICAL_AND(kind > 1)",
    "SUM(ms, contribution_bounds_per_row => (0, 8))",
    "SUM(ms * kind, contribution_bounds_per_row => (-9, 2))",
    "SUM(kind, contribution_bounds_per_row => (1, 5), quantum => 0.5)",
    "AVG(ms, contribution_bounds_per_row => (-3, 5))",
    "VAR_SAMP(ms, contribution_bounds_per_row => (1, 1.5))",
    "STDDEV(kind, contribution_bounds_per_row => (0, 100))",
    "PERCENTILE_CONT(ms, 0.3, contribution_bounds_per_row => (0, 4))",
    "APPROX_QUANTILES(ms, 4, contribution_bounds_per_row => (0, 9))",
    "MEDIAN(kind, contribution_bounds_per_row => (0, 9))",
    "COUNT(DISTINCT LN(ms))", "SUM(LN(ms) / (kind - 2), contribution_bounds_per_row => (-1, 1))",
)  # fmt: skip
COMBINED = (
    "COUNT(*, contribution_bounds_per_group => (0, 3))",
    "SUM(ms, contribution_bounds_per_group => (0, 8))",
    "SUM(ms - 4, contribution_bounds_per_group => (-9, 2))",
    "AVG(ms, contribution_bounds_per_group => (-3, 5))", "COUNT(DISTINCT {unit})",
)  # fmt: skip
KEYS = (
    "page", "page", "page", "kind", "SUBSTR(page, 1, 1)", "SAFE_CAST(page AS INT64)", "ms > 3",
    "IF(ms > 3, page, NULL)", "CAST(FLOOR(ms) AS INT64)", "ms", "EXTRACT(HOUR FROM ts)",
    "FORMAT_TIMESTAMP('%Y-%m-%d', ts)", "TIMESTAMP_TRUNC(ts, DAY, 'Europe/Berlin')",
    "CONCAT(page, CAST(kind AS STRING))", "DATE(ts)", "ms / (ms - 4.0)",
)  # fmt: skip
UNITS = ("user", "user", "user", "LOWER(user)", "number", "UPPER(CONCAT(user, 'x'))", "real")
CONDITIONS = ("", "", "", " WHERE ms > 1", " WHERE page LIKE 'a%' OR kind IS NULL",
              " WHERE user IS NOT NULL AND ms / kind > 0")  # fmt: skip
MANY = "SELECT user, number, real, page, kind, ms, ts, at"
STEPS = (  # subqueries whose rows have the same columns
    "{many} FROM clicks", "{many} FROM clicks", "{many} FROM clicks",
    "SELECT user, number, real, part AS page, kind, ms, ts, at FROM clicks,"
    " UNNEST(SPLIT(tags, ',')) AS part",
    "SELECT user, number, real, page, part AS kind, ms, ts, at FROM clicks, UNNEST(list) AS part",
    "SELECT user, number, real, page, kind, ms * 2 AS ms, ts, at FROM clicks WHERE kind < 3",
)  # fmt: skip
OWN = (  # subqueries that combine the rows of one unit
    "SELECT {unit}, page, MIN(kind) AS kind, SUM(ms) AS ms, MIN(ts) AS ts, MIN(at) AS at"
    " FROM clicks GROUP BY {unit}, page",
    "SELECT {unit}, ANY_VALUE(page) AS page, COUNT(*) AS kind, AVG(ms) AS ms, MIN(ts) AS ts,"
    " MAX(at) AS at FROM clicks GROUP BY {unit}",
    "SELECT {unit}, page, kind, ms, ts, at, ROW_NUMBER() OVER (PARTITION BY {unit} ORDER BY ts)"
    " AS n FROM clicks QUALIFY n < 4",
    "SELECT {unit}, page, RANK() OVER (PARTITION BY {unit} ORDER BY ms DESC) AS kind, ms, ts, at"
    " FROM clicks",
    "SELECT {unit}, LAG(page) OVER (PARTITION BY {unit} ORDER BY ts) AS page, kind,"
    " ms - FIRST_VALUE(ms) OVER (PARTITION BY {unit} ORDER BY ts) AS ms, ts, at FROM clicks",
    "SELECT {unit}, page, SUM(kind) OVER (PARTITION BY {unit} ORDER BY at) AS kind,"
    " SUM(ms) OVER (PARTITION BY {unit}) AS ms, ts, at FROM clicks",
    "SELECT v.{unit}, v.page, p.kind, v.ms, v.ts, v.at FROM clicks AS v JOIN"
    " (SELECT {unit}, page, kind FROM clicks) AS p ON v.{unit} = p.{unit} AND v.page = p.page",
    "SELECT v.{unit}, v.page, p.kind, v.ms, v.ts, v.at FROM clicks AS v LEFT JOIN (SELECT {unit},"
    " COUNT(*) AS kind FROM clicks WHERE ms > 3 GROUP BY {unit}) AS p ON v.{unit} = p.{unit}",
    "SELECT {unit}, page, kind, ms, ts, at FROM clicks"
    " WHERE {unit} NOT IN (SELECT {unit} FROM clicks WHERE ms > 5)",
    "SELECT {unit}, page, kind, ms, ts, at FROM clicks UNION ALL"
    " SELECT {unit}, tags AS page, kind, ms, at AS ts, ts AS at FROM clicks WHERE kind > 1",
)  # fmt: skip
SETS = ("ROLLUP ({})", "CUBE ({})", "GROUPING SETS (({}), ())", "GROUPING SETS (({}))")


def window_of(rng, span):
    """A FROM over the rows, and whether there are windows."""
    kind, size = int(rng.integers(4)), pick(rng, span.sizes)
    step = pick(rng, span.steps)
    offset = pick(rng, ("", "", ", offset => INTERVAL 30 MINUTE" if span is HOURS else ""))
    start = pick(rng, ("", ", week_start => 'sunday'" if "WEEK" in size else ""))
    table = "TABLE own, DESCRIPTOR(ts), "
    return (
        ("own", False),
        (f"TUMBLE({table}size => {size}{offset}{start})", True),
        (f"HOP({table}size => {size}, slide => {step}{offset})", True),
        (f"CUMULATE({table}size => {size}, step => {step}{offset})", True),
    )[kind]  # fmt: skip


def text_of(rng):
    """One query, which may be refused."""
    span, once = pick(rng, SPANS), rng.random() < 0.2
    combined = once and rng.random() < 0.4
    own = rng.random() < 0.25
    unit = pick(rng, ("user", "number", "real")) if own else pick(rng, UNITS)
    rows_of = pick(rng, OWN if own else STEPS).format(many=MANY, unit=unit)
    source, windowed = ("own", False) if once else window_of(rng, span)
    some = COMBINED if combined else AGGREGATES
    measures = [some[int(place)] for place in rng.permutation(len(some))[: rng.integers(1, 4)]]
    shown = ", ".join(
        f"{measure.format(unit=unit)} AS m{place}" for place, measure in enumerate(measures)
    )
    key, public = pick(rng, KEYS), rng.random() < 0.3
    names = [] if rng.random() < 0.1 else [("k", key)]
    if names and rng.random() < 0.15:
        names.append(("k2", "kind"))
    by = ", ".join(name for name, _ in names)
    if names and rng.random() < 0.2:
        by = pick(rng, SETS).format(by)
    more = [pick(rng, BUDGETS), f"privacy_unit_column = {unit}", "look_share = 0"]
    if not combined:
        more.append(pick(rng, BOUNDS))
    else:
        more.append(pick(rng, ("max_groups_contributed = 3", "max_groups_contributed = 1", "")))
    more.append(pick(rng, CHOICES))
    if public and len(names) == 1 and key in ("page", "kind") and "(" not in by:
        more.append(f"public_groups = {['a', 'b', 'c', 'ab'] if key == 'page' else [0, 1, 2, 3]}")
    emit = ""
    rows = not once and not windowed and rng.random() < 0.15
    if rows:
        more.append("steps = 4")
        emit = "EMIT EVERY 60 ROWS"
    elif not once:
        more += [f"start = '{span.start}'", f"end = '{span.end}'"]
        more += [f"time_zone = '{span.zone}'"] if span.zone else []
        more += ["arrival = at"] if rng.random() < 0.5 else []
        lateness = span.every.replace("MONTH", "DAY")
        more += [f"lateness = {lateness}"] if windowed and rng.random() < 0.4 else []
        emit = f"EMIT EVERY {span.every}"
    if not rows and rng.random() < 0.3:
        more.append(f"privacy_unit_period = {pick(rng, span.periods)}")
    groups = ", ".join(["window_start"] * windowed + ([by] if by else []))
    columns = "".join(f"{text} AS {name}, " for name, text in names)
    text = (
        f"WITH own AS ({rows_of}) SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS"
        f" ({', '.join(filter(None, more))}) {'window_start, ' * windowed}{columns}{shown}"
        f" FROM {source}{pick(rng, CONDITIONS)}{' GROUP BY ' + groups if groups else ''} {emit}"
    )
    return text, span


# ---- rows


COLUMNS = {
    "user": pa.string(), "number": pa.int64(), "real": pa.float64(), "page": pa.string(),
    "kind": pa.int64(), "ms": pa.float64(), "tags": pa.string(), "list": pa.list_(pa.int64()),
    "ts": pa.timestamp("us", tz="UTC"), "at": pa.timestamp("us", tz="UTC"),
}  # fmt: skip
PAGES = ("a", "b", "c", "ab", "7")


def other_row(rng, span):
    """A row of one of many units."""
    unit, at = int(rng.integers(OTHERS)), int(rng.integers(4 * span.step_us))
    page = pick(rng, PAGES)
    return {
        "user": f"u{unit}", "number": unit, "real": unit / 2, "page": page,
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


def table_of(rows):
    """Rows as a source hands them over."""
    columns = {name: [row[name] for row in rows] for name in COLUMNS}
    return pa.table({name: pa.array(columns[name], kind) for name, kind in COLUMNS.items()})


def source_of(rows):
    return SourceSpec(name=NAME, kind="memory", options={"table": table_of(rows)}, event_time="ts")


def plan_of(text, rows) -> Plan:
    return parse_script(text, {NAME: source_of(rows)}).query.plan


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


def neighbours_drawn(rng, text, span, *, several=False) -> Neighbours:
    """Two inputs of a query."""
    plan = plan_of(text, [])
    added, periods = protected_rows(plan, mine(rng, span), several)
    others = [other_row(rng, span) for _ in range(int(rng.integers(20, 160)))]
    one, other = mixed(rng, others, added, plan)
    return Neighbours((plan_of(text, one), plan_of(text, other)), periods)


def query_drawn(rng):
    """A text, its operator and when it runs; what is refused is drawn again."""
    while True:
        text, span = text_of(rng)
        try:
            return text, work_of(plan_of(text, [])).operator, span
        except (PlanError, BudgetError):
            continue


# ---- the account


def account_of(pair: Neighbours, seed) -> QueryAccount:
    """What a unit loses in a job that reads raw rows; of several periods, all counters together."""
    early = seed % 3 > 0
    script = Transcript(lambda window, key: 1 if early else 1 + (key[0] ^ window ^ seed) % 6)
    made = [work_of(plan) for plan in pair.plans]
    without, added = (run(one.operator, one.feed(None), script, seed) for one in reversed(made))
    operator = made[0].operator
    found = account(operator, added, without, script)
    return found if pair.periods == 1 else of_several(operator, found, pair.periods)


def of_several(operator, found: QueryAccount, periods) -> QueryAccount:
    """The same of a unit that is in several periods, against what its lifetime is said to cost."""
    loss = operator.guarantee.over(periods).loss
    claim = float(loss.gaussian) * loss.group_size**2
    faults = [one for one in found.faults if not one.startswith("a unit moves the coins")]
    together = MechanismLoss("several periods", "mu^2", found.mu_squared, claim)
    coins = [
        MechanismLoss("coins of several periods", "groups", part.realised, part.claimed * periods)
        for part in found.parts
        if part.name == "coins"
    ]
    return QueryAccount([together, *coins], faults)


def judged(seed, pairs):
    """(text, account) of pairs of neighbours of one query."""
    rng = np.random.default_rng(seed)
    text, _, span = query_drawn(rng)
    for nth in range(pairs):
        pair = neighbours_drawn(rng, text, span, several=nth % 4 == 3)
        yield text, account_of(pair, int(rng.integers(2**32)))
