"""Joins by the privacy unit: DuckDB gives the same, and no rows of two people meet."""

from contextlib import nullcontext
from dataclasses import replace
from itertools import islice
from math import inf

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import streamveil as sv
from streamveil.api import Query
from streamveil.audit.worst import search
from streamveil.compiler.group_by import compile_plan
from streamveil.compiler.sketch import compile_sketch
from streamveil.errors import PlanError
from streamveil.expressions import compile_value
from streamveil.plan import SinkSpec, SourceSpec, check_own_rows
from streamveil.plan import joins as module
from streamveil.plan import own_rows as own
from streamveil.plan.own_rows import own_rows
from tests.sql.test_own_rows import PRIVATE, counted, rows_of, sorted_rows

REGIONS = pa.table({"place": ["a", "b", "b", "d"], "region": ["east", "west", "north", "south"]})
RELATIONS = [  # over t and u, which people have rows in, and regions, which are public
    "SELECT t.id, u.day AS day FROM t JOIN u ON t.id = u.id",
    "SELECT id, t.day AS day, u.x AS x FROM t JOIN u USING (id) WHERE t.day < u.day",
    "SELECT a.id, a.day AS day, b.x AS x FROM t AS a LEFT JOIN u AS b ON b.id = a.id "
    "AND a.day = b.day",
    "SELECT a.id, b.x AS x FROM t AS a LEFT JOIN u AS b ON a.id = b.id WHERE b.id IS NULL",
    "SELECT a.id, a.x AS x, b.x AS y FROM t AS a JOIN u AS b ON a.id = b.id AND a.x + 1 > b.x",
    "SELECT id, x, first FROM t JOIN (SELECT id, MIN(day) AS first FROM u GROUP BY id) AS f "
    "USING (id)",
    "SELECT a.id, COUNT(*) AS n, SUM(b.x) AS s FROM t AS a JOIN u AS b ON a.id = b.id "
    "GROUP BY a.id",
    "SELECT id, region FROM t JOIN regions USING (place)",
    "SELECT id, x, region FROM t JOIN regions AS r ON t.place = r.place AND t.x = 2",
    "SELECT id, region FROM t LEFT JOIN regions AS r ON t.place = r.place",
    "SELECT t.id, regions.region AS region, u.day AS day FROM t JOIN u ON t.id = u.id "
    "JOIN regions ON u.place = regions.place",
    "SELECT id, x FROM t WHERE id IN (SELECT id FROM u WHERE x > 2) AND x > 0",
    "SELECT id, x FROM (SELECT id, x FROM t WHERE x < 3) WHERE id NOT IN "
    "(SELECT id FROM u WHERE day = 1 AND NOT id IS NULL)",
    "SELECT id, day, kind FROM (SELECT id, day, 't' AS kind FROM t WHERE x > 0 UNION ALL "
    "SELECT id, day + 1, 'u' FROM u)",
    "SELECT id, MAX(day) AS latest, COUNT(*) AS n FROM (SELECT id, day FROM t UNION ALL "
    "SELECT id, day FROM u UNION ALL SELECT id, day FROM t WHERE x > 1) GROUP BY id",
    "SELECT b.id, b.day AS day, COUNT(*) AS n FROM t AS a JOIN u AS b ON a.id = b.id "
    "JOIN regions AS r ON b.place = r.place GROUP BY b.id, b.day",
    "SELECT a.id, a.day AS day, b.x AS x FROM t AS a LEFT JOIN u AS b ON a.id = b.id AND b.x > 1 "
    "AND b.day BETWEEN a.day AND a.day + 1",
    "SELECT a.id, a.x AS x, b.n AS n FROM t AS a LEFT JOIN (SELECT id, COUNT(*) AS n FROM u "
    "GROUP BY id) AS b ON a.id = b.id AND b.n > 2 AND a.x < 2",
    "SELECT id, t.x AS x, region FROM t LEFT JOIN regions AS r ON t.place = r.place "
    "AND r.region <> 'west' AND t.x > 0",
    "SELECT id, x FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.id = t.id AND x > 2) AND x > 0",
    "SELECT id, x FROM t AS a WHERE NOT EXISTS (SELECT * FROM u AS b WHERE b.day = a.day "
    "AND a.id = b.id)",
    "SELECT t.id, t.place AS place, u.place AS other, r.region AS region FROM t "
    "JOIN u ON t.id = u.id JOIN regions AS r ON t.place = r.place",
    "SELECT id, t.place AS place, u.place AS other, r.place AS third FROM t JOIN u USING (id) "
    "LEFT JOIN regions AS r ON t.place = r.place AND u.x > 2",
    "SELECT t.id, t.place AS place, u.day AS day FROM t LEFT JOIN regions AS r "
    "ON t.place = r.place JOIN u ON t.id = u.id WHERE r.place IS NULL OR u.day > t.day",
    "SELECT T.id, A.day AS day, R.region AS region FROM t JOIN u AS a ON T.id = A.id "
    "JOIN regions AS r ON a.place = R.place WHERE EXISTS (SELECT 1 FROM t AS B WHERE b.id = T.id)",
]


def tables(seed):
    u = rows_of(seed + 1000, 40)
    return {"t": rows_of(seed), "u": u.filter(pc.less(u["id"], 6)),
            "regions": sv.memory(REGIONS, public=True)}  # fmt: skip


def planned(relation, found, private=PRIVATE, around="SELECT {} COUNT(*) AS n FROM ({})"):
    return sv.sql(around.format(private, relation), found).plan


