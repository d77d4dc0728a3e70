"""Queries over changing tables as texts, with questions between steps, and raw change data."""

import numpy as np
import pyarrow as pa

from streamveil.audit.laid_open_measures import lost_by, random_policy
from streamveil.audit.laid_open_tables import published
from streamveil.errors import BudgetError, PlanError
from streamveil.plan import SourceSpec
from streamveil.runtime.run import work_of
from streamveil.sql.sql import parse_script
from tests.audit.raw_rows import holding, pick

STEPS, EACH = 5, 12  # rows of a step
CITIES = ("Lima", "Oslo", "Rome")
BUDGETS = ("epsilon = 1", "epsilon = 2", "rho = 0.5, delta = 1e-6", "epsilon = 1, delta = 1e-6",
           "mu = 0.5, delta = 1e-6")  # fmt: skip
MECHANISMS = ("", "", "counter", "tree_of_mwem", "rerun", "continual_mwem",
              "interval_tree", "two_streams")  # fmt: skip
SETS = ("", "GROUP BY city", "GROUP BY city, age", "GROUP BY ROLLUP (city, age)",
        "GROUP BY CUBE (city, age)", "GROUP BY GROUPING SETS ((city), (age), ())")  # fmt: skip
COUNTS = ("COUNT(*) AS n", "COUNT(*) AS n, COUNTIF(age < 2) AS young", "COUNTIF(age > 1) AS old",
          "COUNT(city) AS n, COUNT(*) AS all_of_them")  # fmt: skip
VALUES = ("shop", "shop", "city", "IF(age > 0, shop, NULL)")  # that are counted apart
CHANGES = (1, 2, 2, 3, 50)
LIVES = ("", "", ", lives = 2", ", lives = 3")
CONDITIONS = ("", "", "WHERE age > 0", "WHERE city = 'Oslo' OR age IS NULL")
OPERATIONS = ("+", "-", "U", "d", "c", "update", "I", "?", None)


def text_of(rng):
    """One script, which may be refused."""
    grows, ids = rng.random() < 0.25, rng.random() < 0.7
    changes = "source = rows, changelog = 'insert'"
    if not grows:
        changes = "source = rows, changelog = 'insert-delete', operation = op"
    if ids:
        changes += ", id = id" + pick(rng, ("",) if grows else LIVES)
    mechanism, count = pick(rng, MECHANISMS), pick(rng, COUNTS)
    more = [
        pick(rng, BUDGETS), f"steps = {STEPS}", f"expected_size = {pick(rng, (20, 60, 5000))}",
        "accept_error = TRUE", pick(rng, ("", "non_negative = TRUE", "integer = TRUE")),
    ]  # fmt: skip
    if ids and rng.random() < 0.2:
        count = f"COUNT(DISTINCT {pick(rng, VALUES)}) AS shops"
        more.append("" if grows else f"max_changes = {pick(rng, CHANGES)}")
    else:
        more += [
            pick(rng, ("", "ask_share = 0.3", "ask_share = 0.7")),
            f"mechanism = '{mechanism}'" if mechanism else "",
            pick(rng, ("", "preset = 'theorem'")),
        ]
    by = pick(rng, SETS)
    names = ", ".join(name for name in ("city", "age") if name in by)
    return (
        "CREATE TABLE people (city CHECK (city IN ('Lima', 'Oslo', 'Rome')), age CHECK (age BETWEEN"
        f" 0 AND 3)) WITH ({changes}); SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS"
        f" ({', '.join(filter(None, more))}) {names + ', ' * bool(names)}{count}"
        f" FROM people {pick(rng, CONDITIONS)} {by} EMIT EVERY {EACH} ROWS"
    )


def rows_drawn(rng):
    """Change data of few ids: lives that begin, change and end, and rows that say nothing."""
    ids = int(rng.integers(2, 25))
    return [
        {
            "op": pick(rng, OPERATIONS), "id": pick(rng, (*range(ids), None)),
            "city": pick(rng, (*CITIES, *CITIES, "Bonn", None)),
            "age": pick(rng, (0, 1, 2, 3, 0, 1, 9, None)),
            "shop": pick(rng, ("a", "a", "a", "b", None)),
        }
        for _ in range(STEPS * EACH)
    ]  # fmt: skip


def neighbour(rng, rows, relation):
    """The rows without those of one record, or without one row; positions are public."""
    gap = dict.fromkeys(rows[0])
    if relation == "record":
        known = [row["id"] for row in rows if row["id"] is not None]
        gone = pick(rng, known)
        return [gap if row["id"] == gone else row for row in rows]
    place = int(rng.integers(len(rows)))
    return [gap if nth == place else row for nth, row in enumerate(rows)]


KINDS = {"op": pa.string(), "id": pa.int64(), "city": pa.string(), "age": pa.int64(),
         "shop": pa.string()}  # fmt: skip


def table_of(rows):
    return pa.table({
        name: pa.array([row[name] for row in rows], kind) for name, kind in KINDS.items()
    })  # fmt: skip


def plan_of(text, rows=()):
    source = SourceSpec(name="rows", kind="memory", options={"table": table_of(rows)})
    return parse_script(text, {"rows": source}).query.plan


def drawn(rng):
    """A script that is not refused, its plan and its operator."""
    while True:
        text = text_of(rng)
        try:
            plan = plan_of(text)
            return text, plan, work_of(plan).operator
        except (PlanError, BudgetError):
            continue


def released(plan, operator, asked):
    """What a job publishes, with its answers to questions after each step."""

    def release(rows, noise):
        here = holding(plan, {plan.source.name: table_of(rows)})
        work, rng, found = work_of(here, lambda _: operator), np.random.default_rng(asked), []
        table, state = work.operator, work.operator.init()
        for batch in work.feed(None):
            table.fold(state, batch, noise)
            if batch.closes_step:
                found += published(table, state, batch.step, noise, rng)
        return found

    return release


def judged(seed, pairs):
    """(text, operator, loss) of pairs of neighbours of one script."""
    rng = np.random.default_rng(seed)
    text, plan, operator = drawn(rng)
    release = released(plan, operator, seed)
    for nth in range(pairs):
        rows = rows_drawn(rng)
        other = neighbour(rng, rows, operator.guarantee.protects.relation)
        policy = random_policy(pairs * seed + nth, (0.05, 0.3, 1.0)[nth % 3])
        yield text, operator, lost_by(release, (rows, other), policy, seed)
