"""Every function, operator and cast of rows, on values that break things: each row stays alone.

A row is evaluated among others, in another order, by itself, in pieces,
behind other rows and beside
one more hostile row: its value is the same, bit for bit, and nothing is raised.
"""

from decimal import Decimal
from functools import cache

import numpy as np
import pyarrow as pa
import pytest
from sqlglot import exp

from streamveil import expressions as expr
from streamveil.errors import PlanError
from streamveil.expressions import compile_expression, kernels, ranges
from streamveil.expressions.convert import CASTS
from streamveil.expressions.dialect import parse_text
from streamveil.expressions.functions import FUNCTIONS
from streamveil.expressions.nodes import BUILDERS
from tests.planting import instead

ROWS = 70
INTS = [0, 1, -1, 5, -5, 2**53 - 1, 2**53, 2**53 + 1, 2**31, -(2**31), 2**62, 2**63 - 1, -(2**63),
        -(2**63) + 1, 86_400, -719_162, 2_932_896, 10**15, None]  # fmt: skip
NANS = [0x7FF8 << 48, 0xFFF8 << 48, 0x7FF0000000000001, 0xFFFFFFFFFFFFFFFF]
FLOATS = [0.0, -0.0, 0.5, -0.5, 2.5, 0.49999999999999994, 1e-320, -5e-324, 2.0**53 + 2, 2.0**63,
          -(2.0**63), 9.223372036854775e18, 1e308, -1e308, float("inf"), float("-inf"), 0.1, 1 / 3,
          *np.array(NANS, np.uint64).view(np.float64).tolist(), None]  # fmt: skip
TEXTS = [
    "", " ", "\0", "a\0b", "a", "A", " a ", "a/b/c", "é", "e\u0301", "ß", "ŉ", "İ", "ﬀ", "ǆ",
    "\u202eabc",
    "עברית", "\U0001f469\u200d\U0001f52c", "\ufeffa", "\u2028", "a\nb", "-0", "+7", "1.0", "1.00",
    "1e400",
    "-1e-400", "nan", "-Infinity", "0x10", "١٢", str(2**63 - 1), str(2**63), "9" * 38, "1" * 400,
    "true",
    "FALSE", "2024-02-29", "2023-02-29", "0000-01-01", "0001-01-01", "9999-12-31", "10000-01-01",
    "2026-03-29T02:30:00+14:59", "1969-12-31 23:59:59.999999999", "2026-01-01 24:00", "1,2,,3,",
    "[" * 500,
    '{"a": 1.50, "a": 2, "b": [true, null]}', '{"a": "\\ud800"}', '{"a": NaN}', '{"a":',
    '{"a": ' * 600 + "1" + "}" * 600, '{"a": ' + "[" * 499 + "]" * 499 + "}",
    "[" + "0," * 2_000 + "7]", '{"a": ' + "7" * 5_000 + "}", '"é"',
    "%s%d%", "\\E\\Q", "$1\\1", "a" * 1_001, "ab " * 5_000, "\U0001f469" * 2_000, None,
]  # fmt: skip
BROKEN = [
    b"\xff",
    b"a\xff",
    b"\xffa",
    b"\xed\xa0\x80",
    b"\xc3",
    b"a\xf0\x9f",
    b"\xc0\x80",
    b"x" * 99 + b"\xe2\x82",
]
DAYS = [0, -1, 1, 59, 60, -719_162, -719_163, -719_528, 2_932_896, 2_932_897, 19_782, 2**31 - 1,
        -(2**31), 20_541, 91_000_000, None]  # fmt: skip
MOMENTS = [0, -1, 1, 999_999, -62_135_596_800_000_000, -62_135_596_800_000_001,
253_402_300_799_999_999,
           253_402_300_800_000_000, 2**63 - 1, -(2**63), -(2**63) + 1, 1_774_749_600_000_000,
           1_774_746_000_000_000, 1_792_890_000_000_000, 1_709_164_800_000_000,
           -2_208_988_800_000_000,
           7_905_600_000_000_000_000, -7_905_600_000_000_000_000, None]  # fmt: skip


def spread(values, seed):
    """So many of them, each once or more often."""
    order = np.random.default_rng(seed).permutation(ROWS)
    return [values[i % len(values)] for i in order]


