"""Files of one folder whose columns differ: some lack one, some have more."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import streamveil as sv
from streamveil.connectors.files import FilesSource
from streamveil.core.noise import SeededNoise
from streamveil.engines.spark.splits import require_parquet
from streamveil.errors import SourceError

COLUMNS = {"user": "INT64", "page": "STRING"}


def put(folder, name, rows):
    path = folder / name
    if name.endswith(".parquet"):
        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=1)
    elif name.endswith(".json"):
        path.write_text("".join(f"{row}\n".replace("'", '"') for row in rows))
    else:
        lines = [",".join(rows[0])] + [",".join(map(str, row.values())) for row in rows]
        path.write_text("\n".join(lines) + "\n")


def put_all(folder, form):
    put(folder, f"a.{form}", [{"user": 1}, {"user": 2}])
    put(folder, f"b.{form}", [{"page": "x", "user": 3}])
    put(folder, f"c.{form}", [{"more": 7, "user": 4, "page": "y"}])


def rows(source, place=None, columns=None):
    return [row for chunk in source.read(place, 1, columns) for row in chunk.rows.to_pylist()]


ALL = [(1, None), (2, None), (3, "x"), (4, "y")]


@pytest.mark.parametrize("form", ["csv", "parquet", "json"])
def test_a_column_that_comes_later_is_null_before_and_one_more_is_passed_over(form, tmp_path):
    put_all(tmp_path, form)
    source = FilesSource(str(tmp_path), columns=COLUMNS, fill_missing=True)
    chunks = list(source.read(None, 1, ["user", "page"]))
    found = [tuple(row.values()) for chunk in chunks for row in chunk.rows.to_pylist()]
    assert found == ALL
    assert {chunk.rows.schema.field("page").type for chunk in chunks} == {pa.string()}
    assert not any(chunk.rejected for chunk in chunks)
    assert rows(source, chunks[0].position, ["page", "user"]) == [
        {"page": page, "user": user} for user, page in ALL[1:]
    ]


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_file_that_lacks_a_column_is_refused_unless_asked_and_says_how(form, tmp_path):
    put_all(tmp_path, form)
    with pytest.raises(SourceError, match=rf"'page' is not in 'a.{form}'(.|\n)*fill_missing"):
        rows(FilesSource(str(tmp_path), columns=COLUMNS))


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_file_with_none_of_the_columns_and_an_undeclared_one_are_refused(form, tmp_path):
    put(tmp_path, f"a.{form}", [{"other": 1}])
    with pytest.raises(SourceError, match="is not in"):
        rows(FilesSource(str(tmp_path), columns=COLUMNS, fill_missing=True), columns=[*COLUMNS])
    put(tmp_path, f"a.{form}", [{"user": 1, "other": 1}])
    put(tmp_path, f"b.{form}", [{"user": 1}])
    with pytest.raises(SourceError, match="'other' is not in"):
        rows(FilesSource(str(tmp_path), columns=COLUMNS, fill_missing=True))


def test_spark_does_not_pass_over_the_option(tmp_path):
    put_all(tmp_path, "parquet")
    with pytest.raises(SourceError, match="Spark does not fill"):
        require_parquet(FilesSource(str(tmp_path), columns=COLUMNS, fill_missing=True))


def test_filling_takes_declared_columns():
    with pytest.raises(SourceError, match="to fix  declare"):
        FilesSource("a", fill_missing=True)


def test_a_schema_given_in_part_types_its_columns_and_leaves_the_others_text(tmp_path):
    put(tmp_path, "a.csv", [{"user": 1, "page": "x"}])
    found = FilesSource(str(tmp_path), columns={"user": "INT64"}).schema()
    assert found == pa.schema([("user", pa.int64()), ("page", pa.string())])


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_rows_set_aside_keep_their_lines_where_a_column_is_filled(form, tmp_path):
    put(tmp_path, f"a.{form}", [{"user": "1"}, {"user": "odd"}])
    source = FilesSource(str(tmp_path), columns=COLUMNS, fill_missing=True)
    source.traced = True
    chunks = list(source.read(None, 9, ["user", "page"]))
    assert [row["user"] for chunk in chunks for row in chunk.rows.to_pylist()] == [1, None]
    [aside] = [part for chunk in chunks for part in chunk.rejected_rows if part.num_rows]
    assert aside.num_rows == 1


def test_a_query_in_sql_counts_files_of_both_kinds(tmp_path):
    put_all(tmp_path, "csv")
    query = sv.sql(
        f"""CREATE STREAM clicks (user INT64, page STRING)
              WITH (source = 'files', path = '{tmp_path}', fill_missing = TRUE);
            SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1000, delta = 1e-9,
              privacy_unit_column = user, max_rows_contributed = 1) COUNT(page) AS pages
            FROM clicks"""
    )
    with query.run(state=tmp_path / "a.veil", noise=SeededNoise(1), insecure=True) as job:
        [release] = job
    assert round(release.table["pages"][0].as_py()) == 2
