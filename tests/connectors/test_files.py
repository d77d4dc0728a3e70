import bz2
import glob
import gzip
import hashlib
import json
import os
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import streamveil as sv
from streamveil.connectors import manifest, open_sink, open_source, rejected_rows
from streamveil.connectors.files import FilesSource
from streamveil.connectors.rejected_rows import TIME, cast_or_null, parse
from streamveil.connectors.text_files import CsvReader
from streamveil.errors import SourceError
from tests.released import made

TABLE = pa.table({"user": [1, 2, 3, 4, 5], "page": ["a", "b", "a", None, "c"]})
COLUMNS = {"user": "INT64", "page": "STRING"}


def write(folder, format):
    path = folder / f"part-1.{format}"
    if format == "parquet":
        pq.write_table(TABLE, path, row_group_size=2)
    elif format == "csv":
        pyarrow.csv.write_csv(TABLE, path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in TABLE.to_pylist()))
    return path


def rows(source, position=None, size=2, columns=None):
    chunks = list(source.read(position, size, columns))
    return [row for chunk in chunks for row in chunk.rows.to_pylist()], chunks


def test_a_link_to_a_folder_above_gives_no_row_twice(tmp_path):
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / "in" / "deep" / "back").symlink_to(tmp_path / "in")
    (tmp_path / "other").mkdir()
    (tmp_path / "in" / "linked").symlink_to(tmp_path / "other")
    for place in ("in", "in/deep", "other"):
        write(tmp_path / place, "parquet")
    found, _ = rows(FilesSource(f"{tmp_path}/in/**/*.parquet"))
    assert len(found) == 3 * len(TABLE)


def test_a_file_that_is_cut_while_it_is_read_is_an_error_and_no_end_of_the_process(tmp_path):
    numbers = np.random.default_rng(1).integers(0, 1 << 60, 1_000_000)
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"n": numbers}), path, row_group_size=250_000)
    reading = FilesSource(str(tmp_path)).read(None, 50_000)
    next(reading)
    os.truncate(path, 1_000_000)
    with pytest.raises(SourceError, match=r"changed after it was read|cannot be read"):
        list(reading)


@pytest.mark.parametrize("format", ["parquet", "csv", "json"])
def test_every_format_reads_the_same_rows_and_resumes_anywhere(tmp_path, format):
    write(tmp_path, format)
    (tmp_path / "part-2.json").touch()  # an empty file holds no rows
    source = FilesSource(str(tmp_path / "part-*"), columns=COLUMNS)
    whole, chunks = rows(source)
    assert whole == TABLE.to_pylist()
    for i, chunk in enumerate(chunks):
        done = sum(c.rows.num_rows for c in chunks[: i + 1])
        assert rows(source, chunk.position)[0] == TABLE.to_pylist()[done:]


def test_only_wanted_columns_are_read_and_a_missing_one_is_named(tmp_path):
    source = FilesSource(str(write(tmp_path, "parquet")))
    assert rows(source, columns=["page"])[0][0] == {"page": "a"}
    with pytest.raises(SourceError, match=r"'pag'.*did you mean 'page'"):
        rows(source, columns=["pag"])


@pytest.mark.parametrize("columns", [None, COLUMNS])
def test_a_folder_of_names_that_tell_no_format_is_refused(tmp_path, columns):
    (tmp_path / "inner").mkdir()
    (tmp_path / ".hidden").touch()
    live, source = (FilesSource(str(tmp_path), columns=columns, follow=True) for _ in range(2))
    if columns:
        assert live.schema().names == ["user", "page"]  # files may come
    (tmp_path / "part-1.csv.xz").write_bytes(gzip.compress(b"user,page\n1,a\n", mtime=0))
    with pytest.raises(SourceError, match=r"tells its format; there are others: \*\.xz"):
        source.schema()
    if columns:
        assert live.schema().names == ["user", "page"]  # and what runs goes on
    write(tmp_path, "csv")
    assert source.schema().names == ["user", "page"]


