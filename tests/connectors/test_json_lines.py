"""JSON lines: whoever reads them, Arrow or Python, they mean what Python reads of each line."""

import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streamveil.connectors import json_lines
from streamveil.connectors.files import FilesSource
from streamveil.connectors.json_lines import (
    json_block,
    json_messages,
    native_rows,
    real_or_text,
)
from streamveil.connectors.rejected_rows import fit
from streamveil.json_text import MOST_DEPTH, MOST_VALUES, is_excessive

KINDS = {
    "n": pa.int64(), "x": pa.float64(), "b": pa.bool_(), "t": pa.string(), "r": pa.binary(),
    "at": pa.timestamp("us", tz="UTC"), "d": pa.date32(),
}  # fmt: skip
WANTED = pa.schema(KINDS.items())


def one_by_one(block):
    """The specification: what `json.loads` makes of each line, as text; reals as written."""
    rows, malformed = [], []
    lines = block.split(b"\n")
    for place, line in enumerate(lines[:-1] if lines[-1] == b"" else lines):
        try:
            row = json.loads(line, parse_float=real_or_text)
            written = json.loads(line, parse_float=str)
        except (ValueError, RecursionError):
            row = None
        if isinstance(row, dict):
            cells = [(written if isinstance(row.get(name), float | str) else row).get(name)
                     for name in KINDS]  # fmt: skip
            texts = [c if isinstance(c, str) or c is None else json.dumps(c) for c in cells]
            rows.append([None if t is None else t.encode("utf-8", "surrogatepass") for t in texts])
        elif line.strip():
            malformed.append(place)
    columns = [pa.array(c, pa.binary()) for c in zip(*rows, strict=True)] or [
        pa.array([], pa.binary()) for _ in KINDS
    ]
    return pa.table(columns, list(KINDS)), malformed


def bits(table):
    """Every value exactly: -0 is not 0, and NaN is itself."""
    return [
        [None if v is None else np.float64(v).tobytes() for v in column.to_pylist()]
        if pa.types.is_floating(column.type)
        else column.cast(pa.int64()).to_pylist()
        if pa.types.is_timestamp(column.type)
        else column.to_pylist()
        for column in table.columns
    ]


def same(block):
    rows, malformed = one_by_one(block)
    found = json_block(block, WANTED)
    assert found.malformed.tolist() == malformed
    expected, lost = fit(rows, WANTED)
    read, missed = fit(found.rows, WANTED)
    assert bits(read) == bits(expected)
    assert missed == lost
    assert len(found.of_rows()) == rows.num_rows


NUMBERS = st.sampled_from([
    "0", "-0", "-0.0", "0.1", "1e3", "1E400", "-1e400", "1e-400", "5e-324", "9223372036854775807",
    "9223372036854775808", "-9223372036854775809", "123456789012345678901234567890", "NaN", "-NaN",
    "Infinity", "-Infinity", "Inf", "-Inf", "nan", "01", "1.", ".5", "+1", "0x1", "1_000", "1e",
    "9007199254740993", "0.30000000000000004", "1.7976931348623157e308", "2.2250738585072011e-308",
])  # fmt: skip
TEXTS = st.sampled_from([
    '""', '"a"', '"\\u00e9"', '"\\ud83d\\ude00"', '"\\ud800"', '"\\udc00x"', '"\\u0000"', '"\\n"',
    '"\\/"', '"\\x"', '"a\tb"', '"é"', '"😀"', '"NaN"', '"Inf"', '", Inf"', '"5"', '"1.5"',
    '"true"', '"null"', '"{}"', '"}\\n{"', '"2026-01-01"', '"2026-01-01T00:00:00Z"', '"[[[["',
    "'a'",
    '"a',    '"2026-01-01 00:00:00.123456789+02:00"', '"2026-01-01T10:00:00"',
])  # fmt: skip
WORDS = st.sampled_from(["true", "false", "null", "True", "None", "undefined", "", "nul"])
JSONS = st.recursive(
    st.one_of(NUMBERS, TEXTS, WORDS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda p: "[" + ",".join(p) + "]"),
        st.lists(st.tuples(st.sampled_from(['"n"', '"z"', '"\\u006e"']), inner), max_size=3).map(
            lambda p: "{" + ", ".join(f"{k}:{v}" for k, v in p) + "}"
        ),
    ),
    max_leaves=4,
)
NAMES = st.sampled_from(
    [*(f'"{name}"' for name in KINDS), '"other"', '"\\u0074"', "n", '"N"', '""']
)
FITTING = st.fixed_dictionaries({}, optional={
    '"n"': st.integers(-(2**63), 2**63 - 1).map(str), '"x"': st.floats().map(json.dumps),
    '"b"': st.sampled_from(["true", "false", "null"]), '"t"': st.text(max_size=4).map(json.dumps),
    '"other"': JSONS, '"at"': st.datetimes().map(lambda t: f'"{t.isoformat()}Z"'),
})  # fmt: skip
LINES = st.one_of(
    FITTING.map(lambda row: "{" + ", ".join(f"{k}: {v}" for k, v in row.items()) + "}"),
    st.lists(st.tuples(NAMES, JSONS), max_size=4).map(
        lambda row: "{" + ",".join(f"{k}:{v}" for k, v in row) + "}"
    ),
    st.sampled_from([
        "", " ", "\t", "{}", "[]", "{", "}", '{"n": 1} {"n": 2}', '{"n": 1}{"n": 2}', '{"n":', "1}",
        '{"other":{}', ',"n":1}', ' {"n": 1}', '{"n": 1} ', '{"n": 1,}', "null", "5", '"a"', "{}//",
        "\ufeff{}", '{"n": 1}x', "{}\0", '{"n": /* */ 1}', '{"n": 1, "n": 2}',
        '{"n": 1, "n": null}',
    ]),
)  # fmt: skip


