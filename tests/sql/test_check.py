"""The validator: each leaky streaming habit is refused with its reason and the way out."""

from dataclasses import replace

import pytest

import streamveil as sv
from streamveil.compiler.group_by import compile_plan
from streamveil.core.accounting import Budget
from streamveil.errors import PlanError
from streamveil.plan.check import HABITS, check_plan
from streamveil.plan.look import (
    reach_of,
    refuse_large_sums,
)
from streamveil.sql.sql import parse_script

HEAD = "CREATE STREAM t WITH (source = 'files', path = 't.parquet', event_time = 'ts');"
CLAUSE = "epsilon = 1, delta = 1e-9, privacy_unit_column = u, max_rows_contributed = 4"
TIMED = CLAUSE + ", start = '2026-01-01', end = '2026-01-02'"
BY_TIME = "EMIT EVERY INTERVAL 1 HOUR"


def sql(rest, options=TIMED):
    return f"{HEAD} SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ({options}) {rest}"


COUNT = "COUNT(*) AS n FROM t"
LEAKY = {  # habit -> ways to ask for it in SQL
    "max-event-time": [
        sql(f"{COUNT} {BY_TIME}", TIMED + ", watermark = 'max_event_time'"),
        sql(f"{COUNT} EMIT AFTER WATERMARK"),
        sql(f"{COUNT} EMIT ON WATERMARK"),
    ],
    "emit-on-change": [
        sql(f"{COUNT} EMIT CHANGES"),
        sql(f"{COUNT} EMIT ON CHANGE"),
        sql(f"{COUNT} EMIT FINAL"),
    ],
    "data-trigger": [
        sql(f"{COUNT} EMIT WHEN COUNT(*) > 100"),
        sql(f"{COUNT} EMIT EVERY 10 USERS"),
    ],
    "rerun-on-growth": [
        sql(f"{COUNT} EMIT EVERY 100 ROWS", CLAUSE + ", steps = 9, rerun_on_growth = 2"),
    ],
    "dedupe": [
        sql("COUNT(*) AS n FROM (SELECT DISTINCT url FROM t)"),
        sql("SUM(DISTINCT x) AS n FROM t"),
    ],
    "join": [
        sql("COUNT(*) AS n FROM t JOIN t AS s ON t.url = s.url"),
        sql("COUNT(*) AS n FROM t, t AS s"),
        sql("COUNT(*) AS n FROM (SELECT u FROM t CROSS JOIN t AS s)"),
    ],
    "row-order": [
        sql("COUNT(*) AS n FROM (SELECT u FROM t LIMIT 10)"),
        sql("COUNT(*) AS n FROM (SELECT u FROM t ORDER BY ts)"),
        sql("COUNT(*) AS n FROM (SELECT u FROM t LIMIT 10 OFFSET 5)"),
    ],
    "sample": [sql("COUNT(*) AS n FROM t TABLESAMPLE SYSTEM (10 PERCENT)")],
    "other-rows": [
        sql("COUNT(*) AS n FROM (SELECT url, COUNT(*) AS c FROM t GROUP BY url)"),
        sql("COUNT(*) AS n FROM (SELECT u, COUNT(*) AS c FROM t)"),
        sql("COUNT(*) AS n FROM (SELECT u FROM t QUALIFY ROW_NUMBER() OVER (ORDER BY ts) = 1)"),
    ],
    "budget-refresh": [
        sql(f"{COUNT} {BY_TIME}", TIMED + ", budget_refresh = INTERVAL 1 DAY"),
    ],
    "reopen": [
        sql(f"{COUNT} {BY_TIME}", TIMED + ", late_data = 'reopen'"),
    ],
    "exact-metrics": [sql(f"{COUNT} {BY_TIME}", TIMED + ", metrics = 'exact'")],
}  # fmt: skip


def test_every_habit_has_a_test():
    assert LEAKY.keys() == HABITS.keys()


@pytest.mark.parametrize(
    ("habit", "text"), [(habit, text) for habit, texts in LEAKY.items() for text in texts]
)
def test_leaky_habits_are_refused_with_reason_and_way_out(habit, text):
    with pytest.raises(PlanError) as caught:
        parse_script(text)
    message = str(caught.value)
    assert HABITS[habit].name in message
    assert HABITS[habit].reason in message
    assert HABITS[habit].way_out in message