QUOTED = ['9,"open', '9,"a""', 'x"y,"open', '9,a\r"open', '"9","a\r', '9,"a"b"', '"9,b']


@pytest.mark.parametrize("line", QUOTED)
@pytest.mark.parametrize("others", [3, 200_000])
def test_a_csv_line_with_unpaired_quotes_moves_no_other_line(tmp_path, line, others):
    lines = [f'{n},"page ""{n}"", {n}"' for n in range(others)]
    source = FilesSource(str(tmp_path / "t.csv"), columns=COLUMNS)
    found = []
    for odd in ([], [line]):
        text = [*lines[: others // 2], *odd, *lines[others // 2 :]]
        (tmp_path / "t.csv").write_text("\n".join(["user,page", *text, ""]), newline="")
        found.append([row for row in rows(source, size=10**6)[0] if row["user"] != 9 or not odd])
    assert len(found[0]) == others
    assert [row for row in found[0] if row["user"] != 9] == found[1]


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_fields_end_with_the_delimiter_that_is_given(tmp_path, delimiter):
    """Quotes, an open one, lines of too many fields, and bytes that are no text: as with commas."""
    lines = [
        "user,page",
        "1,a;b|c\td",
        '2,"x,""y"',
        '3,"open',
        "4,a,b",
        "5,\udcff",
        '"6","z"',
        '"7,8"',
    ]
    swapped = str.maketrans({",": delimiter, delimiter: ","})
    path = tmp_path / "t.csv"
    path.write_bytes("\n".join(lines).translate(swapped).encode(errors="surrogateescape"))
    found, chunks = rows(FilesSource(str(path), columns=COLUMNS, delimiter=delimiter), size=100)
    pages = {row["user"]: row["page"] and row["page"].translate(swapped) for row in found}
    assert pages == {1: "a;b|c\td", 2: 'x,"y', 5: None, 6: "z"}
    assert chunks[0].rejected == {
        "malformed row": 3, "field of the wrong type (read as null)": 1
    }  # fmt: skip


FIELDS = st.one_of(
    st.from_regex(r"\s?[-+]?[0-9.]{0,3}([eE][-+]?[0-9])?[,x]?\s?", fullmatch=True),
    st.from_regex(r"\s?[-+]?[0-9]{3,5}-[0-9]{2}-[0-9]{2}[ T]?[0-9:]{0,8}(Z|\+01)?", fullmatch=True),
    st.sampled_from(["nan", "Inf", "-infinity", "0x1F", "1_000", "12,50", "20260101", "3.2.2026"]),
    st.text(max_size=4),
)
KINDS = [pa.int64(), pa.float64(), pa.decimal128(9, 2), TIME, pa.date32(), pa.string(), pa.bool_()]


@given(st.lists(FIELDS, max_size=6), st.sampled_from(KINDS), st.booleans())
@settings(deadline=None)
def test_fields_that_look_hopeless_are_those_that_alone_would_be_null(texts, kind, odd):
    """What form alone rejects, at once, is what a cast of that one field rejects."""
    fields = [text.encode() for text in texts] + [b"\xff"] * odd

    def alone(field):
        with suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return parse(pa.chunked_array([pa.array([field], pa.binary())]), kind).to_pylist()
        return [None]

    column = pa.chunked_array([pa.array(fields, pa.binary())])
    assert repr(cast_or_null(column, kind).to_pylist()) == repr(
        [value for field in fields for value in alone(field)]
    )


def test_a_column_that_is_written_otherwise_takes_no_cast_for_each_field(monkeypatch):
    """A file of decimal commas, or in another encoding: each field fits nothing."""
    for field, kind in ((b"12,50", pa.float64()), (b"31.12.2025", TIME), (b"K\xf6ln", pa.string())):
        counted = Mock(side_effect=parse)
        monkeypatch.setattr(rejected_rows, "parse", counted)
        column = pa.chunked_array([pa.array([field] * 10_000, pa.binary())])
        assert cast_or_null(column, kind).null_count == 10_000
        assert counted.call_count < 20


def test_a_header_of_another_delimiter_says_which(tmp_path):
    path = tmp_path / "t.csv"
    for text in ("user;page\n1;a\n", "\ufeffuser;page\n"):
        path.write_text(text)
        for columns in (None, COLUMNS):
            source = FilesSource(str(path), columns=columns)
            with pytest.raises(SourceError, match="delimiter = ';' if that ends its fields"):
                rows(source, columns=["page"])
    path.write_text('"user;page"\n1\n')
    assert rows(FilesSource(str(path)))[0] == [{"user;page": "1"}]
    for wrong in ("", ";;", '"', "\n", None, 5, "x"):
        with pytest.raises(SourceError, match="delimiter is what ends a field"):
            FilesSource(str(path), delimiter=wrong)


def test_a_csv_line_longer_than_a_block_is_a_row(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(f"user,page\n1,a\n2,{'b' * (9 << 20)}\n3,c\n")
    found = rows(FilesSource(str(path), columns=COLUMNS), size=100)[0]
    assert [(row["user"], len(row["page"])) for row in found] == [(1, 1), (2, 9 << 20), (3, 1)]


def test_malformed_csv_rows_and_misfits_are_counted_and_never_shown(tmp_path):
    path = tmp_path / "bad.csv"
    path.write_bytes(b"user,page\n1,a\nsecret,b\n3\n4,\xff\n99999999999999999999,e\n")
    source = FilesSource(str(path), columns=COLUMNS)
    found, chunks = rows(source, size=100)
    assert found == [
        {"user": 1, "page": "a"}, {"user": None, "page": "b"},
        {"user": 4, "page": None}, {"user": None, "page": "e"},
    ]  # fmt: skip
    assert chunks[0].rejected == {
        "field of the wrong type (read as null)": 3, "malformed row": 1,
    }  # fmt: skip


@pytest.mark.parametrize("line", [b"\xff", b"3,\xff,4", b'"3",\xff,"4"', b'\xff"'])
def test_no_csv_line_can_stop_a_job_or_show_in_a_log(tmp_path, line, capfd):
    path = tmp_path / "bad.csv"
    path.write_bytes(b"user,page\n1,a\n" + line + b'\n2,\xff\n3,"\xff,"\n4,d\n')
    found, chunks = rows(FilesSource(str(path), columns=COLUMNS), size=100)
    assert found == [
        {"user": 1, "page": "a"}, {"user": 2, "page": None}, {"user": 3, "page": None},
        {"user": 4, "page": "d"},
    ]  # fmt: skip
    assert chunks[0].rejected["malformed row"] == 1
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("size", [1, 2, 100])
def test_a_block_of_nothing_but_malformed_lines_is_counted_once(tmp_path, size, monkeypatch):
    monkeypatch.setattr(CsvReader, "BYTES", 8)
    path = tmp_path / "bad.csv"
    path.write_bytes(b"user,page\n1,a\n2,b\n" + b"malformed\n" * 5 + b"3,c\n4,d\n")
    source = FilesSource(str(path), columns=COLUMNS)
    _, chunks = rows(source, size=size)
    counts = [chunk.rejected.get("malformed row", 0) for chunk in chunks]
    assert sum(counts) == 5
    for done, chunk in enumerate(chunks, start=1):  # a restart counts what was not yet counted
        again = [c.rejected.get("malformed row", 0) for c in rows(source, chunk.position, size)[1]]
        assert sum(again) == sum(counts[done:])


def test_malformed_json_lines_are_counted(tmp_path):
    path = tmp_path / "bad.json"
    path.write_bytes(b'{"user": 1, "page": "a"}\nnot json\n[1]\n\n{"user": "x", "page": 7}\n')
    found, chunks = rows(FilesSource(str(path), columns=COLUMNS), size=100)
    assert found == [{"user": 1, "page": "a"}, {"user": None, "page": "7"}]
    assert chunks[0].rejected["malformed row"] == 2


def test_no_json_line_can_stop_a_job(tmp_path):
    path, deep = tmp_path / "bad.json", b"[" * 100_000 + b"]" * 100_000
    half = b'{"user": 2, "page": "\\ud800"}\n'  # half a surrogate pair: no Unicode text
    path.write_bytes(b'{"user": ' + deep + b"}\n" + half + b'{"user": 1, "page": "a"}\n')
    found, chunks = rows(FilesSource(str(path), columns=COLUMNS), size=100)
    assert found == [{"user": 2, "page": None}, {"user": 1, "page": "a"}]
    assert chunks[0].rejected == {
        "malformed row": 1, "field of the wrong type (read as null)": 1,
    }  # fmt: skip


def test_json_without_declared_columns_says_what_to_do(tmp_path):
    with pytest.raises(SourceError, match="declare the columns"):
        rows(FilesSource(str(write(tmp_path, "json"))))


def test_a_growing_directory_goes_on_with_names_in_any_order(tmp_path):
    write(tmp_path, "parquet")
    source = FilesSource(str(tmp_path), follow=True)
    _, chunks = rows(source, size=100)
    pq.write_table(TABLE, tmp_path / "part-2.parquet")
    more, _ = rows(source, chunks[-1].position, size=100)
    assert more == TABLE.to_pylist()
    pq.write_table(TABLE.slice(3), tmp_path / "part-0.parquet")
    more, _ = rows(FilesSource(str(tmp_path)), chunks[-1].position, size=100)
    assert more == TABLE.slice(3).to_pylist() + TABLE.to_pylist()


def test_a_file_that_changed_after_it_was_read_in_part_is_refused(tmp_path):
    path = write(tmp_path, "csv")
    source = FilesSource(str(path))
    chunk = next(source.read(None, 2))
    path.write_text(path.read_text() + '6,"d"\n')
    with pytest.raises(SourceError, match="changed"):
        rows(source, chunk.position)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "no header line"),
        (b"\n\nu,x\n1,2\n", "no header line"),
        (b"u,x\r1,2\r2,3\r", "carriage return alone"),
        (b'u,"a\nb"\n1,2\n', "line break in a name"),
        ("u,x\n1,2\n".encode("utf-16"), "no UTF-8 text"),
        ("u,größe\n1,2\n".encode("latin-1"), "no UTF-8 text"),
        (gzip.compress(b"u,x\n1,2\n", mtime=0), "is compressed"),
    ],
)
def test_a_file_whose_first_line_names_no_columns_is_refused_in_words(tmp_path, data, words):
    path = tmp_path / "odd.csv"
    path.write_bytes(data)
    with pytest.raises(SourceError, match=words) as caught:
        FilesSource(str(path)).schema()
    assert "'odd.csv'" in str(caught.value)


