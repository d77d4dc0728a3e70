"""CSV whose quoted texts have line breaks: a row may span lines, and takes no other with it."""

import csv
import io
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import streamveil as sv
from streamveil.connectors.files import FilesSource
from streamveil.connectors.long_lines import Long
from streamveil.connectors.quoted_newlines import joined_rows, rows_over_lines, with_breaks
from streamveil.connectors.text_files import CsvReader
from streamveil.core.noise import SeededNoise
from tests.connectors.test_files import rows

NAMES = ["user", "page", "note"]
COLUMNS = dict.fromkeys(NAMES, "STRING")
TEXTS = st.text(st.sampled_from('ab,;"\n\r\x1amnr é'), max_size=6)
ROWS = st.lists(st.tuples(st.integers(0, 3).map(str), TEXTS, TEXTS), max_size=12)


def written(lines, **how):
    """Such rows as Python's `csv` writes them."""
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n", **how).writerows([NAMES, *lines])
    return text.getvalue()


def read(text, size=10**6, **more):
    """The rows of a file with this text; the rejects of each part."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "t.csv"
        path.write_bytes(text.encode(errors="surrogateescape"))
        source = FilesSource(str(path), columns=COLUMNS, allow_quoted_newlines=True, **more)
        found, parts = rows(source, size=size)
    total = sum(sum(part.rejected.values()) for part in parts)
    return [tuple(row[name] or "" for name in NAMES) for row in found], total


@given(ROWS, st.sampled_from([1, 7, 40, 1 << 20]), st.sampled_from([1, 3, 1_000]), st.booleans())
@settings(deadline=None)
def test_rows_are_those_of_another_reader(lines, block, size, every):
    """For any cut into blocks: a row may begin in one and end in another, several lines later."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CsvReader, "BYTES", block)
        if not every:  # a carriage return alone has no quotes then
            lines = [[text.replace("\r", "") for text in line] for line in lines]
        text = written(lines, quoting=csv.QUOTE_ALL if every else csv.QUOTE_MINIMAL)
        assert read(text, size) == ([tuple(line) for line in lines], 0)


@given(ROWS.filter(bool), TEXTS, st.integers(0, 11))
@settings(deadline=None)
def test_a_text_changes_no_row_of_others(lines, other, place):
    """Neighbours: whatever one user writes, all rows of others are there and are the same."""
    place %= len(lines)
    changed = [*lines]
    changed[place] = (lines[place][0], other, "")
    (one, _), (two, _) = (read(written(some, quoting=csv.QUOTE_ALL)) for some in (lines, changed))
    assert one[:place] + one[place + 1 :] == two[:place] + two[place + 1 :]
    assert len(one) == len(two)


def test_by_default_a_line_is_a_row(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(written([("1", "a\n2,forged,x\n", "b"), ("3", "c", "d")]))
    forged = rows(FilesSource(str(path), columns=COLUMNS), size=9)[0]
    assert [row["user"] for row in forged] == ["2", "3"]
    assert [row[0] for row in read(path.read_text())[0]] == ["1", "3"]


@given(ROWS.filter(bool), st.text(st.sampled_from('a,"\n'), max_size=60), st.integers(0, 11),
       st.sampled_from([1, 7, 40, 1 << 20]), st.integers(20, 60), st.booleans())  # fmt: skip
@settings(deadline=None)
def test_a_text_that_is_too_long_changes_no_row_of_others(lines, other, place, block, most, every):
    """Whatever its lines look like, also where one of them alone is too long."""
    if not every:  # a carriage return alone has no quotes then
        lines = [[text.replace("\r", "") for text in line] for line in lines]
    place %= len(lines)
    changed = [*lines[:place], (lines[place][0], other, ""), *lines[place + 1 :]]
    how = {"quoting": csv.QUOTE_ALL if every else csv.QUOTE_MINIMAL}
    texts = [written([line], **how).split("\n", 1)[1] for line in changed]
    long = [len(text.encode().rstrip(b"\r\n")) > most for text in texts]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CsvReader, "BYTES", block)
        found = read(written(changed, **how), max_line_bytes=most)
    assert found == ([tuple(r) for r, out in zip(changed, long, strict=True) if not out], sum(long))


@given(st.lists(st.sampled_from([b'1,"a', b'b"', b"2,c", b'3,"d"', b'"', b'4,e"', b'""', b""])),
       st.sampled_from([1, 5, 1 << 10]), st.integers(1, 30))  # fmt: skip
