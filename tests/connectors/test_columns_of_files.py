"""Files of one folder whose columns differ: some lack one, some have more."""

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import streamveil as sv
from streamveil.connectors.files import FilesSource
from streamveil.core.noise import SeededNoise
from streamveil.engines.spark.splits import require_parquet
from streamveil.errors import PlanError, SourceError

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


def test_spark_does_not_pass_over_the_options(tmp_path):
    put_all(tmp_path, "parquet")
    with pytest.raises(SourceError, match="Spark does not fill"):
        require_parquet(FilesSource(str(tmp_path), columns=COLUMNS, fill_missing=True))
    with pytest.raises(SourceError, match="Spark reads no columns from names of folders"):
        require_parquet(FilesSource(str(tmp_path), folder_columns="page"))


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


# -- columns that names of folders hold

MONTHS = ("2026-01", "2026-02", "__HIVE_DEFAULT_PARTITION__")
CITIES = {"S%C3%A3o%20Paulo": "S\u00e3o Paulo", "a%2Fb": "a/b", "a%3Db": "a=b"}


def put_in_folders(folder, form):
    """Users 0 to 17 in nine folders; a file's own column of a folder's name does not count."""
    user = 0
    for month in MONTHS:
        for city in CITIES:
            inner = folder / "rides" / f"month={month}" / f"city={city}"
            inner.mkdir(parents=True)
            put(inner, f"x.{form}", [{"user": user + i, "page": "p", "city": "no"} for i in (0, 1)])
            user += 2
    return str(folder / "rides" / "**" / f"*.{form}")


def told_in_folders():
    months = [None if "HIVE" in month else month for month in MONTHS]
    places = [(month, city) for month in months for city in CITIES.values()]
    return {2 * at + i: place for at, place in enumerate(places) for i in (0, 1)}


def of_folders(path, **more):
    given = {"columns": {"user": "INT64", "city": "STRING"}, **more}
    return FilesSource(path, folder_columns=["month", "city"], **given)


@pytest.mark.parametrize("form", ["csv", "parquet", "json"])
def test_names_of_folders_are_columns_from_every_position(form, tmp_path):
    source = of_folders(put_in_folders(tmp_path, form))
    wanted = ["city", "user", "month"]
    chunks = list(source.read(None, 1, wanted))
    found = [row for chunk in chunks for row in chunk.rows.to_pylist()]
    assert {row["user"]: (row["month"], row["city"]) for row in found} == told_in_folders()
    assert [list(row) for row in found] == [wanted] * 18
    for at, chunk in enumerate(chunks, 1):
        assert rows(of_folders(source.patterns[0]), chunk.position, wanted) == found[at:]
    assert [row["month"] for row in rows(source, columns=["month"])] == [
        row["month"] for row in found
    ]  # also where nothing is wanted of the files


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_folders_add_columns_to_those_that_files_have(form, tmp_path):
    source = of_folders(put_in_folders(tmp_path, form), columns=None)
    assert source.schema().names == ["user", "page", "month", "city"]
    assert source.schema().field("month").type == pa.string()
    assert {row["city"] for row in rows(source)} == {*CITIES.values()}


def test_rows_set_aside_keep_their_lines_where_folders_hold_a_column(tmp_path):
    folder = tmp_path / "month=1"
    folder.mkdir()
    put(folder, "a.csv", [{"user": "1"}, {"user": "odd"}])
    source = FilesSource(str(folder), columns={"user": "INT64"}, folder_columns="month")
    source.traced = True
    chunks = list(source.read(None, 9, ["month", "user"]))
    assert [row["user"] for chunk in chunks for row in chunk.rows.to_pylist()] == [1, None]
    [aside] = [part for chunk in chunks for part in chunk.rejected_rows if part.num_rows]
    assert aside.num_rows == 1