def without(found, unit):
    """The tables as they would be without a unit."""
    return {
        name: one if name == "regions" else one.filter(others(one["id"], unit))
        for name, one in found.items()
    }


def others(column, unit):
    return pc.fill_null(pc.not_equal(column, unit), fill_value=True)


def made(plan, found):
    return own_rows(plan.source, found["t"], lambda spec: found[spec.name])


def left_alone(plan, found, unit):
    """Whether the rows of all others come out as they would without a unit, in their order."""
    rows = made(plan, found)
    kept = rows.filter(others(rows[plan.source.person], unit))
    return kept.to_pylist() == made(plan, without(found, unit)).to_pylist()


@pytest.mark.parametrize("relation", RELATIONS, ids=range(len(RELATIONS)))
def test_a_join_by_the_unit_gives_what_duckdb_gives(relation):
    found = tables(1)
    duck = duckdb.connect()
    for name, one in found.items():
        duck.register(name, REGIONS if name == "regions" else one)
    wanted = duck.sql(relation).arrow().read_all()
    names = ", ".join(f"`{name}`" for name in wanted.column_names)
    around = f"SELECT {{}} {names}, COUNT(*) AS rows_counted FROM ({{}}) GROUP BY ALL"
    plan = planned(relation, found, around=around)
    combined = made(plan, found)
    plain = replace(plan, source=replace(plan.source, steps=(), unit=plan.unit))
    mine = counted(plain, combined).drop_columns("the unit")
    assert mine.num_rows > 3
    assert sorted_rows(mine) == sorted_rows(wanted)


@pytest.mark.parametrize("unit", ["a.id", "A.id", "V.id"])
def test_tables_are_named_in_any_case_in_the_unit_too(unit):
    text = "SELECT {} COUNT(*) AS n FROM t AS a JOIN u AS v ON A.id = v.id"
    plans = [sv.sql(text.format(PRIVATE.replace("= id", f"= {one}")), tables(1)).plan
             for one in (unit, "a.id")]  # fmt: skip
    assert plans[0].fingerprint == plans[1].fingerprint


@pytest.mark.parametrize(("time", "windows_by"), [
    ("a.day", "day"), ("A.Day AS day", "Day"), ("a.day AS moment", "moment"),
])  # fmt: skip
def test_windows_follow_the_times_of_the_first_table_of_a_join_by_its_name_too(time, windows_by):
    """What a.day stood for was told in a name of ours: DESCRIPTOR(a:day) is not the event_time."""
    days = pa.array(range(60), pa.timestamp("us"))
    found = {**tables(1), "t": sv.memory(rows_of(1).set_column(1, "day", days), event_time="day")}
    text = """
        WITH s AS (SELECT id, {}, region FROM t AS a JOIN regions AS r ON a.place = r.place)
        SELECT {} window_start, region, COUNT(*) AS n
        FROM TUMBLE(TABLE s, DESCRIPTOR({}), size => INTERVAL 1 DAY) GROUP BY window_start, region
        EMIT EVERY INTERVAL 1 DAY"""
    dated = PRIVATE.replace("id,", "id, start = '1970-01-01', end = '1970-01-03',")
    plans = [sv.sql(text.format(one, dated, by), found).plan
             for one, by in ((time, windows_by), ("day", "day"))]  # fmt: skip
    assert plans[0].fingerprint == plans[1].fingerprint
    assert plans[0].source.event_time == "day"
    with pytest.raises(PlanError, match=r"DESCRIPTOR\(x\) is not .*\n  to fix .* day there"):
        sv.sql(text.format("day, r.region AS x", dated, "x"), found)


def test_a_public_file_has_the_types_that_are_declared(tmp_path):
    """They were passed over: a text 007 was 7, an empty field a text, and ; no end of a field."""
    (tmp_path / "r.csv").write_text("place;code;n;x\na;007;1;1.5\nb;7;;2.5\nc;;x;\n")
    script = f"""
        CREATE TABLE r (place STRING, code STRING, n INT64, x FLOAT64)
        WITH (source = 'files', path = '{tmp_path / "r.csv"}', public = TRUE, delimiter = ';');
        SELECT {PRIVATE} code, COUNT(*) AS n FROM t JOIN r ON t.place = r.place GROUP BY code"""
    grouped = script.replace("code, COUNT(*)", "place AS code, COUNT(*)").replace(
        "JOIN r ON t.place = r.place", "RIGHT JOIN r USING (code)"
    )
    public = sv.sql(grouped, {"t": rows_of(1)}).plan.key_set.public
    assert public == (("007",), ("7",), (None,))
    [step] = sv.sql(script, {"t": rows_of(1)}).plan.source.steps
    assert step.table.to_pylist() == [
        {"place": "a", "code": "007", "n": 1, "x": 1.5},
        {"place": "b", "code": "7", "n": None, "x": 2.5},
        {"place": "c", "code": None, "n": None, "x": None},
    ]


@pytest.mark.parametrize("odd", ["x", "7"])
@pytest.mark.parametrize("relation", [
    "SELECT t.id FROM t JOIN v ON t.id = v.id",
    "SELECT t.id FROM t JOIN w ON t.id = w.id AND t.day = w.day",
    "SELECT id FROM (SELECT id, day FROM t UNION ALL SELECT id, day FROM w)",
    "SELECT id FROM (SELECT id, place FROM t UNION ALL SELECT id, day FROM t)",
])  # fmt: skip
def test_types_and_no_value_decide_whether_two_relations_meet(relation, odd):
    """A text that is no number stopped the job, and texts that are all numbers did not."""
    t = rows_of(1)
    found = {"t": t, "v": pa.table({"id": ["1", odd]}), "w": pa.table({"id": [1], "day": [odd]})}
    plan = planned(relation, found)
    with pytest.raises(PlanError, match=r"one side and \w+ on the other"):
        made(plan, found)