@settings(max_examples=400, deadline=None)
def test_rows_are_those_of_a_machine_that_reads_byte_by_byte(lines, size, most):
    """Any lines, quoted well or not; wherever they are cut into blocks."""
    whole = b"\n".join(lines)
    kept, told = [], []
    for row in slow_rows(whole):
        kept, told = ([*kept, row], told) if len(row) <= most else (kept, [*told, row])
    made, long = b"", []
    for block in rows_over_lines(io.BytesIO(whole), size, most, ","):
        if isinstance(block, Long):
            long.append(block)
        else:
            made += block
    assert [with_breaks(line) for line in made.split(b"\n") if line] == [row for row in kept if row]
    assert len(long) == len(told)
    for one, row in zip(long, told, strict=True):
        assert row.startswith(one.start.rstrip(b"\n"))
        assert one.size in (len(row), len(row) - 1)  # the last line has no end


def slow_rows(whole):
    """The rows of bytes: what stands between line breaks outside of quotes."""
    rows, state = [b""], "field"
    for sign in whole.decode():
        if sign == "\n" and state != "text":
            rows, state = [*rows, b""], "field"
            continue
        rows[-1] += sign.encode()
        if state == "text":
            state = "quote" if sign == '"' else "text"
        elif sign == ",":
            state = "field"
        elif sign == '"' and state in ("field", "quote"):
            state = "text"
        else:
            state = "plain"
    return rows


@pytest.mark.parametrize("block", [64, 1 << 20])
def test_a_quote_that_is_never_closed_takes_what_follows(monkeypatch, block):
    """A file that ends within a text: what stands in it is nobody else's row."""
    monkeypatch.setattr(CsvReader, "BYTES", block)
    lines = [(str(n), f"page {n}", "x") for n in range(200)]
    text = written(lines)
    for most in (99, 1 << 20):
        assert read(text + '7,"open,x\n' + "8,y,z\n" * 90, max_line_bytes=most) == (lines, 1)


def test_lines_whose_quotes_stay_open_are_read_in_one_go():
    """Each of them might begin a row that never ends: looking for its end from each took hours."""
    for line in b'","x","\n', b',,"\n', b'""\n':
        begun = process_time()
        for _ in rows_over_lines(io.BytesIO(b'1,"a\n' + line * 99_000), 1 << 20, 1 << 12, ","):
            pass
        assert process_time() - begun < 5  # seconds; it took minutes


def test_a_query_and_a_public_table_read_such_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    notes = ['one\nline "more"', "two"]
    with open("v.csv", "w", newline="") as file:
        csv.writer(file).writerows([NAMES, *([n, notes[n % 2], "x"] for n in range(400))])
    with open("p.csv", "w", newline="") as file:
        csv.writer(file).writerows([["page", "land"], [notes[0], "m"], [notes[1], "n"]])
    options = "source = 'files', allow_quoted_newlines = TRUE"
    query = sv.sql(f"""
        CREATE STREAM v (user STRING, page STRING) WITH ({options}, path = 'v.csv');
        CREATE TABLE p WITH ({options}, path = 'p.csv', public = TRUE);
        SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 50, delta = 1e-6,
          privacy_unit_column = user, max_rows_contributed = 1) land, v.page, COUNT(*) AS n
        FROM v JOIN p ON v.page = p.page GROUP BY land, v.page""")
    [release] = query.run(state="s.veil", noise=SeededNoise(1), insecure=True)
    table = release.to_arrow().sort_by("land")
    assert table.select(["land", "page"]).to_pydict() == {"land": ["m", "n"], "page": notes}
    assert [abs(n - 200) < 40 for n in table["n"].to_pylist()] == [True, True]


def test_rejected_rows_are_kept_as_they_came(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text('user,page,note\n1,"a\nb",c,d\n2,e,f\n', newline="")
    source = FilesSource(str(path), columns=COLUMNS, allow_quoted_newlines=True)
    source.traced = True
    [part] = list(source.read(None, 9, None))
    assert part.rows["user"].to_pylist() == ["2"]
    assert part.rejected_rows[0]["line"].to_pylist() == [b'1,"a\nb",c,d']


def test_marks_stand_for_themselves():
    text = b'1,"\x1an\n\x1am",\x1ar\n'
    [whole], rest = joined_rows(text, 99)
    assert (whole.count(b"\n"), rest, with_breaks(whole)) == (1, b"", text)