@pytest.mark.parametrize(("names", "told"), [
    (["%FF", "%5Cxff", "\udcff"], [None, "\\xff", None]),
    (["M%FCller", "M%F6ller"], [None, None]),
    (["a\\b", "a\\c"], ["a\\b", "a\\c"]),
    (["a\\user=b", "b"], ["a\\user=b", "b"]),
])  # fmt: skip
def test_two_names_of_folders_are_never_one_person(names, told, tmp_path):
    """Else both would share an allowance, and one moved the rows of the other."""
    for at, name in enumerate(names):
        folder = tmp_path / f"user={name}"
        folder.mkdir()
        (folder / "a.csv").write_text(f"n\n{at}\n")
    source = FilesSource(str(tmp_path / "**" / "*.csv"), columns={"n": "INT64"},
                         folder_columns="user")  # fmt: skip
    found = {row["n"]: row["user"] for row in rows(source)}
    assert [found[at] for at in range(len(names))] == told


def test_a_file_in_no_such_folder_is_refused_unless_asked(tmp_path):
    path = put_in_folders(tmp_path, "csv")
    put(tmp_path / "rides", "a.csv", [{"user": 99, "page": "p"}])
    with pytest.raises(SourceError, match=r"'rides/a\.csv' lies in no folder whose name"):
        rows(of_folders(path))
    found = rows(of_folders(path, fill_missing=True), columns=["user", "month"])
    assert {"user": 99, "month": None} in found
    assert len(found) == 19


def test_a_declared_column_that_a_folder_holds_says_which_option_reads_it(tmp_path):
    path = put_in_folders(tmp_path, "parquet")
    with pytest.raises(SourceError, match=r"say folder_columns = \['month'\]"):
        rows(FilesSource(path, columns={"user": "INT64", "month": "STRING"}))


@pytest.mark.parametrize(("path", "named"), [
    ("**/*.parquet", True), ("month=2026-01/*/x.parquet", True),
    ("month=2026-01/city=a%2Fb/x.parquet", True), (None, False),
])  # fmt: skip
def test_a_column_that_no_file_has_names_the_option_where_there_are_folders(path, named, tmp_path):
    put_in_folders(tmp_path, "parquet")
    folder = tmp_path / "rides" / "month=2026-01" / "city=a%2Fb"
    pq.write_table(pq.read_table(folder / "x.parquet"), tmp_path / "x.parquet")
    where = tmp_path / "x.parquet" if path is None else tmp_path / "rides" / path
    query = sv.sql(
        f"""CREATE STREAM rides WITH (source = 'files', path = '{where}');
            SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, delta = 1e-6,
              privacy_unit_column = user, max_rows_contributed = 1) month, COUNT(*) AS n
            FROM rides GROUP BY month"""
    )
    with pytest.raises(PlanError, match="unknown column 'month'; known: ") as found:
        list(query.run(state=tmp_path / "a.veil"))
    assert ("folder_columns = ['month']" in str(found.value)) is named


@pytest.mark.parametrize(("option", "message"), [
    ({"folder_columns": []}, "list of different names"),
    ({"folder_columns": ["a", "a"]}, "list of different names"),
    ({"folder_columns": ["a="]}, "list of different names"),
    ({"folder_columns": "a, b"}, "list of different names"),
    ({"folder_columns": "n", "columns": {"n": "INT64", "u": "INT64"}}, "CAST it in the query"),
])  # fmt: skip
def test_what_no_folder_can_hold_is_refused(option, message):
    with pytest.raises(SourceError, match=message):
        FilesSource("a", **option)


@pytest.mark.parametrize("rejects", [False, True])
def test_a_query_groups_by_folders_as_duckdb_does(tmp_path, rejects):
    path = put_in_folders(tmp_path, "parquet")
    query = sv.sql(
        f"""CREATE STREAM rides WITH (source = 'files', path = '{path}',
              folder_columns = ['month', 'city']);
            SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1000, delta = 1e-9,
              privacy_unit_column = user, max_rows_contributed = 1,
              group_selection_strategy = PUBLIC_GROUPS, public_groups = ['S\u00e3o Paulo', 'a/b'])
            city, COUNT(month) AS n FROM rides WHERE month > '2026-01' GROUP BY city"""
    )
    more = {"rejects": tmp_path / "rejects"} if rejects else {}
    with query.run(state=tmp_path / "a.veil", noise=SeededNoise(1), insecure=True, **more) as job:
        [release] = job
    found = {row["city"]: round(row["n"]) for row in release.table.to_pylist()}
    told = duckdb.sql(
        f"SELECT city, count(month) FROM read_parquet('{path}', hive_partitioning = true,"
        " hive_types_autocast = false) WHERE month > '2026-01' GROUP BY city"
    ).fetchall()
    assert (
        found == {city: n for city, n in told if city in found} == {"S\u00e3o Paulo": 2, "a/b": 2}
    )


