"""Changing tables in SQL and Python: what can be said, what is refused, and one plan for both."""

import numpy as np
import pyarrow as pa
import pytest

import streamveil as sv
from streamveil.compiler.group_by import compile_plan
from streamveil.compiler.tables import Design
from streamveil.errors import PlanError
from streamveil.linear import Marginals, Sums
from streamveil.plan import TableSource
from streamveil.plan.options import MECHANISMS
from streamveil.release_metadata import NOTE
from streamveil.sql.sql import parse_script
from streamveil.sql.table import domain_table, points_where

ROWS = pa.table({
    "op": ["+", "-"], "id": [1, 1], "city": ["Oslo", None], "age": pa.array([3, None], pa.int64()),
    "ts": pa.array([0, 1], pa.timestamp("us", "UTC")),
})  # fmt: skip
COLUMNS = "city CHECK (city IN ('Oslo', 'Rome')), age CHECK (age BETWEEN 0 AND 9)"
WITH = "source = rows, changelog = 'insert-delete', operation = op, id = id"
OPTIONS = "epsilon = 1, delta = 1e-6, steps = 50, expected_size = 5000"
SELECT = "city, age, COUNT(*) AS n FROM people GROUP BY city, age"


def script(select=SELECT, options=OPTIONS, with_=WITH, columns=COLUMNS, emit="EVERY 10 ROWS"):
    return (
        f"CREATE TABLE people ({columns}) WITH ({with_});"
        f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ({options}) {select} EMIT {emit};"
    )


def plan_of(*args, **named):
    return sv.sql(script(*args, **named), {"rows": ROWS}).plan


def refused(*args, **named):
    with pytest.raises(PlanError) as caught:
        plan_of(*args, **named)
    return str(caught.value)


@pytest.mark.parametrize(
    ("by", "sets"),
    [
        ("", ((),)),
        ("GROUP BY age", (("age",),)),
        ("GROUP BY age, CITY", (("city", "age"),)),
        ("GROUP BY CUBE(city, age)", (("city", "age"), ("city",), ("age",), ())),
        ("GROUP BY ROLLUP (age, city)", (("city", "age"), ("age",), ())),
        ("GROUP BY city, CUBE(age)", (("city", "age"), ("city",))),
        ("GROUP BY GROUPING SETS ((), (age), (city, age), age)", ((), ("age",), ("city", "age"))),
        ("GROUP BY GROUPING SETS (ROLLUP(city), age)", (("city",), (), ("age",))),
        ("p GROUP BY p.city", (("city",),)),
    ],
)
def test_grouping_sets_are_those_of_sql(by, sets):
    assert plan_of(f"COUNT(*) AS n FROM people {by}").sets == sets


