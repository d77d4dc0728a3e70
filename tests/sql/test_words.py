"""Any word can be a name: every keyword of the tokenizer in every place where a name can stand."""

import re

import pyarrow as pa
import pytest
from sqlglot.dialects.bigquery import BigQuery

import streamveil as sv
from streamveil.errors import PlanError
from streamveil.expressions import columns_of, compile_expression, normalize_expression
from streamveil.expressions.dialect import KEYWORDS, VeilParser
from streamveil.sql.sql import parse_script

OURS = (
    "EMIT EVERY OPTIONS STREAM SINK ASK CHANGES DESCRIPTOR TUMBLE HOP CUMULATE COUNT SUM HOUR WEEK "
    "DAY CHECK PRIVACY DIFFERENTIAL_PRIVACY"
)
WORDS = sorted(
    {
        word.lower()
        for word in BigQuery.Tokenizer.KEYWORDS
        if re.fullmatch(r"[A-Z_][A-Z0-9_]*", word)
    }
    | set(map(str.lower, {*KEYWORDS, *VeilParser.FUNCTION_PARSERS, *OURS.split()}))
)
# GoogleSQL's reserved words, from its reference of the lexical structure: only these need quotes
_RESERVED = (
    "ALL AND ANY ARRAY AS ASC ASSERT_ROWS_MODIFIED AT BETWEEN BY CASE CAST COLLATE CONTAINS CREATE "
    "CROSS CUBE CURRENT DEFAULT DEFINE DESC DISTINCT ELSE END ENUM ESCAPE EXCEPT EXCLUDE EXISTS "
    "EXTRACT FALSE FETCH FOLLOWING FOR FROM FULL GROUP GROUPING GROUPS HASH HAVING IF IGNORE IN "
    "INNER INTERSECT INTERVAL INTO IS JOIN LATERAL LEFT LIKE LIMIT LOOKUP MERGE NATURAL NEW NO NOT "
    "NULL NULLS OF ON OR ORDER OUTER OVER PARTITION PRECEDING PROTO QUALIFY RANGE RECURSIVE "
    "RESPECT RIGHT ROLLUP ROWS SELECT SET SOME STRUCT TABLE TABLESAMPLE THEN TO TREAT TRUE UNION "
    "UNNEST UNBOUNDED USING WHEN WHERE WINDOW WITH WITHIN"
)
RESERVED = {*_RESERVED.split(), "INSERT", "OFFSET"}  # and two that only sqlglot reserves
NOT_RESERVED = [word for word in WORDS if word.upper() not in RESERVED]
VERBS = "commit comment copy load update delete use set end cache"
TAKEN = {"group": ("trigger",), "alias": ("trigger",), "column": ("trigger", "count")}
PLACES = {"stream": "clicks", "time": "ts", "sink": "pages", "unit": "user_id", "group": "url",
          "alias": "n", "value": "ms", "condition": "ok", "table": "t", "column": "c"}  # fmt: skip


def script(**names):
    said = {**PLACES, **names}
    return """
        CREATE STREAM {stream} (ms INT64) WITH (source = 'files', path = 'a.csv',
            event_time = {time});
        CREATE SINK {sink} WITH (sink = 'files', path = 'out');
        INSERT INTO {sink} SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, delta = 1e-9,
            privacy_unit_column = {unit}, max_rows_contributed = 2, start = '2026-01-01',
            end = '2026-01-02') window_start, {group}, COUNT(*) AS {alias},
            SUM({value}, contribution_bounds_per_row => (0, 1)) AS total
        FROM TUMBLE(TABLE {stream}, DESCRIPTOR({time}), size => INTERVAL 1 DAY)
        WHERE {condition} > 0 OR NOT {condition} IS NULL
        GROUP BY window_start, {group} EMIT EVERY INTERVAL 6 HOUR;
        CREATE TABLE {table} ({column} STRING CHECK ({column} IN ('a', 'b')))
            WITH (source = 'files', path = 'b.csv', changelog = 'insert', event_time = 'at');
        INSERT INTO {sink} SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (rho = 1, name = 'second',
            expected_size = 1000, steps = 2, accept_error = TRUE) {column}, COUNT(*) FROM {table}
        GROUP BY {column} EMIT EVERY 10 ROWS;
        ASK {table} COUNT(*) WHERE {column} = 'a'
    """.format(**said)


