"""Tables of other packages: what exports Arrow data goes in and comes out, whatever its types."""

from uuid import UUID

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import streamveil as sv
from streamveil.batch import as_table, plain
from streamveil.connectors.files import FilesSource
from streamveil.connectors.memory import MemorySource
from streamveil.errors import SourceError

ROWS = 300
DATA = {
    "u": list(range(ROWS)),
    "k": [("a", "b", None)[i % 3] for i in range(ROWS)],
    "x": [float(i % 7) for i in range(ROWS)],
}
TABLE = pa.table(DATA)


class Capsule:
    """Nothing but the protocol."""

    def __init__(self, data):
        self.data = data

    def __arrow_c_stream__(self, requested_schema=None):
        return self.data.__arrow_c_stream__(requested_schema)


def with_k(array):
    return TABLE.set_column(1, "k", array)


def polars(kind):
    return pl.DataFrame(DATA).with_columns(pl.col("k").cast(kind))


TWO_DICTIONARIES = pa.chunked_array([
    pa.DictionaryArray.from_arrays(pa.array([(0, 1, None)[i % 3] for i in range(150)]), ["a", "b"]),
    pa.DictionaryArray.from_arrays(pa.array([(1, 0, None)[i % 3] for i in range(150)]), ["b", "a"]),
])  # fmt: skip
FRAMES = {
    "a dict": lambda: DATA,
    "a list of dicts": lambda: TABLE.to_pylist(),
    "Arrow": lambda: TABLE,
    "a batch": lambda: TABLE.to_batches()[0],
    "a reader": lambda: TABLE.to_reader(max_chunksize=100),
    "a capsule": lambda: Capsule(TABLE),
    "a capsule that is read once": lambda: Capsule(TABLE.to_reader()),
    "Polars": lambda: pl.DataFrame(DATA),
    "Polars, a category": lambda: polars(pl.Categorical),
    "Polars, an enumeration": lambda: polars(pl.Enum(["b", "a"])),
    "pandas": lambda: pd.DataFrame(DATA),
    "pandas, a category": lambda: pd.DataFrame(DATA).astype({"k": "category"}),
    "pandas, an ordered category": lambda: pd.DataFrame(DATA).astype(
        {"k": pd.CategoricalDtype(["b", "a"], ordered=True)}
    ),
    "DuckDB": lambda: duckdb.from_arrow(TABLE),
    "DuckDB, an enumeration": lambda: duckdb.from_arrow(TABLE).select(
        "u, k::ENUM('b', 'a') AS k, x"
    ),
    "a dictionary": lambda: with_k(TABLE["k"].dictionary_encode()),
    "dictionaries that differ": lambda: with_k(TWO_DICTIONARIES),
    "a dictionary of views": lambda: with_k(
        pa.DictionaryArray.from_arrays(
            TABLE["k"].dictionary_encode().chunk(0).indices,
            pa.array(["a", "b"], pa.string_view()),
        )
    ),
    "runs": lambda: with_k(pc.run_end_encode(TABLE["k"].combine_chunks())),
    "views": lambda: with_k(TABLE["k"].cast(pa.string_view())),
    "long texts": lambda: with_k(TABLE["k"].cast(pa.large_string())),
}


def query(frame):
    return (
        sv.memory(frame)
        .protect(unit="u")
        .group_by("k")
        .agg(n=sv.count(), s=sv.sum("x", bounds=(0, 10)))
        .bound(max_rows=1, max_rows_per_group=1)
        .release(budget=sv.Budget(epsilon=40, delta=1e-6))
    )


@pytest.mark.parametrize("frame", FRAMES.values(), ids=FRAMES)
def test_a_frame_of_any_package_is_read_as_the_same_rows(frame):
    assert as_table(frame()).to_pylist() == TABLE.to_pylist()
    source = MemorySource(frame())
    found = [row for chunk in source.read(None, 70) for row in chunk.rows.to_pylist()]
    assert found == TABLE.to_pylist()


