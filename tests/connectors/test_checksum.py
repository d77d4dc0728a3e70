"""Checksums are those of zlib, whichever library computes them."""

from __future__ import annotations

import importlib
import sys
import zlib
from collections.abc import Iterator

import numpy as np
import pytest

from streamveil import disk

DATA = np.random.default_rng(1).integers(0, 256, 1 << 16, np.uint8)


@pytest.fixture(params=["isal", "zlib"])
def library(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "zlib":
            patch.setitem(sys.modules, "isal.isal_zlib", None)  # cannot be imported
        else:
            pytest.importorskip("isal.isal_zlib")
        importlib.reload(disk)
        assert (disk.crc32 is zlib.crc32) == (request.param == "zlib")
        yield
    importlib.reload(disk)


@pytest.mark.usefixtures("library")
def test_the_values_are_those_of_zlib() -> None:
    for size in (0, 1, 3, 15, 16, 17, 63, 64, 65, 255, 1000, 5121, len(DATA)):
        for start in range(0, 20, 3):
            part, before = DATA[start : start + size], zlib.crc32(DATA[:start])
            for given in (part.data, part.tobytes(), bytearray(part)):
                assert disk.crc32(given) == zlib.crc32(given)
                assert disk.crc32(given, before) == zlib.crc32(given, before)
            assert disk.crc32(part.data, before) == zlib.crc32(DATA[: start + size])
