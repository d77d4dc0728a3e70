"""Frames: what is written is what is read; anything else is refused."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from streamveil.errors import StoreError
from streamveil.runtime import frame

DTYPES = st.sampled_from(sorted(frame.DTYPES)).map(np.dtype)
SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5)
ARRAYS = DTYPES.flatmap(lambda dtype: hnp.arrays(dtype, SHAPES))


def decode(data: bytes | bytearray) -> frame.Frame:
    """The frame that some bytes start with."""
    return frame.read(BytesIO(data), len(data))


@given(st.dictionaries(st.text(max_size=4), ARRAYS, max_size=4), st.lists(st.binary(max_size=20)))
def test_round_trip(arrays: dict[str, np.ndarray], blobs: list[bytes]) -> None:
    data = b"".join(frame.encode({"batch": 3}, arrays, blobs))
    read = decode(data + b"what follows")
    assert read.head == {"batch": 3}
    assert read.size == len(data)
    assert [bytes(blob) for blob in read.blobs] == blobs
    assert list(read.arrays) == list(arrays)
    for name, array in arrays.items():
        assert read.arrays[name].dtype == array.dtype
        assert read.arrays[name].shape == array.shape
        assert read.arrays[name].tobytes() == array.tobytes()
        assert read.arrays[name].flags.writeable


@pytest.mark.parametrize("items", [3, 40_000, 400_000])
@pytest.mark.parametrize("start", [0, 4096, 5000])
def test_a_frame_that_is_put_together_has_the_same_bytes(items: int, start: int) -> None:
    arrays = {"names": np.arange(items, dtype=np.uint64) << np.uint64(44), "some": np.arange(77)}
    laid = frame.laid_out({"batch": 3}, arrays, [b"abc", b""])
    with frame.gathered(*laid, start=start) as buffers:
        whole = b"".join(buffers)
    assert whole == b"".join(frame.encode({"batch": 3}, arrays, [b"abc", b""], start=start))
    assert (decode(whole).arrays["names"] == arrays["names"]).all()


def test_integers_take_the_fewest_bytes() -> None:
    wide = {
        "constant": np.full((1000, 3), 7),
        "small": np.arange(200),
        "names": np.arange(1000, dtype=np.uint64) << np.uint64(54),
        "signed": np.arange(-5, 100),
    }
    size = sum(map(len, frame.encode({}, wide)))
    assert size < 8 + 200 + 8000 + 112 + 500, size
    for name, array in decode(b"".join(frame.encode({}, wide))).arrays.items():
        assert array.dtype == wide[name].dtype
        assert (array == wide[name]).all()
        assert array.flags.writeable


@given(
    hnp.arrays(
        np.int64,
        st.integers(0, 9),
        elements=st.sampled_from(
            [0, 1, -1, 127, 128, -128, -129, 255, 256, 65535, 2**31, 2**32 - 1, -(2**63), 2**63 - 1]
        ),
    )
)
def test_narrowing_is_lossless(array: np.ndarray) -> None:
    assert (decode(b"".join(frame.encode({}, {"x": array}))).arrays["x"] == array).all()


def test_every_changed_bit_and_every_cut_is_seen() -> None:
    data = bytearray(b"".join(frame.encode({"a": 1}, {"x": np.arange(3)}, [b"abc"])))
    for place in range(len(data)):
        for bit in range(8):
            data[place] ^= 1 << bit
            with pytest.raises(frame.TornFrameError):
                decode(data)
            data[place] ^= 1 << bit
        with pytest.raises(frame.TornFrameError):
            decode(data[:place])
    assert decode(data).head == {"a": 1}


@pytest.mark.parametrize(
    "array",
    [
        np.array([None]),
        np.array(["a"]),
        np.zeros(1, ">i8"),
        np.zeros(1, "M8[us]"),
        np.zeros(1, [("a", "i8")]),
    ],
)
def test_other_dtypes_are_refused_when_written(array: np.ndarray) -> None:
    with pytest.raises(StoreError, match="never stored"):
        frame.encode({}, {"x": array})


def test_other_dtypes_are_refused_when_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame, "DTYPES", frame.DTYPES | {"|O"})
    with pytest.raises((StoreError, ValueError, TypeError)):
        frame.encode({}, {"x": np.array([None])})
    monkeypatch.setattr(frame, "DTYPES", frame.DTYPES | {"|S8"})
    data = b"".join(frame.encode({}, {"x": np.array([b"12345678"])}))
    monkeypatch.undo()
    with pytest.raises(StoreError, match="never writes"):
        decode(data)


def test_an_unknown_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame, "VERSION", 99)
    data = b"".join(frame.encode({}, {}))
    monkeypatch.undo()
    with pytest.raises(StoreError, match="version 99"):
        decode(data)
