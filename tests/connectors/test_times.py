"""Time columns of every unit as microseconds: order is kept, nothing wraps."""

import json
from datetime import datetime

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamveil.connectors import FAR_US, micros, open_source
from streamveil.connectors.files import FilesSource
from streamveil.connectors.rejected_rows import cast_or_null
from streamveil.errors import SourceError

EXTREMES = [-(2**63), -(2**63) + 1, -(2**62), -1501, -1500, -1, 0, 1, 999, 1500, 2**62, 2**63 - 1]
FACTORS = {"s": (1_000_000, 1), "ms": (1_000, 1), "us": (1, 1), "ns": (1, 1_000)}


def read(values, kind):
    column = pa.chunked_array([pa.array([*values, None], pa.int64()).cast(pa.int64()).view(kind)])
    return micros(column, "t").to_pylist()


@pytest.mark.parametrize("unit", FACTORS)
def test_every_unit_is_rounded_down_and_never_wraps(unit):
    times, per = FACTORS[unit]
    *found, null = read(EXTREMES, pa.timestamp(unit))
    assert null is None
    assert found == sorted(found)
    for value, got in zip(EXTREMES, found, strict=True):
        exact = value * times // per
        assert got == exact if abs(exact) < FAR_US else got * np.sign(exact) > FAR_US - 10**6


def test_days_far_away_stay_in_order():
    days = pa.array(np.array([-(2**31), -1, 0, 1, 2**31 - 1], np.int32)).view(pa.date32())
    found = micros(pa.chunked_array([days]), "t").to_pylist()
    assert found[1:4] == [-86_400_000_000, 0, 86_400_000_000]
    assert found[0] == -found[4] < -FAR_US + 86_400_000_000


def test_days_in_milliseconds_need_not_be_whole():
    times = pa.array([86_400_000, 86_400_005, -7], pa.int64()).view(pa.date64())
    found = micros(pa.chunked_array([times]), "t").to_pylist()
    assert found == [86_400_000_000, 86_400_005_000, -7_000]


def test_a_column_of_text_is_refused_by_name():
    with pytest.raises(SourceError, match="'t' must hold timestamps"):
        micros(pa.chunked_array([["2026-01-01"]]), "t")


ZONED = [
    ("2026-01-01T00:00:00Z", 0), ("2026-01-01 00:00:00+00:00", 0), ("2026-01-01T00:00:00+00", 0),
    ("2026-01-01T02:00:00+02:00", 0), ("2025-12-31T18:30:00-0530", 0), ("2026-01-01", 0),
    ("2026-01-01 00:00", 0), ("2026-01-01T00:00:00.5Z", 500_000), ("2026-01-01t00:00:00z", 0),
    ("2026-01-01T00:00:00.123456789Z", 123_456), ("2026-01-01 00:00:00.123456789", 123_456),
    ("2026-01-01T05:30:00,25+05:30", 250_000), (" 2026-01-01T00:00:00Z ", 0),
]  # fmt: skip
EPOCH = 1_767_225_600_000_000


@pytest.mark.parametrize("texts", [[one] for one in ZONED] + [ZONED])
def test_times_of_any_offset_and_form_are_the_instants_they_name(texts, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("at,n\n" + "".join(f'"{text}",1\n' for text, _ in texts))
    source = FilesSource(str(path), columns={"at": "TIMESTAMP"})
    [chunk] = source.read(None, 100)
    assert chunk.rejected == {}
    found = chunk.rows["at"].cast(pa.int64()).to_pylist()
    assert found == [EPOCH + micros for _, micros in texts]


@pytest.mark.parametrize("text", ["", "x", "2026-13-01", "2026-01-01T25:00:00Z", "12:00"])
def test_what_is_no_time_is_null_and_spoils_no_other(text, tmp_path):
    path = tmp_path / "t.jsonl"
    rows = [json.dumps({"at": one}) for one in (ZONED[0][0], text, ZONED[3][0], ZONED[6][0])]
    path.write_text("\n".join(rows))
    [chunk] = FilesSource(str(path), columns={"at": "TIMESTAMP"}).read(None, 100)
    assert chunk.rows["at"].cast(pa.int64()).to_pylist() == [EPOCH, None, EPOCH, EPOCH]
    assert sum(chunk.rejected.values()) == 1


def test_a_parquet_column_of_nanoseconds_is_rounded_down_to_what_is_declared(tmp_path):
    path = tmp_path / "t.parquet"
    nanos = [1, 999, -1, 1_000, None]
    pq.write_table(pa.table({"at": pa.array(nanos, pa.timestamp("ns", "Europe/Oslo"))}), path)
    [chunk] = FilesSource(str(path), columns={"at": "TIMESTAMP"}).read(None, 100)
    assert chunk.rejected == {}
    assert chunk.rows["at"].cast(pa.int64()).to_pylist() == [0, 0, -1, 1, None]


@pytest.mark.parametrize("kind", ["files", "delta"])
def test_times_of_96_bits_are_those_that_were_written(tmp_path, kind):
    """As nanoseconds of 64 bits the year 9999, which stands for "for ever", was 1816."""
    days = ["0001-01-01", "1969-12-31T23:59:59.999999", "9999-12-31"]
    written = [datetime.fromisoformat(day) for day in days]
    table = pa.table({"t": pa.array(written, pa.timestamp("us"))})
    pq.write_table(table, tmp_path / "a.parquet", use_deprecated_int96_timestamps=True)
    if kind == "delta":
        pytest.importorskip("deltalake").convert_to_deltalake(tmp_path)
    source = open_source(kind, {"path": str(tmp_path)})
    (chunk,) = (some for some in source.read(None, 100) if len(some.rows))
    assert chunk.rows.schema == source.schema()
    assert chunk.rows["t"].to_pylist() == written


@pytest.mark.parametrize("wanted", FACTORS)
@pytest.mark.parametrize("stored", FACTORS)
def test_files_of_other_units_say_the_same_times(tmp_path, stored, wanted):
    """The first file says the type; the times of others were read as if they were microseconds."""
    seconds = pa.array([-1, 0, 1_767_225_600])
    for name, unit in (("a", wanted), ("b", stored)):
        times, per = FACTORS[unit]
        column = pa.array([second.as_py() * 10**6 * per // times for second in seconds])
        pq.write_table(
            pa.table({"t": column.cast(pa.timestamp(unit))}), tmp_path / f"{name}.parquet"
        )
    source = FilesSource(path=f"{tmp_path}/*.parquet")
    rows = pa.concat_tables([chunk.rows for chunk in source.read(None, 100)])
    assert source.schema().field("t").type.unit == ("ms" if wanted == "s" else wanted)
    found = micros(rows["t"], "t").to_pylist()
    assert found == [second.as_py() * 10**6 for second in seconds] * 2


def test_times_that_a_finer_unit_cannot_hold_are_none():
    times = pa.chunked_array([pa.array([0, 2**62]).cast(pa.timestamp("us"))])
    assert cast_or_null(times, pa.timestamp("ns")).is_null().to_pylist() == [False, True]
