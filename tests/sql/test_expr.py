"""Per-row expressions: DuckDB as oracle, row independence, totality, names in errors."""

import json
import random
from datetime import UTC, date, datetime
from decimal import Decimal

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamveil import sql
from streamveil.errors import PlanError
from streamveil.expressions import (
    columns_of,
    compile_expression,
    compile_key,
    compile_predicate,
    compile_unit,
    compile_value,
    nodes,
    normalize_expression,
    null_where_it_fails,
    text_functions,
)
from tests.sql.mutate import mutated

SECRET = "patient-4711"  # a value in the data that no message may show
TABLE = pa.table(
    {
        "a": pa.array([1, None, -7, 2**63 - 1, 0]),
        "b": pa.array([2, 3, 0, 2, -1], pa.int32()),
        "f": pa.array([1.5, float("nan"), float("inf"), -2.5, None]),
        "s": pa.array(["x", "10", " 5 ", SECRET, None]),
        "ok": pa.array([True, False, None, True, False]),
        "ts": pa.array([0, 10**9, None, 1_700_000_000, 951_827_696], pa.timestamp("s")),
        "d": pa.array([0, 1, 19_000, None, 11_016], pa.date32()),
        "big": pa.array([1, 2**64 - 1, 3, 4, 5], pa.uint64()),
        "cat": pa.array(["x", "y", "x", None, "x"]).dictionary_encode(),
    }
)


