"""SQL: the GoogleSQL clause, the streaming words, refusals with the nearest name, robustness."""

import random

import pytest

from streamveil.errors import PlanError
from streamveil.plan.check import TABLE_ONLY
from streamveil.plan.options import OPTIONS
from streamveil.sql.sql import parse_script
from tests.sql.mutate import mutated

CLAUSE = "epsilon = 1, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 4"
CONTINUAL = f"{CLAUSE}, start = '2026-01-01', end = '2026-01-02'"
FULL = """
CREATE STREAM clicks WITH (source = 'files', path = 'clicks/*.parquet', event_time = 'ts');
CREATE SINK pages_out WITH (sink = 'files', path = 'out/', format = 'parquet');
INSERT INTO pages_out
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (
         epsilon = 6, delta = 1e-9, privacy_unit_column = user_id,
         privacy_unit_period = INTERVAL 1 DAY, max_rows_contributed = 32, max_rows_per_group = 1,
         min_privacy_units_per_group = 20, start = '2026-01-01', end = TIMESTAMP '2026-02-01')
       window_start, url, COUNT(*) AS n,
       SUM(ms, contribution_bounds_per_row => (0, 60000)) AS ms
FROM TUMBLE(TABLE clicks, DESCRIPTOR(ts), size => INTERVAL 1 DAY)
WHERE LOWER(kind) = 'view' AND ms IS NOT NULL
GROUP BY window_start, url
EMIT EVERY INTERVAL 15 MINUTE;
"""


def plan(select, options=CLAUSE, emit="", with_=""):
    """The plan of one query over a declared stream."""
    return parse_script(
        "CREATE STREAM t WITH (source = 'files', path = 't.parquet', event_time = 'ts');"
        f"{with_} SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ({options}) {select} {emit}"
    ).query.plan


def refused(select, options=CLAUSE, emit=""):
    with pytest.raises(PlanError) as caught:
        plan(select, options, emit)
    return str(caught.value)


def test_a_query_with_several_sinks_is_named_by_the_first():
    more = "CREATE SINK shown WITH (sink = 'console');\nINSERT INTO pages_out, shown"
    found = parse_script(FULL.replace("INSERT INTO pages_out", more)).query
    assert [(one.name, one.kind) for one in found.plan.sinks] == [
        ("pages_out", "files"), ("shown", "console")]  # fmt: skip
    assert found.name == found.plan.name == "pages_out"
    assert found.plan.fingerprint == parse_script(FULL).query.plan.fingerprint


def test_the_whole_example():
    full = parse_script(FULL).query.plan
    assert full.name == "pages_out"
    assert full.source.options == {"path": "clicks/*.parquet"}
    assert (full.unit, full.period_us) == ("user_id", 86_400_000_000)
    assert full.where == "LOWER(kind) = 'view' AND NOT ms IS NULL"
    assert [(k.name, k.expression) for k in full.keys] == [("url", "url")]
    assert [a.function for a in full.aggregates] == ["count", "sum"]
    assert (full.aggregates[1].low, full.aggregates[1].high) == (0.0, 60000.0)
    assert (full.window.kind, full.window.size_us) == ("tumble", 86_400_000_000)
    assert (full.clock.kind, full.clock.every, full.clock.steps) == ("event", 900_000_000, 2976)
    assert (full.bounding.max_rows, full.bounding.max_rows_per_group) == (32, 1)
    assert full.key_set.min_units == 20
    assert full.budget.epsilon == 6


# Queries in the words of the GoogleSQL documentation: they run unchanged, as one-shot answers.
GOOGLE = [
    """SELECT WITH DIFFERENTIAL_PRIVACY
         OPTIONS(epsilon=10, delta=.01, max_groups_contributed=2, privacy_unit_column=id)
         item, SUM(quantity, contribution_bounds_per_group => (0,100)) AS total
       FROM 'professors.csv' GROUP BY item""",
    """SELECT WITH DIFFERENTIAL_PRIVACY
         OPTIONS(epsilon=1e20, delta=.01, privacy_unit_column=id)
         item, COUNT(*, contribution_bounds_per_group=>(0, 100)) times_requested
       FROM `professors.csv` GROUP BY item;""",
    """SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS(epsilon=10, delta=.01, privacy_unit_column=id,
           max_rows_contributed = 3, group_selection_strategy = LAPLACE_THRESHOLD)
         item, COUNT(DISTINCT id) AS people,
         PERCENTILE_CONT(quantity, 0.5, contribution_bounds_per_row => (0,100)) AS middle
       FROM 'data/professors.parquet' AS p WHERE p.item != 'scissors' GROUP BY 1""",
    """SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS(epsilon=10, delta=.01, privacy_unit_column=id)
         AVG(quantity, contribution_bounds_per_row => (0, 10), report_format => DEFAULT) AS a,
         VAR_POP(quantity, contribution_bounds_per_row => (0, 10)) AS v
       FROM (SELECT id, quantity * 2 AS quantity FROM 'p.csv' WHERE quantity > 0)""",
]


