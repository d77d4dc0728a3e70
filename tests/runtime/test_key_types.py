"""Keys of every type: what a source holds is what every output shows."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import streamveil as sv
from streamveil.api import Query
from streamveil.batch import Release
from streamveil.core.noise import SilentNoise
from streamveil.errors import PlanError
from streamveil.plan import Plan, SinkSpec
from streamveil.runtime.run import run

pytestmark = pytest.mark.filterwarnings("ignore:insecure noise")
UNITS, LARGE = 600, 2**64 - 1
BUDGET = sv.Budget(epsilon=20, delta=1e-6)
DAYS = [dt.date(1900, 1, 1), dt.date(2026, 2, 3)]
TIMES = [dt.datetime(1900, 1, 1, tzinfo=dt.UTC), dt.datetime(2026, 1, 1, 0, 0, 0, 7, dt.UTC)]
KEYS = {
    "uint64": pa.array([5, 2**63 - 1, 2**63, LARGE], pa.uint64()),
    "uint64, coded": pa.array([5, 2**63, LARGE], pa.uint64()).dictionary_encode(),
    "uint32": pa.array([0, 2**32 - 1], pa.uint32()),
    "int8": pa.array([-128, 127], pa.int8()),
    "float32": pa.array([-3.5, 0.1], pa.float32()),
    "bool": pa.array([True, False]),
    "date32": pa.array(DAYS, pa.date32()),
    "date64": pa.array(DAYS, pa.date64()),
    "timestamp": pa.array(TIMES, pa.timestamp("us", "Asia/Tokyo")),
    "decimal": pa.array([Decimal("-3.30"), Decimal("1.10")], pa.decimal128(10, 2)),
    "decimal256": pa.array([Decimal("-3.30"), Decimal("1.10")], pa.decimal256(15, 2)),
    "binary": pa.array([b"", b"\0\xff"], pa.large_binary()),
    "fixed-size binary": pa.array([b"ab", b"\0\xff"], pa.binary(2)),
    "string": pa.array(["", "k\0y"], pa.large_string()),
    "text, coded": pa.array(["a", "k\0y"]).dictionary_encode(),
}


def rows_of(keys: pa.Array) -> pa.Table:
    """As many rows of each key, and of none, each of a unit of its own."""
    every = pa.chunked_array([keys, pa.nulls(1, keys.type)]).combine_chunks()
    n = len(every)
    return pa.table({
        "unit": range(UNITS * n), "k": every.take(pa.array([i % n for i in range(UNITS * n)])),
        "x": [1.0] * (UNITS * n),
    })  # fmt: skip


def grouped(table: pa.Table, **keys: Any) -> Query:
    """Counts by key."""
    stream = sv.memory(table, name="t").protect(unit="unit")
    asked = stream.group_by("k", **keys).agg(n=sv.count()).bound(max_rows=1)
    return asked.release(budget=BUDGET, name="q")


def answer(plan: Plan, state: Path) -> Release:
    """Of a query with one answer, without noise."""
    with run(plan, state=state, noise=SilentNoise(), insecure=True) as job:
        (release,) = job
    return release


def plain(keys: pa.Array) -> set[Any]:
    """The values; a decimal as a float, which it is read as."""
    return {float(v) if isinstance(v, Decimal) else v for v in [*keys.to_pylist(), None]}


@pytest.mark.parametrize("kind", KEYS)
def test_a_key_comes_out_as_it_went_in(kind: str, tmp_path: Path) -> None:
    keys = KEYS[kind]
    release = answer(grouped(rows_of(keys)).plan, tmp_path / "s")
    shown = release.table
    assert {*shown["k"].to_pylist()} == plain(keys)
    assert shown["n"].to_pylist() == [UNITS] * len(plain(keys))
    assert sv.read(tmp_path / "s").table.equals(shown)
    for value in plain(keys):
        found = sv.read(tmp_path / "s", key={"k": value}).table
        assert found["k"].to_pylist() == [value]


@pytest.mark.parametrize("kind", KEYS)
def test_public_groups_are_values_of_the_column(kind: str, tmp_path: Path) -> None:
    keys = KEYS[kind]
    public = sv.public([*keys.to_pylist(), None])
    shown = answer(grouped(rows_of(keys), keys=public).plan, tmp_path / "s").table
    assert {*shown["k"].to_pylist()} == plain(keys)
    assert shown["n"].to_pylist() == [UNITS] * len(plain(keys))


@pytest.mark.parametrize("format", ["parquet", "csv", "json"])
def test_large_numbers_are_the_same_in_every_sink(format: str, tmp_path: Path) -> None:
    sink = SinkSpec(name="out", kind="files", options={"path": str(tmp_path), "format": format})
    table = rows_of(KEYS["uint64"])
    answer(replace(grouped(table).plan, sinks=(sink,)), tmp_path / "s")
    (path,) = tmp_path.rglob(f"trigger=*.{format}")
    if format == "json":
        found = {json.loads(line)["k"] for line in path.read_text().splitlines()}
    else:
        read = pq.read_table if format == "parquet" else pyarrow.csv.read_csv
        kinds = {"convert_options": pyarrow.csv.ConvertOptions(column_types={"k": pa.uint64()})}
        found = {
            *read(path, **(kinds if format == "csv" else {"partitioning": None}))["k"].to_pylist()
        }
    assert found == plain(KEYS["uint64"])


def test_large_numbers_are_units_and_values_too(tmp_path: Path) -> None:
    n = 2 * UNITS
    table = pa.table({"unit": pa.array([LARGE - i for i in range(n)], pa.uint64()),
                      "x": pa.array([LARGE, LARGE - 1] * UNITS, pa.uint64())})  # fmt: skip
    asked = sv.memory(table).protect(unit="unit").agg(
        n=sv.count("x"), d=sv.count_distinct("x"), s=sv.sum("x", bounds=(0, 10))
    )  # fmt: skip
    shown = answer(asked.bound(max_rows=1).release(budget=BUDGET).plan, tmp_path / "s").table
    assert [shown[name][0].as_py() for name in "nds"] == [n, 2, 10 * n]


def test_large_numbers_are_combined_as_they_are(tmp_path: Path) -> None:
    table = rows_of(KEYS["uint64"])
    text = """
        SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 20, delta = 1e-6,
            privacy_unit_column = unit, max_groups_contributed = 1)
        k, SUM(x, contribution_bounds_per_group => (0, 1)) AS n FROM t GROUP BY k
    """
    shown = answer(sv.sql(text, {"t": table}).plan, tmp_path / "s").table
    assert {*shown["k"].to_pylist()} == plain(KEYS["uint64"])


@pytest.mark.parametrize("select", ["HEAVY_HITTERS(k, k => 5, bits => 64)", "APPROX_FREQUENCY(k)"])
def test_large_numbers_are_found_in_sketches(select: str, tmp_path: Path) -> None:
    pq.write_table(pa.table({"k": KEYS["uint64"]}), tmp_path / "known.parquet")
    known = f", public_groups = '{tmp_path / 'known.parquet'}'" if "APPROX" in select else ""
    text = f"""
        SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 20, delta = 1e-6,
            privacy_unit_column = unit, max_rows_contributed = 1{known})
        {select} AS n FROM t
    """
    shown = answer(sv.sql(text, {"t": rows_of(KEYS["uint64"])}).plan, tmp_path / "s").table
    assert shown["k"].type == pa.uint64()
    assert {*shown["k"].to_pylist()} == plain(KEYS["uint64"]) - {None}


@pytest.mark.parametrize(
    "keys",
    [pa.array([1, 2, 3], kind) for kind in (
        pa.timestamp("ns"), pa.decimal128(16, 0), pa.time64("us"), pa.duration("us"))],
    ids=lambda keys: str(keys.type),
)  # fmt: skip
def test_what_would_not_be_told_apart_is_refused_before_anything_is_made(
    keys: pa.Array, tmp_path: Path
) -> None:
    with pytest.raises(PlanError, match=r"column 'k' (has|of) type .*\n.*to fix"):
        answer(grouped(rows_of(keys)).plan, tmp_path / "s")
    assert not (tmp_path / "s").exists()


def test_rounding_in_the_query_says_that_groups_are_joined(tmp_path: Path) -> None:
    table = rows_of(pa.array([1_000, 1_001], pa.timestamp("ns")))
    asked = sv.memory(table).protect(unit="unit").group_by(k="TIMESTAMP_TRUNC(k, MICROSECOND)")
    plan = asked.agg(n=sv.count()).bound(max_rows=1).release(budget=BUDGET).plan
    assert answer(plan, tmp_path / "s").table["n"].to_pylist() == [UNITS, 2 * UNITS]


def test_periods_of_pandas_are_refused_as_they_would_be_numbers() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {"user": [1, 2], "m": pandas.period_range("2026-01", periods=2, freq="M")}
    )
    with pytest.raises(sv.SourceError, match=r"column 'm' has periods.*\n.*to_timestamp"):
        sv.memory(frame)
