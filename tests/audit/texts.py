"""Queries as texts over the whole grammar, and raw rows of neighbours: what a job itself reads.

Unlike `tests.audit.queries`, rows go through everything: conditions and expressions, subqueries by
the privacy unit, UNNEST, ROLLUP, combined contributions, calendars, arrival times, the clock.
"""

import re

import numpy as np

from streamveil.audit.account import MechanismLoss, QueryAccount, account, claims_of
from streamveil.audit.laid_open import Transcript, run
from streamveil.errors import BudgetError, PlanError
from streamveil.plan import Plan
from streamveil.runtime.run import work_of
from streamveil.sql.sql import parse_script
from tests.audit.raw_rows import (
    HOURS,
    SPANS,
    Neighbours,
    neighbours_drawn,
    others_drawn,
    pick,
    sources_of,
    tables_of,
)

BUDGETS = ("epsilon = 2, delta = 1e-6", "epsilon = 6, delta = 1e-9", "mu = 0.5, delta = 1e-6",
           "rho = 0.125, delta = 1e-6")  # fmt: skip
BOUNDS = ("max_rows_contributed = 1", "max_rows_contributed = 4, max_rows_per_group = 1",
          "max_rows_contributed = 5, max_rows_per_group = 2", "max_squared_rows = 6",
          "max_rows_contributed = 5, max_squared_rows = 9", "max_groups_contributed = 3",
          "max_groups_contributed = 2, max_rows_per_group = 3", "max_rows_contributed = 3",
          "max_squared_rows = 20, max_rows_per_group = 3", "max_rows_per_group = 1",
          "max_rows_per_group = 2", "", "")  # fmt: skip
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
PLAIN = "v.page AS page, v.kind AS kind, v.ms AS ms, v.ts AS ts, v.at AS at"
JOINED = (  # with a second relation of people's rows, and with a public table
    "SELECT v.{unit}, v.page, p.kind, p.w AS ms, v.ts, v.at FROM clicks AS v JOIN visits AS p"
    " ON v.{unit} = p.{unit}",
    "SELECT v.{unit}, p.page, v.kind, p.w AS ms, v.ts, v.at FROM clicks AS v LEFT JOIN visits AS p"
    " ON v.{unit} = p.{unit} AND v.page = p.page AND v.kind = p.kind",
    "SELECT {unit}, p.page AS page, p.kind AS kind, v.ms * p.w AS ms, v.ts AS ts, v.at AS at FROM"
    " clicks AS v JOIN visits AS p USING ({unit}) WHERE v.ts <= p.seen",
    "SELECT v.{unit}, {plain} FROM clicks AS v LEFT JOIN visits AS p ON p.{unit} = v.{unit}"
    " WHERE p.{unit} IS NULL",
    "SELECT v.{unit}, r.region AS page, v.kind AS kind, r.size AS ms, v.ts AS ts, v.at AS at FROM"
    " clicks AS v JOIN pages AS r ON v.page = r.page",
    "SELECT v.{unit}, r.region AS page, v.kind AS kind, v.ms + r.size AS ms, v.ts AS ts, v.at AS at"
    " FROM clicks AS v LEFT JOIN pages AS r ON v.page = r.page AND v.kind = r.kind",
    "SELECT v.{unit}, r.region AS page, p.kind AS kind, p.w AS ms, v.ts AS ts, v.at AS at FROM"
    " clicks AS v JOIN visits AS p ON v.{unit} = p.{unit} JOIN pages AS r ON p.page = r.page",
    "SELECT v.{unit}, v.page AS page, p.n AS kind, p.most AS ms, v.ts AS ts, v.at AS at FROM clicks"
    " AS v JOIN (SELECT {unit}, COUNT(*) AS n, MAX(w) AS most FROM visits GROUP BY {unit}) AS p"
    " ON v.{unit} = p.{unit}",
    "SELECT {unit}, page, kind, ms, ts, at FROM clicks WHERE {unit} IN"
    " (SELECT {unit} FROM visits WHERE w > 3)",
    "SELECT {unit}, page, kind, ms, ts, at FROM clicks WHERE {unit} NOT IN"
    " (SELECT {unit} FROM visits WHERE kind = 1 AND NOT {unit} IS NULL) AND kind < 3",
    "SELECT {unit}, page, kind, ms, ts, at FROM clicks UNION ALL"
    " SELECT {unit}, page, kind, w AS ms, seen AS ts, seen AS at FROM visits",
    "SELECT {unit}, page, COUNT(*) AS kind, SUM(ms) AS ms, MIN(ts) AS ts, MIN(at) AS at FROM"
    " (SELECT {unit}, page, ms, ts, at FROM clicks UNION ALL SELECT {unit}, page, w AS ms,"
    " seen AS ts, seen AS at FROM visits WHERE kind > 0) GROUP BY {unit}, page",
    "SELECT {unit}, page, ROW_NUMBER() OVER (PARTITION BY {unit} ORDER BY w) AS kind, w AS ms, ts,"
    " at FROM (SELECT v.{unit}, p.page AS page, p.w AS w, v.ts AS ts, v.at AS at FROM clicks AS v"
    " JOIN visits AS p ON v.{unit} = p.{unit})",
    "SELECT {unit}, part AS page, kind, ms, ts, at FROM (SELECT v.{unit}, v.tags AS tags, p.kind AS"
    " kind, p.w AS ms, v.ts AS ts, v.at AS at FROM clicks AS v JOIN visits AS p ON v.{unit} ="
    " p.{unit}), UNNEST(SPLIT(tags, ',')) AS part",
)  # fmt: skip
OPTION = re.compile(r"(\w+) =")
PEOPLE_ALONE = 0.1  # of queries: they bound rows, and size noise, by ways of their own
AFTERWARDS = (  # of released rows: what it asks of them by itself is noised and paid for as well
    "", "", "HAVING {more} > 2", "HAVING m0 > 1 AND {more} IS NOT NULL", "ORDER BY {more} LIMIT 1",
    "QUALIFY RANK() OVER (ORDER BY {more} DESC) <= 2",
    "HAVING {more} < 9 QUALIFY ROW_NUMBER() OVER (ORDER BY m0, {other}) < 3 ORDER BY {other}, m0"
    " LIMIT 2",
)  # fmt: skip
BESIDE = (  # a second choice, of an option that is not given yet
    "", "", "selection = 'totals'", "selection = 'gaussian'", "selection = 'table'",
    "weights = 'flat'", "entry_weight = 0.2", "weight_reference = 0.5", "total_tests = 1",
    "hidden_groups = 9", "min_privacy_units_per_group = 20", "delta_share = 0.99", "max_units = 1",
    "cut_share = 0.9", "selection_share = 0.9", "mu_share = 0.05", "counter = 'anytime-blt'",
    "group_selection_strategy = LAPLACE_THRESHOLD", "expected_rows = 2, expected_groups = 5",
    "expected_rows = 3, expected_repeats = 0.5", "expected_rows = 20, expected_most_rows = 300",
)  # fmt: skip
FURTHER = (
    "VAR_POP(kind, contribution_bounds_per_row => (0, 3))", "COUNTIF(kind = 1)",
    "SUM(ms, contribution_bounds_per_row => (0, 8), quantum => 100)",
    "AVG(ms, contribution_bounds_per_row => (3.5, 3.7), quantum => 0.05)",
    "SUM(kind, contribution_bounds_per_row => (-5, -1))", "SUM(IF(ms > 3, 1, 0))",
    "COUNT(*, contribution_bounds_per_group => (0, 2))",
)  # fmt: skip
ENDS = ("end = '1970-01-01 02:15:00'", "end = '1970-01-01 03:30:00'")  # between two steps
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