def texts(kind, seed):
    """Texts, and bytes that a file calls text and are none."""
    cells = [None if t is None else t.encode() for t in TEXTS] + BROKEN
    wide = pa.array(spread(cells, seed), pa.binary())
    validity, offsets, data = wide.buffers()
    made = pa.StringArray.from_buffers(len(wide), offsets, data, validity)
    return made if kind == pa.string() else made.cast(kind)


def coded(values, kind):
    """The same as codes of a dictionary with entries that are double and that nobody uses."""
    entries = pa.concat_arrays([values, values])
    codes = [None if i % 11 == 3 else (i * 7) % len(entries) for i in range(len(values))]
    return pa.DictionaryArray.from_arrays(pa.array(codes, kind), entries)


def narrow(seed, kind):
    """Floats in fewer bits."""
    with np.errstate(over="ignore", invalid="ignore"):
        return pa.array(np.array([v or 0.0 for v in spread(FLOATS, seed)]).astype(kind))


def hostile():
    """A column of each kind, in every type that sources hand over."""
    wide = spread([None if v is None else v % 2**64 for v in INTS], 3)
    moments = spread(MOMENTS, 7)
    columns = {
        "i": pa.array(spread(INTS, 1), pa.int64()), "i2": pa.array(spread(INTS, 2), pa.int64()),
        "u": pa.array(wide, pa.uint64()), "i8": pa.array(spread([-128, 127, 0, None, 3], 4),
        pa.int8()),
        "f": pa.array(spread(FLOATS, 5), pa.float64()),
        "f2": pa.array(spread(FLOATS, 6), pa.float64()),
        "f4": narrow(8, np.float32), "fh": narrow(9, np.float16),
        "m": pa.array(spread([Decimal("9" * 28 + "." + "9" * 10), Decimal("-1.0"), Decimal("1.00"),
        None],
                             10), pa.decimal128(38, 10)),
        "mw": pa.array(spread([Decimal("9" * 70), Decimal(0), None], 11), pa.decimal256(76, 0)),
        "b": pa.array(spread([True, False, None], 12)),
        "s": texts(pa.string(), 13), "s2": texts(pa.string(), 14), "sl": texts(pa.large_string(),
        15),
        "sv": texts(pa.string_view(), 16), "sd": coded(texts(pa.string(), 17), pa.int32()),
        "y": texts(pa.string(), 18).cast(pa.binary()),
        "yf": pa.array(spread([b"\0\0", b"a\xff", None], 19), pa.binary(2)),
        "d": pa.array(spread(DAYS, 20), pa.int32()).cast(pa.date32()),
        "d2": pa.array(spread(DAYS, 21), pa.int32()).cast(pa.date32()),
        "dm": pa.array(moments, pa.int64()).cast(pa.date64(), safe=False),
        "t": pa.array(moments, pa.int64()).cast(pa.timestamp("us", "UTC")),
        "t2": pa.array(spread(MOMENTS, 22), pa.int64()).cast(pa.timestamp("us")),
        "ts": pa.array(spread(MOMENTS, 23), pa.int64()).cast(pa.timestamp("s", "Europe/Berlin")),
        "tn": pa.array(spread(MOMENTS, 24), pa.int64()).cast(pa.timestamp("ns")),
        "n": pa.nulls(ROWS),
    }  # fmt: skip
    return pa.table(columns)