def evaluate(text, table):
    """Compiles and runs once."""
    return compile_expression(text, table.schema)(table)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a + b", [3, None, -7, None, -1]),
        ("a * b", [2, None, 0, None, 0]),
        ("a / b", [0.5, None, None, (2**63 - 1) / 2, -0.0]),
        ("DIV(a, b)", [0, None, None, (2**63 - 1) // 2, 0]),
        ("-7 % 3", [-1] * 5),
        ("-9223372036854775808 - b", [None, None, -(2**63), None, -(2**63) + 1]),
        ("CAST(f AS INT64)", [2, None, None, -3, None]),
        ("CAST(s AS INT64)", [None, 10, 5, None, None]),
        ("SAFE_CAST('99999999999999999999' AS INT64)", [None] * 5),
        ("SAFE_CAST('1e400' AS FLOAT64)", [None] * 5),
        ("LN(a)", [0.0, None, None, pytest.approx(43.668272), None]),
        ("EXP(a * 1000)", [None, None, 0.0, None, 1.0]),
        ("big", [1, None, 3, 4, 5]),
        ("cat = 'x' AND ok", [True, False, None, None, False]),
        ("a IN (1, NULL)", [True, None, None, None, None]),
        ("a NOT IN (1, 2)", [False, None, True, True, True]),
        ("ok IS NOT TRUE", [False, True, True, False, True]),
        ("a IS NOT DISTINCT FROM NULL", [False, True, False, False, False]),
        ("CASE b WHEN 2 THEN 'two' WHEN 3 THEN s END", ["two", "10", None, "two", None]),
        ("IFNULL(s, '?') || '!'", ["x!", "10!", " 5 !", SECRET + "!", "?!"]),
        ("EXTRACT(YEAR FROM ts)", [1970, 2001, None, 2023, 2000]),
        ("EXTRACT(DAYOFWEEK FROM d)", [5, 6, 7, None, 3]),
        ("ts < '2001-01-01'", [True, False, None, False, True]),
        ("TIMESTAMP_TRUNC(ts, WEEK(MONDAY)) = TIMESTAMP_TRUNC(ts, ISOWEEK)",
         [True, True, None, True, True]),
        ("DATE_TRUNC(ts, HOUR) = TIMESTAMP_TRUNC(ts, HOUR)", [True, True, None, True, True]),
        ("DATE_TRUNC(ts, DAY, 'Asia/Tokyo') = TIMESTAMP_TRUNC(ts, DAY, 'Asia/Tokyo')",
         [True, True, None, True, True]),
        ("DATE_ADD(d, INTERVAL 1 MONTH)",
         [date(1970, 2, 1), date(1970, 2, 2), date(2022, 2, 8), None, date(2000, 3, 29)]),
        ("SAFE_CAST('2024-02-30' AS DATE)", [None] * 5),
        ("CAST('2024-02-29T10:00:00.5+02:00' AS TIMESTAMP)",
         [datetime(2024, 2, 29, 8, 0, 0, 500_000, UTC)] * 5),
        ("GREATEST(ts, '2001-01-01')",
         [datetime(2001, 1, 1, tzinfo=UTC), datetime(2001, 9, 9, 1, 46, 40, tzinfo=UTC), None,
          datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC), datetime(2001, 1, 1, tzinfo=UTC)]),
        ("LEAST(d, DATE '1990-01-01') < '1990-01-01'", [True, True, False, None, False]),
        ("f / 0", [None] * 5),
        ("IFNULL(SQRT(-f), -1) + IFNULL(LN(-f), -1) + IFNULL(LOG10(-f), -1)",
         [-3, pytest.approx(float("nan"), nan_ok=True), -3, pytest.approx(2.8953695), -3]),
        ("GREATEST(ok, FALSE)", [True, False, None, True, False]),
        ("IS_NAN(LEAST(1.0, CAST('nan' AS FLOAT64)))", [True] * 5),
        ("LEAST(NULL, NULL)", [None] * 5),
        ("FORMAT_TIMESTAMP('%Y-%m-%d %H:%M:%S %j%%', ts)",
         ["1970-01-01 00:00:00 001%", "2001-09-09 01:46:40 252%", None,
          "2023-11-14 22:13:20 318%", "2000-02-29 12:34:56 060%"]),
        ("FORMAT_TIMESTAMP('%F %H', ts, 'Asia/Tokyo')",
         ["1970-01-01 09", "2001-09-09 10", None, "2023-11-15 07", "2000-02-29 21"]),
        ("FORMAT_DATE('%b %d, %Y', d)",
         ["Jan 01, 1970", "Jan 02, 1970", "Jan 08, 2022", None, "Feb 29, 2000"]),
        ("REGEXP_EXTRACT(s, '[0-9]+')", [None, "10", "5", "4711", None]),
        ("REGEXP_EXTRACT(s, 'p([a-z]).*-(?:4)')", [None, None, None, "a", None]),
        ("REGEXP_EXTRACT(s, '[(]?([0-9])')", [None, "1", "5", "4", None]),
        (r"REGEXP_REPLACE(s, '([0-9])([0-9])', r'\2\1')", ["x", "01", " 5 ", "patient-7411", None]),
        ("REGEXP_EXTRACT(s, '([0-9])', 1, 2)", [None, "0", None, "7", None]),
        ("REGEXP_EXTRACT(s, '[a-z]', 3, 2)", [None, None, None, "i", None]),
        ("REGEXP_INSTR(s, '[0-9]+', 1, 1, 1)", [0, 3, 3, 13, None]),
        ("REGEXP_INSTR('aXbXc', 'X', 1, 2)", [4] * 5),
        ("REGEXP_INSTR('', 'x*', 1, 2)", [0] * 5),
        ("INSTR('banana', 'ana', 1, 2)", [4] * 5),
        ("INSTR('banana', 'a', 7)", [0] * 5),
        ("TIMESTAMP(DATETIME(ts, 'America/New_York'), 'America/New_York') = ts",
         [True, True, None, True, True]),
        ("TIMESTAMP('2026-10-25 02:30:00', 'Europe/Berlin')",  # shown twice: the first
         [datetime(2026, 10, 25, 0, 30, tzinfo=UTC)] * 5),
        ("TIMESTAMP('2026-03-29 02:30:00', 'Europe/Berlin')",  # never shown: what comes after
         [datetime(2026, 3, 29, 1, tzinfo=UTC)] * 5),
        ("SUBSTR(s, -2, 1)", ["x", "1", "5", "1", None]),
        ("JSON_VALUE(s)", [None, "10", "5", None, None]),
        ("JSON_VALUE('{\"a b\": [1.50, {\"c\": true}]}', '$[\\'a b\\'][0]')", ["1.50"] * 5),
        ("JSON_EXTRACT_SCALAR('{\"a b\": [1, {\"c\": true}]}', '$.\"a b\"[1].c')", ["true"] * 5),
        ("NULL", [None] * 5),
    ],
)  # fmt: skip
def test_values(text, expected):
    assert evaluate(text, TABLE).to_pylist() == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lowr(s)", "unknown function 'LOWR'; did you mean 'LOWER'?"),
        ("catt", "unknown column 'catt'; did you mean 'cat'?"),
        ("SUM(a)", "is an aggregate"),
        ("a IN (SELECT 1)", "one person's rows"),
        ("ROW_NUMBER() OVER ()", "reads other rows"),
        ("(SELECT MAX(a) FROM t)", "reads other rows"),
        ("s = 1", "do not convert"),
        ("(s = 1) OR a > 2", "'s = 1': = mixes types that do not convert"),
        ("a + s", "'a + s': argument 2 of + must be a number"),
        ("NOT a", "must be bool"),
        ("SUBSTR(s, a)", "must be a constant"),
        ("s LIKE s", "must be a constant"),
        ("REGEXP_CONTAINS(s, '(')", "regular expression"),
        ("REGEXP_EXTRACT(s, '(')", "regular expression"),
        ("REGEXP_EXTRACT(s, '^a', 2)", "stands before a match"),
        (r"REGEXP_INSTR(s, r'x\b', 1, 2)", "stands before a match"),
        ("REGEXP_INSTR(s, 'x', 0)", "begins at a character from 1"),
        ("REGEXP_INSTR(s, 'x', 1, 1000)", "one of the first 100 matches"),
        ("REGEXP_EXTRACT(s, '(a)(b)')", "has 2 groups, and one is extracted"),
        (r"REGEXP_REPLACE(s, 'a', r'\1')", "names a group that its pattern does not have"),
        ("FORMAT_TIMESTAMP('%Q', ts)", "'%Q' is not available"),
        ("FORMAT_DATE('%F', d, 'UTC')", "FORMAT_DATE"),
        ("FORMAT_TIMESTAMP(ts, '%F')", "argument 1 of FORMAT_TIMESTAMP"),
        ("TIMESTAMP_TRUNC(ts, FORTNIGHT)", "unknown column"),
        ("EXTRACT(HOURS FROM ts)", "did you mean 'HOUR'?"),
        ("EXTRACT(HOUR FROM ts AT TIME ZONE 'Asia/Tokio')", "did you mean 'Asia/Tokyo'?"),
        ("EXTRACT(HOUR FROM ts AT TIME ZONE s)", "a text written in the query"),
        ("ts AT TIME ZONE 'Asia/Tokyo'", "DATE(time, 'zone')"),
        ("DATE(ts, s)", "must be a constant"),
        ("DATE_TRUNC(d, DAY, 'Asia/Tokyo')", "must be timestamp"),
        ("TIMESTAMP_TRUNC(ts, DAY, 'Asia/Nowhere')", "unknown time zone 'Asia/Nowhere'"),
        ("CAST(a AS JSON)", "not supported"),
        ("CAST(ts AS INT64)", "not defined"),
        ("CAST('2024-02-30' AS DATE)", "'2024-02-30' is not a valid date"),
        ("ts < TIMESTAMP '2024-02-01 10:00:00 Europe/Berlin'", "or with an offset"),
        ("CAST('ten' AS INT64) < a", "'ten' is not a valid int"),
        ("a +", "line 1"),
        ("JSON_VALUE(s, '$.a[*]')", "argument 2 of JSON_VALUE is no path of one value: '$.a[*]'"),
        ("JSON_VALUE(s, 'user.id')", "'$.user.ids[0]'"),
        ("JSON_VALUE(s, s)", "argument 2 of JSON_VALUE must be a constant"),
        ("s.user", "of JSON text JSON_VALUE(s, '$.user')"),
        ("RAND()", "another value"),
        ("CURRENT_TIMESTAMP()", "another value"),
        ("LOWER(s, s)", "takes 1 argument(s), not 2"),
        ("INTERVAL 1 DAY", "a unit or a length of time"),
        ("99999999999999999999", "64 bits"),
        ("f < 1e400", "'1e400' is beyond all FLOAT64"),
        ("a, b", "not valid SQL"),
        ("", "must be one expression"),
        ("(" * 500 + "a" + ")" * 500, "nested deeper"),
        ("NOT " * 5000 + "ok", "nested deeper"),
        ("a + " * 20_000 + "a", "nested"),
    ],
)
def test_what_is_refused_and_why(text, message):
    with pytest.raises(PlanError) as caught:
        compile_expression(text, TABLE.schema)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_condition_must_be_one():
    with pytest.raises(PlanError, match="must be a condition"):
        compile_predicate("a + 1", TABLE.schema)
    assert compile_predicate("a > 1", TABLE.schema).columns == ("a",)


