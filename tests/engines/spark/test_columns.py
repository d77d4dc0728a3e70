"""Packed columns: what comes back is what went in, and damage is seen."""

from __future__ import annotations

import numpy as np
import pytest

from streamveil.engines.spark.columns import pack, unpack
from streamveil.errors import StoreError

EDGES = np.iinfo(np.int64)
COLUMNS = {
    "fingerprints": np.random.default_rng(0).integers(0, 2**64, 300, np.uint64),
    "near the top": np.uint64(2**64 - 1) - np.arange(70, dtype=np.uint64),
    "near the bottom": EDGES.min + np.arange(300),
    "both ends": np.array([EDGES.min, EDGES.max]),
    "odd one late": np.append(np.zeros(1000, np.int64), EDGES.max),
    "one value": np.full(9, -7, np.int32),
    "bytes": np.arange(-128, 128).astype(np.int8),
    "matrix": np.arange(12).reshape(4, 3) - 5,
    "no columns": np.zeros((5, 0), np.int64),
    "nothing": np.zeros(0, np.uint8),
    "flags": np.array([True, False, True]),
    "reals": np.array([np.nan, -0.0, np.inf]),
    "single": np.array(3, np.int64),
    "repeated": np.broadcast_to(np.int64(4), 6),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_comes_back_as_it_was(name):
    column = COLUMNS[name]
    _, found = unpack(b"".join(pack({}, {"x": column, "after": np.arange(3)})))
    assert found["x"].dtype == column.dtype
    assert found["x"].shape == column.shape
    assert found["x"].tobytes() == column.tobytes()
    assert found["after"].tolist() == [0, 1, 2]


def test_close_integers_take_less_room():
    wide = len(b"".join(pack({}, {"x": COLUMNS["fingerprints"]})))
    for name in ("near the bottom", "odd one late", "one value", "repeated"):
        column = COLUMNS[name]
        assert len(b"".join(pack({}, {"x": column}))) < column.nbytes + 200
    assert wide >= COLUMNS["fingerprints"].nbytes
    assert len(b"".join(pack({}, {"x": COLUMNS["near the bottom"]}))) < wide / 2


@pytest.mark.parametrize("place", [2, 9, 40, -3])
def test_damage_is_seen(place):
    data = bytearray(b"".join(pack({"a": 1}, {"x": np.arange(50)})))
    data[place] ^= 4
    with pytest.raises(StoreError, match=r"checksum|cut short"):
        unpack(data)
    with pytest.raises(StoreError, match="checksum"):
        unpack(data[: len(data) // 2])
