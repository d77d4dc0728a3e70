"""What an expression can be, whatever the rows: values never lie beyond it, and bounds follow."""

import random
from functools import cache

import numpy as np
import pyarrow as pa
import pytest
from sqlglot import exp

import streamveil as sv
from streamveil.errors import PlanError
from streamveil.expressions import compile_expression, has_value, range_of, ranges
from streamveil.plan.look import open_values
from streamveil.sql.sql import parse_script

rng = np.random.default_rng(8)
ROWS = 300
TABLE = pa.table(
    {
        "ok": pa.array(rng.choice([True, False, None], ROWS), pa.bool_()),
        "small": pa.array(rng.integers(-128, 128, ROWS), pa.int8()),
        "few": pa.array(rng.integers(0, 256, ROWS), pa.uint8()),
        "n": pa.array(rng.choice([-(2**63), -7, 0, 3, 2**63 - 1, None], ROWS), pa.int64()),
        "x": pa.array(rng.choice([float("nan"), float("inf"), -2.5, 0.0, 1e300], ROWS)),
        "s": pa.array(rng.choice(["a", "10", "", None], ROWS), pa.string()),
        "t": pa.array(rng.integers(-(10**16), 10**17, ROWS), pa.timestamp("us")),
    }
)
CONDITIONS = ["ok", "n > 0", "s LIKE 'a%'", "x IS NULL", "NOT ok", "few IN (1, 2)", "IS_NAN(x)"]
LEAVES = [
    "1", "-2.5", "0", "3", "NULL", "CAST(ok AS INT64)", "CAST(n = 3 AS FLOAT64)", "small", "few",
    "n", "x", "EXTRACT(HOUR FROM t)", "EXTRACT(WEEK FROM t)", "EXTRACT(ISOWEEK FROM t)",
    "EXTRACT(DAYOFYEAR FROM t)", "EXTRACT(MILLISECOND FROM t)", "EXTRACT(YEAR FROM t)",
    "CAST(STARTS_WITH(s, 'a') AS INT64)",
]  # fmt: skip
FORMS = [
    "({0} + {1})", "({0} - {1})", "({0} * {1})", "({0} / {1})", "-({0})", "IF({c}, {0}, {1})",
    "CASE WHEN {c} THEN {0} WHEN {d} THEN {1} END", "CASE {0} WHEN 1 THEN {1} ELSE {2} END",
    "COALESCE({0}, {1})", "IFNULL({0}, {1})", "NULLIF({0}, {1})", "LEAST({0}, {1}, {2})",
    "GREATEST({0}, {1})", "ABS({0})", "SIGN({0})", "ROUND({0})", "ROUND({0}, 1)", "FLOOR({0})",
    "CEIL({0})", "TRUNC({0})", "MOD(CAST({0} AS INT64), 3)", "CAST({0} AS INT64)",
    "CAST({0} AS FLOAT64)", "ROUND({0}, -1)",
]  # fmt: skip


def expression(draw, depth):
    if depth == 0 or draw.random() < 0.2:
        return draw.choice(LEAVES)
    parts = [expression(draw, depth - 1) for _ in range(3)]
    return draw.choice(FORMS).format(*parts, c=draw.choice(CONDITIONS), d=draw.choice(CONDITIONS))


@cache
def values_of(text):
    """The value in each row; None where types do not fit."""
    try:
        return compile_expression(text, TABLE.schema)(TABLE)
    except PlanError:
        return None


def found(number=1500, seed=3):
    """How many ranges were known, and the expressions whose values lie beyond theirs."""
    draw, known, wrong = random.Random(seed), 0, []
    for _ in range(number):
        text = expression(draw, 3)
        values = values_of(text)
        if values is None:
            continue
        for schema in (None, TABLE.schema):
            ends = range_of(text, schema)
            if ends is None or not pa.types.is_primitive(values.type):
                continue
            known += 1
            numbers = np.array([one for one in values.to_pylist() if one is not None], float)
            numbers = numbers[~np.isnan(numbers)]
            if len(numbers) and not (ends[0] <= numbers.min() and numbers.max() <= ends[1]):
                wrong.append((text, ends, numbers.min(), numbers.max()))
    return known, wrong