@pytest.mark.parametrize(
    "kind", ["Polars, a category", "pandas, a category", "DuckDB", "a capsule that is read once"]
)
def test_a_query_over_a_frame_answers_and_any_package_takes_the_release(kind, tmp_path):
    *_, release = query(FRAMES[kind]()).run(state=tmp_path / "s")
    keys = {None, "a", "b"}
    assert {*release.to_arrow()["k"].to_pylist()} == keys
    assert {*pl.DataFrame(release)["k"]} == keys
    column = release.to_arrow().to_pandas()["k"]
    assert {None if null else k for k, null in zip(column, column.isna(), strict=True)} == keys
    rows = duckdb.from_arrow(release.to_arrow()).fetchall()
    assert {row[0] for row in rows} == keys
    assert pa.table(release).equals(release.to_arrow())


def test_the_identity_of_a_job_is_one_for_the_same_columns_whichever_package_holds_them():
    kinds = ("Arrow", "pandas", "a reader", "long texts")  # pandas 3 has these
    named = [query(FRAMES[kind]()).plan.fingerprint for kind in kinds]
    assert len(set(named)) == 1


def test_values_of_extensions_and_views_of_bytes_are_read_as_they_are_kept():
    ids = [bytes([i]) * 16 for i in range(3)]
    table = pa.table({
        "id": pa.array(ids, pa.uuid()), "raw": pa.array(ids, pa.binary_view()),
        "d": pa.array(np.array([1, 1, 2])), "n": pa.nulls(3),
    })  # fmt: skip
    found = plain(table)
    assert found["id"].to_pylist() == found["raw"].to_pylist() == ids
    assert found.schema.names == table.schema.names
    assert plain(TABLE) is TABLE


def test_a_parquet_file_keeps_categories_views_and_ids_readable(tmp_path):
    path = tmp_path / "t.parquet"
    ids = pa.array([bytes([i % 250]) * 16 for i in range(ROWS)], pa.uuid())
    table = with_k(FRAMES["a dictionary of views"]()["k"]).append_column("id", ids)
    view = TABLE["k"].cast(pa.string_view())
    pq.write_table(table.set_column(1, "k", view), path)
    source = FilesSource(str(path))
    for chunk in source.read(None, 1000):
        assert chunk.rows.schema == source.schema()
        assert chunk.rows["k"].to_pylist() == DATA["k"]
        assert chunk.rows["id"].to_pylist() == [one.as_py().bytes for one in ids]


ODD = {
    "a text among numbers": [1, "a secret", 2],
    "a number beyond 64 bits": [1, 2**70, 3],
    "an object of another kind": [1, complex(1, 77), 3],
}


@pytest.mark.parametrize("values", ODD.values(), ids=ODD)
@pytest.mark.parametrize("made", [pd.DataFrame, dict], ids=["pandas", "a dict"])
def test_a_frame_whose_values_have_no_common_type_is_refused_without_quoting_one(values, made):
    with pytest.raises(
        SourceError, match=r"cannot be read as a table: its column '\w+' has values.*\n.*to fix"
    ) as refused:
        as_table(made({"u": [1, 2, 3], "k": values}))
    assert all(str(odd) not in str(refused.value) for odd in ("secret", 2**70, "77"))


UUIDS = [UUID(int=7), UUID(int=7)]  # one person


@pytest.mark.parametrize(
    ("frame", "told"),
    [
        (pl.DataFrame({"u": UUIDS}), "'u' has the type Object of Polars"),
        ({"u": pl.Series(UUIDS)}, "'u' has the type Object of Polars"),
        (duckdb.sql("SELECT 3::UHUGEINT AS u"), "'u' has the type UHUGEINT"),
        (pl.DataFrame({"k": pl.Series([1], dtype=pl.Int128)}), "its column 'k' has values"),
        (pd.DataFrame([[1, 2]], columns=["k", "k"]), "two columns are called 'k'"),
        (pa.table({"k": pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])])}),
         "'k' has values of several types"),
    ],
)  # fmt: skip
def test_columns_that_hold_no_plain_values_are_refused_by_name(frame, told):
    with pytest.raises(SourceError, match=rf"{told}.*\n.*to fix"):
        as_table(frame)


def test_what_is_no_table_is_refused_with_a_way_out():
    with pytest.raises(SourceError, match=r"LazyFrame.*\n.*\.collect\(\)"):
        sv.memory(pl.DataFrame(DATA).lazy())
    with pytest.raises(SourceError, match=r"a list of dicts, not list.*\n.*memory\("):
        sv.memory([1, 2])