def with_more(rng, more, span):
    """Options with one beside them, maybe another end; and maybe one more measure."""
    beside, end = pick(rng, BESIDE), pick(rng, (None, None, *ENDS))
    more = more + [beside] * (not {*OPTION.findall(", ".join(more))} & {*OPTION.findall(beside)})
    if span is HOURS and end is not None:
        more = [end if one.startswith("end = ") else one for one in more]
    return more, pick(rng, ("", "", "", f", {pick(rng, FURTHER)} AS further"))


def text_of(rng):
    """One query, which may be refused."""
    span, once = pick(rng, SPANS), rng.random() < 0.2
    combined = once and rng.random() < 0.4
    steps = pick(rng, (STEPS, STEPS, OWN, JOINED, JOINED))
    own = steps is not STEPS
    unit = pick(rng, ("user", "number", "real")) if own else pick(rng, UNITS)
    rows_of = pick(rng, steps).format(many=MANY, unit=unit, plain=PLAIN)
    source, windowed = ("own", False) if once else window_of(rng, span)
    some = COMBINED if combined else AGGREGATES
    measures = [some[int(place)] for place in rng.permutation(len(some))[: rng.integers(1, 4)]]
    if rng.random() < PEOPLE_ALONE:
        measures = ["COUNT(DISTINCT {unit})"]
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
    apart, second = rng.spawn(2)  # seeds go on to name what else they named
    more, further = with_more(second, more, span)
    shown += further * (not combined)
    wanted = {name: pick(apart, some).format(unit=unit) for name in ("more", "other")}
    after = pick(apart, AFTERWARDS).format(**wanted) if groups else ""
    text = (
        f"WITH own AS ({rows_of}) SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS"
        f" ({', '.join(filter(None, more))}) {'window_start, ' * windowed}{columns}{shown}"
        f" FROM {source}{pick(rng, CONDITIONS)}{' GROUP BY ' + groups if groups else ''}"
        f" {after} {emit}"
    )
    return text, span


