"""Release tables as arrays and blobs: the same table comes back, its mark tells it from others."""

from __future__ import annotations

import datetime as dt
import decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from streamveil.batch import alike, is_real, norm
from streamveil.connectors.sinks import WRITERS
from streamveil.release_metadata import FACTS
from streamveil.runtime import frame
from streamveil.runtime.tables import Mark, from_bytes, from_parts, settled, to_bytes, to_parts
from tests.released import made
from tests.runtime.test_frame import decode

ROWS = 3_000
RNG = np.random.default_rng(5)
DAY = dt.date(2026, 1, 2)


def every_kind(rows: int) -> pa.Table:
    """Columns of all kinds of types, with and without nulls."""
    numbers = np.arange(rows)
    made: dict[str, Any] = {
        str(kind): pa.array((numbers % 100).tolist(), kind)
        for kind in (pa.int8(), pa.uint8(), pa.int16(), pa.uint16(), pa.int32(), pa.uint32(),
                     pa.int64(), pa.uint64(), pa.float32(), pa.float64(), pa.date32())
    }  # fmt: skip
    made |= {
        "noise": RNG.normal(size=rows), "few": np.round(RNG.random(rows), 1),
        "odd": np.where(numbers % 7, -0.0, np.nan), "flag": pa.array(numbers % 3 == 0),
        "nulls": pa.array([None if n % 5 == 0 else int(n) for n in numbers], pa.int64()),
        "text": [f"group {n:05d}" for n in numbers], "same": ["a"] * rows,
        "gaps": pa.array([None if n % 4 == 0 else str(n) for n in numbers], pa.string()),
        "bytes": pa.array([bytes([n % 256]) * (n % 3) for n in numbers], pa.binary()),
        "utc": pa.array(numbers * 1000, pa.timestamp("us", "UTC")),
        "when": pa.array(numbers * 1000, pa.timestamp("ms")),
        "day": pa.array([DAY] * rows), "time": pa.array(numbers, pa.time64("us")),
        "price": pa.array([decimal.Decimal(int(n)) / 4 for n in numbers], pa.decimal128(12, 2)),
        "word": pa.array([f"{n % 9}" for n in numbers]).dictionary_encode(),
        "list": pa.array([[int(n)] * (n % 3) for n in numbers], pa.list_(pa.int64())),
    }  # fmt: skip
    schema = pa.table(made).schema
    fields = [field.with_metadata({"note": "x"}) if field.name == "noise" else field
              for field in schema]  # fmt: skip
    return pa.table(made).cast(pa.schema(fields)).replace_schema_metadata({"facts": '{"a": 1}'})


TABLES = {
    "every kind": every_kind(ROWS),
    "sliced": every_kind(ROWS).slice(11, 1_500),
    "one row": every_kind(ROWS).slice(11, 1),
    "no rows": every_kind(ROWS).slice(0, 0),
    "no rows, ever": every_kind(ROWS).schema.empty_table(),
    "chunks": pa.concat_tables([every_kind(20), every_kind(30)]),
    "numbers": every_kind(ROWS).select(["int64", "noise", "utc"]),
    "text": every_kind(ROWS).select(["text", "gaps"]),
    "two of a name": pa.table([pa.array([1, 2]), pa.array(["a", "b"]), pa.array([3, 4])],
                              names=["x", "x", "a.b"]),
    "nothing": pa.table({}),
}  # fmt: skip


@pytest.mark.parametrize("compression", [None, "lz4"])
@pytest.mark.parametrize("name", TABLES)
def test_parts_give_the_table_back(name: str, compression: str | None) -> None:
    table = TABLES[name]
    data = b"".join(frame.encode({}, *to_parts(table, compression)))
    read = decode(data)
    again = from_parts(read.arrays, read.blobs)
    again.validate(full=True)
    if name in ("sliced", "one row"):  # padding of a slice's bitmaps is nobody's content
        again, table = again.take(list(range(len(table)))), table.take(list(range(len(table))))
    assert bytes(to_bytes(again)) == bytes(to_bytes(table))
    assert again.schema.equals(table.schema, check_metadata=True)