def test_columns_of_one_kind_are_united_whatever_they_hold():
    texts = [str(n) for n in range(200)]
    coded = [pa.array(part).dictionary_encode().cast(pa.dictionary(pa.int8(), pa.string()))
             for part in (texts[:100], texts[100:])]  # fmt: skip
    t = pa.table({"id": range(100), "a": coded[0], "b": pa.array(range(100), pa.int8())})
    u = pa.table({"id": range(100), "a": coded[1], "b": pa.array([2**40] * 100)})
    plan = planned("SELECT id, a, b FROM t UNION ALL SELECT id, a, b FROM u", {"t": t, "u": u})
    rows = made(plan, {"t": t, "u": u})
    assert rows["a"].to_pylist() == texts
    assert rows["b"].to_pylist() == [*range(100), *[2**40] * 100]


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(RELATIONS), st.integers(0, 999), st.integers(0, 8))
def test_without_a_unit_the_rows_of_all_others_are_the_same(relation, seed, unit):
    found = tables(seed)
    assert left_alone(planned(relation, found), found, unit)


@pytest.mark.parametrize("relation", [RELATIONS[0], RELATIONS[2], RELATIONS[5], RELATIONS[16]])
def test_a_planted_join_of_two_people_is_seen(relation, monkeypatch):
    """A join that forgets the unit, as a faulty program might, lets some unit move others' rows."""
    found = tables(2)
    plan = planned(relation, found)
    assert all(left_alone(plan, found, unit) for unit in range(9))
    whole = module.numbered
    monkeypatch.setattr(module, "numbered", lambda columns: whole([pa.repeat(0, len(columns[0])),
                                                                  *columns[1:]]))  # fmt: skip
    assert not all(left_alone(plan, found, unit) for unit in range(9))


def test_a_planted_order_by_match_is_seen(monkeypatch):
    """Where joined rows stand must not depend on others: first come first counted."""
    found = tables(2)
    plan = planned(RELATIONS[0], found)
    honest = module.matches

    def by_others(left, right, most=module.MATCHES):
        rows, places = honest(left, right, most)
        order = np.argsort(len(right) * (places % 2) + rows, kind="stable")
        return rows[order], places[order]

    monkeypatch.setattr(module, "matches", by_others)
    assert not all(left_alone(plan, found, unit) for unit in range(9))


REFUSED = [  # what would mix people, and what its refusal names
    ("SELECT t.id, u.x FROM t JOIN u ON t.day = u.day", "a join before"),
    ("SELECT t.id, u.x FROM t JOIN u ON t.id < u.id", "a join before"),
    ("SELECT t.id, u.x FROM t JOIN u ON t.id = u.x", ""),
    ("SELECT t.id, u.x FROM t JOIN u ON t.id + 1 = u.id", "a join before"),
    ("SELECT t.id, u.x FROM t JOIN u ON t.id = u.id OR t.day = u.day", "a join before"),
    ("SELECT t.id, n FROM t JOIN (SELECT day AS id, COUNT(*) AS n FROM u GROUP BY place) AS u "
     "USING (id)", "GROUP BY without the privacy unit"),
    ("SELECT id, x FROM t WHERE place IN (SELECT place FROM u)", "a join before"),
    ("SELECT id, x FROM t WHERE day > 0 OR id IN (SELECT id FROM u)", "LEFT JOIN"),
    ("SELECT id, x FROM t WHERE x > 0 OR EXISTS (SELECT 1 FROM u WHERE u.id = t.id)", "LEFT JOIN"),
    ("SELECT id, x FROM t WHERE EXISTS (SELECT 1 FROM u WHERE x > 2)", "of one person"),
    ("SELECT id, x FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.day = t.day)", "a join before"),
    ("SELECT id, x FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.id = t.id AND u.x > t.x)",
     "one row of each person"),
    ("SELECT t.id FROM t LEFT JOIN u ON t.day = u.day AND t.id < u.id", "a join before"),
    ("SELECT id, x FROM t, u", "a join before"),
    ("SELECT id, x FROM t CROSS JOIN u", "a join before"),
    ("SELECT id, x FROM t FULL JOIN u USING (id)", "UNION ALL"),
    ("SELECT id, x FROM t UNION DISTINCT SELECT id, x FROM u", "removing duplicates"),
    ("SELECT id, x FROM t UNION ALL SELECT x, id FROM u ORDER BY x LIMIT 3", "LIMIT"),
    ("SELECT x FROM t UNION ALL SELECT x FROM u", "without the privacy unit"),
    ("SELECT id, region FROM t JOIN nobody USING (place)", "a join before"),
    ("SELECT id FROM t LEFT JOIN regions AS r ON t.place < r.place", "columns that are equal"),
]  # fmt: skip


@pytest.mark.parametrize(("relation", "reason"), REFUSED)
def test_what_would_mix_people_is_refused(relation, reason):
    found = {**tables(0), "nobody": REGIONS}  # not declared public
    if not reason:  # whoever says so declares that u.x names the person there
        assert planned(relation, found).source.steps[0].other.unit == "x"
        return
    with pytest.raises(PlanError, match=reason):
        planned(relation, found)