# -- types that differ between Parquet files


def read_as(folder, first, second):
    """The values of the second file as the type of the first one's, and how many are no such."""
    for name, values in (("a", first), ("b", second)):
        pq.write_table(pa.table({"x": values}), folder / f"{name}.parquet")
    chunks = list(FilesSource(str(folder)).read(None, 9, ["x"]))
    found = pa.concat_tables([chunk.rows for chunk in chunks])["x"].slice(len(first))
    return found, sum(sum(chunk.rejected.values()) for chunk in chunks)


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
def test_integers_beside_times_of_any_unit_count_microseconds(unit, tmp_path):
    micros = pa.array([1_767_225_600_000_000, -1_000, None])
    times = micros.cast(pa.timestamp("us", "UTC")).cast(pa.timestamp(unit, "UTC"))
    assert read_as(tmp_path, times, micros)[0].to_pylist() == times.to_pylist()
    assert read_as(tmp_path, micros, times)[0].to_pylist() == micros.to_pylist()


@pytest.mark.parametrize(("values", "lost"), [
    (pa.array([7, None]), 0), (pa.array(["7", "007"]), 0), (pa.array([b"7", b"\xff"]), 1),
])  # fmt: skip
@pytest.mark.parametrize("index", [pa.int8(), pa.int32()])
def test_a_dictionary_takes_what_its_values_type_takes(values, lost, index, tmp_path):
    """As pandas writes categories: their type is that of texts."""
    texts = pa.array(["x", None])
    plain, _ = read_as(tmp_path, texts, values)
    coded, odd = read_as(tmp_path, texts.cast(pa.dictionary(index, pa.string())), values)
    assert (coded.to_pylist(), odd) == (plain.to_pylist(), lost)
    numbers = pa.array([1, None]).dictionary_encode()
    assert read_as(tmp_path, numbers, pa.array(["7", "007"]))[0].to_pylist() == [7, None]


def test_a_number_that_is_neither_0_nor_1_is_no_truth_value(tmp_path):
    for values in (pa.array([0, 1, 7]), pa.array([0.0, 1.0, 2.5]), pa.array([0, 1, float("nan")])):
        found, lost = read_as(tmp_path, pa.array([True]), values)
        assert (found.to_pylist(), lost) == ([False, True, None], 1)


def test_a_map_is_no_list_and_stops_nothing(tmp_path):
    maps = pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64()))
    assert read_as(tmp_path, pa.array([["a"]]), maps)[0].to_pylist() == [None, None]


@pytest.mark.parametrize("asked", ["COUNTIF(x = 'a')", "COUNT(x)", "COUNT(*)"])
def test_a_column_of_nulls_alone_in_the_first_file_is_declared_or_refused(asked, tmp_path):
    """Its type says nothing of other files, whose values would all be read as null."""
    pq.write_table(pa.table({"u": [1, 2], "x": pa.nulls(2)}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"u": [3, 4], "x": ["a", "b"]}), tmp_path / "b.parquet")
    private = ("WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1000, delta = 1e-9,"
               " privacy_unit_column = u, max_rows_contributed = 1)")  # fmt: skip
    text = f"""CREATE STREAM t {{}} WITH (source = 'files', path = '{tmp_path}');
               SELECT {private} {asked} AS n FROM t WHERE x IS NOT NULL"""
    with pytest.raises(PlanError, match=r"'x' has no type: the first file(.|\n)*x STRING"):
        sv.sql(text.format("")).answer()
    sure = {"noise": SeededNoise(1), "insecure": True}
    counted = sv.sql(text.format("(x STRING)")).answer(**sure).table["n"].to_pylist()
    assert counted == [1 if "'a'" in asked else 2]
    with pytest.raises(SourceError, match=r"'x' has no type(.|\n)*'b.parquet'"):
        list(FilesSource(str(tmp_path)).read(None, 9, ["x"]))