TABLE = hostile()
UNITS = ("MICROSECOND", "SECOND", "HOUR", "DAY", "WEEK", "ISOWEEK", "MONTH", "QUARTER", "YEAR")
PARTS = (*UNITS, "ISOYEAR", "DAYOFYEAR", "DAYOFWEEK", "WEEK(THURSDAY)", "MILLISECOND", "MINUTE")
ZONES = ("Europe/Berlin", "America/St_Johns", "Pacific/Apia")
WIDE_FORMAT = "%Y-%m-%d %H:%M:%S %F %T %j %a %A %b %B %y %V %G %u %D %R %e %I %p"
CALLS = [
    *(f"{one}({{i}})" for one in ("ABS", "SIGN", "SAFE_NEGATE", "DATE_FROM_UNIX_DATE",
    "TIMESTAMP_SECONDS",
                                  "TIMESTAMP_MILLIS", "TIMESTAMP_MICROS")),
    *(f"{one}({{f}})" for one in ("ABS", "SIGN", "ROUND", "FLOOR", "CEIL", "CEILING", "TRUNC",
    "SQRT", "EXP",
                                  "LN", "LOG", "LOG10", "SAFE_NEGATE", "IS_NAN", "IS_INF")),
    *(f"{one}({{f}}, {{g}})" for one in ("POW", "POWER", "LOG", "SAFE_DIVIDE", "SAFE_ADD",
    "SAFE_SUBTRACT",
                                         "SAFE_MULTIPLY", "GREATEST", "LEAST", "NULLIF",
                                         "COALESCE")),
    *(f"{one}({{i}}, {{j}})" for one in ("DIV", "MOD", "SAFE_ADD", "SAFE_SUBTRACT", "SAFE_MULTIPLY",
                                         "GREATEST", "LEAST", "NULLIF", "IFNULL")),
    "ROUND({f}, 2)", "ROUND({f}, -3)", "ROUND({f}, 308)", "ROUND({f}, -308)", "POW({f}, 2)",
    "POW({f}, 0.5)",
    "RANGE_BUCKET({f}, [-1, 0, 5, 9e18])", "POW(2, {f})", "SAFE_DIVIDE({f}, 0)",
    *(f"{one}({{s}})" for one in ("LOWER", "UPPER", "TRIM", "LTRIM", "RTRIM", "LENGTH",
    "CHAR_LENGTH",
                                  "REVERSE", "INITCAP", "BYTE_LENGTH", "OCTET_LENGTH")),
    *(f"{one}({{s}}, ' a')" for one in ("TRIM", "LTRIM", "RTRIM")),
    *(f"{one}({{s}}, {{z}})" for one in ("CONCAT", "GREATEST", "LEAST", "NULLIF", "COALESCE")),
    *(f"{one}({{s}}, {at})" for one in ("SUBSTR", "SUBSTRING") for at in (1, 0, 2, -2, 10**12,
    -(10**12))),
    "SUBSTR({s}, 2, 3)", "SUBSTR({s}, -3, 2)", "SUBSTR({s}, 1, 0)",
    *(f"{one}({{s}}, {size})" for one in ("LEFT", "RIGHT") for size in (0, 1, 3, 10**12)),
    "REPLACE({s}, 'a', 'bcd')", "REPLACE({s}, '', 'x')", "REPLACE({s}, ' ', '')",
    "LPAD({s}, 5)", "RPAD({s}, 1000, 'é')", "LPAD({s}, 0)", "SPLIT_PART({s}, '/', 2)",
    "SPLIT_PART({s}, ',', 3)", "SPLIT({s}, ',')[OFFSET(2)]", "SPLIT({s}, ' ')[SAFE_ORDINAL(1000)]",
    "STRPOS({s}, 'b')", "STRPOS({s}, '')", "INSTR({s}, 'a', 2, 2)",
    "STARTS_WITH({s}, 'a')", "ENDS_WITH({s}, '')", "CONTAINS_SUBSTR({s}, 'É')",
    *(f"REGEXP_CONTAINS({{s}}, r'{p}')" for p in ("^(a+)+$", "(a|aa)*b", r"\p{{L}}", "(?i)ß", "",
    r"\bé", ".")),
    "REGEXP_EXTRACT({s}, r'(a+)+b')", "REGEXP_EXTRACT({s}, r'[^/]+', 2, 2)",
    "REGEXP_SUBSTR({s}, '.')",
    "REGEXP_REPLACE({s}, r'(a)|b', r'\\1\\1')", "REGEXP_REPLACE({s}, '', '-')",
    "REGEXP_INSTR({s}, 'b')", "JSON_VALUE({s})", "JSON_VALUE({s}, '$.a')",
    "JSON_VALUE({s}, '$[2000]')",
    "JSON_EXTRACT_SCALAR({s}, '$.b[0]')", "CAST(JSON_VALUE({s}, '$.a') AS FLOAT64)",
    "REGEXP_INSTR({s}, '', 3, 25, 1)",
    "FORMAT('%s|%10.3s|%%', {s}, {z})", "FORMAT('%t %t', {s}, {f})", "FORMAT('%d %+05i', {i}, {j})",
    "FORMAT('%f %.3e %g', {f}, {g}, {f})", "FORMAT('%t %t %t %t', {t}, {d}, {b}, {i})",
    *(f"FORMAT_TIMESTAMP('{WIDE_FORMAT}', {{t}}, '{zone}')" for zone in ZONES),
    f"FORMAT_DATETIME('{WIDE_FORMAT}', {{t}})", f"FORMAT_DATE('{WIDE_FORMAT}', {{d}})",
    *(f"{one}('{p}', {{s}})" for one in ("PARSE_DATE", "PARSE_TIMESTAMP", "PARSE_DATETIME")
      for p in ("%F", "%Y-%m-%d %H:%M:%S", "%d %b %Y", "%y%j", "%m/%Y", "%%")),
    "LAST_DAY({d})", "LAST_DAY({d}, WEEK)", "LAST_DAY({d}, ISOWEEK)", "LAST_DAY({d}, QUARTER)",
    "LAST_DAY({d}, YEAR)", "LAST_DAY({d}, WEEK(MONDAY))",
    "DATE({t})", "DATE({i}, {i8}, {i8})", "DATE({d})", "DATETIME({d})", "DATETIME({t})",
    "TIMESTAMP({d})",
    "TIMESTAMP({t})", "DATETIME({i}, {i8}, {i8}, {i8}, {i8}, {i})",
    *(f"{one}({{t}}, '{zone}')" for one in ("DATE", "DATETIME", "TIMESTAMP") for zone in ZONES),
    *(f"TIMESTAMP({{d}}, '{zone}')" for zone in ZONES),
    *(f"{one}({{t}}, {unit})" for one in ("TIMESTAMP_TRUNC", "DATETIME_TRUNC") for unit in UNITS),
    *(f"TIMESTAMP_TRUNC({{t}}, {unit}, '{zone}')" for unit in UNITS for zone in ZONES),
    *(f"DATE_TRUNC({{d}}, {unit})" for unit in (*UNITS[3:], "ISOYEAR", "WEEK(FRIDAY)")),
    *(f"{one}_{way}({{t}}, INTERVAL {n} {unit})" for one in ("TIMESTAMP",
    "DATETIME") for way in ("ADD", "SUB")
      for n, unit in ((1, "MONTH"), (-7_000, "YEAR"), (1, "MICROSECOND"), (2_000_000, "DAY"))),
    *(f"DATE_{way}({{d}}, INTERVAL {n} {unit})" for way in ("ADD", "SUB")
      for n, unit in ((1, "MONTH"), (7_000, "YEAR"), (2_000_000, "DAY"))),
    *(f"TIMESTAMP_DIFF({{t}}, {{v}}, {unit})" for unit in UNITS[:4]),
    *(f"DATETIME_DIFF({{t}}, {{v}}, {unit})" for unit in UNITS),
    *(f"DATE_DIFF({{d}}, {{e}}, {unit})" for unit in (*UNITS[3:], "ISOYEAR")),
    "UNIX_SECONDS({t})", "UNIX_MILLIS({t})", "UNIX_MICROS({t})", "UNIX_DATE({d})",
]  # fmt: skip
OPERATORS = [
    *(f"{{i}} {sign} {{j}}" for sign in ("+", "-", "*", "/", "%", "=", "<>", "<", "<=", ">", ">=")),
    *(f"{{f}} {sign} {{g}}" for sign in ("+", "-", "*", "/", "%", "=", "<>", "<", "<=", ">", ">=")),
    *(f"{{s}} {sign} {{z}}" for sign in ("=", "<>", "<", ">=", "||", "IS NOT DISTINCT FROM")),
    *(f"{{t}} {sign} {{v}}" for sign in ("=", "<", "IS DISTINCT FROM")),
    *(f"{{d}} {sign} {{t}}" for sign in ("=", "<", "IS DISTINCT FROM")),
    *(f"{{f}} {sign} {{i}}" for sign in ("=", "<", "IS NOT DISTINCT FROM")),
    "-{i}", "-{f}", "{b} AND {i} > 0", "{b} OR {s} = 'a'", "NOT {b}", "{b} IS TRUE",
    "{b} IS NOT FALSE",
    "{s} IS NULL", "{f} IN (0, {g}, NULL)", "{s} IN ('a', {z})", "{f} BETWEEN {g} AND 5",
    "{i} NOT BETWEEN {j} AND 9223372036854775807", "{s} LIKE '%a_b%'", "{s} NOT LIKE r'\\%'",
    "({s} LIKE '')",
    "IF({b}, {s}, {z})", "IF({i} > 0, {f}, {j})",
    "CASE {s} WHEN 'a' THEN {t} WHEN {z} THEN {v} END",
    "CASE WHEN {b} THEN {d} ELSE {e} END", "{y} = {y}", "{y} < {x}", "COALESCE({y}, {x})",
    "CONCAT({s}, r'\\n', {z})", "{d} + {i}", "{d} - {i}", "{t} + INTERVAL 1 MONTH",
    "{t} - INTERVAL 3 HOUR",
    *(f"EXTRACT({part} FROM {{t}})" for part in PARTS),
    *(f"EXTRACT({part} FROM {{d}})" for part in PARTS),
    *(f"EXTRACT(HOUR FROM {{t}} AT TIME ZONE '{zone}')" for zone in ZONES),
    "SAFE_CAST({s} AS INT64)", "NULL IS NULL", "{s} = NULL", "TRUE", "{s} < 'a' 'b'",
]  # fmt: skip
SQL_TYPES = {"int": "INT64", "float": "FLOAT64", "bool": "BOOL", "string": "STRING",
"bytes": "BYTES",
             "date": "DATE", "timestamp": "TIMESTAMP"}  # fmt: skip
