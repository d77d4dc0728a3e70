"""What one line may take: a longer one is counted and passed over, whatever memory there is."""

import bz2
import gzip
import io
import json
import subprocess
import sys
import textwrap

import pyarrow as pa
import pytest

from streamveil.connectors.file_reader import MOST_LINE
from streamveil.connectors.files import FilesSource
from streamveil.connectors.long_lines import Long, blocks
from streamveil.connectors.rejected_rows import MALFORMED, TOO_LONG, traced
from streamveil.connectors.text_files import CsvReader, JsonReader
from streamveil.errors import SourceError

COLUMNS = {"user": "INT64", "page": "STRING"}
ROWS = {
    "csv": lambda user, page: b'%d,"%s"' % (user, page),
    "jsonl": lambda user, page: b'{"user": %d, "page": "%s"}' % (user, page),
}
HEAD = {"csv": b"user,page\n", "jsonl": b""}
PACK = {
    "": lambda data: data,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".zst": lambda data: pa.compress(data, "zstd", asbytes=True),
}
CALM = """
    import json, resource, sys
    from streamveil.connectors.files import FilesSource

    options = {"columns": {"user": "INT64", "page": "STRING"}, **json.loads(sys.argv[4])}

    def read(path):
        rows, rejected = [], {}
        for chunk in FilesSource(path, **options).read(None, 100):
            rows += chunk.rows["user"].to_pylist()
            for reason, count in chunk.rejected.items():
                rejected[reason] = rejected.get(reason, 0) + count
        return rows, rejected

    read(sys.argv[1])  # whatever is loaded and mapped once
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    limit = used + (int(sys.argv[3]) << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    print(read(sys.argv[2]))
"""


def under_a_limit(small, large, megabytes, **options):
    words = small, large, str(megabytes), json.dumps(options)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(CALM), *words],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


def lines_of(form, *pages):
    return HEAD[form] + b"".join(ROWS[form](n, page) + b"\n" for n, page in enumerate(pages))


@pytest.mark.skipif(sys.platform != "linux", reason="a limit of addresses")
@pytest.mark.parametrize("form", ROWS)
def test_a_line_larger_than_all_memory_ends_no_job(form, tmp_path):
    small, large = tmp_path / f"small.{form}", tmp_path / f"large.{form}"
    small.write_bytes(lines_of(form, b"a", b"b"))
    with large.open("wb") as file:  # zeros take no disk
        file.write(lines_of(form, b"a") + ROWS[form](1, b"x")[:-4])
        file.truncate(700 << 20)
        file.seek(0, 2)
        file.write(b"\n" + ROWS[form](2, b"c") + b"\n")
    told = under_a_limit(str(small), str(large), 200)
    assert told == f"([0, 2], {{'{TOO_LONG}': 1}})"


@pytest.mark.skipif(sys.platform != "linux", reason="a limit of addresses")
@pytest.mark.parametrize("form", ROWS)
def test_a_line_that_unpacks_to_more_than_all_memory_ends_no_job(form, tmp_path):
    small, large = tmp_path / f"small.{form}.gz", tmp_path / f"large.{form}.gz"
    small.write_bytes(gzip.compress(lines_of(form, b"a", b"b")))
    large.write_bytes(gzip.compress(lines_of(form, b"a", b"x" * (300 << 20), b"c"), 1))
    told = under_a_limit(str(small), str(large), 200)
    assert told == f"([0, 2], {{'{TOO_LONG}': 1}})"


NASTY = {  # lines within the limit, and how many megabytes are enough to read one after another
    "jsonl": (400, [
        b'{"user": ' + b"[]," * 5_000_000 + b"0}", b'{"user": [' + b"[]," * 5_000_000 + b"0]}",
        b'{"other": [' + b"{}," * 5_000_000 + b"0]}", b'{"user": "' + b"\\u0041" * 2_500_000 + b'"',
        b'{"user": "' + b"\\\\" * 7_000_000 + b'"}}', b"[" * 15_000_000, b'{"user":' * 1_900_000,
    ]),
    "csv": (600, [
        b"," * 15_000_000, b'1,"' + b'""' * 7_000_000, b'1,"' + b"x" * 15_000_000,
        b'"",' * 5_000_000, b'1,2,"' + b'""' * 7_000_000 + b'"\xff',
    ]),
}  # fmt: skip


@pytest.mark.skipif(sys.platform != "linux", reason="a limit of addresses")
@pytest.mark.parametrize("form", NASTY)
def test_no_line_within_the_limit_takes_a_multiple_of_it_to_read(form, tmp_path):
    small, large = tmp_path / f"small.{form}", tmp_path / f"large.{form}"
    small.write_bytes(lines_of(form, b"a", b"b"))
    megabytes, lines = NASTY[form]
    assert max(map(len, lines)) <= MOST_LINE
    with large.open("wb") as file:
        file.write(lines_of(form, b"a"))
        for number, line in enumerate(lines, 1):
            file.write(line + b"\n" + ROWS[form](number, b"c") + b"\n")
    read, malformed = [*range(len(lines) + 1)], {MALFORMED: len(lines)}
    assert under_a_limit(str(small), str(large), megabytes) == f"({read}, {malformed})"


