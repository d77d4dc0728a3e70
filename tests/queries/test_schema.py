"""A plan against the columns of its source."""

import pyarrow as pa
import pytest

import streamveil as sv
from streamveil.errors import PlanError
from streamveil.queries.schema import check_schema

SCHEMA = pa.schema([
    ("user_id", pa.string()), ("url", pa.string()), ("ms", pa.int32()),
    ("ts", pa.timestamp("us", "UTC")), ("when", pa.string()), ("ok", pa.bool_()),
])  # fmt: skip


def plan(unit="user_id", key="url", value="ms", where="ok", time="ts"):
    return (
        sv.files("t.parquet", event_time=time).protect(unit).where(where)
        .group_by(k=key).agg(s=sv.sum(value, bounds=(0, 1))).bound(max_rows=1)
        .release(budget=sv.Budget(epsilon=1, delta=1e-9)).plan
    )  # fmt: skip


def test_a_fitting_plan():
    check_schema(plan(), SCHEMA)
    check_schema(plan(key="DATE(ts)", value="ms * 1.5", where="ms > 1"), SCHEMA)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"unit": "userid"}, "did you mean 'user_id'?"),
        ({"unit": "NULL"}, "always null"),
        ({"key": "ulr"}, "did you mean 'url'?"),
        ({"value": "url"}, "needs numbers, not string"),
        ({"value": "ok"}, "needs numbers, not bool"),
        ({"where": "ms"}, "must be a condition"),
        ({"time": "tss"}, "did you mean 'ts'?"),
        ({"time": "when"}, "not times"),
    ],
)
def test_what_does_not_fit(change, message):
    with pytest.raises(PlanError) as caught:
        check_schema(plan(**change), SCHEMA)
    assert message in str(caught.value)


@pytest.mark.parametrize("kind", [pa.decimal128(38, 0), pa.decimal256(40, 2), pa.timestamp("ns")])
def test_a_unit_whose_last_digits_would_be_lost_is_refused(kind):
    kinds = [kind, pa.dictionary(pa.int32(), kind)]
    for one in kinds:
        schema = SCHEMA.set(0, pa.field("user_id", one))
        with pytest.raises(PlanError, match="several units would count as one"):
            check_schema(plan(), schema)


@pytest.mark.parametrize("kind", [pa.decimal128(15, 2), pa.uint64(), pa.timestamp("us")])
def test_a_unit_that_is_read_exactly_is_taken(kind):
    check_schema(plan(), SCHEMA.set(0, pa.field("user_id", kind)))


@pytest.mark.parametrize(
    ("word", "fine"), [("NUMERIC", False), ("Float64", False), ("INT64", True)]
)
@pytest.mark.parametrize("table", [True, False])
def test_a_unit_that_is_read_from_text_as_a_float_is_refused(tmp_path, word, fine, table):
    path = tmp_path / "t.csv"
    path.write_text("u,op,g\n9007199254740992,+,a\n9007199254740993,+,a\n")
    source = sv.files(str(path), columns={"u": word, "op": "STRING", "g": "STRING"})
    budget = sv.Budget(epsilon=1, delta=1e-9)
    if table:
        people = sv.table(source, id="u", operation="op", domains={"g": ["a"]})
        query = people.group_by("g").agg(n=sv.count()).release(expected_size=500, budget=budget)
    else:
        query = source.protect("u").agg(n=sv.count()).bound(max_rows=1).release(budget=budget)
    if word == "INT64":
        assert len(list(query.run(state=tmp_path / "s"))) == 1
        return
    with pytest.raises(PlanError, match="several units would count as one"):
        query.run(state=tmp_path / "s")