def test_no_value_lies_beyond_its_range():
    known, wrong = found()
    assert not wrong
    assert known > 300


def test_nothing_is_said_of_whole_numbers_that_floats_round():
    """The value is 3, and in floats 4."""
    text = "IF(ok, 9007199254740995 - 9007199254740992, 0)"
    assert max(filter(None, compile_expression(text, TABLE.schema)(TABLE).to_pylist())) == 3
    assert range_of(text) is None
    assert range_of("IF(ok, 9007199254740991, 0)") == (0.0, 2.0**53 - 1)
    assert range_of("ROUND(IF(ok, 9007199254740991, 0), 1)") is None  # one larger, in tenths
    assert range_of("ROUND(IF(ok, 1.26, 0), 1)") == (0.0, 2.0)


@pytest.mark.parametrize(
    ("kind", "name"),
    [("RULES", exp.Sub), ("RULES", exp.If), ("CALLS", "ABS"), ("CALLS", "ROUND")],
)
def test_a_wrong_rule_is_found(monkeypatch, kind, name):
    """Each of these rules forgets one of its parts, or a sign."""
    rules = dict(getattr(ranges, kind))
    if kind == "CALLS":
        rules[name] = lambda parts: parts[0]
    else:
        rules[name] = lambda tree, ends: ranges.range_of_tree(
            tree.args.get("true") or tree.this, ends
        )
    monkeypatch.setattr(ranges, kind, rules)
    assert found()[1]


PARTS = [
    "ok", "few > 3", "x < 0", "n = 3", "s = 'a'", "s IN ('a', NULL)", "n IS NULL", "few / n = 1",
    "n * n > 5", "n IS NOT DISTINCT FROM 3", "t > '2000-01-01'", "few BETWEEN 1 AND n",
    "s LIKE 'a%'",
    "IF(ok, n, NULL) = 3", "n IS DISTINCT FROM small", "ok IS TRUE",
]  # fmt: skip
JOINED = ["{0}", "NOT ({0})", "({0} AND {1})", "({0} OR {1})", "{0} IS NOT TRUE", "({0}) = ({1})"]


def condition(draw, depth):
    if depth == 0 or draw.random() < 0.3:
        return draw.choice(PARTS)
    return draw.choice(JOINED).format(*(condition(draw, depth - 1) for _ in range(2)))


def filled(number=3000, seed=4):
    """How many expressions were said to have a value in every row, and those that have not."""
    draw, known, wrong = random.Random(seed), 0, []
    for nth in range(number):
        test, where = condition(draw, 2), condition(draw, 2)
        value = draw.choice(FORMS).format(*(expression(draw, 1) for _ in range(3)), c=test, d=where)
        value = draw.choice([value, f"IF({test}, 1, 0)", f"CAST({test} AS INT64)", "n", "s",
                             "IF(ok, 1 / 0, 1)"])  # fmt: skip
        where = None if nth % 2 else where
        if not has_value(value, where):
            continue
        found = values_of(value)
        kept = None if where is None else values_of(where)
        if found is None or (where is not None and kept is None):
            continue
        known += 1
        found = found if kept is None else found.filter(kept)
        wrong += [(value, where)] if found.null_count else []
    return known, wrong


def test_what_is_said_to_have_a_value_in_every_row_has_one():
    known, wrong = filled()
    assert not wrong
    assert known > 300


@pytest.mark.parametrize(
    ("nodes", "more"),
    [("CONDITIONS", exp.Div), ("COMPARED", exp.NullSafeNEQ)],
)
def test_what_is_wrongly_said_to_have_a_value_is_found(monkeypatch, nodes, more):
    """Each node may be null where its parts are not, or true where one of them is null."""
    monkeypatch.setattr(ranges, nodes, (*getattr(ranges, nodes), more))
    assert filled()[1]