@pytest.mark.parametrize("text", [pytest.param(t, id=str(i)) for i, t in enumerate(GOOGLE)])
def test_a_plain_query_is_one_shot(text):
    try:
        made = parse_script(text.replace("1e20", "100")).query.plan
    except PlanError as error:
        pytest.fail(str(error))
    assert made.clock.kind == "once"
    assert made.source.kind == "files"


def test_group_defaults_of_googlesql():
    one = plan("COUNT(*) AS n FROM t", "epsilon=1, delta=.1, privacy_unit_column=id")
    assert (one.bounding.max_rows, one.bounding.quadratic) == (None, None)  # unlike GoogleSQL: 1
    two = plan(
        "k, COUNT(*, contribution_bounds_per_group => (0, 5)) AS n FROM t GROUP BY k",
        "epsilon=1, delta=.1, privacy_unit_column=id, max_groups_contributed=3",
    )
    assert (two.bounding.max_rows, two.bounding.max_rows_per_group) == (15, 5)
    assert two.aggregates[0].low is None


def test_rowwise_subqueries_are_computed_in_place():
    made = plan("url, COUNT(*) AS n FROM (SELECT user_id, LOWER(u.page) AS url FROM t AS u "
                "WHERE u.ms > 1 OR u.ok) AS s WHERE s.url <> 'x' GROUP BY url")  # fmt: skip
    assert made.where == "(ms > 1 OR ok) AND (LOWER(page)) <> 'x'"
    assert made.keys[0].expression == "(LOWER(page))"
    cte = parse_script(
        "CREATE STREAM t WITH (source = 'files', path = 't.parquet');"
        "WITH s AS (SELECT *  FROM t WHERE ok) SELECT WITH DIFFERENTIAL_PRIVACY "
        f"OPTIONS ({CLAUSE}) COUNT(*) AS n FROM s"
    ).query.plan
    assert cte.where == "ok"


def test_what_the_clause_names_is_looked_up_in_the_subquery():
    own = "SELECT household AS user_id, ts AS seen, ms FROM t"
    renamed = plan(f"COUNT(DISTINCT user_id) AS u FROM ({own})")
    assert (renamed.unit, renamed.aggregates[0].function) == ("household", "count_units")
    assert plan("COUNT(*) AS n FROM (SELECT UPPER(user_id) AS user_id FROM t)").unit == (
        "(UPPER(user_id))"
    )
    assert plan("COUNT(*) AS n FROM (SELECT * FROM t)").unit == "user_id"
    windowed = plan(
        "COUNT(*) AS n FROM TUMBLE(TABLE S, DESCRIPTOR(Seen), size => INTERVAL 1 DAY)",
        f"{CONTINUAL}, arrival = seen", "EMIT EVERY INTERVAL 1 HOUR", f"WITH s AS ({own})",
    )  # fmt: skip
    assert (windowed.source.event_time, windowed.clock.arrival) == ("ts", "ts")
    plain = "COUNT(*) AS n FROM TUMBLE(TABLE t, DESCRIPTOR({}), size => INTERVAL 1 DAY)"
    known = plan(plain.format("ts"), CONTINUAL, "EMIT EVERY INTERVAL 1 HOUR")
    assert plan(plain.format("TS"), CONTINUAL, "EMIT EVERY INTERVAL 1 HOUR") == known


def test_names_of_subqueries_hide_tables_in_any_case():
    made = plan("COUNT(*) AS n FROM t", with_="WITH S AS (SELECT * FROM t WHERE ok), "
                "T AS (SELECT * FROM s WHERE ms > 1)")  # fmt: skip
    assert made.where == "ok AND ms > 1"