@pytest.mark.parametrize("text", ["NULL", "COALESCE(NULL, NULL)", normalize_expression("a = NULL")])
def test_a_condition_that_is_null_in_every_row_is_refused_before_a_row_is_read(text):
    with pytest.raises(PlanError, match="x IS NULL"):
        compile_predicate(text, TABLE.schema)


def test_a_column_that_is_there_twice_is_refused():
    twice = pa.table([pa.array([1]), pa.array([2])], names=["x", "x"])
    with pytest.raises(PlanError, match="2 columns called 'x'"):
        compile_expression("x + 1", twice.schema)


def test_names():
    assert normalize_expression("lower( `s` )  -- comment") == "LOWER(s)"
    assert normalize_expression("timestamp_trunc(ts, hour)") == "TIMESTAMP_TRUNC(ts, HOUR)"
    assert normalize_expression("`group`") == "`group`"
    assert columns_of("IF(a > 1, TIMESTAMP_TRUNC(ts, WEEK(MONDAY)), DATE(ts))") == ("a", "ts")
    assert compile_expression("S", TABLE.schema).columns == ("s",)


def test_a_row_that_arrow_refuses_moves_no_other_row():
    bad = pa.StringArray.from_buffers(
        3, pa.array([0, 1, 2, 3], pa.int32()).buffers()[1], pa.py_buffer(b"a\xffb")
    )
    assert evaluate("UPPER(s)", pa.table({"s": bad})).to_pylist() == ["A", None, "B"]


# -- DuckDB as oracle, and the property everything rests on: each row alone ------------------------