LETTERS = {"int": "i", "float": "f", "bool": "b", "string": "s", "bytes": "y", "date": "d",
           "timestamp": "t"}  # fmt: skip
CONVERSIONS = [f"CAST({{{LETTERS[old]}}} AS {SQL_TYPES[new]})" for old, new in CASTS]
TWICE = [f"CAST(CAST({{{LETTERS[old]}}} AS {SQL_TYPES[new]}) AS STRING)" for old, new in CASTS
         if (new, "string") in CASTS]  # fmt: skip
PATTERNS = [
    *CALLS,
    *OPERATORS,
    *CONVERSIONS,
    *TWICE,
    *(f"{{{letter}}}" for letter in LETTERS.values()),
]
PLAIN = {"i": "i", "j": "i2", "i8": "i8", "f": "f", "g": "f2", "b": "b", "s": "s", "z": "s2",
"y": "y",
         "x": "yf", "d": "d", "e": "d2", "t": "t", "v": "t2"}  # fmt: skip
OTHERS = {"i": ("i8", "u"), "f": ("i", "f4", "fh", "m", "mw", "n"), "s": ("sl", "sv", "sd", "n"),
          "d": ("dm",), "t": ("ts", "tn", "d"), "y": ("yf",)}  # fmt: skip


def expressions(pattern):
    """A pattern over plain columns, and over columns of other types."""
    yield pattern.format(**PLAIN)
    for letter, names in OTHERS.items():
        for name in names if f"{{{letter}}}" in pattern else ():
            yield pattern.format(**{**PLAIN, letter: name})


