"""Releases as Parquet files: the same bytes wherever they are made, small where that is cheap."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamveil.connectors.parquet import to_parquet
from streamveil.connectors.sinks import FilesSink
from tests.released import made

ROWS = 20_000
RNG = np.random.default_rng(3)
TABLE = pa.table({
    "key": np.arange(ROWS), "noise": RNG.normal(size=ROWS), "few": RNG.integers(0, 9, ROWS) / 2,
    "whole": RNG.integers(0, 1 << 20, ROWS).astype(float), "text": [str(n) for n in range(ROWS)],
    "nulls": pa.array([None if n % 3 else float(n) for n in range(ROWS)]),
    "small": RNG.normal(size=ROWS).astype(np.float32), "same": np.full(ROWS, 7),
})  # fmt: skip


@pytest.mark.parametrize("room", [100, 100_000, 3 * TABLE.nbytes])
def test_the_bytes_do_not_depend_on_the_memory_they_are_made_in(room: int) -> None:
    known = bytes(to_parquet(TABLE))
    own = memoryview(bytearray(room))
    assert bytes(to_parquet(TABLE, own)) == known
    assert pq.read_table(pa.BufferReader(known)).equals(TABLE)


def test_only_what_shrinks_is_compressed() -> None:
    group = pq.ParquetFile(pa.BufferReader(to_parquet(TABLE))).metadata.row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    known = {column.path_in_schema: column.compression for column in columns}
    assert {name for name, word in known.items() if word == "SNAPPY"} == {
        "whole", "text", "nulls"
    }  # fmt: skip
    whole = columns[TABLE.column_names.index("whole")]
    assert whole.total_compressed_size < 0.6 * whole.total_uncompressed_size


@pytest.mark.parametrize(
    ("name", "word"),
    [("key", "DELTA_BINARY_PACKED"), ("same", "RLE_DICTIONARY"), ("few", "RLE_DICTIONARY"),
     ("noise", "PLAIN"), ("small", "PLAIN"), ("whole", "BYTE_STREAM_SPLIT"),
     ("text", "DELTA_BYTE_ARRAY")],
)  # fmt: skip
def test_every_column_has_its_encoding(name: str, word: str) -> None:
    group = pq.ParquetFile(pa.BufferReader(to_parquet(TABLE))).metadata.row_group(0)
    encodings = group.column(TABLE.column_names.index(name)).encodings
    assert word in encodings
    assert word == "RLE_DICTIONARY" or "RLE_DICTIONARY" not in encodings


def test_releases_of_one_sink_do_not_mix(tmp_path: Path) -> None:
    sink = FilesSink(str(tmp_path))
    for trigger, rows in enumerate([ROWS, 10, 0, 12_000]):
        sink.write("job", made(TABLE.slice(0, rows), 0, trigger))
    for trigger, rows in enumerate([ROWS, 10, 0, 12_000]):
        path = tmp_path / "job" / "window=0" / f"trigger={trigger:06d}.parquet"
        assert pq.read_table(path, partitioning=None).equals(TABLE.slice(0, rows))
