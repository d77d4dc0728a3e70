"""Rows that cannot be used are set aside as they came, each with its place in the source."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import streamveil as sv
from streamveil.connectors import Chunk, declared_schema, memory, open_source, select
from streamveil.connectors.files import FilesSource
from streamveil.connectors.rejected_rows import (
    MALFORMED,
    MISFIT,
    MOST_LINE,
    NUMBER_BITS,
    PLACE,
    as_lines,
    beside,
    rejected_table,
    traced,
    with_places,
)
from streamveil.connectors.text_files import CsvReader
from streamveil.errors import PlanError
from streamveil.kinds import SOURCES, SourceKind
from streamveil.plan import SourceSpec
from streamveil.runtime.schedule import open_rows

COLUMNS = {"user": "INT64", "page": "STRING"}
LINES = [b"1,a", b"2", b"", b"x,b", b'3,"c', b"4,\xff", b'5,"d"', b"\xff", b"6,e,7",
         b"99999999999999999999,\xff", b'7,"f"', b"8,g", b"9"]  # fmt: skip
ODD = {MALFORMED: [3, 6, 9, 10, 14], MISFIT: [5, 7, 11]}


def found(source, position=None, size=100):
    """Rows with their places, and what was set aside, from a place on."""
    chunks = list(source.read(position, size))
    rejected_rows = [
        row for chunk in chunks for part in chunk.rejected_rows for row in part.to_pylist()
    ]
    return [row for chunk in chunks for row in chunk.rows.to_pylist()], rejected_rows, chunks


def source(path, **options):
    return traced(FilesSource(str(path), columns=COLUMNS, **options))


@pytest.mark.parametrize("size", [1, 2, 100])
@pytest.mark.parametrize("block", [1, 8, 1 << 22])
def test_csv_lines_are_set_aside_as_they_are_and_rows_know_their_line(
    tmp_path, monkeypatch, size, block
):
    monkeypatch.setattr(CsvReader, "BYTES", block)
    path = tmp_path / "bad.csv"
    path.write_bytes(b"\n".join([b"user,page", *LINES, b""]))
    rows, rejected_rows, chunks = found(source(path), size=size)
    lines = path.read_bytes().split(b"\n")
    assert {
        reason: [r["number"] for r in rejected_rows if r["reason"] == reason] for reason in ODD
    } == ODD
    assert all(row["line"] == lines[row["number"] - 1] for row in rejected_rows)
    assert {row["file"] for row in rejected_rows} == {str(path)}
    assert [row[PLACE] for row in rows] == [2, 5, 7, 8, 11, 12, 13]
    plain = FilesSource(str(path), columns=COLUMNS)
    for done, chunk in enumerate(chunks, start=1):  # whatever was handed over does not come again
        more, left, after = found(source(path), chunk.position, size)
        assert more == [row for later in chunks[done:] for row in later.rows.to_pylist()]
        assert left == [
            row
            for later in chunks[done:]
            for part in later.rejected_rows
            for row in part.to_pylist()
        ]
        assert [c.position for c in after] == [c.position for c in plain.read(chunk.position, size)]


def test_json_lines_are_set_aside(tmp_path):
    path = tmp_path / "bad.json"
    path.write_bytes(b'{"user": 1}\r\nno\r\n  \n{"user": "x", "page": 1}\n[1]\n{"user": 2}')
    rows, rejected_rows, _ = found(source(path))
    assert [(row["reason"], row["number"], row["line"]) for row in rejected_rows] == [
        (MALFORMED, 2, b"no"), (MALFORMED, 5, b"[1]"), (MISFIT, 4, b'{"user": "x", "page": 1}'),
    ]  # fmt: skip
    assert [(row["user"], row[PLACE]) for row in rows] == [(1, 1), (None, 4), (2, 6)]


def test_parquet_fields_of_another_type_are_set_aside_with_their_row(tmp_path):
    for part, users in enumerate((["1", "x"], ["2", "3", "y"])):
        table = pa.table({"user": users, "page": ["a"] * len(users)})
        pq.write_table(table, tmp_path / f"part-{part}.parquet", row_group_size=1)
    rows, rejected_rows, chunks = found(source(tmp_path), size=2)
    found_rows = [
        (row["file"][-9:], row["number"], json.loads(row["line"])) for row in rejected_rows
    ]
    assert found_rows == [
        ("0.parquet", 2, {"user": "x", "page": "a"}), ("1.parquet", 3, {"user": "y", "page": "a"}),
    ]  # fmt: skip
    second = 1 << NUMBER_BITS
    assert [row[PLACE] for row in rows] == [1, 2, second + 1, second + 2, second + 3]
    [again] = found(source(tmp_path), chunks[1].position)[0]
    assert again == {**rows[4], PLACE: 3}  # files are numbered as a process begins them


LARGE = 2**53
OTHER_TYPES = {  # a type of the first file; values of the second, of which some do not fit
    "integers": (pa.float64(), pa.array([LARGE, LARGE + 1, 5]), [1]),
    "decimals": (pa.float64(), pa.array([LARGE, LARGE + 1, 5], pa.decimal128(20, 0)), [1]),
    "fractions": (
        pa.float64(),
        pa.array(["0.10", "90071992547409921.25", "90071992547409921"]).cast(pa.decimal128(30, 2)),
        [2],
    ),
    "texts": (
        pa.float64(),
        pa.array([f"{LARGE}", f"{LARGE + 1}", f"{LARGE + 1}.0", "0.1", "x", "inf", "1e400"]),
        [1, 2, 4, 6],
    ),
    "padded": (pa.int64(), pa.array(["7", "007", "+7", "0x7", "-0", "0", "-7"]), [1, 2, 3, 4]),
    "padded reals": (pa.float64(), pa.array(["7", "007.5", "+7", " 7", "0.5", "-0.5"]), [1, 2, 3]),
    "bytes": (pa.float64(), pa.array([b"9007199254740993", b"\xff", b"2"]), [0, 1]),
    "codes": (pa.float64(), pa.array([f"{LARGE + 1}", "2"]).dictionary_encode(), [0]),
    "reals": (pa.float32(), pa.array([0.1, 2.0**24, 2.0**24 + 1, 1e300, np.nan, np.inf]), [2, 3]),
    "bits": (pa.bool_(), pa.array([0, 1, 2, None]), [2]),
}


@pytest.mark.parametrize("name", OTHER_TYPES)
def test_whole_numbers_of_another_type_are_the_same_or_null(name, tmp_path):
    """Two units would count as one, and without the one rows of the other would pass."""
    kind, values, lost = OTHER_TYPES[name]
    first = pa.array([1.0]).cast(kind)
    for place, column in enumerate((first, values)):
        pq.write_table(pa.table({"user": column}), tmp_path / f"{place}.parquet")
    chunks = [*open_source("files", {"path": f"{tmp_path}/*.parquet"}).read(None, 100)]
    read = pa.concat_tables(chunk.rows for chunk in chunks)["user"].slice(1)
    missing = {*np.flatnonzero(np.asarray(values.is_null())).tolist(), *lost}
    assert {*np.flatnonzero(np.asarray(read.is_null())).tolist()} == missing
    assert sum(chunk.rejected.get(MISFIT, 0) for chunk in chunks) == len(lost)


def test_long_lines_are_cut_and_their_length_is_told(tmp_path):
    path = tmp_path / "bad.csv"
    path.write_bytes(b"user,page\n" + b"x" * (3 * MOST_LINE) + b"\n")
    [row] = found(source(path))[1]
    assert (row["line"], row["bytes"]) == (b"x" * MOST_LINE, 3 * MOST_LINE)


def test_rows_of_sources_without_files_know_their_number():
    table = pa.table({"user": range(5)})
    rows, rejected_rows, chunks = found(traced(open_source("memory", {"table": table})), size=2)
    assert [row[PLACE] for row in rows] == [1, 2, 3, 4, 5]
    assert not rejected_rows
    again = found(traced(open_source("memory", {"table": table})), chunks[1].position)[0]
    assert again == rows[4:]


class Plain:
    """A source of somebody's own, whose positions are no numbers."""

    bounded = True

    def __init__(self, columns: dict[str, str]) -> None:
        self.declared = declared_schema(columns)

    def schema(self):
        return self.declared

    def read(self, position, max_rows, columns=None):
        wanted = self.declared if columns is None else select(self.declared, columns, "")
        if position is None:
            rows = pa.table({"user": [1, None], "page": ["a", "b"]}, self.declared)
            yield Chunk(rows.select(wanted.names), json.dumps({"at": 2}))