def plan_of(text, rows=(), visits=()) -> Plan:
    """A text over rows of both relations."""
    return parse_script(text, sources_of(tables_of(rows, visits))).query.plan


def query_drawn(rng):
    """A text, its plan without rows, its operator, when it runs; refused ones are drawn again."""
    while True:
        text, span = text_of(rng)
        try:
            plan = plan_of(text)
            return text, plan, work_of(plan).operator, span
        except (PlanError, BudgetError):
            continue


# ---- the account


def led_by(plan, seed, operator=None):
    """The run without the unit, and what it tells those that follow it."""
    early = seed % 3 > 0
    script = Transcript(lambda window, key: 1 if early else 1 + (key[0] ^ window ^ seed) % 6)
    return ran(plan, script, seed, operator), script


def ran(plan, script, seed, operator=None):
    work = work_of(plan, operator and (lambda _: operator))
    return run(work.operator, work.feed(None), script, seed)


def account_of(pair: Neighbours, seed, operator=None, claims=None, led=None) -> QueryAccount:
    """What a unit loses in a job that reads raw rows; of several periods, all counters together."""
    operator = operator or work_of(pair.plans[0]).operator
    without, script = led or led_by(pair.plans[1], seed, operator)
    added = ran(pair.plans[0], script, seed, operator)
    found = account(operator, added, without, script, claims)
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


FOLLOW = 10  # units that are added, one after another, to the same rows of others


def judged(seed, pairs):
    """(text, account) of pairs of neighbours of one query."""
    rng = np.random.default_rng(seed)
    text, plan, operator, span = query_drawn(rng)
    claims = claims_of(operator)
    for nth in range(pairs):
        if nth % FOLLOW == 0 or plan.clock.kind == "rows":  # where gaps are in other places
            others, led, noise = others_drawn(rng, span), None, int(rng.integers(2**32))
        pair = neighbours_drawn(rng, plan, span, several=nth % 4 == 3, others=others)
        led = led or led_by(pair.plans[1], noise, operator)
        yield text, account_of(pair, noise, operator, claims, led)