SHIFTED = "SELECT user_id, ms, TIMESTAMP_ADD(ts, INTERVAL 1 DAY) AS ts FROM t"


@pytest.mark.parametrize(
    ("select", "options", "emit", "with_", "message"),
    [
        ("COUNT(*) AS n FROM (SELECT * EXCEPT (ms) FROM t)", CLAUSE, "", "", "name the columns"),
        ("COUNT(*) AS n FROM (SELECT * REPLACE (0 AS ms) FROM t)", CLAUSE, "", "", "name the col"),
        ("COUNT(*) AS n FROM (SELECT t.* FROM t)", CLAUSE, "", "", "'t.*' in a subquery"),
        ("COUNT(*) AS n FROM (SELECT 1 AS one, * FROM t)", CLAUSE, "", "", "comes first"),
        ("COUNT(*) AS n FROM (SELECT user_id, ms, 0 AS MS FROM t)", CLAUSE, "", "",
         "two columns of the subquery are called 'MS'"),
        ("COUNT(*) AS n FROM (SELECT ms FROM t)", CLAUSE, "", "",
         "privacy_unit_column: unknown column 'user_id'"),
        ("COUNT(*) AS n FROM s", CLAUSE, "", f"WITH s AS ({SHIFTED}), S AS ({SHIFTED})",
         "declares 'S' twice"),
        ("UPPER(k) AS k, COUNT(*) AS n FROM t GROUP BY t.k", CLAUSE, "", "", "is selected as"),
        ("UPPER(j) AS up, COUNT(*) AS n FROM t GROUP BY k", CLAUSE, "", "", "neither in GROUP BY"),
        ("COUNT(*) AS n FROM TUMBLE(TABLE s, DESCRIPTOR(ts), size => INTERVAL 1 DAY)", CONTINUAL,
         "EMIT EVERY INTERVAL 1 HOUR", f"WITH s AS ({SHIFTED})", "the subquery computes 'ts'"),
        ("COUNT(*) AS n FROM (SELECT user_id FROM TUMBLE(TABLE t, DESCRIPTOR(ts), size => "
         "INTERVAL 1 DAY))", CONTINUAL + ", arrival = ts", "EMIT EVERY INTERVAL 1 HOUR", "",
         "arrival: unknown column 'ts'"),
    ],
)  # fmt: skip
def test_what_a_subquery_would_make_ambiguous_is_refused(select, options, emit, with_, message):
    with pytest.raises(PlanError) as caught:
        plan(select, options, emit, with_)
    assert message in str(caught.value)


def test_groups_by_name_place_alias_and_all():
    texts = [
        "UPPER(page) AS p, COUNT(*) AS n FROM t GROUP BY p",
        "UPPER(page) AS p, COUNT(*) AS n FROM t GROUP BY 1",
        "UPPER(page) AS p, COUNT(*) AS n FROM t GROUP BY upper(page)",
        "UPPER(page) AS p, COUNT(*) AS n FROM t GROUP BY ALL",
    ]
    assert len({plan(text).fingerprint for text in texts}) == 1


def test_every_aggregate():
    made = plan(
        "COUNT(*), COUNT(x) AS cx, COUNTIF(x > 1) AS ci, COUNT(DISTINCT user_id) AS u, "
        "SUM(x, contribution_bounds_per_row => (-5, 5), quantum => 0.5) AS s, "
        "AVG(x, contribution_bounds_per_row => (0, 1)) AS a, "
        "VARIANCE(x, contribution_bounds_per_row => (0, 1)) AS v, "
        "STDDEV(x, contribution_bounds_per_row => (0, 1)) AS d, "
        "MEDIAN(x, contribution_bounds_per_row => (0, 1)), "
        "APPROX_QUANTILES(x, 2, contribution_bounds_per_row => (0, 1)) AS q FROM t"
    )
    named = {a.name: a for a in made.aggregates}
    assert list(named) == ["count", "cx", "ci", "u", "s", "a", "v", "d", "median_x",
                           "q_0", "q_1", "q_2"]  # fmt: skip
    assert named["ci"].expression == "IF(x > 1, TRUE, NULL)"
    assert named["u"].function == "count_units"
    assert (named["s"].low, named["s"].quantum) == (-5.0, 0.5)
    assert [named[f"q_{i}"].options["q"] for i in range(3)] == [0, 0.5, 1]