INTS = st.one_of(st.none(), st.integers(-5, 5), st.sampled_from([2**63 - 1, -(2**63)]))
FLOATS = st.one_of(st.none(), st.floats(-100, 100, width=32))
WORDS = st.one_of(st.none(), st.text("ab1 ", max_size=4))  # DuckDB takes '1.' for 1
TIMES = st.one_of(
    st.none(),
    st.datetimes(datetime(1800, 1, 1), datetime(2200, 1, 1)),  # noqa: DTZ001
)
ROWS = st.lists(st.tuples(INTS, INTS, FLOATS, WORDS, TIMES), min_size=1, max_size=8)

LEAVES = {
    "int": st.sampled_from(["a", "b", "1", "-2", "LENGTH(s)", "EXTRACT(MONTH FROM ts)"]),
    "float": st.sampled_from(["f", "0.5", "a / 2"]),
    "string": st.sampled_from(["s", "'a'", "LOWER(s)", "SUBSTR(s, 2)", "CAST(a AS STRING)"]),
    "bool": st.sampled_from(["s IS NULL", "a > b", "s LIKE 'a%'", "ts < '2000-01-01'", "TRUE"]),
}  # fmt: skip


def grown(leaf):
    """Expressions of one type built from smaller ones."""
    return st.deferred(lambda: st.one_of(LEAVES[leaf], BRANCHES[leaf]))


def shape(pattern, *kinds):
    return st.tuples(*(st.deferred(lambda k=k: TREES[k]) for k in kinds)).map(
        lambda parts: pattern.format(*(f"({p})" for p in parts))
    )


BRANCHES = {
    "int": st.one_of(
        shape("{} + {}", "int", "int"),
        shape("{} * {}", "int", "int"),
        shape("{} - {}", "int", "int"),
        shape("ABS({})", "int"),
        shape("IF({}, {}, {})", "bool", "int", "int"),
        shape("COALESCE({}, {})", "int", "int"),
        shape("NULLIF({}, {})", "int", "int"),
        shape("CAST(COALESCE(s, {}) AS INT64)", "string"),
    ),
    "float": st.one_of(shape("{} / {}", "int", "int"), shape("{} + {}", "float", "int")),
    "string": st.one_of(
        shape("{} || {}", "string", "string"),
        shape("UPPER({})", "string"),
        shape("CASE WHEN {} THEN {} ELSE {} END", "bool", "string", "string"),
    ),
    "bool": st.one_of(
        shape("{} AND {}", "bool", "bool"),
        shape("{} OR {}", "bool", "bool"),
        shape("NOT {}", "bool"),
        shape("{} < {}", "int", "int"),
        shape("{} IN ({}, {})", "int", "int", "int"),
        shape("{} BETWEEN {} AND {}", "int", "int", "int"),
        shape("{} IS NOT DISTINCT FROM {}", "string", "string"),
    ),
}
TREES = {kind: grown(kind) for kind in LEAVES}
COLUMNS = ("a", "b", "f", "s", "ts")
DUCK = duckdb.connect(config={"threads": 1})
DUCK.execute("SET TimeZone = 'UTC'")
EXPRESSIONS = st.one_of(*TREES.values())


def table_of(rows):
    columns = list(zip(*rows, strict=True))
    types = [pa.int64(), pa.int64(), pa.float64(), pa.string(), pa.timestamp("us", "UTC")]
    return pa.table({n: pa.array(c, t) for n, c, t in zip(COLUMNS, columns, types, strict=True)})


@given(EXPRESSIONS, ROWS)
@settings(max_examples=150)
def test_each_row_is_evaluated_alone(text, rows):
    table = table_of(rows)
    run = compile_expression(text, table.schema)
    whole = run(table).to_pylist()
    alone = [run(table.slice(i, 1)).to_pylist()[0] for i in range(len(rows))]
    assert repr(whole) == repr(alone)
    again = compile_expression(run.text, table.schema)
    assert again.text == run.text
    assert repr(again(table).to_pylist()) == repr(whole)


def duck(text, table):
    """The same expression in DuckDB; None where it refuses the whole table."""
    text = text.replace("AS INT64", "AS BIGINT").replace("CAST(", "TRY_CAST(")
    text = text.replace("AS STRING", "AS VARCHAR").replace("SUBSTR(s, 2)", "s[2:]")
    DUCK.register("t", table)
    try:
        found = [row[0] for row in DUCK.execute(f"SELECT {text} AS x FROM t").fetchall()]
    except (duckdb.OutOfRangeException, duckdb.ConversionException):
        return None
    return [float(one) if isinstance(one, Decimal) else one for one in found]  # 0.5 is one there


@given(EXPRESSIONS, ROWS)
@settings(max_examples=80)
def test_duckdb_agrees_row_by_row(text, rows):
    table = table_of(rows)
    run = compile_expression(text, table.schema)
    for i in range(len(rows)):
        row = table.slice(i, 1)
        theirs, ours = duck(text, row), run(row).to_pylist()
        if theirs is None:
            continue  # an overflow somewhere inside; ours is null there, perhaps masked further up
        assert ours == pytest.approx(theirs, nan_ok=True) if run.kind == "float" else ours == theirs