OF_TWO = [  # every row of t names two people
    "SELECT a.id, b.x AS x FROM t AS a JOIN t AS b ON a.id = b.day",
    "SELECT id, x FROM t WHERE id IN (SELECT day FROM t)",
    "SELECT id, x FROM t WHERE NOT EXISTS (SELECT 1 FROM t AS b WHERE b.day = t.id)",
    "SELECT id, x FROM (SELECT id, x FROM t UNION ALL SELECT day, x FROM t)",
    "SELECT id, x FROM t WHERE id IN (SELECT id FROM u WHERE id IN (SELECT day FROM t))",
]


@pytest.mark.parametrize(("one", "other", "same"), [
    ("user", "`User`", True), ("HASH(id)", "HASH(`ID`)", True), ("id", "day", False),
    ("a + b", "`a + b`", False),
])  # fmt: skip
def test_a_unit_is_the_same_however_it_is_quoted(one, other, same):
    read = SourceSpec(name="t", kind="files")
    found = list(check_own_rows.of_two_people([(read, one), (read, other)]))
    assert (not found) is same


@pytest.mark.parametrize("relation", OF_TWO)
def test_no_row_is_of_two_people(relation):
    with pytest.raises(PlanError, match="each row of 't' would be of two people: id and day"):
        planned(relation, tables(0))


@pytest.mark.parametrize("other", [
    lambda u: u, lambda u: u.per_unit(id="MIN(id)"), lambda u: u.unnest(id="SPLIT(place, ',')"),
])  # fmt: skip
def test_a_join_is_by_what_both_protect(other):
    """It was by the unit of the other, or took another column for it, whatever `on` said."""
    t, u = (sv.memory(one, name=name) for name, one in tables(0).items() if name != "regions")
    with pytest.raises(PlanError, match="by id, and the other relation protects day"):
        t.protect("id").join(other(u.protect("day")), on="id")
    t.protect("id").join(u.protect("`id`").per_unit(n="COUNT(*)"), on="id")


CITIES = sv.memory(pa.table({"place": ["a"], "size": [1]}), name="cities", public=True)
ANEW = [  # ways to go on with rows that were combined by another unit
    lambda by_day: by_day.unnest(more="SPLIT(place, ',')"),
    lambda by_day: by_day.per_unit(n="COUNT(*)"),
    lambda by_day: by_day.join(CITIES, on="place"),
    lambda by_day: by_day.group_by("place", sets=[("place",), ()]),
    lambda by_day: sv.memory(rows_of(5), name="v").protect("id").join(by_day, on="id"),
]


@pytest.mark.parametrize("way", ANEW, ids=range(len(ANEW)))
def test_rows_are_combined_by_one_unit(way):
    """What was protected last was promised, and what was protected first was bounded."""
    parts = sv.memory(rows_of(1), name="t").protect("day").unnest(part="SPLIT(place, ',')")
    with pytest.raises(PlanError, match="unit is id, and rows were combined by day"):
        way(replace(parts, unit="id")).agg(n=sv.count()).release(budget=sv.Budget(epsilon=1))


def test_without_one_unit_all_its_rows_go_and_no_bound_holds(monkeypatch):
    """What the refusal is for: one id with a row on each of 20 days, bounded to one row."""
    monkeypatch.setattr(own, "require_person", lambda *_: None)
    rows = pa.table({"id": [0] * 20, "day": range(20), "place": ["a"] * 20})
    parts = sv.memory(rows).protect("day").unnest(part="SPLIT(place, ',')")
    parts = replace(parts, unit="id")
    source = parts.unnest(more="SPLIT(place, ',')").source
    assert source.person == "id"
    assert len(own_rows(source, rows)["id"].unique()) == 20


def test_a_text_takes_bare_streams():
    """What a stream said of people and conditions was left out."""
    t = sv.memory(rows_of(1))
    for more in (t.where("x > 5"), t.protect("day").per_unit(n="COUNT(*)"), t.protect("id")):
        with pytest.raises(PlanError, match="bare streams"):
            planned("SELECT id FROM t", {"t": more})


def test_conditions_on_a_public_table_hold_before_it_is_joined():
    t = sv.memory(rows_of(1)).protect("id")
    some = t.join(sv.memory(REGIONS, public=True).where("region <> 'west'"), on="place")
    assert some.source.steps[0].table["region"].to_pylist() == ["east", "north", "south"]


def test_with_hides_a_public_table_of_its_name():
    found = tables(0)
    relation = "SELECT t.id, regions.x AS x FROM t JOIN regions ON t.id = regions.id"
    plan = planned(relation, found, around="WITH regions AS (SELECT id, x FROM u) "
                   "SELECT {} COUNT(*) AS n FROM ({})")  # fmt: skip
    assert isinstance(plan.source.steps[0], module.OwnJoin)


@pytest.mark.parametrize(("unit", "fits"), [("day", False), ("id", True)])
def test_several_answers_take_a_row_for_one_persons(unit, fits):
    ways = ["t", f"(SELECT {unit} AS id, COUNT(*) AS k FROM t GROUP BY {unit})"]
    for first, second in (ways, ways[::-1]):
        asked = (f"WITH a AS (SELECT {PRIVATE} COUNT(*) AS n FROM {first}), b AS "
                 f"(SELECT {PRIVATE} COUNT(*) AS m FROM {second}) "
                 "SELECT n, m FROM a CROSS JOIN b")  # fmt: skip
        refused = pytest.raises(PlanError, match="each row of 't' would be of two people")
        with nullcontext() if fits else refused:
            sv.sql(asked, tables(0))