def test_python_says_the_same():
    people = sv.table(
        sv.memory(ROWS, name="rows"), id="id", operation="op", name="people",
        domains={"city": ["Oslo", "Rome"], "age": range(10)},
    )  # fmt: skip
    built = (
        people.where("age < 8 AND op IS NOT NULL").marginals((), ["age"], ways=2)
        .agg(n=sv.count(), old=sv.count_if("age > 5"))
        .release(every=sv.rows(10), steps=50, expected_size=5000, ask_share=0.25,
                 budget=sv.Budget(epsilon=1, delta=1e-6))
    )  # fmt: skip
    said = plan_of(
        "COUNT(*) AS n, COUNTIF(age > 5) AS old FROM people WHERE age < 8 AND op IS NOT NULL "
        "GROUP BY GROUPING SETS ((), (age), (city, age))",
        OPTIONS + ", ask_share = 0.25",
    )
    assert built.plan.fingerprint == said.fingerprint
    assert isinstance(built.plan.source, TableSource)
    assert built.plan.fingerprint != people.agg(n=sv.count()).release(
        every=sv.rows(10), steps=50, expected_size=5000, budget=sv.Budget(epsilon=1, delta=1e-6)
    ).plan.fingerprint  # fmt: skip


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"select": "city, COUNT(*) AS n FROM people GROUP BY city, id"}, "no public values"),
        ({"select": "age, COUNT(*) AS n FROM people GROUP BY city"}, "neither in GROUP BY"),
        ({"select": "SUM(age, contribution_bounds_per_row => (0, 9)) AS s FROM people"},
         "COUNTIF(condition)"),
        ({"select": "COUNT(DISTINCT city) AS n FROM people"}, "GROUP BY city) WHERE n > 20"),
        ({"select": "COUNT(DISTINCT city) AS n FROM people"}, "max_changes = 4"),
        ({"options": OPTIONS + ", max_changes = 0",
          "select": "COUNT(DISTINCT city) AS n FROM people"}, "max_changes"),
        ({"options": OPTIONS + ", max_changes = 2"}, "leave it out"),
        ({"options": OPTIONS + ", max_changes = 2", "with_": "source = rows, changelog = 'insert',"
          " id = id", "select": "COUNT(DISTINCT city) AS n FROM people"}, "leave it out"),
        ({"with_": "source = rows, changelog = 'insert'",
          "select": "COUNT(DISTINCT city) AS n FROM people"}, "id = column"),
        ({"options": OPTIONS + ", max_changes = 2",
          "select": "COUNT(DISTINCT city) AS n, COUNT(*) AS m FROM people"},
         "statement of their own"),
        ({"options": OPTIONS + ", max_changes = 2, ask_share = 0.2",
          "select": "COUNT(DISTINCT city) AS n FROM people"}, "questions are about records"),
        ({"select": "COUNTIF(agge = 1) AS n FROM people"}, "did you mean 'age'?"),
        ({"select": "COUNT(*) AS trigger FROM people"}, "column of every release"),
        ({"select": "COUNT(*) AS n FROM TUMBLE(TABLE people, DESCRIPTOR(ts), "
                    "size => INTERVAL 1 DAY)"}, "no windows"),
        ({"options": OPTIONS.replace(", expected_size = 5000", "")}, "no default"),
        ({"options": OPTIONS + ", privacy_unit_column = city"}, "protects one record"),
        ({"options": OPTIONS + ", max_rows_contributed = 3"}, "belong to streams of events"),
        ({"options": OPTIONS + ", ask_share = 1"}, "below 1"),
        ({"options": OPTIONS + ", monotone = TRUE"}, "does not apply"),
        ({"options": OPTIONS + ", mechanism = 'count'"}, "must be 'auto', 'counter', "),
        ({"options": OPTIONS + ", preset = 'dp-sqlp'"}, "unknown preset"),
        ({"options": "mu = 0.1, steps = 5, expected_size = 9, ask_share = 0.5"}, "not Gaussian"),
        ({"options": OPTIONS + ", ask_share = 0.5",
          "select": "COUNTIF(age > 3) AS old FROM people"}, "add COUNT(*)"),
        ({"options": OPTIONS.replace("steps = 50, ", "")}, "There is no default"),
        ({"with_": WITH.replace("operation = op, ", "")}, "must say so"),
        ({"with_": WITH.replace(", id = id", "")}, "which record they mean"),
        ({"with_": WITH.replace("insert-delete", "insert")}, "no operation column"),
        ({"with_": WITH.replace("'insert-delete'", "upsert")}, "unknown changelog 'upsert'"),
        ({"with_": WITH + ", lives = 0"}, "lives must be between 1 and 1,000,000, not 0"),
        ({"with_": WITH.replace("changelog = 'insert-delete', ", "")}, "give changelog"),
        ({"with_": "source = rows, changelog = 'insert', lives = 2"}, "records with an id"),
        ({"columns": "id INT64", "with_": WITH.replace("= rows", "= 'files', path = 'x.csv'"),
          "select": "COUNT(*) AS n FROM people"}, "columns with public values"),
        ({"columns": "city STRING, " + COLUMNS}, "belong where it is declared"),
        ({"columns": COLUMNS.replace("'Rome'", "'Oslo'")}, "different values"),
        ({"columns": COLUMNS.replace("'Rome'", "3")}, "one type"),
        ({"columns": COLUMNS.replace("0 AND 9", "9 AND 0")}, "the lower one first"),
        ({"columns": COLUMNS.replace("0 AND 9", "0 AND 99999999")}, "coarser"),
        ({"columns": COLUMNS.replace("0 AND 9", "0 AND 999999")}, "points together"),
        ({"columns": COLUMNS.replace("CHECK (age", "CHECK (city")}, "says nothing"),
        ({"columns": COLUMNS.replace("(age", "(person.age")}, "says nothing"),
        ({"columns": COLUMNS + ", x"}, "a name and a type"),
        ({"emit": "CHANGES"}, "refused"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused(change, message):
    with pytest.raises(PlanError) as caught:
        Design(plan_of(**change)).queries  # noqa: B018  # COUNTIF is compiled here
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("CREATE STREAM s (city STRING CHECK (city IN ('a'))) WITH (source = 'files', path = 'x')",
         "belongs to a changing table"),
        (script() + "ASK people COUNT(*) WHERE name = 'x'", "unknown column"),
        (script() + "ASK people COUNT(age)", "COUNT(*) WHERE"),
        (script() + "ASK people COUNT(*) WHERE", "a question is COUNT(*) WHERE condition"),
        (script() + "ASK peple COUNT(*)", "no changing table"),
        (script() + script().split(";")[1] + "; ASK people COUNT(*)", "exactly one SELECT"),
    ],
)  # fmt: skip
def test_scripts_that_are_refused(text, message):
    with pytest.raises(PlanError) as caught:
        sv.sql(text, {"rows": ROWS})
    assert message in str(caught.value)