BROKEN = [
    "CASE WHEN LOWER(s) LIKE 'a%' AND b BETWEEN 1 AND 3 THEN CAST(f AS INT64) ELSE DIV(a, b) END",
    "IF(ts >= TIMESTAMP '2001-01-01' - INTERVAL 3 DAY, EXTRACT(HOUR FROM ts), LENGTH(s || cat))",
    "COALESCE(TIMESTAMP_TRUNC(ts, WEEK(MONDAY)), TIMESTAMP(d)) IN (ts, '2020-01-01') OR NOT ok",
    "REGEXP_CONTAINS(SUBSTR(s, 1, 2), r'^[a-z]+$') IS NOT TRUE",
]


@pytest.mark.parametrize("count", [1_200, pytest.param(4_000, marks=pytest.mark.slow)])
def test_broken_expressions_give_one_kind_of_error_and_no_value(count):
    rng = random.Random(1)
    messages, accepted = [], 0
    for _ in range(count):
        text = mutated(rng, rng.choice(BROKEN))
        try:
            run = compile_expression(text, TABLE.schema)
        except PlanError as error:
            messages.append(str(error))
            continue
        accepted += 1
        assert len(run(TABLE)) == len(TABLE)
    assert accepted
    assert messages
    assert not any(SECRET in message for message in messages)


@pytest.mark.parametrize("text", ["big", "(big)", "`big`", "BIG"])
@pytest.mark.parametrize("compiled", [compile_key, compile_unit, compile_value])
def test_a_column_alone_keeps_numbers_that_sql_has_not(compiled, text):
    chunks = pa.concat_tables([TABLE, TABLE.slice(3)])
    for table in (TABLE, chunks, TABLE.slice(5)):
        assert compiled(text, table.schema)(table).to_pylist() == table["big"].to_pylist()
    assert compiled("big + 0", TABLE.schema)(TABLE).to_pylist() == [1, None, 3, 4, 5]


def test_decimals_are_read_as_the_nearest_numbers():
    texts = ["-3.30", "1.10", "0.07", "123456789012.345", None]
    table = pa.table({"x": pa.array([t and Decimal(t) for t in texts], pa.decimal128(15, 3))})
    assert evaluate("x", table).to_pylist() == [t and float(t) for t in texts]
    assert evaluate("x = -3.3", table).to_pylist()[0]


def day(text):
    return None if text is None else datetime.fromisoformat(text).date()


PARTS = pa.table({
    "s": ["a/b/c", "x", "", None, "é/ü"], "x": [5, 10, 25, None, -3],
    "y": [2024, 2026, 0, None, 2026], "m": [2, 2, 1, 1, 13], "d": [29, 29, 1, 1, 1],
    "day": pa.array([0, 31, 20_000, None, 20_454], pa.int32()).cast(pa.date32()),
    "ts": pa.array([0, 10**15, None, 1, 1_767_222_000_000_000], pa.timestamp("us", "UTC")),
    "t": ["2026-02-28", "2026-02-31", "2026-2-3", "2026-02-28 x", None],
})  # fmt: skip


ODD = pa.table({  # what GoogleSQL says of values that other engines write, or compare, otherwise
    "x": [2.0, 1e-7, 0.1 + 0.2, -0.0, float("nan"), None],
    "n": [2**53 + 1, 2**53, -3, 0, 1, None],
    "s": ["DON'T stop", "3rd place", "x_y-z", "é à", "", None],
    "ts": pa.array([0, 120_000, 1, 86_400_000_000, -1, None], pa.timestamp("us", "UTC")),
})  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), [
    ("CAST(x AS STRING)", ["2", "1e-07", "0.30000000000000004", "0", "nan", None]),
    ("FORMAT('%t', x)", ["2.0", "1e-07", "0.30000000000000004", "0.0", "nan", "NULL"]),
    ("CAST(ts AS STRING)", ["1970-01-01 00:00:00+00", "1970-01-01 00:00:00.120+00",
                            "1970-01-01 00:00:00.000001+00", "1970-01-02 00:00:00+00",
                            "1969-12-31 23:59:59.999999+00", None]),
    ("RANGE_BUCKET(x, [0, 0.25])", [2, 1, 2, 1, None, None]),
    (f"RANGE_BUCKET(n, [0, {2**53 + 1}])", [2, 1, 0, 1, 1, None]),
    ("x IS DISTINCT FROM x", [False] * 6), ("x IS NOT DISTINCT FROM x + 0", [True] * 6),
    ("x IS DISTINCT FROM NULL", [True, True, True, True, True, False]),
    ("x IS DISTINCT FROM 2", [False, True, True, True, True, True]),
    ("INITCAP(s)", ["Don't Stop", "3rd Place", "X_Y-Z", "É À", "", None]),
    ("CONTAINS_SUBSTR(s || 'ΟΔΟΣ İ', 'ΔΟΣ İ')", [True] * 5 + [None]),
    ("REGEXP_EXTRACT(s, '(?P<one>[a-z])[^a-z]')", [None, "d", "x", None, None, None]),
    ("REGEXP_EXTRACT(s, '[](]|([a-z])_')", [None, None, "x", None, None, None]),
    ("IFNULL(LOG(100, n), -1) < 0", [False, False, True, True, True, True]),
])  # fmt: skip
def test_values_are_those_of_googlesql(text, expected):
    assert evaluate(text, ODD).to_pylist() == expected