@pytest.mark.parametrize("name", TABLES)
def test_a_settled_release_has_the_same_bytes_wherever_it_was(name: str) -> None:
    release, known = settled(made(TABLES[name], 3, 2, 1))
    assert repr(release.table.to_pylist()) == repr(TABLES[name].to_pylist())
    assert (known.window, known.trigger, known.step) == (3, 2, 1)
    data = to_bytes(release.table)
    kept = decode(b"".join(frame.encode({}, *to_parts(release.table, "lz4"))))
    for again in (from_bytes(data), from_parts(kept.arrays, kept.blobs)):
        assert bytes(to_bytes(again)) == bytes(data)
        assert settled(made(again, 3, 2, 1))[1] == settled(release)[1]


def test_number_columns_are_narrowed() -> None:
    table = pa.table({"key": np.arange(ROWS), "n": np.arange(ROWS) % 99, "t": np.full(ROWS, 4)})
    assert sum(map(len, frame.encode({}, *to_parts(table, "lz4")))) < 3.2 * ROWS + 900
    assert len(to_bytes(table)) > 24 * ROWS


def mark(table: pa.Table) -> Mark:
    return settled(made(table, 0, 1, 1))[1]


@pytest.mark.parametrize("name", ["every kind", "numbers", "text"])
def test_a_mark_sees_every_change(name: str) -> None:
    table = TABLES[name]
    assert mark(table).agrees(mark(pa.table(table.columns, schema=table.schema)))
    changed = [table.slice(1), table.append_column("m", table[0])]
    for number, column in enumerate(table.columns):
        order = pa.array([1, 0, *range(2, len(table))])
        if is_real(column.type):  # of these a norm is kept, which sees no order
            other = pc.multiply(column, pa.scalar(1.001, column.type))
        else:
            other = column.take(order)
        if not other.equals(column) and column.to_pylist()[1] != 0:  # no norm sees NaN move
            changed.append(table.set_column(number, table.field(number), other))
        changed.append(table.rename_columns([n + "_" * (i == number) for i, n in
                                             enumerate(table.column_names)]))  # fmt: skip
    seen = [mark(table), *map(mark, changed)]
    for place, one in enumerate(seen):
        assert not any(one.agrees(other) for other in seen[:place])
    assert not mark(table).agrees(settled(made(table, 0, 2, 1))[1])


REALS = pa.table({
    "key": ["a", "b", "c"], "x": [0.1, -2.0, 3e9], "y": pa.array([0.5, None, np.inf]),
})  # fmt: skip


def test_keys_that_are_real_numbers_are_exact() -> None:
    facts = pa.schema(
        [("k", pa.float64()), pa.field("x", pa.float64(), nullable=False)],
        {FACTS: b'{"keys": ["k"]}'},
    )

    def release(*keys: float | None) -> pa.Table:
        return pa.table([pa.array(keys, pa.float64()), [0.1, 0.2, 0.3, 0.4]], schema=facts)

    keyed = release(1e-3, 1e9, np.nan, None)
    near = keyed.set_column(1, facts.field(1), pa.array([0.1, 0.2, 0.3, 0.4 + 1e-13]))
    assert alike(keyed, near)
    assert mark(keyed).agrees(mark(near))
    for other in (release(2e-3, 1e9, np.nan, None), release(1e9, 1e-3, np.nan, None),
                  release(1e-3, 1e9, 1.0, None), release(1e-3, 1e9, None, np.nan)):  # fmt: skip
        assert not alike(keyed, other)
        assert not mark(keyed).agrees(mark(other))
    whole = release(1.0, 2.0, 3.0, 4.0)  # without nulls: plain arrays
    assert not mark(whole).agrees(mark(release(2.0, 1.0, 3.0, 4.0)))