def test_table_options_are_refused_for_streams():
    with pytest.raises(PlanError, match="changing table"):
        sv.sql(
            "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, delta = 1e-6, "
            "privacy_unit_column = id, ask_share = 0.5) COUNT(*) FROM rows",
            {"rows": ROWS},
        )


def test_questions_come_with_their_query():
    text = script() + "ASK people COUNT(*) WHERE age<3 and city='Oslo'; ASK people SELECT COUNT(*);"
    known = {"rows": sv.memory(ROWS).source}
    asks = parse_script(text, known).query.asks
    assert asks == ("COUNT(*) WHERE age < 3 AND city = 'Oslo'", "COUNT(*)")


def test_conditions_choose_points():
    source = plan_of().source
    points = domain_table(source)
    assert points.num_rows == 20
    assert points["city"].to_pylist()[:11] == ["Oslo"] * 10 + ["Rome"]
    where = points_where(source, "city = 'Rome' AND age BETWEEN 3 AND 4")
    assert np.flatnonzero(where).tolist() == [13, 14]
    assert points_where(source, None).all()


def test_counts_alone_are_marginals_and_conditions_are_sums():
    assert isinstance(Design(plan_of()).queries, Marginals)
    made = Design(
        plan_of("COUNT(*) AS n, COUNTIF(age < 5) AS young FROM people GROUP BY ROLLUP (city)")
    )
    assert isinstance(made.queries, Sums)
    histogram = np.arange(20)
    expected = [45, 145, 190, 10, 60, 70]
    assert made.queries.exact(histogram).tolist() == expected


# -- choosing, and saying so ----------------------------------------------------------------------


def test_explain_names_the_mechanism_before_anything_is_read():
    plan = plan_of(options=OPTIONS + ", ask_share = 0.5")
    text = str(sv.sql(script(options=OPTIONS + ", ask_share = 0.5"), {"rows": ROWS}).explain())
    for words in ("PROMISE", "one record with its insertion and deletion", "epsilon = 1",
                  "counter (runs)", "interval tree", "standard deviation at release", "50",
                  "corrections", "city: Oslo, Rome", "values outside the domains",
                  "expected_updates", "lives"):  # fmt: skip
        assert words in text
    assert Design(plan).operator.guarantee.loss.fits(plan.budget)