@pytest.mark.parametrize("declared", [
    "(id STRING, day STRING) WITH (source = 'files', path = 'rows.csv')",
    "WITH (source = 'files', path = ['more.csv', './rows.csv'])",
    "(id STRING, day STRING) WITH (source = 'kafka', servers = 'a', topic = 'rows')",
    "(id STRING, day STRING) WITH (source = 'sqlite', path = 'people.db', table = 'rows')",
])  # fmt: skip
def test_the_same_rows_are_of_one_person_however_they_are_declared(declared):
    """Lists and columns were told apart by where they lie in memory."""
    text = (f"CREATE STREAM first {declared}; CREATE STREAM second {declared}; SELECT {PRIVATE} "
            "COUNT(*) AS n FROM first WHERE id IN (SELECT day FROM second)")  # fmt: skip
    with pytest.raises(PlanError, match="of two people"):
        sv.sql(text)


def test_the_same_frame_under_two_names_is_of_one_person():
    found = tables(0)
    people = found["t"].to_pandas()
    pairs = (
        {"t": found["t"], "u": found["t"].slice(1)},
        {"t": people, "u": people},
        {"t": sv.memory(found["t"]), "u": sv.memory(found["t"].select(["day"]))},
    )
    for pair in pairs:
        with pytest.raises(PlanError, match="of two people"):
            planned("SELECT id, x FROM t WHERE id IN (SELECT day FROM u)", pair)
    planned("SELECT id, x FROM t WHERE id IN (SELECT day FROM u)", tables(0))


def test_the_same_file_under_two_names_is_of_one_person(tmp_path):
    pq.write_table(rows_of(0), tmp_path / "t.parquet")
    found = {name: sv.files(str(tmp_path / "t.parquet")) for name in ("first", "second")}
    with pytest.raises(PlanError, match="of two people"):
        planned("SELECT id, x FROM first WHERE id IN (SELECT day FROM second)", found)
    assert planned("SELECT id, x FROM first WHERE id IN (SELECT id FROM second)", found)
    assert planned("SELECT f.id, f.x FROM first AS f JOIN second AS s ON f.id = s.ID", found)


@pytest.mark.parametrize("relation", OF_TWO[1:4:2])
def test_without_one_of_two_people_rows_of_many_others_change(relation, monkeypatch):
    """What the refusal is for: 20 people, one of whose rows names all others."""
    monkeypatch.setattr(check_own_rows, "of_two_people", lambda _: ())
    people = pa.table({"id": [*range(20), *[0] * 20], "day": [99] * 20 + [*range(20)],
                       "x": [1] * 40})  # fmt: skip
    plan = planned(relation, {"t": people})

    def counted_without(unit):
        rows = people if unit is None else people.filter(others(people["id"], unit))
        return own_rows(plan.source, rows, lambda _: rows).num_rows

    assert counted_without(None) - counted_without(0) >= 40


def test_columns_of_both_tables_need_the_name_of_one():
    found = tables(0)
    plan = planned("SELECT t.id, t.x FROM t JOIN u ON t.id = u.id", found)
    with pytest.raises(PlanError, match=r"write t\.day or u\.day"):
        compile_value("day", made(plan, found).schema)


def values_of(relation, found, *names):
    """Columns of a relation that is grouped by all of them."""
    around = f"SELECT {{}} {', '.join(names)}, COUNT(*) AS n FROM ({{}}) GROUP BY ALL"
    plan = planned(relation, found, around=around)
    plain = replace(plan, source=replace(plan.source, steps=(), unit=plan.unit))
    return counted(plain, made(plan, found))


def test_a_name_that_earlier_tables_share_is_not_that_of_a_later_one():
    """`place` was that of regions, and so was `u.place`."""
    relation = "SELECT {} AS p, id FROM t JOIN u USING (id) JOIN regions AS r ON t.place = r.place"
    found = tables(1)
    with pytest.raises(PlanError, match=r"write t\.place or u\.place or r\.place"):
        values_of(relation.format("place"), found, "p")
    assert values_of(relation.format("u.place"), found, "p").num_rows


def test_the_unit_keeps_its_name_beside_a_public_table_that_has_it():
    found = tables(1)
    found["known"] = pa.table({"id": [70, 71], "place": ["a", "b"]})
    relation = (
        "SELECT t.id, p.id AS theirs, u.id AS own FROM t JOIN known AS p ON t.place = p.place "
        "JOIN u ON t.id = u.id"
    )
    public = {**found, "known": sv.memory(found["known"], public=True)}
    rows = values_of(relation, public, "theirs", "own")
    assert set(rows["theirs"].to_pylist()) == {70, 71}
    assert rows["own"].to_pylist() == rows["the unit"].to_pylist()


def test_parts_of_a_list_are_joined_and_are_no_column_of_their_table():
    """`t.place` was the part, whatever column t has."""
    found = {**tables(1), "t": pa.table({"id": [1, 2, 3], "place": ["x", "y", "z"],
                                         "tags": ["b,d", "", None]})}  # fmt: skip
    text = "SELECT id, {}, region FROM t, UNNEST(SPLIT(tags)) AS place JOIN regions AS r ON {}"
    rows = values_of(text.format("place", "place = r.place"), found, "place", "region")
    pairs = zip(rows["place"].to_pylist(), rows["region"].to_pylist(), strict=True)
    assert sorted(pairs) == [("b", "north"), ("b", "west"), ("d", "south")]
    for one, on in (("t.place", "place = r.place"), ("r.place", "t.place = r.place")):
        with pytest.raises(PlanError, match=r"(?s)what UNNEST makes.*to fix  place alone"):
            planned(text.format(one, on), found)