@pytest.mark.parametrize(("text", "expected"), [
    ("SPLIT(s, '/')[OFFSET(1)]", ["b", None, None, None, "ü"]),
    ("SPLIT(s, '/')[SAFE_ORDINAL(1)]", ["a", "x", "", None, "é"]),
    ("SPLIT(s)[SAFE_OFFSET(0)]", ["a/b/c", "x", "", None, "é/ü"]),
    ("SPLIT_PART(s, '/', 3)", ["c", None, None, None, None]),
    ("RANGE_BUCKET(x, [5, 10, 20.5])", [1, 2, 3, None, 0]),
    ("EXTRACT(DATE FROM ts)", map(day, ["1970-01-01", "2001-09-09", None, "1970-01-01",
                                        "2025-12-31"])),
    ("EXTRACT(DATE FROM ts AT TIME ZONE 'Europe/Berlin')",
     map(day, ["1970-01-01", "2001-09-09", None, "1970-01-01", "2026-01-01"])),
    ("EXTRACT(WEEK FROM day)", [0, 5, 39, None, 0]),
    ("DATE(y, m, d)", map(day, ["2024-02-29", None, None, None, None])),
    ("LAST_DAY(day)", map(day, ["1970-01-31", "1970-02-28", "2024-10-31", None, "2026-01-31"])),
    ("LAST_DAY(day, WEEK)", map(day, ["1970-01-03", "1970-02-07", "2024-10-05", None,
                                      "2026-01-03"])),
    ("PARSE_DATE('%F', t)", map(day, ["2026-02-28", None, "2026-02-03", None, None])),
    ("DATE(PARSE_TIMESTAMP('%Y-%m-%d', t))", map(day, ["2026-02-28", None, "2026-02-03", None,
                                                       None])),
    ("LPAD(s, 3, '0')", ["a/b", "00x", "000", None, "é/ü"]),
    ("RPAD(s, 2)", ["a/", "x ", "  ", None, "é/"]),
    ("INITCAP(s)", ["A/B/C", "X", "", None, "É/Ü"]),
    ("REGEXP_INSTR(s, '[bü]')", [3, 0, 0, None, 3]), ("REGEXP_INSTR(s, '^')", [1, 1, 1, None, 1]),
    ("STRPOS(s, '/')", [2, 0, 0, None, 2]), ("INSTR(s, 'ü')", [0, 0, 0, None, 3]),
    (r"STRPOS(s, '\\E')", [0, 0, 0, None, 0]), ("BYTE_LENGTH(s)", [5, 1, 0, None, 5]),
    ("FORMAT('%03d|%-4s|%%', x, s)", ["005|a/b/c|%", "010|x   |%", "025|    |%", None,
                                      "-03|é/ü |%"]),
    ("FORMAT('%t: %.2f', day, x)", ["1970-01-01: 5.00", "1970-02-01: 10.00", "2024-10-04: 25.00",
                                    None, "2026-01-01: -3.00"]),
    ("FORMAT('%t', x)", ["5", "10", "25", "NULL", "-3"]),
    ("EXTRACT(WEEK(MONDAY) FROM day)", [0, 4, 40, None, 0]),
    ("EXTRACT(WEEK(THURSDAY) FROM day)", [1, 5, 40, None, 1]),
    ("DATE_DIFF(day, DATE '2026-01-01', WEEK(THURSDAY))", [-2922, -2918, -65, None, 0]),
    ("DATE_DIFF(day, DATE '2026-01-01', ISOYEAR)", [-56, -56, -2, None, 0]),
    ("DATE_TRUNC(day, ISOYEAR)", map(day, ["1969-12-29", "1969-12-29", "2024-01-01", None,
                                           "2025-12-29"])),
    ("LAST_DAY(day, WEEK(MONDAY))", map(day, ["1970-01-04", "1970-02-01", "2024-10-06", None,
                                              "2026-01-04"])),
    ("day + x", map(day, ["1970-01-06", "1970-02-11", "2024-10-29", None, "2025-12-29"])),
    ("day - 1", map(day, ["1969-12-31", "1970-01-31", "2024-10-03", None, "2025-12-31"])),
    ("DATE_FROM_UNIX_DATE(x)", map(day, ["1970-01-06", "1970-01-11", "1970-01-26", None,
                                         "1969-12-29"])),
    ("DATE(DATETIME(ts, 'Europe/Berlin')) = EXTRACT(DATE FROM ts AT TIME ZONE 'Europe/Berlin')",
     [True, True, None, True, True]),
    ("EXTRACT(DATETIME FROM ts AT TIME ZONE 'Asia/Tokyo') = DATETIME_ADD(ts, INTERVAL 9 HOUR)",
     [True, True, None, True, True]),
    ("FORMAT_DATETIME('%d.%m. %H', DATETIME_TRUNC(ts, HOUR))", ["01.01. 00", "09.09. 01", None,
                                                               "01.01. 00", "31.12. 23"]),
    ("DATETIME_DIFF(ts, DATETIME(2001, 9, 9, 2, 0, 0), HOUR)", [-277_778, -1, None, -277_778,
                                                               213_117]),
    ("DATETIME_DIFF(ts, DATETIME '2001-09-08 23:59:59', DAY)", [-11_573, 1, None, -11_573, 8_880]),
    ("DATETIME(y, m, d, 23, 59, 59) = PARSE_DATETIME('%Y-%m-%d %H:%M:%S', '2024-02-29 23:59:59')",
     [True, None, None, None, None]),
    ("DATETIME(y, m, d, 24, 0, 0) IS NULL", [True] * 5),
    ("SAFE_ADD(x, 9223372036854775803)", [None, None, None, None, 2**63 - 8]),
    ("SAFE.SUBSTR(SAFE.LOWER(s), 1, 1)", ["a", "x", "", None, "é"]),
    ("SAFE_NEGATE(SAFE_MULTIPLY(x, SAFE_SUBTRACT(y, 2020)))", [-20, -60, 50_500, None, 18]),
])  # fmt: skip
def test_parts_of_texts_and_calendars_are_of_each_row_alone(text, expected):
    run = compile_expression(text, PARTS.schema)
    whole = run(PARTS).to_pylist()
    assert whole == list(expected)
    assert [run(PARTS.slice(i, 1)).to_pylist()[0] for i in range(5)] == whole
    assert compile_expression(run.text, PARTS.schema)(PARTS).to_pylist() == whole