@pytest.mark.parametrize("header", [b"u,x", b"u,x\r\n", b"\xef\xbb\xbfu,x\n"])
def test_a_header_alone_is_a_file_without_rows(tmp_path, header):
    (tmp_path / "0.csv").write_bytes(b"")  # that a writer has just made: another one has the names
    (tmp_path / "1.csv").write_bytes(header)
    source = FilesSource(str(tmp_path))
    assert source.schema().names == ["u", "x"]
    assert sum(chunk.rows.num_rows for chunk in source.read(None, 10)) == 0


def test_columns_of_one_name_are_refused_where_they_are_read(tmp_path):
    path = tmp_path / "twice.csv"
    path.write_text("u,x,x\n1,2,3\n")
    source = FilesSource(str(path))
    assert [chunk.rows.num_rows for chunk in source.read(None, 10, ["u"])] == [1]
    with pytest.raises(SourceError, match="2 columns called 'x'"):
        list(source.read(None, 10, ["u", "x"]))


def test_words_for_nothing_are_texts_and_no_numbers(tmp_path):
    words = ["NA", "null", "nan", "N/A", '"NULL"', "", '""']
    path = tmp_path / "na.csv"
    path.write_text("c,x,y\n" + "".join(f"{word},{word},{word}\n" for word in words))
    source = FilesSource(str(path), columns={"c": "STRING", "x": "FLOAT64", "y": "INT64"})
    [chunk] = source.read(None, 10)
    assert chunk.rows["c"].to_pylist() == ["NA", "null", "nan", "N/A", "NULL", None, None]
    assert chunk.rows["x"].null_count == chunk.rows["y"].null_count == len(words)
    assert not chunk.rejected
    [plain] = FilesSource(str(path)).read(None, 10, ["x"])
    assert plain.rows["x"].to_pylist() == chunk.rows["c"].to_pylist()