@pytest.mark.parametrize(
    "text",
    [
        "COUNT(*) AS n FROM t WHERE url IN (SELECT url FROM t)",
        "COUNT(*) AS n FROM t WHERE EXISTS (SELECT 1 FROM t)",
        "SUM((SELECT MAX(x) FROM t), contribution_bounds_per_row => (0, 1)) AS s FROM t",
        "k, COUNT(*) AS n FROM (SELECT u, RANK() OVER (ORDER BY ts) AS k FROM t) GROUP BY k",
        "COUNT(*) AS n FROM t WHERE ROW_NUMBER() OVER (PARTITION BY url ORDER BY ts) = 1",
    ],
)
def test_expressions_over_other_rows_are_refused(text):
    with pytest.raises(PlanError, match="row"):
        parse_script(sql(f"{text} {BY_TIME}"))


def test_python_is_held_to_the_same_rules():
    query = sv.files("t.parquet", event_time="ts").protect("u").bound(max_rows=4).agg(n=sv.count())
    rest = {"every": "1 h", "start": "2026-01-01", "end": "2026-01-02",
            "budget": Budget(epsilon=1, delta=1e-9)}  # fmt: skip
    for option, value, habit in (
        ("watermark", "max_event_time", "max-event-time"),
        ("late_data", "update", "reopen"),
        ("metrics", "on", "exact-metrics"),
        ("budget_refresh", "1 day", "budget-refresh"),
        ("rerun_on_growth", 1.5, "rerun-on-growth"),
    ):
        with pytest.raises(PlanError) as caught:
            query.release(**rest, **{option: value})
        assert HABITS[habit].reason in str(caught.value)


def test_overflow_is_impossible_or_refused():
    refuse_large_sums(reach_of(-1, 1, 2.0**-24))
    with pytest.raises(PlanError, match="quanta"):
        refuse_large_sums(reach_of(0, 2.0**26, 1))
    plan = parse_script(
        sql(f"SUM(x, contribution_bounds_per_row => (0, 1), quantum => 0.5) AS s FROM t {BY_TIME}")
    ).query.plan
    coarse = replace(plan.aggregates[0], high=2.0**40)
    with pytest.raises(PlanError, match="quanta"):
        check_plan(replace(plan, aggregates=(coarse,)))
    squared = replace(plan.aggregates[0], function="var_pop")  # 0.25 where all is rounded to 0
    with pytest.raises(PlanError, match="takes no quantum"):
        check_plan(replace(plan, aggregates=(squared,)))


@pytest.mark.parametrize("function", ["SUM", "AVG"])
@pytest.mark.parametrize(("high", "quantum", "fits"), [(1e15, 1, False), (1e15, 2.0**25, True)])
def test_a_number_of_units_that_is_not_true_does_not_let_sums_wrap_around(
    function, high, quantum, fits
):
    """With 1,000 units declared and 12,000 there, 1e15 each added up to -6.9e18."""
    bounds = f"contribution_bounds_per_row => (0, {high}), quantum => {quantum}"
    options = TIMED.replace("epsilon = 1", "epsilon = 90, max_units = 1000")
    text = sql(f"COUNT(*) AS r, {function}(x, {bounds}) AS s FROM t {BY_TIME}", options)
    if fits:
        compile_plan(parse_script(text).query.plan)
        return
    with pytest.raises(PlanError, match="quanta"):
        parse_script(text)


@pytest.mark.parametrize("share", ["1", "2.5", "-1"])
def test_a_share_of_repeats_is_below_one(share):
    """Without expected rows, nothing looked at it: 1 ended in a division by zero."""
    more = f"{TIMED}, selection = 'gaussian', look_share = 0, expected_repeats = {share}"
    text = sql(f"k, COUNT(DISTINCT u) AS p, COUNT(*) AS n FROM t GROUP BY k {BY_TIME}", more)
    with pytest.raises(PlanError, match="expected_repeats must be a number at least 0 and below 1"):
        compile_plan(parse_script(text).query.plan)