def test_no_row_meets_another_by_what_is_no_number():
    nan, t = float("nan"), pa.table({"id": [1, 2, 3], "f": [float("nan"), 0.0, 1.5]})
    public = sv.memory(pa.table({"f": [nan, -0.0, 2.0], "m": ["a", "b", "c"]}), public=True)
    rows = values_of("SELECT id, m FROM t LEFT JOIN p USING (f)", {"t": t, "p": public}, "m")
    assert rows["m"].to_pylist() == [None, "b", None]


@pytest.mark.parametrize(("joined", "message"), [
    ("t CROSS JOIN regions", "needs ON or USING: what is equal"),
    ("t, regions AS r WHERE t.place = r.place", "the public table 'r' needs ON or USING"),
    ("regions JOIN t ON t.place = regions.place", "the table of people comes first"),
    ("t JOIN (SELECT place FROM regions) AS r ON t.place = r.place", "not in a subquery"),
    ("t JOIN nowhere ON t.place = nowhere.place", "unknown table 'nowhere'"),
    ("t JOIN u ON t.place = u.place", "a join before contribution bounding"),
    ("t, u WHERE t.id = u.id", "a join before contribution bounding"),
    ("t WHERE id IN UNNEST([1, 2])", r"(?s)lists are read by UNNEST.*x IN \(1, 2\)"),
])  # fmt: skip
def test_what_cannot_be_joined_so_says_what_to_write(joined, message):
    with pytest.raises(PlanError, match=message) as caught:
        sv.sql(f"SELECT {PRIVATE} COUNT(*) AS n FROM {joined}", tables(1))
    assert "to fix" in str(caught.value)


def test_the_unit_is_named_by_the_first_table_or_by_what_is_equal():
    relation = "SELECT {} COUNT(*) AS n FROM t {}JOIN u ON t.id = u.id"
    private, found = PRIVATE.replace("= id", "= u.id"), tables(1)
    assert sv.sql(relation.format(private, ""), found).plan.unit == "id"
    with pytest.raises(PlanError, match=r"u\.id.*\n  to fix  privacy_unit_column = t\.id"):
        sv.sql(relation.format(private, "LEFT "), found)


def test_one_row_meets_no_more_than_so_many():
    t = pa.table({"id": [1, 1, 2], "x": [1, 2, 3]})
    u = pa.table({"id": [1] * (module.MATCHES + 7) + [2]})
    plan = planned("SELECT t.id, t.x FROM t JOIN u ON t.id = u.id", {"t": t, "u": u})
    assert own_rows(plan.source, t, lambda _: u).num_rows == 2 * module.MATCHES + 1
    assert "1,000 at most" in str(sv.sql(
        f"SELECT {PRIVATE} COUNT(*) AS n FROM t JOIN u ON t.id = u.id", {"t": t, "u": u}
    ).explain())  # fmt: skip


CHAINS = [  # joins of joins, which multiply rows
    "SELECT a.id, c.day AS day FROM t AS a JOIN t AS b ON a.id = b.id JOIN u AS c ON a.id = c.id",
    "SELECT a.id, c.x AS x FROM t AS a LEFT JOIN u AS b ON a.id = b.id AND a.x < b.x "
    "LEFT JOIN t AS c ON a.id = c.id AND a.day = c.day",
    "SELECT a.id, a.x AS x, region FROM (SELECT b.id, b.x, c.place FROM t AS b JOIN u AS c ON "
    "b.id = c.id) AS a JOIN regions ON a.place = regions.place JOIN u AS d ON a.id = d.id",
    "SELECT id, part FROM (SELECT a.id, b.place FROM t AS a JOIN u AS b ON a.id = b.id), "
    "UNNEST(SPLIT(place, 'a')) AS part",
    "SELECT a.id, b.n AS n FROM t AS a JOIN (SELECT c.id, COUNT(*) AS n FROM t AS c JOIN u AS d ON "
    "c.id = d.id JOIN t AS e ON c.id = e.id GROUP BY c.id) AS b ON a.id = b.id",
]


@pytest.mark.parametrize("limit", ["MATCHES", "MOST_REPEATED"])
@pytest.mark.parametrize("relation", CHAINS, ids=range(len(CHAINS)))
def test_limits_of_joins_of_joins_follow_from_the_rows_of_one_unit(relation, limit, monkeypatch):
    found = tables(2)
    plan = planned(relation, found)
    whole = made(plan, found).to_pylist()
    few(limit, monkeypatch)
    assert made(plan, found).to_pylist() != whole
    assert all(left_alone(plan, found, unit) for unit in range(9))


def few(limit, monkeypatch):
    """Lets limits cut rows of tables as small as these."""
    monkeypatch.setattr(module, limit, 2)
    monkeypatch.setattr(own, {"MATCHES": "MOST_PARTS"}.get(limit, limit), 2)
    if limit == "MATCHES":
        monkeypatch.setattr(module, "matches", limited_by(module.matches, 2))