def test_a_source_that_tells_no_places_is_run_with_rejects_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setitem(SOURCES, "plain", SourceKind("memory.Plain", is_whole=True))
    monkeypatch.setattr(memory, "Plain", Plain, raising=False)
    query = (
        sv.source("plain", name="plain", columns=COLUMNS).protect("user").agg(n=sv.count())
        .bound(max_rows=1).release(budget=sv.Budget(epsilon=4, delta=1e-9))
    )  # fmt: skip
    list(query.run(tmp_path / "state", rejects=tmp_path / "aside"))
    [file] = (tmp_path / "aside").rglob("batch-*.parquet")
    [row] = pq.read_table(file).to_pylist()
    assert (row["reason"], row["file"], row["number"]) == ("null unit", None, None)


def test_a_source_that_nobody_traces_sets_nothing_aside(tmp_path):
    path = tmp_path / "bad.csv"
    path.write_bytes(b"\n".join([b"user,page", *LINES, b""]))
    rows, rejected_rows, _ = found(FilesSource(str(path), columns=COLUMNS))
    assert not rejected_rows
    assert all(PLACE not in row for row in rows)


def test_a_column_of_the_same_name_is_refused():
    spec = SourceSpec(name="s", kind="memory", options={"table": pa.table({PLACE: [1]})})
    with pytest.raises(PlanError, match=PLACE):
        open_rows(spec, trace=True)