def names_of(plan):
    """The names of a script's first query, by place, and those of its table."""
    plan, table = (one.plan for one in plan.queries)
    read = {
        "stream": plan.source.name, "time": plan.source.event_time, "sink": plan.sinks[0].name,
        "unit": columns_of(plan.unit)[0], "group": plan.keys[0].name,
        "alias": plan.aggregates[0].name, "value": columns_of(plan.aggregates[1].expression)[0],
        "condition": columns_of(plan.where)[0], "table": table.source.name,
        "column": table.source.domains[0][0],
    }  # fmt: skip
    assert columns_of(plan.keys[0].expression) == (read["group"],)
    assert columns_of(plan.where) == (read["condition"],)
    return read


def said(words, number):
    """A word for each place; over all numbers, each is in every place."""
    step = len(words) // len(PLACES)
    chosen = {place: words[(number + i * step) % len(words)] for i, place in enumerate(PLACES)}
    return {place: word for place, word in chosen.items() if word not in TAKEN.get(place, ())}


@pytest.mark.parametrize(("quote", "words"), [("`{}`", WORDS), ("{}", NOT_RESERVED)])
def test_every_word_is_a_name_in_every_place(quote, words):
    """Quoted; and as it is, where GoogleSQL does not reserve it."""
    for number in range(len(words)):
        names = said(words, number)
        text = script(**{place: quote.format(word) for place, word in names.items()})
        assert names_of(parse_script(text)) == {**PLACES, **names}


FORMS = (
    "{0}", "-{0} + {0} - {0}",
    "NOT {0} = 1 AND {0} BETWEEN {0} AND {0} OR {0} IN (2) OR {0} IS NULL",
    "IF({0} > 0, CASE WHEN {0} > 1 THEN {0} ELSE {0} END, CASE {0} WHEN {0} THEN {0} END)",
    "COALESCE(CAST({0} AS STRING), LOWER(CAST(({0}) AS STRING)))",
)  # fmt: skip


def test_expressions_over_any_name_keep_their_meaning_when_they_are_stored_and_read_again():
    for word in WORDS:
        name, table = f"`{word}`", pa.table({word: [1, None, 3], "plain": [1, None, 3]})
        for form in FORMS:
            text = normalize_expression(form.format(name))
            assert normalize_expression(text) == text
            assert columns_of(text) == (word,)
            expected = compile_expression(form.format("plain"), table.schema)(table)
            assert compile_expression(text, table.schema)(table) == expected


def test_columns_named_by_verbs_answer_in_python_as_any_others(tmp_path):
    n, verbs = 400, VERBS.split()
    rows = pa.table({"user": range(n), **{word: [i % 4 for i in range(n)] for word in verbs}})
    query = (
        sv.memory(rows, name="load")
        .protect(unit="IF(`end` >= 0, user, -1)")
        .where("`set` < 3")
        .group_by("commit", keys=sv.public([0, 1, 2]))
        .agg(**{word: sv.sum(f"`{word}`", bounds=(0, 3)) for word in verbs if word != "commit"})
        .bound(max_rows=1)
        .release(budget=sv.Budget(epsilon=4_000, delta=1e-9))
    )
    (release,) = query.run(state=tmp_path / "use.veil")
    found = release.to_arrow().sort_by("commit")
    assert found["commit"].to_pylist() == [0, 1, 2]
    for word in verbs[1:]:
        assert found[word].to_numpy() == pytest.approx([0, 100, 200], abs=20)  # sd is below 0.1


@pytest.mark.parametrize(("text", "said"), [
    ("not sql", "no statement starts like this; known: ASK, CREATE, "),
    ("SELCT 1", "no statement starts like this; did you mean 'SELECT'? (line 1,"),
])  # fmt: skip
def test_what_begins_no_statement_is_told_once_what_does(text, said):
    with pytest.raises(PlanError) as caught:
        parse_script(text)
    assert str(caught.value).startswith(said)
    assert str(caught.value).count("CREATE") <= 1