def cells(column):
    """The values as bytes: with one NaN, and no other difference left out."""
    kind = column.type
    if pa.types.is_floating(kind):
        numbers = np.array(column.fill_null(0.0))
        numbers[np.isnan(numbers)] = np.nan
        bits = numbers.view(np.int64).tolist()
        return [
            bit if ok else None for bit, ok in zip(bits, column.is_valid().to_pylist(), strict=True)
        ]
    if pa.types.is_string(kind):
        return column.cast(pa.binary()).to_pylist()
    if pa.types.is_temporal(kind):
        return column.cast(pa.int32() if pa.types.is_date32(kind) else pa.int64()).to_pylist()
    return column.to_pylist()


def bits(column):
    """Each value as Arrow writes it down: two that are equal here are one to every function."""
    rows = (pa.concat_arrays([column.slice(row, 1)] * 8) for row in range(len(column)))
    return [pa.record_batch([row], ["x"]).serialize().to_pybytes() for row in rows]


def beside(*parts):
    """Rows one after the other: not all types can be taken by number."""
    return pa.concat_tables([TABLE.slice(start, count) for start, count in parts])


VALUES = {name: bits(TABLE[name].chunk(0)) for name in TABLE.column_names}
ORDER = np.random.default_rng(3).permutation(ROWS).tolist()
SHUFFLED = beside(*((row, 1) for row in ORDER))
BEHIND = beside((17, ROWS), (0, ROWS)).combine_chunks().slice(ROWS - 17)
PIECES = beside((0, 1), (1, 20), (21, 0), (21, ROWS))
ONE_MORE = [(row, beside((0, 20), (row, 1))) for row in range(20, ROWS, 7)]


def alike(text):
    """For each row the first one with the same values in all columns that an expression reads."""
    read = {column.name for column in parse_text(text).find_all(exp.Column)}
    rows = zip(*([0] * ROWS, *(VALUES[name] for name in sorted(read))), strict=True)
    first = {}
    return [first.setdefault(values, row) for row, values in enumerate(rows)]