@settings(max_examples=400)
@given(st.lists(LINES, max_size=12), st.sampled_from(["\n", "\r\n"]), st.booleans())
@example(['{"other": Inf}'], "\n", True)
@example(['{"n": 1}', '{"n": 1} {"n": 2}', '{"other":{}', ',"n":1}'], "\n", True)
@example(['{"n": 1}{"n": 2}', '{"n":', "1}"], "\n", False)
@example(['{"x": -0}', '{"x": -0.0}', '{"x": 1}'], "\n", False)
@example(['{"n": 1, "n": "2"}'], "\r\n", True)
def test_a_block_means_what_its_lines_mean_one_by_one(lines, end, last):
    block = end.join(lines) + (end if last else "")
    same(block.encode("utf-8", "surrogatepass"))


@given(st.lists(FITTING, min_size=1, max_size=6), st.lists(st.binary(max_size=6), max_size=3),
       st.randoms(use_true_random=False))  # fmt: skip
def test_odd_bytes_spoil_their_own_line_and_no_other(rows, odd, rnd):
    lines = ["{" + ", ".join(f"{k}: {v}" for k, v in row.items()) + "}" for row in rows]
    raw = [line.encode("utf-8", "surrogatepass") for line in lines] + [
        o.replace(b"\r", b"") for o in odd
    ]
    rnd.shuffle(raw)
    same(b"\n".join(raw))


@pytest.mark.parametrize(
    "bad", [b"{]", b'{"n": Inf}', b"", b'{"t": 5}', b'{"n": "7"}', b'{"t": "\xff"}']
)
@pytest.mark.parametrize("at", [0, 1, 1500, 2999])
def test_an_odd_line_among_many_is_found_and_the_others_are_as_before(bad, at, monkeypatch):
    lines = [b'{"n": %d, "x": %d.5, "b": true, "t": "a"}' % (i, i) for i in range(3000)]
    lines[at] = bad
    monkeypatch.setattr(json_lines, "LEAST", 64)
    same(b"\n".join(lines))


def test_lines_as_they_are_mostly_written_are_read_by_arrow_and_odd_ones_by_few_calls(monkeypatch):
    lines = [b'{"n": %d, "x": %d.5, "b": true, "t": "a", "o": {"p": [1, 2]}}' % (i, i)
             for i in range(10_000)]  # fmt: skip
    wanted = pa.schema([(name, KINDS[name]) for name in "nxbt"])
    assert native_rows(b"\n".join(lines), wanted).num_rows == 10_000
    lines[7000] = b"odd"
    slow = []
    own = json_lines.json_rows
    monkeypatch.setattr(
        json_lines, "json_rows", lambda part, *r: slow.append(len(part)) or own(part, *r)
    )
    found = json_block(b"\n".join(lines), wanted)
    assert found.malformed.tolist() == [7000]
    assert sum(slow) < 200