@pytest.mark.parametrize(("text", "words"), [
    ("CURRENT_DATE()", "another value in every run"), ("RAND() < 0.5", "another value"),
    ("RANGE_BUCKET(x, [3, 1])", "in order"), ("RANGE_BUCKET(x, [x])", "written in the query"),
    ("SPLIT(s, '/')[x]", "not part of"), ("SPLIT_PART(s, '/', 0)", "from 1"),
    ("PARSE_DATE('%Q', t)", "'%Q' is not available"), ("LPAD(s, 9999)", "0 to 1,000"),
    ("LAST_DAY(day, HOUR)", "WEEK, ISOWEEK, MONTH, QUARTER or YEAR"),
    ("EXTRACT(TIME FROM ts)", r"FORMAT_TIMESTAMP\('%H:%M', t\)"), ("TIME(ts)", "EXTRACT.HOUR"),
    ("EXTRACT(WEEK(DAY) FROM ts)", "unknown part"), ("REGEXP_INSTR(s, '(a)')", "write them as"),
    ("REGEXP_INSTR(s, '[')", "regular expression"), ("FORMAT('%q', x)", "'%q' is not available"),
    ("FORMAT('%2000d', x)", "not available"), ("FORMAT('%d', s)", "must be int"),
    ("FORMAT('%d %d', x)", r"writes 2 value\(s\), and 1 follow"), ("FORMAT('x')", "2 or more"),
])  # fmt: skip
def test_parts_that_are_not_there_say_why(text, words):
    with pytest.raises(PlanError, match=words):
        compile_expression(text, PARTS.schema)


# -- texts that grow ------------------------------------------------------------------------------

GROWN = ["a" * 900, "ab", "b", None, "\u00e9a"]


@pytest.mark.parametrize(("text", "expected"), [
    ("REPLACE(x, 'a', 'cd')", [None, "cdb", "b", None, "\u00e9cd"]),
    ("REPLACE(x, 'a', '')", ["", "b", "b", None, "\u00e9"]),
    ("REGEXP_REPLACE(x, '(a)', '[\\\\1]')", [None, "[a]b", "b", None, "\u00e9[a]"]),
])  # fmt: skip
def test_a_text_that_grows_too_long_is_null_and_touches_no_other(text, expected, monkeypatch):
    monkeypatch.setattr(text_functions, "MOST_MADE", 1_000)
    table = pa.table({"x": GROWN})
    assert compile_expression(text, table.schema)(table).to_pylist() == expected