@pytest.mark.parametrize("options", [
    OPTIONS, OPTIONS + ", ask_share = 0.3", "epsilon = 2, steps = 50, expected_size = 5000",
    "epsilon = 2, steps = 5, expected_size = 5000, ask_share = 0.3",
    "rho = 0.1, steps = 50, expected_size = 5000, ask_share = 0.9, accept_error = TRUE",
    "mu = 0.5, steps = 50, expected_size = 5000",
    "epsilon = 1, delta = 1e-6, steps = unbounded, expected_size = 5000, ask_share = 0.5",
])  # fmt: skip
@pytest.mark.parametrize("lives", [1, 3])
def test_the_budget_is_met_and_nearly_used(options, lives):
    size = "expected_size = 5000000"
    plan = plan_of(options=options.replace("expected_size = 5000", size),
                   with_=WITH + f", lives = {lives}")  # fmt: skip
    operator = Design(plan).operator
    loss = operator.guarantee.loss
    assert loss.fits(plan.budget)
    assert not (loss + loss if loss.group_size == 1 else loss).fits(plan.budget)
    more = operator.mechanism.guarantee.loss
    whole = more + operator.adaptive.loss if operator.adaptive else more
    assert whole.group(lives) == loss
    if plan.budget.epsilon is not None:
        spent = loss.epsilon(plan.budget.delta or 0)
        assert 0.95 * float(plan.budget.epsilon) < spent <= float(plan.budget.epsilon)


@pytest.mark.parametrize("name", [name for name in MECHANISMS if name != "auto"])
def test_every_mechanism_can_be_asked_for_where_it_fits(name):
    grows = name == "tree_of_mwem"
    with_ = "source = rows, changelog = 'insert'" if grows else WITH
    options = OPTIONS + f", mechanism = '{name}', accept_error = TRUE"
    design = Design(plan_of(options=options, with_=with_))
    assert design.candidate.name.lower().replace(" ", "_").replace("+", "_") == name
    assert "(runs)" in str(sv.sql(script(options=options, with_=with_), {"rows": ROWS}).explain())


def test_a_mechanism_that_does_not_fit_is_refused():
    with pytest.raises(PlanError, match="candidates: counter"):
        Design(plan_of(options=OPTIONS + ", mechanism = 'tree_of_mwem'")).operator  # noqa: B018


def test_values_that_stand_out_are_counted_instead_of_distinct_ones(tmp_path):
    """What the refusal of COUNT(DISTINCT x) says to write: values that went are not counted."""
    ids = list(range(6_000))
    rows = pa.table({
        "op": ["insert"] * 6_000 + ["delete"] * 3_000,
        "id": ids + ids[1::2], "city": ["Lima", "Oslo"] * 3_000 + ["Oslo"] * 3_000,
    })  # fmt: skip
    query = sv.sql(
        "CREATE TABLE people (city CHECK (city IN ('Lima', 'Oslo', 'Rome'))) WITH (source = 'rows',"
        " changelog = 'insert-delete', operation = op, id = id);\n"
        "SELECT COUNT(*) AS cities FROM (SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 9,"
        " delta = 1e-6, expected_size = 6000, steps = 2) city, COUNT(*) AS n FROM people"
        " GROUP BY city EMIT EVERY 6000 ROWS) WHERE n > 500",
        {"rows": rows},
    )
    found = [release.table["cities"].to_pylist() for release in query.run(tmp_path / "job")]
    assert found[0] == [2]
    assert [one for one in found if one] == found


def values(rows, options="", select="COUNT(DISTINCT shop) AS n FROM people GROUP BY ROLLUP(city)"):
    return sv.sql(
        "CREATE TABLE people (city CHECK (city IN ('Lima', 'Oslo'))) WITH (source = 'rows',"
        " changelog = 'insert-delete', operation = op, id = id);\n"
        "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 5000, delta = 1e-6, steps = 3,"
        f" expected_size = 4000 {options}) {select} EMIT EVERY 4000 ROWS",
        {"rows": rows},
    )