@pytest.mark.skipif(sys.platform != "linux", reason="a limit of addresses")
@pytest.mark.parametrize(
    ("part", "end", "rows", "malformed"),
    [(b"0\r", b"", [0, 2], {MALFORMED: 7_000_000}),
     (b"0\r", b'"', [0, 1, 2], {}), (b"0\n", b'"', [0, 1, 2], {})],
)  # fmt: skip
def test_millions_of_lines_in_one_take_no_multiple_of_it_to_read(
    part, end, rows, malformed, tmp_path
):
    """A carriage return ends a line of CSV as well; a row may have half as many lines as bytes."""
    small, large = tmp_path / "small.csv", tmp_path / "large.csv"
    small.write_bytes(lines_of("csv", b"a", b"b"))
    begin = end and b"1," + end
    large.write_bytes(lines_of("csv", b"a") + begin + part * 7_000_000 + end + b"\n2,c\n")
    told = under_a_limit(str(small), str(large), 800, allow_quoted_newlines=bool(end))
    assert told == f"({rows}, {malformed})"


@pytest.mark.parametrize("pack", PACK)
@pytest.mark.parametrize("form", ROWS)
@pytest.mark.parametrize("size", [1, 16, 1 << 20])
def test_a_line_too_long_is_counted_once_and_set_aside_by_its_start(
    form, pack, size, tmp_path, monkeypatch
):
    monkeypatch.setattr(CsvReader, "BYTES", size)
    monkeypatch.setattr(JsonReader, "BYTES", size)
    path = tmp_path / f"t.{form}{pack}"
    long = b"y" * 200_000
    data = lines_of(form, b"a", long, b"b", long, long, b"c")
    path.write_bytes(PACK[pack](data))
    source = traced(FilesSource(str(path), columns=COLUMNS, max_line_bytes=100))
    for rows in (1, 100):
        chunks = list(source.read(None, rows))
        assert [u for c in chunks for u in c.rows["user"].to_pylist()] == [0, 2, 5]
        assert sum(c.rejected.get(TOO_LONG, 0) for c in chunks) == 3
        rejected_rows = [
            row for c in chunks for part in c.rejected_rows for row in part.to_pylist()
        ]
        lines = data.splitlines()
        assert [row["bytes"] for row in rejected_rows] == [
            len(lines[row["number"] - 1]) for row in rejected_rows
        ]
        assert all(lines[row["number"] - 1].startswith(row["line"]) for row in rejected_rows)
        assert {row["reason"] for row in rejected_rows} == {TOO_LONG}
        for done, chunk in enumerate(chunks, 1):  # a restart goes on at the exact place
            again = list(source.read(chunk.position, rows))
            assert [u for c in again for u in c.rows["user"].to_pylist()] == [
                u for c in chunks[done:] for u in c.rows["user"].to_pylist()
            ]
            assert sum(c.rejected.get(TOO_LONG, 0) for c in again) == sum(
                c.rejected.get(TOO_LONG, 0) for c in chunks[done:]
            )


@pytest.mark.parametrize("most", [1, 3, 4, 5, 100])
@pytest.mark.parametrize("size", [1, 2, 5, 64])
@pytest.mark.parametrize("end", [b"", b"\n", b"abcdef"])
def test_blocks_hold_every_line_up_to_the_limit_and_tell_of_the_others(most, size, end):
    data = b"\n\nabcd\nabc\nabcde\n\nab\nabcdefghij\nabcd\n" + end
    found, lengths = b"", []
    for block in blocks(io.BytesIO(data), size, most):
        if isinstance(block, Long):
            lengths.append(block.size)
        else:
            found += block
    lines = [line for line in io.BytesIO(data) if len(line.rstrip(b"\n")) <= most]
    assert found == b"".join(lines)
    others = [len(line) for line in data.split(b"\n") if len(line) > most]
    assert lengths == others


def test_a_small_limit_makes_no_small_blocks(tmp_path):
    """Each was a micro-batch, and a commit: a thousand for a megabyte."""
    path = tmp_path / "t.csv"
    path.write_bytes(lines_of("csv", *[b"a"] * 100_000))
    source = FilesSource(str(path), columns=COLUMNS, max_line_bytes=100)
    assert [chunk.rows.num_rows for chunk in source.read(None, 1 << 20)] == [100_000]


def test_a_header_too_long_and_a_limit_that_is_none_are_refused_in_words(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(b"a," * 1000 + b"b\n1,2\n")
    with pytest.raises(SourceError, match=r"'t.csv' has a header of more than 100 bytes"):
        FilesSource(str(path), max_line_bytes=100).schema()
    for wrong in (0, -1, 1 << 40, True, None):
        with pytest.raises(SourceError, match="max_line_bytes is from 1 to"):
            FilesSource(str(path), max_line_bytes=wrong)


def test_the_position_of_a_packed_file_is_its_own_number_of_rows(tmp_path):
    path = tmp_path / "t.jsonl.gz"
    path.write_bytes(gzip.compress(lines_of("jsonl", *[b"a"] * 10)))
    source = FilesSource(str(path), columns=COLUMNS)
    first = next(iter(source.read(None, 4)))
    assert json.loads(first.position)["row"] == 4
    rest = [u for c in source.read(first.position, 3) for u in c.rows["user"].to_pylist()]
    assert rest == [4, 5, 6, 7, 8, 9]