@pytest.mark.parametrize("text", ["REPLACE(x, 'a', 'bb')", "REGEXP_REPLACE(x, 'a', 'bb')"])
def test_longer_texts_are_written_with_offsets_that_hold_them(text, monkeypatch):
    """Arrow does not look whether 32 bits are enough: it wrote over the texts of other rows."""
    kinds = []
    for name in ("replace_substring", "replace_substring_regex"):
        honest = getattr(pc, name)
        monkeypatch.setattr(text_functions.pc, name, lambda column, honest=honest, **more: (
            kinds.append(column.type), honest(column, **more))[1])  # fmt: skip
    table = pa.table({"x": ["a"]})
    assert compile_expression(text, table.schema)(table).to_pylist() == ["bb"]
    assert set(kinds) == {pa.large_string()}


def test_many_rows_that_are_padded_fit_where_arrow_fears_that_they_do_not():
    table = pa.table({"x": pa.array(["q"] * 600_000)})
    found = compile_expression("LENGTH(LPAD(x, 1000))", table.schema)(table)
    assert found.unique().to_pylist() == [1000]


def test_days_in_milliseconds_are_no_privacy_unit():
    """Nothing says that they are whole days: read as days, several units were one."""
    table = pa.table({"d": pa.array([1, 2, 86_400_000], pa.int64()).cast(pa.date64(), safe=False)})
    assert compile_key("d", table.schema)(table).to_pylist()[0] == day("1970-01-01")
    with pytest.raises(PlanError, match="several units would count as one"):
        compile_unit("d", table.schema)


def test_a_fault_of_the_query_is_told_and_not_taken_for_a_rows():
    """Rows on which a kernel fails are null; a query that is no query is refused on any rows."""

    def refused(_):
        raise PlanError("an interval is not a value of a row")

    for table in (TABLE, TABLE.schema.empty_table()):
        with pytest.raises(PlanError, match="interval"):
            null_where_it_fails(refused, table, pa.int64())


@pytest.mark.parametrize("name", ["TUMBLE", "hop", "TUMBLE_START"])
def test_windows_in_group_by_are_told_where_they_belong(name):
    with pytest.raises(PlanError, match="windows are made in FROM"):
        compile_key(f"{name}(ts, INTERVAL 1 DAY)", TABLE.schema)


@pytest.mark.parametrize("name", nodes.ELSEWHERE)
def test_what_is_written_instead_of_another_dialects_function_runs(name):
    """Each refusal names a rewriting, which is one, and reads what the refused function would."""
    table = pa.table({"t": TABLE["ts"], "later": TABLE["ts"], "earlier": TABLE["ts"],
                      "s": ["2024-01-31", "7", "x", None, ""], "x": TABLE["a"]})  # fmt: skip
    with pytest.raises(PlanError, match=f"{name} is not GoogleSQL"):
        compile_key(f"{name}(s)", table.schema)
    for text in nodes.ELSEWHERE[name].split("; of 6 hours "):
        for written in text.split(", or "):
            found = compile_key(written, table.schema)(table)
            assert len(found) == table.num_rows > found.null_count


def test_an_address_has_a_rewriting():
    table = pa.table({"url": ["https://example.org/a"]})
    with pytest.raises(PlanError, match="REGEXP_EXTRACT"):
        compile_key("NET.HOST(url)", table.schema)
    text = "REGEXP_EXTRACT(url, r'://([^/:?#]+)')"
    assert compile_key(text, table.schema)(table).to_pylist() == ["example.org"]


def test_a_field_with_a_dot_says_how_json_text_is_read():
    rows = pa.table({"u": [1], "event": ['{"page": "a"}']})
    with pytest.raises(PlanError, match=r"to fix .* JSON_VALUE\(event, '\$\.page'\)"):
        sql(
            "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, delta = 1e-6,"
            " privacy_unit_column = u) event.page, COUNT(*) AS n FROM t GROUP BY event.page",
            {"t": rows},
        ).explain()


def test_fields_of_json_text_are_what_duckdb_reads():
    """Scalars alone: of an object or a list DuckDB gives the text, and here it is null."""
    leaves = st.one_of(
        st.booleans(), st.none(), st.integers(-(10**18), 10**18), st.text(max_size=4),
        st.sampled_from([0.5, 1024.125, -2.25]),
    )  # fmt: skip
    fields = st.sampled_from(["a", "b", "a b", "c.d"])
    values = st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3), st.dictionaries(fields, inner, max_size=3)
        ),
        max_leaves=8,
    )

    @settings(max_examples=60, deadline=None)
    @given(rows=st.lists(values, min_size=1, max_size=5))
    def compared(rows):
        told = pa.table({"s": [json.dumps(row) for row in rows]})
        for path in ("$", "$.a", '$."a b"', '$."c.d"', "$[0]", "$.a[1].b", "$[0][0]"):
            ours = evaluate(f"JSON_VALUE(s, '{path}')", told).to_pylist()
            theirs = duckdb.execute(
                "SELECT CASE WHEN json_type(s, $1) IN ('OBJECT', 'ARRAY') THEN NULL"
                " ELSE json_extract_string(s, $1) END FROM told",
                {"1": path},
            )
            assert ours == [row[0] for row in theirs.fetchall()], path

    compared()