def test_unreadable_files_are_named_without_their_content(tmp_path):
    path = tmp_path / "broken.parquet"
    path.write_bytes(b"this is not parquet: secret")
    with pytest.raises(SourceError, match=r"broken\.parquet") as error:
        rows(FilesSource(str(path)))
    assert "secret" not in str(error.value)
    with pytest.raises(SourceError, match="no file matches"):
        FilesSource(str(tmp_path / "none-*.csv")).schema()


@pytest.mark.parametrize("text", ["2013-01-01T05:00:00Z", "2013-01-01 05:00:00",
                                  "2013-01-01T06:00:00+01:00"])  # fmt: skip
def test_timestamps_in_text_are_read_as_utc(tmp_path, text):
    path = tmp_path / "t.csv"
    path.write_text(f"at\n{text}\nnever\n2013-01-01 05:00:00\n")
    found, _ = rows(FilesSource(str(path), columns={"at": "TIMESTAMP"}), size=10)
    assert [row["at"] and row["at"].isoformat() for row in found] == [
        "2013-01-01T05:00:00+00:00", None, "2013-01-01T05:00:00+00:00",
    ]  # fmt: skip


def test_unknown_kinds_options_types_and_formats_name_the_nearest():
    with pytest.raises(SourceError, match="did you mean 'files'"):
        open_source("file", {})
    with pytest.raises(SourceError, match="did you mean 'path'"):
        open_source("files", {"pth": "x"})
    with pytest.raises(SourceError, match="did you mean 'INT64'"):
        open_source("files", {"path": "x", "columns": {"a": "INT46"}})
    with pytest.raises(SourceError, match="did you mean 'parquet'"):
        open_sink("files", {"path": "x", "format": "parqet"})