@pytest.mark.parametrize("values", [[3e200, 4e200, np.inf], [0.3, 0.4, np.nan]])
def test_a_norm_leaves_out_what_is_not_finite_and_does_not_overflow(values: list[float]) -> None:
    known = norm(pa.table({"x": values, "y": [0.0] * len(values)}))
    assert known == pytest.approx(np.hypot(*values[:2]), rel=1e-12)


def test_a_row_more_in_a_large_sum_is_no_rounding() -> None:
    """What another copy of a state publishes over other rows must not pass for the same release."""
    sums = pa.table({"x": [1e12, 1e8]})
    for one, other in ((1e12 + 500, 1e8), (1e12, 1e8 + 500)):
        assert not alike(sums, pa.table({"x": [one, other]}))
    assert alike(sums, pa.table({"x": [1e12, 1e8 + 1e-3]}))


def times(table: pa.Table, factor: float) -> pa.Table:
    """A table with its first real number multiplied."""
    changed = table["x"].to_numpy() * np.array([1.0, 1.0, factor])
    return table.set_column(1, "x", pa.array(changed))


def test_last_digits_of_real_numbers_may_differ() -> None:
    assert mark(REALS).agrees(mark(times(REALS, 1 - 1e-11)))
    for near in (REALS, times(REALS, 1 + 1e-14), times(REALS, 1 - 1e-13)):
        assert mark(REALS).agrees(mark(near))
        assert alike(REALS, near)
        assert alike(REALS, near.replace_schema_metadata({"a": "b"}))
    null = pa.array([0.5, 0.0, np.inf])
    for other in (times(REALS, 1 + 1e-6), REALS.set_column(2, "y", null), REALS.slice(1),
                  REALS.set_column(0, "key", pa.array(["a", "b", "d"])),
                  REALS.rename_columns(["key", "x", "z"])):  # fmt: skip
        assert not alike(REALS, other)
        assert not mark(REALS).agrees(mark(other))


@pytest.mark.parametrize("name", [name for name in TABLES if name not in ("nothing",)])
def test_parquet_gives_the_table_back(name: str) -> None:
    import pyarrow.parquet as pq

    table = TABLES[name].drop_columns(["list"] * ("list" in TABLES[name].column_names))
    again = pq.ParquetFile(pa.BufferReader(WRITERS["parquet"](table, None))).read()
    assert again.schema.equals(table.schema, check_metadata=True)
    assert repr(again.to_pylist()) == repr(table.to_pylist())  # tells -0.0 and NaN apart


def test_parquet_is_encoded_by_column_and_read_elsewhere(tmp_path: Any) -> None:
    import duckdb
    import pyarrow.parquet as pq

    table = TABLES["every kind"].drop_columns(["word", "list", "odd"])
    (tmp_path / "x.parquet").write_bytes(WRITERS["parquet"](table, None))
    group = pq.ParquetFile(tmp_path / "x.parquet").metadata.row_group(0)
    used = {
        group.column(n).path_in_schema: group.column(n).encodings for n in range(len(table.columns))
    }
    assert "DELTA_BINARY_PACKED" in used["int64"]
    assert "DELTA_BINARY_PACKED" in used["utc"]
    assert {"PLAIN"} <= {*used["noise"]} <= {"PLAIN", "RLE"}
    assert "RLE_DICTIONARY" in used["few"]
    assert "RLE_DICTIONARY" in used["same"]
    assert "DELTA_BYTE_ARRAY" in used["text"]
    query = f"SELECT sum(int64), max(text), count(nulls), sum(noise) FROM '{tmp_path}/x.parquet'"
    whole, text, known, noise = duckdb.sql(query).fetchall()[0]
    assert (whole, text, known) == (sum(n % 100 for n in range(ROWS)), "group 02999", ROWS * 4 // 5)
    assert noise == pytest.approx(sum(table["noise"].to_pylist()))