SHOPS = pa.table({  # 100 shops in each city, of 10 records each; all records go, half come back
    "op": ["+"] * 4000 + ["-"] * 4000 + ["+"] * 4000,
    "id": [*range(4000), *range(4000), *range(4000, 8000)],
    "city": ["Lima", "Oslo"] * 2000 + [None] * 4000 + ["Lima"] * 4000,
    "shop": [f"s{n // 2 % 100}" for n in range(4000)] + [None] * 4000
    + [f"s{n % 50}" if n % 80 else None for n in range(4000)],
})  # fmt: skip


@pytest.mark.parametrize(("changes", "truth"), [(1, (100, 100, 100)), (2, (100, 0, 0)),
                                                (3, (100, 0, 50))])  # fmt: skip
def test_different_values_are_counted_up_to_their_changes_and_the_release_says_so(
    changes, truth, tmp_path
):
    query = values(SHOPS, f", max_changes = {changes}")
    found = [one.to_arrow() for one in query.run(tmp_path / "job")]
    rows = [{row["city"]: row for row in table.to_pylist()} for table in found]
    assert [row["Lima"]["n"] for row in rows] == pytest.approx(truth, abs=8)
    assert [row[None]["n"] for row in rows] == pytest.approx(truth, abs=8)
    assert all(
        row["Lima"]["n_low"] <= n <= row["Lima"]["n_high"]
        for row, n in zip(rows, truth, strict=True)
    )
    note = found[-1].schema.metadata[NOTE].decode()
    assert "an id counts for its first 1 insertion(s)" in note  # an update only deleted, unsaid
    if changes == 3:  # as many as steps
        assert "change(s)" not in note
        return
    assert f"first {changes} change(s)" in note
    said = str(query.explain())
    for words in ("n = count(distinct shop)", f"more than {changes} time(s)", "in values"):
        assert words in said


def test_different_values_of_a_table_that_grows_need_no_bound(tmp_path):
    rows = SHOPS.slice(0, 4000).drop_columns(["op"])
    people = sv.table(sv.memory(rows, name="rows"), id="id", domains={"city": ["Lima", "Oslo"]})
    query = people.group_by("city").agg(n=sv.count_distinct("shop")).release(
        every=sv.rows(1000), steps=4, expected_size=100, budget=sv.Budget(epsilon=900, delta=1e-6),
    )  # fmt: skip
    last = list(query.run(state=tmp_path / "job"))[-1].to_arrow()
    assert last["n"].to_pylist() == pytest.approx([100, 100], abs=8)
    assert not last.schema.metadata
    assert query.plan.options == {"expected_size": 100}


def test_one_answer_about_different_values_needs_no_bound_either(tmp_path):
    people = sv.table(
        sv.memory(SHOPS.slice(0, 6000), name="rows"), id="id", operation="op",
        domains={"city": ["Lima", "Oslo"]},
    )  # fmt: skip
    query = people.agg(n=sv.count_distinct("shop")).release(
        expected_size=100, budget=sv.Budget(epsilon=20, delta=1e-6)
    )
    assert Design(query.plan).operator.mechanism.moves == 1
    (found,) = query.run(state=tmp_path / "job")
    assert found.to_arrow()["n"].to_pylist() == pytest.approx([100], abs=5)


def test_different_values_in_python_are_the_same_plan():
    people = sv.table(
        sv.memory(SHOPS, name="rows"), id="id", operation="op", name="people",
        domains={"city": ["Lima", "Oslo"]},
    )  # fmt: skip
    built = people.marginals(["city"], ()).agg(n=sv.count_distinct("shop")).release(
        every=sv.rows(4000), steps=3, expected_size=4000, max_changes=2,
        budget=sv.Budget(epsilon=5000, delta=1e-6),
    )  # fmt: skip
    assert built.plan.fingerprint == values(SHOPS, ", max_changes = 2").plan.fingerprint