def test_two_numbers_are_never_one_text():
    """A person may be named by a number, and reals hold 53 bits of it."""
    written = ["9007199254740993.0", "9007199254740992.0", "0.1", "0.10000000000000000001", "1.50",
               "1E400", "1e401", "-0.0", "1e22"]  # fmt: skip
    wanted = pa.schema([("u", pa.string()), ("x", pa.float64())])
    found = json_block("".join(f'{{"u": {n}, "x": {n}}}\n' for n in written).encode(), wanted)
    assert found.rows["u"].to_pylist() == written
    reals = fit(found.rows, wanted)[0]["x"].to_pylist()
    assert reals == [float(n) for n in written]
    long = f"1e{'9' * 30}"
    lines = [
        b'{"u": {"b": [1.50, "1.5"]}}',
        f'{{"u": [9007199254740993.0, 1e400, {long}]}}'.encode(),
    ]
    nested = json_block(b"\n".join(lines), wanted)
    assert nested.rows["u"].to_pylist() == [
        '{"b": [1.5, "1.5"]}', f'["9007199254740993.0", "1e400", "{long}"]',
    ]  # fmt: skip
    assert [real_or_text(n) for n in ("0.10", "-0.0", "1e22", "5e-324", "1e-400")] == [
        0.1, -0.0, 1e22, 5e-324, "1e-400",
    ]  # fmt: skip


def test_messages_that_hold_line_feeds_are_one_row_each():
    wanted = pa.schema([("n", pa.int64())])
    for messages in ([b'{"n":\n1}', b'{"n": 2}'], [b'{"n": 1}', b'{"n": 2}'], []):
        found = json_messages(messages, wanted)
        assert [int(n) for n in found.rows["n"].to_pylist()] == [1, 2][: len(messages)]
    found = json_messages([b'{"n": 1}\n{"n": 2}', b"null", b'{"n": 3}'], wanted)
    assert found.malformed.tolist() == [0, 1]


@pytest.mark.parametrize("blank", [b"", b" ", b"\n", b" \r\n\t"])
def test_a_blank_message_is_malformed_and_takes_no_other_one_s_place(blank):
    wanted = pa.schema([("n", pa.int64())])
    found = json_messages([b'{"n": 1}', blank, b'{"n": 2}'], wanted)
    assert [int(n) for n in found.rows["n"].to_pylist()] == [1, 2]
    assert found.malformed.tolist() == [1]


@pytest.mark.parametrize("name", ["n", "other"])
@pytest.mark.parametrize("more", [0, 1])
def test_values_in_values_are_read_down_to_a_stated_depth(name, more, tmp_path):
    inner = MOST_DEPTH - 1 + more  # the row is one
    line = b'{"%s": ' % name.encode() + b"[" * inner + b"]" * inner + b"}\n"
    assert is_excessive(line) == bool(more)
    path = tmp_path / "deep.jsonl"
    path.write_bytes(line + b'{"n": 1}\n')
    [chunk] = FilesSource(str(path), columns={"n": "STRING"}).read(None, 100)
    assert chunk.rows["n"].to_pylist()[-1] == "1"
    assert chunk.rejected.get("malformed row", 0) == more
    assert chunk.rows.num_rows == 2 - more


def test_a_line_of_very_many_values_is_malformed_and_a_long_text_is_a_text(tmp_path):
    path = tmp_path / "wide.jsonl"
    many, text = b"[" + b"0," * MOST_VALUES + b"0]", b",[{" * MOST_VALUES
    path.write_bytes(b'{"n": %s}\n{"n": "%s"}\n' % (many, text))
    chunks = list(FilesSource(str(path), columns={"n": "STRING"}).read(None, 100))
    assert [chunk.rejected for chunk in chunks if chunk.rejected] == [{"malformed row": 1}]
    read = [len(value) for chunk in chunks for value in chunk.rows["n"].to_pylist()]
    assert read == [len(text)]


HUGE = '{"n": 123456789012345678901234567890}'  # of which Arrow does not tell the line
ENDLESS = {
    "in a block of many lines": [*['{"n": 1, "t": "' + "x" * 200 + '"}'] * 40, HUGE],
    "beside a line that is no object": ["]", *['{"n": 1, "t": "' + "x" * 200 + '"}'] * 40, HUGE],
    "before a line that is most of the block": [
        *['{"n": 1}'] * 20, HUGE, '{"t": "' + "x" * 20_000 + '"}'],
    "after it": [*['{"n": 1}'] * 20, '{"t": "' + "x" * 20_000 + '"}', HUGE],
}  # fmt: skip


@pytest.mark.parametrize("lines", ENDLESS.values(), ids=ENDLESS)
@pytest.mark.parametrize("last", ["", "\n"])
def test_a_block_is_divided_into_smaller_ones_and_comes_to_an_end(lines, last, monkeypatch):
    calls = []

    def counted(block, wanted):
        calls.append(len(block))
        assert len(calls) < 500
        return native_rows(block, wanted)

    monkeypatch.setattr(json_lines, "native_rows", counted)
    same(("\n".join(lines) + last).encode())