def test_windows_and_clocks():
    windows = {
        "TUMBLE(TABLE t, DESCRIPTOR(ts), size => INTERVAL 1 HOUR)": ("tumble", 60, 0),
        "HOP(TABLE t, DESCRIPTOR(ts), slide => INTERVAL 5 MINUTE, size => INTERVAL 1 HOUR)":
            ("hop", 60, 5),
        "CUMULATE(t, DESCRIPTOR(ts), size => INTERVAL 1 HOUR, step => INTERVAL 10 MINUTE)":
            ("cumulate", 60, 10),
    }  # fmt: skip
    for text, (kind, size, slide) in windows.items():
        window = plan(
            f"COUNT(*) AS n FROM {text}", CONTINUAL, "EMIT EVERY INTERVAL 5 MINUTE"
        ).window
        assert (window.kind, window.size_us, window.slide_us) == (kind, size * 60 * 10**6,
                                                                  slide * 60 * 10**6)  # fmt: skip
    by_rows = plan("COUNT(*) AS n FROM t", CLAUSE + ", steps = 7", "EMIT EVERY 100 ROWS").clock
    assert (by_rows.kind, by_rows.every, by_rows.steps) == ("rows", 100, 7)
    wall = plan("COUNT(*) AS n FROM t", CLAUSE + ", clock = 'wall', steps = 7, start='2026-01-01'",
                "EMIT EVERY INTERVAL 1 HOUR").clock  # fmt: skip
    assert (wall.kind, wall.steps, wall.end_us) == ("wall", 7, None)


def test_explain_and_public_groups(tmp_path):
    script = parse_script(
        "EXPLAIN PRIVACY SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (" + CLAUSE + ", "
        "public_groups = ['a', 'b']) url, COUNT(*) AS n FROM 'c.parquet' GROUP BY url"
    )
    assert script.query.explain
    assert script.query.plan.key_set.public == (("a",), ("b",))
    (tmp_path / "g.csv").write_text("url,x\na,1\nb,2\na,3\n")
    options = (
        f"{CLAUSE}, group_selection_strategy = PUBLIC_GROUPS, public_groups = '{tmp_path}/g.csv'"
    )
    made = plan("url, COUNT(*) AS n FROM t GROUP BY url", options)
    assert made.key_set.public == (("a",), ("b",))


COUNTED = "COUNT(*) AS n FROM t"