def test_a_planted_limit_of_all_rows_is_seen(monkeypatch):
    """A limit that rows of several people share lets some unit move others' rows."""
    found = tables(2)
    plan, honest = planned(CHAINS[0], found), module.room_of

    def shared(table, each):
        room = honest(table, each)
        return room._replace(origin=room.origin // 2)

    few("MATCHES", monkeypatch)
    monkeypatch.setattr(module, "room_of", shared)
    assert not all(left_alone(plan, found, unit) for unit in range(9))


def limited_by(honest, most):
    return lambda left, right, few=most: honest(left, right, few)


def test_a_row_becomes_no_more_than_so_many_in_all_joins_together():
    """Forty rows of one person became two and a half million, and 1,200 no longer fit."""
    t = pa.table({"id": [1] * 40 + [2, 2, 3], "x": range(43)})
    joins = " ".join(f"JOIN t AS {name} ON a.id = {name}.id" for name in "bcd")
    plan = planned(f"SELECT a.id, d.x AS x FROM t AS a {joins}", {"t": t})
    rows = own_rows(plan.source, t, lambda _: t)
    counts = {one["values"]: one["counts"] for one in pc.value_counts(rows["id"]).to_pylist()}
    assert counts.pop(1) == 40 * module.MATCHES
    assert counts == {2: 2**4, 3: 1}


def test_a_row_that_becomes_fewer_than_so_many_in_all_loses_none():
    """Each of forty rows that one had become met 25 others at most, however few the others met."""
    t, u = pa.table({"id": [1], "x": [0]}), pa.table({"id": [1] * 40, "y": range(40)})
    w = pa.table({"y": [0, 1] + [7] * 600 + [39] * 200})
    found = {"t": t, "u": u, "w": sv.memory(w, public=True)}
    plan = planned("SELECT t.id, u.y AS y FROM t JOIN u ON t.id = u.id JOIN w ON u.y = w.y", found)
    assert own_rows(plan.source, t, lambda _: u).num_rows == w.num_rows


def test_rows_made_of_one_row_get_no_more_long_texts_than_that_row_alone():
    """A second join put a text of one person beside each of a thousand rows: 10 GB from three."""
    t, u = pa.table({"id": [1, 2]}), pa.table({"id": [1] * 1000 + [2] * 3, "y": range(1003)})
    w = pa.table({"id": [1, 2], "text": ["x" * 1_000_000, "y"]})
    found = {"t": t, "u": u, "w": w}
    joins = "t JOIN u ON t.id = u.id JOIN w ON t.id = w.id"
    plan = planned(f"SELECT t.id, text FROM {joins}", found)
    rows = own_rows(plan.source, t, lambda spec: spec.options["table"])
    counts = {one["values"]: one["counts"] for one in pc.value_counts(rows["id"]).to_pylist()}
    assert counts.pop(2) == 3
    assert counts[1] * 1_000_000 <= own.MOST_REPEATED + 2_000_000


@pytest.mark.parametrize("relation", [
    "SELECT t.id, text FROM t JOIN u ON t.id = u.id",
    "SELECT t.id, text FROM t JOIN regions ON t.place = regions.place",
])  # fmt: skip
def test_long_texts_are_not_repeated_beside_each_row_that_matches(relation):
    """One row with a text of ten megabytes filled the memory."""
    t = pa.table({"id": [1, 2], "place": ["a", "a"], "text": ["x" * 10_000_000, "y"]})
    u = pa.table({"id": [1] * 50 + [2] * 50})
    regions = pa.table({"place": ["a"] * 50, "region": range(50)})
    found = {"t": t, "u": u, "regions": sv.memory(regions, public=True)}
    rows = own_rows(planned(relation, found).source, t, lambda _: u)
    counts = [one["counts"] for one in pc.value_counts(rows["id"]).to_pylist()]
    assert counts == [1, 50]


@pytest.mark.parametrize(
    "asked",
    [
        "SELECT {} u.y, COUNT(*) AS n FROM t JOIN u ON t.id = u.id GROUP BY u.y",
        "SELECT y, n / 2 AS half FROM (SELECT {} u.y, COUNT(*) AS n FROM t JOIN u ON t.id = u.id"
        " GROUP BY u.y) WHERE n > 1 ORDER BY half LIMIT 3",
    ],
)
def test_every_release_says_that_pairs_may_be_cut(asked, tmp_path):
    t = pa.table({"id": list(range(90))})
    u = pa.table({"id": list(range(90)), "y": [1, 2, 3] * 30})
    query = sv.sql(asked.format(PRIVATE), {"t": t, "u": u})
    files = {"path": str(tmp_path / "out"), "format": "csv"}
    sink = replace(query.plan, sinks=(SinkSpec(name="out", kind="files", options=files),))
    *_, release = Query(sink).run(str(tmp_path / "state"))
    said = "a row is joined with the first 1,000 rows that match it"
    assert any(said in note for note in release.notes)
    [beside] = (tmp_path / "out").rglob("metadata=*.json")
    assert said in beside.read_text()


def test_a_release_without_pairs_says_nothing_of_them(tmp_path):
    t, u = pa.table({"id": list(range(90))}), pa.table({"id": list(range(9))})
    text = f"SELECT {PRIVATE} COUNT(*) AS n FROM t WHERE id IN (SELECT id FROM u)"
    *_, release = sv.sql(text, {"t": t, "u": u}).run(str(tmp_path / "state"))
    assert not any("joined" in note for note in release.notes)


def test_a_sketch_over_pairs_says_so_too():
    t, u = pa.table({"id": [1, 2]}), pa.table({"id": [1, 2], "y": [1, 2]})
    text = "SELECT {} HEAVY_HITTERS(u.y, k => 3, memory => 4000000) AS n FROM t JOIN u USING (id)"
    private = PRIVATE.replace("epsilon = 50", "epsilon = 4")
    assert compile_sketch(sv.sql(text.format(private), {"t": t, "u": u}).plan).omitted
    with pytest.raises(PlanError, match="use a larger delta, a smaller epsilon"):
        compile_sketch(sv.sql(text.format(PRIVATE), {"t": t, "u": u}).plan)


def test_python_says_the_same_as_sql_and_a_job_resumes(tmp_path):
    found = tables(3)
    for name in ("t", "u"):
        pq.write_table(found[name], tmp_path / f"{name}.parquet")
    pq.write_table(REGIONS, tmp_path / "regions.parquet")
    text = (
        f"CREATE TABLE regions WITH (source = 'files', path = '{tmp_path}/regions.parquet', "
        f"public = TRUE); SELECT {PRIVATE.replace('epsilon = 50', 'epsilon = 500')} region, "
        "COUNT(*) AS n, COUNT(DISTINCT id) AS people "
        f"FROM '{tmp_path}/t.parquet' AS t JOIN '{tmp_path}/u.parquet' AS u ON t.id = u.id "
        "JOIN regions ON t.place = regions.place WHERE u.x > 0 GROUP BY region"
    )
    query = sv.sql(text)
    here = {one: sv.files(str(tmp_path / f"{one}.parquet")) for one in ("t", "u")}
    named = (
        here["t"].protect("id").join(here["u"], on="id")
        .join(sv.files(str(tmp_path / "regions.parquet"), public=True), on="place")
    )  # fmt: skip
    assert [type(step).__name__ for step in named.source.steps] == ["OwnJoin", "OwnLookup"]
    *_, release = query.run(state=str(tmp_path / "state"))
    assert release.table.num_rows >= 1
    again = [*query.run(state=str(tmp_path / "state"))]
    assert all(one.table == release.table for one in again)
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for name in ("t", "u", "regions"):
        pq.write_table(REGIONS if name == "regions" else found[name], moved / f"{name}.parquet")
    elsewhere = sv.sql(text.replace(str(tmp_path), str(moved)))
    assert elsewhere.plan.fingerprint == query.plan.fingerprint  # where rows lie says nothing
    pq.write_table(REGIONS.slice(1), moved / "regions.parquet")
    assert (
        sv.sql(text.replace(str(tmp_path), str(moved))).plan.fingerprint != query.plan.fingerprint
    )


def test_people_who_are_named_by_texts_are_joined_twice():
    """Rows of a join hold texts of another type, and the second join was refused."""
    t = pa.table({"id": ["a", "b", None], "x": [1, 2, 3]})
    found = {"t": t, "u": t, "v": t}
    relation = "SELECT t.id, t.x AS x FROM t JOIN u ON t.id = u.id JOIN v ON t.id = v.id"
    rows = own_rows(planned(relation, found).source, t, lambda _: t)
    assert rows["t:id"].to_pylist() == ["a", "b"]
    relation = f"SELECT id, x FROM ({relation} UNION ALL SELECT id, x FROM t)"
    assert own_rows(planned(relation, found).source, t, lambda _: t).num_rows == 5


def test_the_times_of_the_first_table_keep_their_name():
    """A table that is joined with itself had no column of times any more."""
    t = pa.table({"id": [1, 1, 2], "at": pa.array([5, 7, 9], pa.timestamp("us", "UTC"))})
    found = {"t": sv.memory(t, event_time="at")}
    relation = "SELECT s.id, s.at AS at, c.at AS later FROM t AS s JOIN t AS c ON s.id = c.id"
    rows = own_rows(planned(relation + " AND c.at > s.at", found).source, t, lambda _: t)
    assert rows["at"].equals(rows["s:at"])
    plan = planned(relation, found, around="SELECT {} COUNT(*) AS n FROM ({})")
    assert Query(plan).answer().table.num_rows == 1


def test_rows_that_are_only_looked_up_go_on_without_end():
    t = pa.table({"id": list(range(40)), "place": ["a", "b"] * 20, "at": pa.array(
        [i * 3_600_000_000 for i in range(40)], pa.timestamp("us", "UTC"))})  # fmt: skip
    private = PRIVATE.removesuffix(")") + (
        ", start = '1970-01-01', end = '1970-01-03', privacy_unit_period = INTERVAL 1 DAY)"
    )
    text = (
        "SELECT {} region, COUNT(*) AS n FROM TUMBLE(TABLE t, DESCRIPTOR(at), size => INTERVAL 1 "
        "DAY) AS t {} GROUP BY region EMIT EVERY INTERVAL 1 DAY"
    )
    streams = {"t": sv.memory(t, event_time="at"), "u": t,
               "regions": sv.memory(REGIONS, public=True)}  # fmt: skip
    query = sv.sql(text.format(private, "JOIN regions ON t.place = regions.place"), streams)
    assert query.plan.source.row_by_row
    last = query.answer().table
    assert {row["region"] for row in last.to_pylist()} <= {"east", "west", "north"}
    with pytest.raises(PlanError, match="leave out privacy_unit_period"):
        sv.sql(
            text.format(private, "JOIN u ON t.id = u.id"), {**streams, "u": t.drop_columns("at")}
        )


@pytest.mark.parametrize("relation", [RELATIONS[0], RELATIONS[13], RELATIONS[16]])
def test_the_exact_account_covers_joined_rows(relation):
    """Rows of a join are bounded as any rows: what a query over them claims stands."""
    found = tables(0)
    around = "SELECT {} day, COUNT(*) AS n FROM ({}) GROUP BY day"
    operator = compile_plan(planned(relation, found, around=around))
    *_, worst = islice(search(operator, inf, seed=1), 15)
    assert worst.stands
    assert worst.tightness > 0.5