@pytest.mark.parametrize("options", ["epsilon = 1", "epsilon = 1, delta = 1e-6", "mu = 0.4"])
@pytest.mark.parametrize("lives", [1, 3])
@pytest.mark.parametrize("changes", [1, 5])
def test_different_values_spend_the_budget_and_no_more(options, lives, changes):
    more = f"{options}, steps = 20, expected_size = 50000, max_changes = {changes}"
    plan = plan_of(
        "city, COUNT(DISTINCT age) AS n FROM people GROUP BY ROLLUP (city)", more,
        WITH + f", lives = {lives}",
    )  # fmt: skip
    loss = Design(plan).operator.guarantee.loss
    assert loss.fits(plan.budget)
    if plan.budget.epsilon is not None:
        assert 0.95 < loss.epsilon(plan.budget.delta or 0) <= 1


def test_an_unknown_column_of_different_values_is_found_before_a_row_is_read(tmp_path):
    with pytest.raises(PlanError, match="did you mean 'shop'"):
        values(SHOPS, ", max_changes = 2", "COUNT(DISTINCT shopp) AS n FROM people").run(
            tmp_path / "job"
        )


def test_conditions_that_no_declared_value_meets_are_refused_in_words():
    alone = plan_of("COUNTIF(age > 99) AS n FROM people")
    with pytest.raises(PlanError, match="none of the declared values"):
        _ = Design(alone).operator
    assert Design(plan_of("COUNT(*) AS n, COUNTIF(age > 99) AS old FROM people")).operator


def test_a_useless_table_is_refused_before_anything_is_spent(tmp_path):
    options = "epsilon = 0.1, delta = 1e-6, steps = 10000, expected_size = 100"
    query = sv.sql(script(options=options), {"rows": ROWS})
    assert "WARNING" in str(query.explain())
    with pytest.raises(PlanError, match="no mechanism is useful"):
        query.run(state=tmp_path / "job")
    assert not (tmp_path / "job").exists()
    accepted = sv.sql(script(options=options + ", accept_error = TRUE"), {"rows": ROWS})
    next(accepted.run(state=tmp_path / "job"), None)


def test_theorem_ranks_by_what_is_proved():
    plan = plan_of(options=OPTIONS + ", preset = 'theorem'")
    assert Design(plan).choice.preset == "theorem"


def test_other_engines_refuse_tables():
    with pytest.raises(PlanError, match="embedded engine"):
        compile_plan(plan_of())


def test_wrong_types_of_a_source_are_found_before_a_row_is_read(tmp_path):
    columns = COLUMNS.replace("'Oslo', 'Rome'", "1, 2").replace("0 AND 9", "10 AND 12")
    with pytest.raises(PlanError, match="unknown column 'opp'"):
        sv.sql(script(with_=WITH.replace("= op", "= opp")), {"rows": ROWS}).run(tmp_path / "a")
    texts = ROWS.set_column(3, "age", pa.array(["x", "y"]))
    ages = "age CHECK (age IN ('a', 'b'))"
    with pytest.raises(PlanError, match="its public values are str"):
        sv.sql(script("COUNT(*) AS n FROM people", columns=ages), {"rows": ROWS}).run(
            tmp_path / "b"
        )
    next(sv.sql(script(columns=columns), {"rows": texts}).run(tmp_path / "c"), None)


def test_a_field_of_a_structure_has_public_values():
    columns = "`home.city` CHECK (home.city IN ('Oslo', 'Rome'))"
    plan = plan_of("home.city, COUNT(*) AS n FROM people GROUP BY home.city", columns=columns)
    assert plan.source.domains == (("home.city", ("Oslo", "Rome")),)


@pytest.mark.parametrize("column", ["n", "n_sd", "trigger"])
def test_a_grouped_column_named_like_one_of_the_release_is_refused(column):
    # its labels were overwritten by the counts
    columns = f"{column} CHECK ({column} IN ('Oslo', 'Rome'))"
    select = f"COUNT(*) AS n FROM people GROUP BY {column}"
    with pytest.raises(PlanError, match=f"'{column}'"):
        plan_of(select, columns=columns)
    plan_of("COUNT(*) AS n FROM people", columns=columns)