@example([b"\xef\xbb\xbf"])
@example([b"\xef\xbb\xbfa,b"])
@given(st.lists(st.binary(max_size=12).map(lambda b: b.replace(b"\n", b"")), max_size=12))
def test_every_line_is_a_row_or_malformed_or_empty(tmp_path_factory, lines):
    path = tmp_path_factory.mktemp("any") / "t.csv"
    path.write_bytes(b"\n".join([b"user,page", *lines, b""]))
    rows, rejected_rows, chunks = found(source(path), size=3)
    whole = path.read_bytes().splitlines()
    malformed = [row["number"] for row in rejected_rows if row["reason"] == MALFORMED]
    full = [n for n, line in enumerate(whole, start=1) if line and n > 1]
    assert sorted(malformed + [row[PLACE] for row in rows]) == full
    counts = [chunk.rejected.get(MALFORMED, 0) for chunk in chunks]
    assert sum(counts) == len(malformed)
    numbers = np.array([row[PLACE] for row in rows])
    assert (np.diff(numbers) > 0).all()


def test_rows_beside_other_columns_become_lines_whatever_their_times():
    """Fails where rows are told by values of Python: it has no time after the year 9999."""
    far = pa.array([1 << 61, 0]).cast(pa.timestamp("us"))
    nested = pa.StructArray.from_arrays([pa.ListArray.from_arrays([0, 1, 2], far)], ["at"])
    rows = pa.table({"user": ["a", "b"], "ts": far, "more": nested})
    rows = with_places(rows, 0, np.array([1, 2]))
    kept = beside(rejected_table("odd", rows, ["f"]), pa.schema([("total", pa.int64())]))
    first, second = (json.loads(line) for line in kept.column("line").to_pylist())
    assert (first["user"], second["more"]) == ("a", {"at": [second["ts"]]})
    assert second == {"user": "b", "ts": "1970-01-01 00:00:00", "more": second["more"]}
    assert kept.column("row").null_count == 2


NO_TEXT = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"]).buffers())
NOWHERE = pa.array([7], pa.int64()).cast(pa.timestamp("us", "No/Where"))


@pytest.mark.parametrize("odd", [
    NO_TEXT, NO_TEXT.cast(pa.large_string(), safe=False), NOWHERE, NO_TEXT.dictionary_encode(),
    pa.ListArray.from_arrays([0, 1], NO_TEXT), pa.MapArray.from_arrays([0, 1], NO_TEXT, NOWHERE),
    pa.StructArray.from_arrays([NO_TEXT], ["x"]),
], ids=lambda odd: str(odd.type))  # fmt: skip
def test_or_whatever_their_texts_and_zones(odd):
    (line,) = as_lines(pa.table({"user": ["a"], "odd": odd}))
    assert json.loads(line)["user"] == "a"
    assert b"xff" in line or b"1970-01-01 00:00:00.000007Z" in line


def test_a_text_that_is_none_in_a_file_of_another_type_stops_nobody(tmp_path):
    pq.write_table(pa.table({"user": [1], "ts": pa.array([0], pa.timestamp("us"))}),
                   tmp_path / "a.parquet")  # fmt: skip
    texts = pa.concat_arrays([pa.array(["1970-01-01"]), NO_TEXT])
    pq.write_table(pa.table({"user": [2, 3], "ts": texts}), tmp_path / "b.parquet")
    rows, rejected_rows, _ = found(traced(FilesSource(str(tmp_path))))
    assert [row["user"] for row in rows] == [1, 2, 3]
    assert [(row["reason"], json.loads(row["line"])["user"]) for row in rejected_rows] == [
        (MISFIT, 3)
    ]