@pytest.mark.parametrize("format", ["parquet", "csv", "json"])
def test_writing_a_release_again_leaves_the_same_bytes(tmp_path, format):
    sink = open_sink("files", {"path": str(tmp_path), "format": format})
    sink.write("job", made(TABLE, 3, 1))
    [path] = [p for p in tmp_path.rglob("*") if p.is_file()]
    first = path.read_bytes()
    sink.write("job", made(TABLE, 3, 1))
    assert path.read_bytes() == first
    assert path.name == f"trigger=000001.{format}"


def test_a_sink_that_cannot_write_says_where_and_why(tmp_path):
    (tmp_path / "out").write_text("a file where a folder should be")
    with pytest.raises(SourceError, match=r"cannot write to '.*out': (Not a dir|File exists)"):
        open_sink("files", {"path": str(tmp_path / "out")}).write("job", made(TABLE, 0, 1))


ODD = [b"1 line\nbreak.csv", b"2 \xff\xfe.csv", "3 \N{SNOWMAN}.csv".encode(), b"4 [ab]*?.csv"]


def test_files_may_have_any_name(tmp_path):
    for number, name in enumerate(ODD):
        with open(os.path.join(os.fsencode(tmp_path), name), "w") as file:
            file.write(f"user,page\n{number},a\n{number},b\nmalformed\n")
    source = FilesSource(str(tmp_path), columns=COLUMNS)
    source.traced = True
    found, chunks = rows(source, size=1)
    assert [row["user"] for row in found] == [0, 0, 1, 1, 2, 2, 3, 3]
    for done, chunk in enumerate(chunks, start=1):
        again = rows(source, chunk.position, 1)[0]
        assert [row["user"] for row in again] == [row["user"] for row in found[done:]]
    files = [table["file"][0].as_py() for chunk in chunks for table in chunk.rejected_rows if table]
    assert [name[len(str(tmp_path)) + 1 :] for name in files] == [
        name.decode(errors="backslashreplace") for name in ODD
    ]