@pytest.mark.parametrize(
    ("text", "where", "known"),
    [
        ("IF(s = 'a', 1, 0)", None, True), ("IF(s = 'a', 1, NULL)", None, False),
        ("CASE WHEN ok THEN 1 END", None, False), ("CASE WHEN ok THEN 1 ELSE 0 END", None, True),
        ("COALESCE(x, 0)", None, True), ("COALESCE(x, n)", None, False), ("1", None, True),
        ("NULLIF(1, 1)", None, False), ("(ok IS NULL)", None, True), ("ok", None, False),
        ("CAST(s IS NULL AS INT64)", None, True), ("SAFE_CAST('a' AS INT64)", None, False),
        ("IF(x / 0 > 1, 1, 0)", None, True), ("1 / 0", None, False),
        ("IF(ok, -3, 2.5)", None, True),
        ("IF(s LIKE 'a%', 1, 0)", None, False), ("IF(UPPER(s) = 'A', 1, 0)", None, False),
        ("x", "x > 3", True), ("x", "NOT (x IS NULL) AND n = 1", True), ("x", "x > 3 OR ok", False),
        ("x", "x IS NULL", False), ("n", "3 < n", True), ("n", "n + 1 > 3", False),
        ("s", "s NOT IN ('a', 'b')", True), ("n", "n IS DISTINCT FROM 3", False),
    ],
)  # fmt: skip
def test_what_has_a_value_in_every_row(text, where, known):
    assert has_value(text, where) == known


OPTIONS = "epsilon = 1, delta = 1e-6, privacy_unit_column = user"


def planned(value, extra="", options=OPTIONS):
    text = (
        "CREATE STREAM rows WITH (source = 'files', path = 'x.parquet', event_time = 't');"
        f" SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ({options}) kind, {value} AS a FROM rows"
        f" GROUP BY kind {extra}"
    )
    return parse_script(text).query.plan


@pytest.mark.parametrize(
    ("value", "bounds"),
    [
        ("AVG(IF(paid, 1, 0))", (0, 1)),
        ("SUM(CASE WHEN paid THEN 1 END)", (0, 1)),
        ("SUM(IF(paid, -5, -5))", (-5, 0)),
        ("STDDEV(EXTRACT(HOUR FROM t))", (0, 23)),
        ("PERCENTILE_CONT(EXTRACT(DAYOFWEEK FROM t), 0.5)", (1, 7)),
        ("SUM(IF(paid, 1, 0), contribution_bounds_per_row => (0, 9))", (0, 9)),
        ("AVG(amount)", None),
        ("AVG(IF(paid, amount, 0))", None),
        ("SUM(IF(paid, 1e12, 0))", None),
        ("SUM(LEAST(amount, 30))", None),
    ],
)
def test_bounds_follow_from_the_expression(value, bounds):
    (one,) = planned(value).aggregates
    assert (one.low, one.high) == (bounds or (None, None))


def test_a_stream_that_cannot_be_looked_at_needs_no_bounds_then():
    emit = "EMIT EVERY INTERVAL 1 HOUR"
    options = OPTIONS + ", steps = 24, start = TIMESTAMP '2026-01-01', max_rows_contributed = 4"
    assert not open_values(planned("SUM(IF(paid, 1, 0))", emit, options))


def test_rates_need_no_bounds():
    """3 % of rows, far too few for a look to see: 1 of 10^9 answers is off by more than 0.02."""
    draw = np.random.default_rng(5)
    rows = pa.table({"user": draw.integers(0, 3000, 20_000), "dead": draw.random(20_000) < 0.03})
    truth = np.mean(rows["dead"].to_numpy())
    head = f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ({OPTIONS.replace('= 1,', '= 2,')}) "
    for value in ("IF(dead, 1, 0)", "CAST(dead AS INT64)"):
        answer = sv.sql(f"{head} AVG({value}) AS rate FROM rows", rows=rows).to_arrow()
        assert abs(answer["rate"][0].as_py() - truth) < 0.02