@pytest.mark.parametrize(
    ("select", "options", "emit", "message"),
    [
        (COUNTED, "delta = 1e-9, privacy_unit_column = u", "", "epsilon has no default"),
        (COUNTED, "epsilon = 1, delta = 1e-9", "", "privacy_unit_column has no default"),
        (COUNTED, CLAUSE + ", epsilonn = 2", "", "did you mean 'epsilon'?"),
        (COUNTED, CLAUSE + ", max_group_contributed = 2", "", "'max_groups_contributed'?"),
        (COUNTED, CLAUSE + ", k_threshold = 2", "",
         "to fix  delta, and min_privacy_units_per_group = k"),
        (COUNTED, CLAUSE + ", epsilon = 2", "", "given twice"),
        (COUNTED, CLAUSE + ", max_groups_contributed = 2", "", "not both"),
        (COUNTED, CLAUSE.replace("1e-9", "2"), "", "delta must be above 0 and below 1"),
        (COUNTED, CLAUSE.replace("= 4", "= 4.5"), "", "whole number"),
        ("COUNT(*) AS n FROM clics", CLAUSE, "", "unknown table 'clics'"),
        ("COUNT(*) AS n FROM shop.t", CLAUSE, "", "to fix  FROM t"),
        ("COUNT(*) AS n FROM (SELECT 1 AS u)", CLAUSE, "", "public_groups = ['a', 'b']"),
        ("COUNT(*) AS n", CLAUSE, "", "FROM is missing"),
        ("LOWR(u) AS k, COUNT(*) AS n FROM t GROUP BY k", CLAUSE, "", "did you mean 'LOWER'?"),
        ("COUNT(*) AS n FROM t WHERE RAND() < 1", CLAUSE, "", "RAND() has another value in every"),
        ("SUM(x) AS s FROM t", CLAUSE + ", look_share = 0", "", "no contribution bounds"),
        ("SUM(x, contribution_bound_per_row => (0, 1)) AS s FROM t", CLAUSE, "",
         "'contribution_bounds_per_row'?"),
        ("SUM(x, contribution_bounds_per_row => (1, 0)) AS s FROM t", CLAUSE, "", "lower one"),
        ("COUNT(x, contribution_bounds_per_row => (1, 2)) AS s FROM t", CLAUSE, "", "no argument"),
        ("SUM(x, contribution_bounds_per_row => (0, 1e9), quantum => 1e-9) AS s FROM t", CLAUSE, "",
         "2**60 quanta"),
        ("MAX(x) AS m FROM t", CLAUSE, "", "PERCENTILE_CONT"),
        ("ANY_VALUE(x) AS m FROM t", CLAUSE, "", "somebody's value"),
        ("ANON_COUNTS(*) AS m FROM t", CLAUSE, "", "unknown aggregate 'ANON_COUNTS'"),
        ("SUM(x, contribution_bounds_per_row => (0, 1), report_format => JSON) AS m FROM t", CLAUSE,
         "", "NAME_sd"),
        ("url, COUNT(*) AS n FROM t", CLAUSE, "", "publish rows"),
        ("*, COUNT(*) AS n FROM t", CLAUSE, "", "SELECT *"),
        ("COUNT(*) + y AS n FROM t", CLAUSE, "", "unknown column 'y' of the released rows"),
        ("url AS n, COUNT(*) AS n FROM t GROUP BY url", CLAUSE, "", "two output columns"),
        ("COUNT(*) AS n, COUNT(x) AS n_sd FROM t", CLAUSE, "", "goes with 'n'"),
        ("COUNT(*) AS trigger FROM t", CLAUSE, "", "column of every release"),
        ("url, COUNT(*) AS n FROM t GROUP BY url HAVING x > 1", CLAUSE, "", "unknown column 'x'"),
        ("url, COUNT(*) AS n FROM t GROUP BY url", CLAUSE.replace("delta = 1e-9,", ""), "",
         "needs a delta"),
        ("COUNT(*) AS n FROM TUMBLE(t, DESCRIPTOR(ts), INTERVAL 1 DAY)", CONTINUAL,
         "EMIT EVERY INTERVAL 1 HOUR", "size => INTERVAL"),
        ("COUNT(*) AS n FROM TUMBEL(t, DESCRIPTOR(ts), size => INTERVAL 1 DAY)", CONTINUAL,
         "EMIT EVERY INTERVAL 1 HOUR", "did you mean 'tumble'?"),
        ("COUNT(*) AS n FROM HOP(t, DESCRIPTOR(ts), slid => INTERVAL 1 DAY)",
         CONTINUAL, "EMIT EVERY INTERVAL 1 HOUR", "did you mean 'slide'?"),
        ("COUNT(*) AS n FROM t", f"{CONTINUAL}, lateness = INTERVAL 1 MONTH",
         "EMIT EVERY INTERVAL 1 HOUR", "no fixed length"),
        ("COUNT(*) AS n FROM TUMBLE(t, DESCRIPTOR(ts), size => INTERVAL 1 DAY)", CLAUSE, "",
         "triggers by time"),
        (COUNTED, CLAUSE, "EMIT EVERY INTERVAL 1 HOUR", "public start and end"),
        (COUNTED, CLAUSE + ", clock = 'wall', steps = 9", "EMIT EVERY INTERVAL 1 HOUR",
         "a live query needs a public start"),
        (COUNTED, CLAUSE + ", steps = 9, arrival = ts", "EMIT EVERY 10 ROWS",
         "belongs to a replay"),
        (COUNTED, CLAUSE, "EMIT EVERY 10 ROWS", "There is no default"),
        (COUNTED, CLAUSE + ", start = '2026-01-01'", "", "continual query"),
        (COUNTED, CONTINUAL, "EMIT EVERY 10 ROWS", "takes no start"),
        (COUNTED, CONTINUAL + ", steps = 3", "EMIT EVERY INTERVAL 1 HOUR", "disagree"),
        ("SUM(x, contribution_bounds_per_group => (0, 1)) AS s FROM t", CONTINUAL,
         "EMIT EVERY INTERVAL 1 HOUR", "contribution_bounds_per_row"),
        ("COUNT(x, contribution_bounds_per_group => (0, 1)) AS s FROM t", CONTINUAL,
         "EMIT EVERY INTERVAL 1 HOUR", "contribution_bounds_per_row"),
        (COUNTED, CLAUSE + ", public_groups = ['a']", "", "nothing is grouped by"),
        ("d, COUNT(*) AS n FROM t GROUP BY d", CLAUSE + ", public_groups = [DATE '2026-01-31']", "",
         "'groups.parquet', holds every type"),
        ("SUM(x, contribution_bounds_per_row => (-(5), 5)) AS s FROM t", CLAUSE, "", "not -(5)"),
        (COUNTED, CLAUSE + ", preset = 'dpsqlp'", "", "did you mean 'dp-sqlp'?"),
    ],
)  # fmt: skip
def test_refusals(select, options, emit, message):
    assert message in refused(select, options, emit)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SELECT COUNT(*) FROM t", "not private"),
        ("SELCT 1", "did you mean 'SELECT'?"),
        ("CREATE STRAEM t WITH (source = 'files')", "did you mean 'STREAM'?"),
        ("CREATE STREAM t WITH (path = 'x')", "source = 'files'"),
        ("CREATE STREAM t WITH (source = 'files', path = 'x', watermark = 'ts - 5')", "watermark"),
        (
            "CREATE TABLE t WITH (source = 'files', path = 'x', changelog = 'op')",
            "known: insert, insert-delete",
        ),
        ("ASK t COUNT(*)", "no changing table"),
        ("ASK t SELECT 1", "COUNT(*) WHERE"),
        ("", "empty"),
        (";;", "empty"),
        ("SELECT WITH ANONYMITY OPTIONS (epsilon = 1) COUNT(*) FROM t", "DIFFERENTIAL_PRIVACY"),
        ("SELECT WITH DIFFERENTIAL_PRIVCY OPTIONS (epsilon = 1) COUNT(*) FROM t", "did you mean"),
        (f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ({CLAUSE}) COUNT(*) FROM (SELECT WITH "
         f"DIFFERENTIAL_PRIVACY OPTIONS ({CLAUSE}) x FROM t)", "inside another one"),
        (f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ({CLAUSE}) COUNT(* FROM 'a.csv'", "line 1"),
        ("INSERT INTO nowhere SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon=1) COUNT(*) FROM t",
         "unknown sink"),
        ("CREATE SINK a WITH (sink = 'console'); INSERT INTO a, a SELECT WITH DIFFERENTIAL_PRIVACY"
         f" OPTIONS ({CLAUSE}) COUNT(*) FROM t", "names the sink 'a' twice"),
        ("SELECT 'abc", "not valid SQL"),
    ],
)  # fmt: skip
def test_refused_statements(text, message):
    with pytest.raises(PlanError) as caught:
        parse_script(text).query  # noqa: B018  # the property raises when there is no query
    assert message in str(caught.value)


def test_several_errors_show_where():
    with pytest.raises(PlanError, match=r"line 3, column \d+"):
        parse_script(
            f"SELECT WITH DIFFERENTIAL_PRIVACY\nOPTIONS ({CLAUSE})\nCOUNT(*) AS FROM 'a.csv'"
        )


# -- robustness: whatever is typed, only PlanError, and no long literal comes back -----------------

SEEDS = [FULL, *GOOGLE]


@pytest.mark.parametrize("count", [3_000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_thousands_of_mutated_queries(count):
    rng = random.Random(20261120)
    accepted = 0
    for _ in range(count):
        text = mutated(rng, rng.choice(SEEDS))
        try:
            parse_script(text)
            accepted += 1
        except PlanError as error:
            message = str(error)
            assert "s3cret" * 8 not in message
            assert len(message) < 2_000
    assert 0 < accepted < count


def test_every_option_of_the_clause_can_be_written():
    values = {
        "epsilon": "1", "delta": "1e-9", "privacy_unit_column": "u", "max_groups_contributed": "2",
        "max_rows_contributed": "2", "min_privacy_units_per_group": "2",
        "group_selection_strategy": "LAPLACE_THRESHOLD", "privacy_unit_period": "INTERVAL 1 DAY",
        "max_rows_per_group": "1", "max_squared_rows": "4", "rho": "0.1", "mu": "0.1",
        "public_groups": "['a']", "clock": "'wall'", "start": "'2026-01-01'",
        "end": "'2026-01-02'", "steps": "24", "arrival": "'ts'", "lateness": "INTERVAL 1 HOUR",
        "preset": "'dp-sqlp'", "thresholds": "'rigorous'", "counter": "'tree'",
        "name": "'job'", "non_negative": "TRUE", "integer": "TRUE", "monotone": "TRUE",
        "confidence": "0.9", "selection_share": "0.5", "intervals": "'true'", "cut_share": "0.1",
        "look_share": "0.1",
        "selection": "'table'", "mu_share": "0.6", "hidden_groups": "2", "weights": "flat",
        "total_tests": "3", "entry_weight": "0.5", "weight_reference": "100", "delta_share": "0.5",
        "max_units": "1000", "expected_rows": "3.5", "expected_most_rows": "20",
        "expected_units": "10000", "expected_groups": "500", "expected_repeats": "0.1",
        "join_rows": "2", "join_within": "INTERVAL 1 HOUR",
        "time_zone": "'Europe/Berlin'",
    }  # fmt: skip
    assert values.keys() == OPTIONS.keys() - TABLE_ONLY  # those: test_table
    own = {"epsilon", "delta", "privacy_unit_column", "start", "end"}
    clash = {  # what has to go when this one is there
        "rho": "epsilon", "mu": "epsilon", "arrival": "", "max_groups_contributed": "",
        "max_squared_rows": "", "steps": "end", "clock": "end",
    }  # fmt: skip
    for name, value in values.items():
        used = {key: values[key] for key in own - {clash.get(name, "")}} | {name: value}
        used.setdefault("max_rows_contributed", "2")
        if name == "max_groups_contributed":
            used.pop("max_rows_contributed")
        if name in ("join_rows", "join_within", "lateness"):
            continue  # refused on purpose: test_check, test_live_joins, test_explain
        if name == "clock":
            used["steps"] = "24"
        options = ", ".join(f"{key} = {text}" for key, text in used.items())
        plan("k, COUNT(*) AS n FROM t GROUP BY k", options, "EMIT EVERY INTERVAL 1 HOUR")


# -- public groups by a join, in GoogleSQL's words -------------------------------------------------

JOINED = """
CREATE TABLE catalogue WITH (source = 'files', path = '{folder}/catalogue.csv'{public});
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, delta = 0.01, privacy_unit_column = id,
         group_selection_strategy = PUBLIC_GROUPS)
       item, COUNT(*) AS n FROM 'p.csv' {join} GROUP BY item
"""
LIST = "RIGHT OUTER JOIN (SELECT DISTINCT item FROM UNNEST(['pen', 'book']) AS item) USING (item)"
TABLE = "RIGHT JOIN (SELECT DISTINCT item FROM catalogue) USING (item)"


@pytest.mark.parametrize("join", [LIST, TABLE, "RIGHT JOIN catalogue USING (item)"])
def test_public_groups_by_a_join(tmp_path, join):
    (tmp_path / "catalogue.csv").write_text("item,price\npen,1\nbook,2\npen,3\n")
    text = JOINED.format(folder=tmp_path, join=join, public=", public = TRUE")
    assert parse_script(text).query.plan.key_set.public == (("pen",), ("book",))


@pytest.mark.parametrize(
    ("join", "public", "message"),
    [
        (TABLE, "", "not declared public"),
        (TABLE.replace("catalogue", "catalog"), ", public = TRUE", "did you mean 'catalogue'?"),
        (TABLE.replace("RIGHT", "INNER"), ", public = TRUE", "not in a subquery"),
        (TABLE.replace("DISTINCT item", "DISTINCT x"), ", public = TRUE", "that column alone"),
        (LIST.replace("USING (item)", "ON TRUE"), "", "USING"),
        (LIST.replace("item", "thing"), "", "GROUP BY thing alone"),
        ("", ", public = 3", "TRUE or FALSE"),
        ("", "", "needs the list"),
    ],
)
def test_other_joins_are_refused(tmp_path, join, public, message):
    (tmp_path / "catalogue.csv").write_text("item\npen\n")
    with pytest.raises(PlanError) as caught:
        parse_script(JOINED.format(folder=tmp_path, join=join, public=public))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("select", "change", "words"),
    [
        ("SUMM(x) AS n FROM t", (), "unknown aggregate 'SUMM'; did you mean 'SUM'?"),
        ("COUNT(*) AS n FROM t", ("epsilon = 1", "epsilon = -1"), "1e-9, not -1"),
        ("COUNT(*) AS n FROM t", ("epsilon = 1", "epsilon = 'a'"), "1e-9, not 'a'"),
        ("COUNT(*) AS n FROM t", ("max_rows_contributed = 4", "max_rows_contributed = 0"),
         "contributed) must be a whole number between 1 and 1,000,000,000, not 0"),
        ("COUNT(*) AS n FROM t", ("max_rows_contributed = 4", "max_groups_contributed = 0"),
         "max_groups_contributed must be at least 1, not 0"),
        ("SUM(x, contribution_bounds_per_row => (5, 1)) AS n FROM t", (), "first, not (5, 1)"),
        ("COUNT(*) AS n FROM t EMIT EVERY INTERVAL 0 HOUR", (), "not INTERVAL '0' HOUR"),
        ("COUNT(*) AS n FROM t EMIT EVERY 5 ROWS",
         ("epsilon = 1", "epsilon = 1, steps = 1.5"), "not 1.5"),
    ],
)  # fmt: skip
def test_a_refused_argument_is_named_with_its_value(select, change, words):
    assert words in refused(select, CLAUSE.replace(*change) if change else CLAUSE)


def test_several_queries_are_named_with_the_way_to_choose():
    one = f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ({CLAUSE}, name = '%s') COUNT(*) AS n FROM t"
    stream = "CREATE STREAM t WITH (source = 'files', path = 't.parquet');"
    with pytest.raises(PlanError, match=r"2 queries \(a, b\).*\n.*--query NAME"):
        parse_script(f"{stream} {one % 'a'}; {one % 'b'}").query  # noqa: B018  (it raises)


@pytest.mark.parametrize(("declared", "says"), [
    ("CREATE STREAM logs (u INT64) WITH (kind = 'files', path = 'x')",
     "'logs' says no kind of source.\n  to fix  CREATE STREAM logs WITH (source = "),
    ("CREATE SINK kept WITH (path = 'x')",
     "'kept' says no kind of sink.\n  to fix  CREATE SINK kept WITH (sink = "),
    ("CREATE SINK kept (n INT64) WITH (sink = 'console')", "'kept' has columns"),
])  # fmt: skip
def test_a_declaration_without_a_kind_says_what_is_missing(declared, says):
    with pytest.raises(PlanError) as refused:
        parse_script(f"{declared};")
    assert says in str(refused.value)


@pytest.mark.parametrize(("old", "new", "says"), [
    ("size => INTERVAL 1 DAY", "size => INTERVAL 1 DAY, lateness => INTERVAL 1 HOUR",
     "TUMBLE has no argument 'lateness'.\n  to fix  write OPTIONS (lateness = ...) in the query"),
    ("(0, 60000)", "(0, 60000), max_rows_per_group => 1",
     "SUM has no argument 'max_rows_per_group'.\n  to fix  write OPTIONS (max_rows_per_group"),
    ("event_time = 'ts'", "event_time = 'ts', clock = 'wall'",
     "'clicks' has no option 'clock'.\n  to fix  write OPTIONS (clock = ...) in the query"),
    ("epsilon = 6", "event_time = 'ts', epsilon = 6",
     "is no option of a query.\n  to fix  CREATE STREAM ... WITH (event_time = ...)"),
    ("event_time = 'ts'", "event_time = 'ts', columns = 'url'",
     "columns of 'clicks' are declared after its name.\n  to fix  CREATE STREAM clicks (user"),
    ("epsilon = 6", "changelog = 'insert-delete', epsilon = 6",
     "is no option of a query.\n  to fix  CREATE STREAM ... WITH (changelog = ...)"),
])  # fmt: skip
def test_an_option_in_the_wrong_place_is_told_the_right_one(old, new, says):
    with pytest.raises(PlanError) as caught:
        parse_script(FULL.replace(old, new, 1))
    assert says in str(caught.value)