def test_a_parquet_file_needs_a_name_that_is_text(tmp_path):
    made = write(tmp_path, "parquet")
    os.rename(made, os.path.join(os.fsencode(tmp_path), b"\xff.parquet"))
    with pytest.raises(SourceError, match=r"\\xff.parquet.*UTF-8"):
        rows(FilesSource(str(tmp_path)))


def test_a_file_that_is_named_is_no_pattern(tmp_path):
    for name in ("part[12].csv", "part1.csv"):
        (tmp_path / name).write_text(f"user,page\n7,{name}\n")
    source = FilesSource(str(tmp_path / "part[12].csv"), columns=COLUMNS)
    assert rows(source)[0] == [{"user": 7, "page": "part[12].csv"}]


def test_a_file_that_goes_while_the_folder_is_read_is_named(tmp_path, monkeypatch):
    (tmp_path / "a.csv").write_text("user,page\n1,a\n")
    gone = str(tmp_path / "b.csv")
    found = [str(tmp_path / "a.csv"), gone]
    monkeypatch.setattr("streamveil.connectors.manifest.found", lambda _: found)
    with pytest.raises(SourceError, match=r"cannot read 'b.csv': No such file"):
        rows(FilesSource(str(tmp_path), columns=COLUMNS))


@pytest.mark.parametrize("call", ["scandir", "is_dir"])
def test_a_folder_that_is_closed_to_us_is_named(tmp_path, monkeypatch, call):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os if call == "scandir" else manifest.Path, call, refuse)
    with pytest.raises(SourceError, match=f"cannot read '{tmp_path.name}': Permission denied"):
        rows(FilesSource(str(tmp_path), columns=COLUMNS))


@pytest.fixture
def closing():
    """A folder, and what takes a user's rights to one of its paths for a while."""

    @contextmanager
    def closed(path, mode):
        path.chmod(mode)
        root = os.geteuid() == 0
        if root:  # whom no right is denied
            os.setegid(65534)
            os.seteuid(65534)
        try:
            yield
        finally:
            if root:
                os.seteuid(0)
                os.setegid(0)
            path.chmod(0o755)

    with TemporaryDirectory() as home:  # which another user can reach
        os.chmod(home, 0o755)
        (Path(home) / "in" / "sub").mkdir(parents=True)
        (Path(home) / "in" / "sub" / "a.csv").write_text("user,page\n1,a\n")
        yield Path(home) / "in", closed


@pytest.mark.parametrize("follow", [False, True])
@pytest.mark.parametrize("pattern", ["sub", "sub/*.csv", "*/*.csv", "**/*.csv", "**", "*/a.csv"])
@pytest.mark.parametrize(
    ("lost", "mode"), [("sub", 0), ("sub", 0o444), ("sub", 0o111), ("sub/a.csv", 0)]
)
def test_rights_that_are_lost_are_told_and_nothing_is_passed_over(
    closing, pattern, lost, mode, follow
):
    folder, closed = closing
    source = FilesSource(str(folder / pattern), columns=COLUMNS, follow=follow)
    whole, chunks = rows(source)
    assert whole == [{"user": 1, "page": "a"}]
    (folder / "sub" / "b.csv").write_text("user,page\n2,a\n")
    with closed(folder / lost, mode):
        if pattern == "*/a.csv" and mode == 0o111:  # who may enter a folder can name its files
            assert rows(source)[0] == whole
            return
        with pytest.raises(SourceError, match=r"Permission denied(.|\n)*to fix  let this user"):
            rows(FilesSource(str(folder / pattern), columns=COLUMNS, follow=follow))
        if lost == "sub":
            with pytest.raises(SourceError, match="Permission denied"):
                rows(source, chunks[-1].position)
    if pattern != "*/a.csv":
        assert rows(source, chunks[-1].position)[0] == [{"user": 2, "page": "a"}]