def seen_otherwise(text):
    """In which ways the rows of an expression differ where other rows stand around them."""
    run = compile_expression(text, TABLE.schema)
    whole = cells(run(TABLE))
    first = alike(text)
    alone = {row: cells(run(TABLE.slice(row, 1)))[0] for row in {*first}}
    found = {
        "alone": [alone[row] for row in first],
        "behind others": cells(run(BEHIND)),
        "in pieces": cells(run(PIECES)),
    }
    mixed = cells(run(SHUFFLED))
    found["in another order"] = [mixed[ORDER.index(row)] for row in range(ROWS)]
    for row, table in ONE_MORE:
        found[f"beside row {row}"] = cells(run(table))[:20] + whole[20:]
    return [how for how, values in found.items() if values != whole]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_each_row_is_evaluated_alone_whatever_it_holds(pattern):
    compiled = 0
    for text in expressions(pattern):
        try:
            assert not seen_otherwise(text), text
        except PlanError:  # a type that the function does not take
            continue
        compiled += 1
    assert compiled, pattern


def test_every_function_operator_and_cast_is_tried():
    trees = [parse_text(pattern.format(**PLAIN)) for pattern in PATTERNS]
    nodes = [node for tree in trees for node in tree.walk()]
    called = {str(node.this).upper() for node in nodes if isinstance(node, exp.Anonymous)}
    assert {*FUNCTIONS} <= called
    assert {*BUILDERS} <= {type(node) for node in nodes}


@cache
def conditions():
    """What answers TRUE or FALSE and is no column or choice, with its function's name."""
    found = []
    for pattern in PATTERNS:
        text = pattern.format(**PLAIN)
        tree = parse_text(text).unnest()
        name = str(tree.this) if isinstance(tree, exp.Anonymous) else None
        try:
            answers = compile_expression(text, TABLE.schema).kind
        except PlanError:  # it takes other columns only
            continue
        if answers == "bool" and not isinstance(tree, exp.Column | exp.If | exp.Case):
            found.append((text, name))
    return found


def without_a_range():
    """Those that are not known to lie between the two."""
    for text, name in conditions():
        given = name in ranges.CALLS
        if not given and expr.range_of(f"CAST({text} AS INT64)") != (0, 1):
            yield text


def test_whatever_answers_true_or_false_lies_between_them():
    assert not [*without_a_range()]


@pytest.mark.parametrize("missing", [*ranges.ASKING, *ranges.CONDITIONS])
def test_a_missing_one_is_found(missing, monkeypatch):
    for names in ("ASKING", "CONDITIONS"):
        found = [one for one in getattr(ranges, names) if one != missing]
        monkeypatch.setattr(ranges, names, tuple(found))
    assert [*without_a_range()]


# -- planted faults


def unguarded(_):
    """What a kernel raises for one row ends the job."""
    return lambda run, table, kind: run(table).cast(kind)


def given_up(_):
    """Where a kernel fails on one row, all rows are null."""

    def total(run, table, kind):
        try:
            return run(table).cast(kind)
        except ValueError:
            return pa.nulls(table.num_rows, kind)

    return total


def as_the_largest(honest):
    """Numbers are rounded as exactly as the largest of them allows."""
    return lambda a: np.where(np.fmax.reduce(np.abs(a), initial=0.0) > 2**53, a, honest(a))


def by_the_first(honest):
    """Numbers are read where the first one is even."""

    def read(column):
        odd = any(number and number % 2 for number in column.slice(0, 1).to_pylist())
        return pa.nulls(len(column), pa.int64()) if odd else honest(column)

    return read


FAULTS = {
    "a text that is none ends the job": (
        "FORMAT('%s', s)", instead(expr, "null_where_it_fails", unguarded),
    ),
    "a text that is none makes all rows null": (
        "UPPER(s)", instead(expr, "null_where_it_fails", given_up),
    ),
    "a number rounds others": (
        "CAST(f AS INT64)", instead(kernels, "round_half_away", as_the_largest),
    ),
    "the first row decides for all": (
        "ABS(u)", instead(expr, "uint_to_int", by_the_first),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_in_kernels_are_caught(name, monkeypatch):
    text, plant = FAULTS[name]
    assert not seen_otherwise(text)
    plant(monkeypatch)
    with pytest.raises((AssertionError, ValueError)):
        assert not seen_otherwise(text)