@pytest.mark.parametrize("pattern", ["in", "in/*.csv", "in/**/*.csv"])
def test_a_folder_that_goes_is_told_from_files_that_go(tmp_path, pattern):
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.csv").write_text("user,page\n1,a\n")
    source = FilesSource(str(tmp_path / pattern), columns=COLUMNS, follow=True)
    position = rows(source)[1][-1].position
    (folder / "a.csv").unlink()
    assert rows(source, position)[0] == []
    folder.rename(tmp_path / "away")
    for again in (source, FilesSource(str(tmp_path / pattern), columns=COLUMNS, follow=True)):
        with pytest.raises(SourceError, match=r"the folder 'in'.* missing(.|\n)*to fix  mount"):
            rows(again, position)
    assert rows(source)[0] == [], "who has read nothing waits for the first file"
    folder.mkdir()
    (folder / "b.csv").write_text("user,page\n2,a\n")
    assert rows(source, position)[0] == [{"user": 2, "page": "a"}]


def test_one_file_may_go_once_it_is_read(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("user,page\n1,a\n")
    source = FilesSource(str(path), columns=COLUMNS, follow=True)
    position = rows(source)[1][-1].position
    path.unlink()
    assert rows(source, position)[0] == []


@pytest.mark.parametrize("path", ["a\0b", "in/*\0", ["in", "\0"]])
def test_a_nul_in_an_option_is_refused(path):
    for open_one, kind in ((open_source, "files"), (open_sink, "files"), (open_sink, "sqlite")):
        with pytest.raises(SourceError, match=r"'path' holds a NUL(.|\n)*to fix"):
            open_one(kind, {"path": path})


@pytest.mark.parametrize(
    "pattern",
    ["**", "**/*", "*", "[ab]*", ".h*/*", "**/x/*.csv", "*/**", "**/**/*.csv", "x/../x/*",
     "x/a.csv", "no/*.csv", "a.csv/*"],
)  # fmt: skip
def test_patterns_stand_for_the_files_that_the_shell_s_stand_for(tmp_path, monkeypatch, pattern):
    for name in ("a.csv", "b.csv", "x/a.csv", "x/.h.csv", ".h/a.csv", "x/y/x/c.csv", "x/[a].csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    for form in (pattern, str(tmp_path / pattern)):
        told = [Path(one) for one in glob.glob(form, recursive=True)]
        told = [str(one) for one in told if one.is_file() and not one.name.startswith(".")]
        assert manifest.found([form]) == sorted(set(told), key=lambda one: one.split(os.sep))


def test_a_folder_of_many_files_is_read_in_time_that_follows_their_number(tmp_path, monkeypatch):
    class Counted:
        hashed = 0

        def __init__(self, data=b"", **options):
            self.made = blake2b(**options)
            self.update(data)

        def update(self, data):
            Counted.hashed += len(data)
            self.made.update(data)

        def __getattr__(self, name):
            return getattr(self.made, name)

    monkeypatch.setattr(hashlib, "blake2b", Counted)
    for number in range(300):
        (tmp_path / f"{number:06d}.csv").write_text("user,page\n1,a\n")
    source = FilesSource(str(tmp_path), columns=COLUMNS)
    _, chunks = rows(source)
    assert len(chunks) == 300
    assert Counted.hashed < 4 * sum(len(name) for name in map(str, source.files()))


PACKED = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".zst": lambda data: pa.compress(data, "zstd", asbytes=True),
    ".GZ": lambda data: (
        gzip.compress(data[:9], mtime=0) + gzip.compress(data[9:])
    ),  # of two members
}


@pytest.mark.parametrize("form", ["csv", "json"])
@pytest.mark.parametrize("ending", PACKED)
def test_packed_text_is_read_by_its_name_and_resumes_at_any_row(tmp_path, form, ending):
    plain = write(tmp_path, form)
    expected, _ = rows(FilesSource(str(plain), columns=COLUMNS), size=100)
    data = plain.read_bytes()
    plain.unlink()
    (tmp_path / f"part-1.{form}{ending}").write_bytes(PACKED[ending](data))
    source = FilesSource(str(tmp_path), columns=COLUMNS)
    found, chunks = rows(source, size=2)
    assert found == expected
    done = 0
    for chunk in chunks:
        done += chunk.rows.num_rows
        assert rows(source, chunk.position, 100)[0] == expected[done:]


@pytest.mark.parametrize("form", ["csv", "json"])
def test_packed_text_that_is_damaged_or_named_otherwise_is_refused_in_words(tmp_path, form):
    data = gzip.compress(write(tmp_path, form).read_bytes() * 1000)
    for path, content, words in (
        (tmp_path / f"cut.{form}.gz", data[:-20], "cannot read 'cut"),
        (tmp_path / f"odd.{form}.gz", b"no gzip", "cannot read 'odd"),
        (tmp_path / f"named.{form}", data, "'named.* is compressed, and its name does not say so"),
    ):
        path.write_bytes(content)
        with pytest.raises(SourceError, match=words):
            rows(FilesSource(str(path), columns=COLUMNS), size=100_000)


def test_a_schema_given_in_part_leaves_the_other_columns_as_they_are(tmp_path):
    table = pa.table({"user": ["1", "2"], "page": ["a", "b"], "n": [3, 4]})
    pyarrow.csv.write_csv(table, tmp_path / "t.csv")
    pq.write_table(table, tmp_path / "t.parquet")
    for name, kind in (("t.csv", pa.string()), ("t.parquet", pa.int64())):
        source = FilesSource(str(tmp_path / name), columns={"user": "INT64"})
        assert source.schema() == pa.schema([
            ("user", pa.int64()), ("page", pa.string()), ("n", kind),
        ])  # fmt: skip
        [chunk] = source.read(None, 10, ["n", "user"])
        assert chunk.rows.schema == pa.schema([("n", kind), ("user", pa.int64())])
        assert chunk.rows["user"].to_pylist() == [1, 2]
    (tmp_path / "empty.csv").touch()
    assert FilesSource(str(tmp_path / "empty.csv"), columns=COLUMNS).schema().names == [*COLUMNS]


def test_declared_columns_need_no_file_opened_to_be_read(tmp_path, monkeypatch):
    path = write(tmp_path, "csv")
    source = FilesSource(str(path), columns=COLUMNS)
    source.schema()
    monkeypatch.setattr(FilesSource, "schema", None)
    opened = []
    monkeypatch.setattr(CsvReader, "schema", lambda self, p: opened.append(p) or source.known)
    list(source.read(None, 100, ["user"]))
    assert len(opened) == 1  # the file that is read, for its own header


@pytest.mark.parametrize("declared", [{}, {"columns": {"user": "INT64"}}])
def test_a_column_of_text_that_a_query_reads_as_times_need_not_be_declared(tmp_path, declared):
    lines = ["user,At,k", *(f"{i},2026-01-01T0{i % 4}:30:00+00:00,a" for i in range(400))]
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    query = (
        sv.files(str(tmp_path / "t.csv.gz"), event_time="at", **declared)
        .protect(unit="user")
        .window(sv.tumble("4 hours"))
        .group_by("k")
        .agg(n=sv.count())
        .bound(max_rows=1, max_rows_per_group=1)
        .release(every="1 hour", budget=sv.Budget(epsilon=50, delta=1e-6),
                 start="2026-01-01", end="2026-01-01 04:00:00")
    )  # fmt: skip
    *_, last = query.run(state=tmp_path / "s")
    assert abs(last.to_arrow()["n"][0].as_py() - 400) < 40
